"""Who serves which model: lists narrow, unknown lists are neutral, a model that nobody lists is left to the engines."""

from hypothesis import given
from hypothesis import strategies as st

from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.pool.specs import EndpointSpec, EngineSample

NAMES = ("base", "sql", "math")


def store(count):
    made = Datastore(InflightLedger(), stale_seconds=5, default_capacity_tokens=1000)
    made.replace(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(count))
    return made


def tell(made, uid, *models, adapters=None, at=0.0, **more):
    listed = frozenset(models) if models else None
    made.record(EngineSample(uid=uid, taken_at_seconds=at, engine="vllm", models=listed, adapters=adapters, **more))


def serving(made, model):
    mask = made.models.serving(model, made.snapshot(1.0))
    return None if mask is None else [slot for slot, stands in enumerate(mask.tolist()) if stands]


def test_a_model_goes_where_it_is_listed_and_where_nothing_is_known():
    made = store(3)
    assert serving(made, "sql") is None, "nothing is known: everybody stands"
    tell(made, "0", "base", "sql")
    tell(made, "1", "base")
    assert serving(made, "sql") == [0, 2], "2 never told"
    assert serving(made, "base") is None, "nobody is known not to have it"
    assert serving(made, "nobody's") is None and serving(made, None) is None
    made.check()


def test_an_adapter_that_is_loaded_or_unloaded_moves_with_the_list():
    made = store(2)
    tell(made, "0", "base", "sql")
    tell(made, "1", "base")
    assert serving(made, "sql") == [0]
    tell(made, "1", "base", "sql")
    assert serving(made, "sql") is None
    tell(made, "0", "base")
    assert serving(made, "sql") == [1]


def test_the_last_list_counts_when_a_later_reading_has_none_or_is_old():
    made = store(2)
    tell(made, "0", "base", "sql")
    tell(made, "1", "base")
    tell(made, "0")
    made.snapshot(10_000.0)
    assert serving(made, "sql") == [0]


def test_who_left_serves_nothing_and_its_slot_begins_unknown():
    made = store(2)
    tell(made, "0", "base", "sql")
    tell(made, "1", "base")
    made.replace([EndpointSpec(address="10.0.0.1:80", uid="1", name="1")])
    assert serving(made, "sql") is None, "nobody lists it any more"
    made.replace(EndpointSpec(address=f"10.0.0.{n}:80", uid=u, name=u) for n, u in ((1, "1"), (5, "new")))
    tell(made, "1", "base", "sql")
    assert serving(made, "sql") is None, "the newcomer's list is unknown"
    tell(made, "new", "base")
    (slot,) = serving(made, "sql")
    assert made.snapshot(1.0).endpoints[slot].spec.uid == "1"
    made.check()


def test_an_adapter_is_what_a_list_names_so_or_what_the_gauges_show():
    made = store(2)
    assert not made.models.is_adapter("sql") and not made.models.is_adapter(None)
    tell(made, "0", "base", "sql", adapters=frozenset({"sql"}))
    tell(made, "1", adapters_waiting=frozenset({"math"}), adapters_running=frozenset())
    assert made.models.is_adapter("sql") and made.models.is_adapter("math") and not made.models.is_adapter("base")
    tell(made, "1", adapters_waiting=frozenset(), adapters_running=frozenset())
    assert not made.models.is_adapter("math")
    made.check()


steps = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.frozensets(st.sampled_from(NAMES)), st.booleans()), max_size=30
)


@given(steps)
def test_any_history_of_lists_comes_to_what_the_last_ones_say(history):
    made = store(5)
    last: dict[int, frozenset[str] | None] = {}
    for number, models, leaves in history:
        if leaves:
            kept = [endpoint.spec for endpoint in made.endpoints if endpoint.spec.uid != str(number)]
            made.replace(kept)
            made.replace([*kept, EndpointSpec(address=f"10.0.0.{number}:80", uid=str(number), name="again")])
            last.pop(number, None)
        elif models is not None:
            made.record(EngineSample(uid=str(number), taken_at_seconds=0.0, engine="vllm", models=models))
            last[number] = models
        made.check()
        for name in NAMES:
            known = [uid for uid, models in last.items() if name in models]
            lacking = [uid for uid, models in last.items() if name not in models]
            mask = made.models.serving(name, made.snapshot(1.0))
            if not known or not lacking:
                assert mask is None
            else:
                stands = {int(e.spec.uid) for e in made.endpoints if mask[e.slot]}
                assert stands == set(range(5)) - set(lacking)
