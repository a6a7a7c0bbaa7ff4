"""LoRA: 0.5 s where the adapter is not loaded, 2 s where no slot is free, nothing for other requests."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.api.request import InferenceRequest
from picker.config import Config, Weights
from picker.director import Director
from picker.engines import read
from picker.engines.vllm import VLLM
from picker.pool.specs import EndpointSpec, EngineSample
from tests.unit.scheduling.recordings import METRICS_BUSY, METRICS_IDLE, MODELS

SQL = frozenset({"sql"})
NONE = frozenset()


def director(count=2, **config) -> Director:
    made = Director(Config(epsilon=0.0, **config))
    made.replace_endpoints(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(count))
    return made


def tell(made, uid, *, running=NONE, waiting=NONE, slots=2, at=1.0, models=None, **more):
    made.record_sample(
        EngineSample(
            uid=str(uid),
            taken_at_seconds=at,
            engine="vllm",
            models=models or frozenset({"m", "sql", "math", "law"}),
            adapters=frozenset({"sql", "math", "law"}),
            adapters_running=frozenset(running),
            adapters_waiting=frozenset(waiting),
            adapters_max=slots,
            **more,
        )
    )


def decide(made, model, now=1.0, seed=1):
    decision = made.decide(InferenceRequest(api="other", model=model), now=now, rng=Random(seed))
    made.datastore.check()
    made.adapters.check()
    return decision


def seconds(decision):
    """The `lora` seconds by endpoint, of those that the explanation shows."""
    return {int(each.name): each.seconds.get("lora") for each in decision.explain().endpoints}


def test_the_three_costs_are_those_of_the_rule():
    made = director(3)
    tell(made, 0, running={"sql"})
    tell(made, 1, running={"math"})
    tell(made, 2, running={"math", "law"})
    decision = decide(made, "sql")
    assert seconds(decision) == {0: 0.0, 1: 0.5, 2: 2.0}
    assert decision.addresses == ("10.0.0.0:80",)


def test_requests_for_the_base_model_pay_nothing_and_show_nothing():
    made = director()
    tell(made, 0, running={"sql", "math"})
    tell(made, 1)
    decision = decide(made, "m")
    assert set(seconds(decision).values()) == {None}


def test_an_adapter_that_waits_for_a_slot_is_not_loaded():
    """The engine shows it as waiting: both slots run others."""
    made = director()
    tell(made, 0, running={"math", "law"}, waiting={"sql"})
    tell(made, 1, running={"math"})
    assert seconds(decide(made, "sql")) == {0: 2.0, 1: 0.5}


def test_one_that_runs_and_waits_at_once_is_loaded():
    """As recorded: `running_lora_adapters="sql",waiting_lora_adapters="sql"`."""
    made = director(1)
    tell(made, 0, running={"sql"}, waiting={"sql"})
    assert seconds(decide(made, "sql")) == {0: 0.0}


def test_a_burst_for_one_adapter_gathers_before_any_gauge_moves():
    made = director(4)
    for uid in range(4):
        tell(made, uid)
    counts = Counter(decide(made, "sql", seed=seed).addresses[0] for seed in range(8))
    assert len(counts) == 1, "half a second of loading is more than eight short requests in flight"


def test_bursts_for_several_adapters_spread_over_the_slots():
    made = director(2)
    for uid in range(2):
        tell(made, uid, slots=1)
    sql, math = decide(made, "sql"), decide(made, "math")
    assert sql.addresses != math.addresses, "its only slot is taken by our own request"
    assert decide(made, "sql").addresses == sql.addresses and decide(made, "math").addresses == math.addresses


def test_what_was_used_last_stays_loaded_after_its_requests_end():
    made = director(2)
    for uid in range(2):
        tell(made, uid)
    first = decide(made, "sql")
    made.finish(first.booking, reached=True)
    for uid in range(2):
        tell(made, uid, at=2.0)  # idle engines show no adapter
    assert decide(made, "sql", now=2.0).addresses == first.addresses


def test_with_more_adapters_than_slots_the_one_used_longest_ago_makes_room():
    made = director(1)
    tell(made, 0, slots=2)
    for model in ("sql", "math", "law"):
        made.finish(decide(made, model).booking, reached=True)
    assert [seconds(decide(made, model))[0] for model in ("law", "math")] == [0.0, 0.0]
    made = director(1)
    tell(made, 0, slots=2)
    for model in ("sql", "math", "law"):
        made.finish(decide(made, model).booking, reached=True)
    assert seconds(decide(made, "sql"))[0] == 0.5


def test_a_stale_report_of_full_slots_starves_nobody():
    made = director(1)
    tell(made, 0, running={"math", "law"})
    assert seconds(decide(made, "sql"))[0] == 2.0
    made = director(1)
    tell(made, 0, running={"math", "law"})
    assert seconds(decide(made, "sql", now=60.0))[0] == 0.5


def test_a_restart_forgets_what_was_loaded():
    made = director(1)
    tell(made, 0, started_at_seconds=1.0)
    made.finish(decide(made, "sql").booking, reached=True)
    tell(made, 0, started_at_seconds=2.0)
    assert seconds(decide(made, "sql"))[0] == 0.5


def test_who_left_takes_its_adapters_along_and_releases_quietly():
    made = director(2)
    tell(made, 0)
    tell(made, 1)
    first = decide(made, "sql")
    gone = first.booking.endpoint.spec.uid
    made.replace_endpoints([each.spec for each in made.datastore.endpoints if each.spec.uid != gone])
    made.adapters.check()
    made.finish(first.booking, reached=True)
    made.adapters.check()
    assert set(seconds(decide(made, "sql")).values()) == {0.5}


def test_a_request_that_another_endpoint_served_counts_there():
    made = director(2)
    tell(made, 0)
    tell(made, 1)
    first = decide(made, "sql")
    other = next(each for each in made.datastore.endpoints if each is not first.booking.endpoint)
    assert made.served_by(first.booking, other.spec.address, 1.0)
    made.adapters.check()
    made.finish(first.booking, reached=True)
    made.adapters.check()
    assert seconds(decide(made, "sql"))[int(other.spec.name)] == 0.0


def test_the_weight_scales_it_and_zero_switches_it_off():
    made = director(weights=Weights(lora=0.0))
    tell(made, 0, running={"sql"})
    tell(made, 1, running={"math", "law"})
    picks = {decide(made, "sql", seed=seed).addresses[0] for seed in range(40)}
    assert len(picks) == 2


@pytest.mark.parametrize(
    ("page", "reported", "cost"), [(METRICS_IDLE, (None, None), 0.5), (METRICS_BUSY, (2, SQL), 0.0)]
)
def test_recordings_of_a_real_engine(page, reported, cost):
    """vLLM 0.32 with the adapter `sql`: before its first request it shows none, busy it shows `sql` running."""
    made = director(1)
    sample = read(VLLM, page, uid="0", now=1.0).sample
    assert (sample.adapters_max, sample.adapters_running) == reported
    made.record_sample(
        EngineSample(
            uid="0",
            taken_at_seconds=1.0,
            engine="vllm",
            models=MODELS,
            adapters=SQL,
            adapters_running=sample.adapters_running,
            adapters_waiting=sample.adapters_waiting,
            adapters_max=sample.adapters_max,
        )
    )
    assert seconds(decide(made, "sql"))[0] == cost


names = st.sampled_from(("sql", "math", "law"))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pick"), names, st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("tell"), st.frozensets(names, max_size=2), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_the_masks_follow_the_books_through_any_history(history):
    made = director(3)
    open_picks = []
    for uid in range(3):
        tell(made, uid)
    for what, value, uid in history:
        if what == "pick":
            open_picks.append(decide(made, value, seed=uid))
        elif what == "end" and open_picks:
            made.finish(open_picks.pop(value % len(open_picks)).booking, reached=True)
        elif what == "tell":
            tell(made, uid, running=value)
        elif what == "leave":
            specs = [each.spec for each in made.datastore.endpoints]
            made.replace_endpoints([spec for spec in specs if spec.uid != str(value)])
            made.replace_endpoints(specs)
            tell(made, value)
        made.adapters.check()
    for each in open_picks:
        made.finish(each.booking, reached=True)
    made.adapters.check()


def test_an_idle_adapter_that_the_engine_says_is_loaded_draws_its_requests():
    """Nobody asked for it through us, and it has no requests: only the engine can tell."""
    made = director(4)
    for uid in range(4):
        tell(made, uid, adapters_loaded=SQL if uid == 2 else NONE)
    assert decide(made, "sql").addresses[0] == "10.0.0.2:80"
    assert made.adapters.masks("sql", made.datastore.snapshot(1.0))[0].tolist() == [False, False, True, False]


def test_an_adapter_that_the_engine_says_is_gone_is_not_believed_to_be_there():
    """Without the report the last ones sent count as loaded; with it, only while they have requests."""
    made = director(1)
    tell(made, 0)
    (endpoint,) = made.datastore.endpoints
    made.adapters.picked(endpoint, "sql")
    made.adapters.released(endpoint, "sql")
    snapshot = made.datastore.snapshot(1.0)
    assert made.adapters.masks("sql", snapshot)[0].tolist() == [True]
    tell(made, 0, adapters_loaded=frozenset({"math"}))
    assert made.adapters.masks("sql", snapshot)[0].tolist() == [False]
    assert made.adapters.masks("math", snapshot)[0].tolist() == [True]
    made.adapters.picked(endpoint, "sql")
    assert made.adapters.masks("sql", snapshot)[0].tolist() == [True]
    made.adapters.released(endpoint, "sql")
    assert made.adapters.masks("sql", snapshot)[0].tolist() == [False]
    made.adapters.check()
