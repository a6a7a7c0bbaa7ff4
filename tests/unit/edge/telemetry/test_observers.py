"""Every decision is counted in where it is made and out where it ends, once, by model."""

from array import array

from picker.decision import Booking, Finished, Picked
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.observers import Observers
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import PoolView
from picker.outcomes import Outcome, Reason
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec


def view() -> PoolView:
    raise AssertionError("nobody reads the metrics here")


def routed(model: str | None) -> tuple[Picked, Finished]:
    endpoint = Endpoint(EndpointSpec(address="10.0.0.1:8000", uid="1", name="pod-1"), 0)
    charge = Charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, memory_tokens=0.0, now=0.0)
    booking = Booking(charge, array("Q", [7]), None, model, None)
    picked = Picked(("10.0.0.1:8000",), Reason.LOAD, None, booking, lambda: None)  # type: ignore[return-value]
    record = Finished(outcome=Outcome.COMPLETED, path="chat_completions", model=model, reason=Reason.LOAD)
    return picked, record


def test_running_requests_are_counted_by_model_until_they_end():
    followers = Observers(DecisionRing(), Telemetry(view))
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


def test_those_with_a_priority_are_counted_by_it_too() -> None:
    followers = Observers(DecisionRing(), Telemetry(view))
    records = []
    for priority in (5, 5, -1, 0):
        picked, record = routed("a")
        record.priority = priority
        followers.decided(picked, record)
        records.append(record)
    assert followers.running_by_model == {"a": 4}
    assert followers.running_by_priority == {("a", 5): 2, ("a", -1): 1}
    for record in records[1:]:
        followers.finished(record)
    assert followers.running_by_priority == {("a", 5): 1}
    followers.finished(records[0])
    assert followers.running_by_priority == followers.running_by_model == {}


def test_who_wants_to_know_of_ends_is_told_of_each():
    followers = Observers(DecisionRing(), Telemetry(view))
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
    followers = Observers(DecisionRing(), Telemetry(view))
    picked, record = routed("a")
    followers.decided(picked, record)
    assert record.block_hashes is None
    followers.keeps_hashes = True
    picked, record = routed("a")
    followers.decided(picked, record)
    assert record.block_hashes == array("Q", [7])
