"""Every decision is counted in where it is made and out where it ends, once, by model."""

from array import array
from types import SimpleNamespace

from picker.decision import Finished, Picked
from picker.edge.decisions import DecisionRing
from picker.edge.followers import Followers
from picker.edge.telemetry import Telemetry
from picker.edge.telemetry_view import PoolView
from picker.outcomes import Outcome, Reason


def view() -> PoolView:
    raise AssertionError("nobody reads the metrics here")


def routed(model: str | None) -> tuple[Picked, Finished]:
    charge = SimpleNamespace(hashes=array("Q", [7]))
    picked = Picked(("10.0.0.1:8000",), Reason.LOAD, None, charge, lambda: None)  # type: ignore[arg-type, return-value]
    record = Finished(outcome=Outcome.COMPLETED, path="chat_completions", model=model, reason=Reason.LOAD)
    return picked, record


def test_running_requests_are_counted_by_model_until_they_end():
    followers = Followers(DecisionRing(), Telemetry(view))
    records = []
    for model in ("a", "a", None):
        picked, record = routed(model)
        followers.decided(picked, record)
        records.append(record)
    assert followers.running_by_model == {"a": 2, "": 1}
    followers.finished(records[0])
    assert followers.running_by_model == {"a": 1, "": 1}
    followers.finished(records[2])
    followers.finished(Finished(outcome=Outcome.REJECTED, path="chat_completions", model="a"))  # was never routed
    assert followers.running_by_model == {"a": 1}
    followers.finished(records[1])
    assert followers.running_by_model == {}


def test_who_wants_to_know_of_ends_is_told_of_each():
    followers = Followers(DecisionRing(), Telemetry(view))
    told: list[Finished] = []
    followers.on_end.append(told.append)
    picked, record = routed("a")
    followers.decided(picked, record)
    assert told == []
    followers.finished(record)
    refused = Finished(outcome=Outcome.REJECTED, path="other")
    followers.finished(refused)
    assert told == [record, refused]


def test_hashes_outlive_a_request_only_for_a_recording():
    followers = Followers(DecisionRing(), Telemetry(view))
    picked, record = routed("a")
    followers.decided(picked, record)
    assert record.block_hashes is None
    followers.keeps_hashes = True
    picked, record = routed("a")
    followers.decided(picked, record)
    assert record.block_hashes == array("Q", [7])
