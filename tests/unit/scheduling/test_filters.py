"""Who may be asked at all: labels by configuration and by header, models by what endpoints list."""

from random import Random

import pytest

from picker.api.hints import Hints
from picker.api.request import InferenceRequest
from picker.config import Config, EndpointLabels, load
from picker.decision import Picked
from picker.director import Director
from picker.outcomes import Unavailable
from picker.pool.labels import parse_selector
from picker.pool.specs import EndpointSpec, EngineSample
from picker.scheduling.filters.labels import SELECTORS_MAX

ROLE = "llm-d.ai/role"


def director(*labels, config=None) -> Director:
    made = Director(config or Config(epsilon=0.0))
    made.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at), labels=each)
        for at, each in enumerate(labels)
    )
    return made


def picked(made, *, model="m", seeds=40, **more):
    """Which endpoints such requests go to; empty where they are refused."""
    seen = set()
    for seed in range(seeds):
        decision = made.decide(InferenceRequest(api="other", model=model), now=1.0, rng=Random(seed), **more)
        if isinstance(decision, Picked):
            made.finish(decision.booking, reached=True)
            seen.add(int(decision.booking.endpoint.spec.uid))
        else:
            assert isinstance(decision, Unavailable)
            seen.add(decision.reason_word)  # type: ignore[arg-type]
    return seen


def asking(text):
    return Hints(labels=parse_selector(text))


@pytest.mark.parametrize(
    ("role", "serves"),
    [
        (None, True),
        ("decode", True),
        ("prefill-decode", True),
        ("both", True),
        ("encode-prefill-decode", True),
        ("prefill", False),
        ("encode", False),
        ("encode-prefill", False),
    ],
)
def test_by_default_only_servers_that_decode_get_requests(role, serves):
    """llm-d's decode filter takes decode, prefill-decode, both, encode-prefill-decode and unlabelled pods."""
    made = director({} if role is None else {ROLE: role}, {ROLE: "decode"})
    assert picked(made) == ({0, 1} if serves else {1})


def test_nobody_left_is_503_with_its_word():
    made = director({ROLE: "prefill"})
    assert picked(made) == {"labels_unmatched"}
    assert picked(made, hints=asking(f"{ROLE}=prefill")) == {"labels_unmatched"}, "a header only narrows"


def test_a_header_narrows_what_configuration_allows():
    labels = EndpointLabels(match={"tier": "gold"})
    made = director(
        {"tier": "gold", "zone": "a"},
        {"tier": "gold", "zone": "b"},
        {"zone": "a"},
        config=Config(endpoint_labels=labels),
    )
    assert picked(made) == {0, 1}
    assert picked(made, hints=asking("zone=a")) == {0}
    assert picked(made, hints=asking("zone!=a")) == {1}
    assert picked(made, hints=asking("zone=c")) == {"labels_unmatched"}


def test_labels_that_change_and_endpoints_that_join_count_at_once():
    made = director({"tier": "gold"}, {"tier": "silver"})
    gold = asking("tier=gold")
    assert picked(made, hints=gold) == {0}
    made.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at), labels={"tier": tier})
        for at, tier in enumerate(("silver", "gold", "gold"))
    )
    assert picked(made, hints=gold) == {1, 2}


def test_a_reload_changes_the_selector():
    made = director({"tier": "gold"}, {"tier": "silver"})
    assert picked(made) == {0, 1}
    made.reconfigure(load("epsilon: 0\nendpoint_labels: {match: {tier: gold}}"))
    assert picked(made) == {0}


def test_selectors_from_clients_take_bounded_room():
    made = director({"tier": "gold"})
    for number in range(3 * SELECTORS_MAX):
        picked(made, seeds=1, hints=asking(f"tier!=v{number}"))
    assert len(made.datastore.snapshot(1.0).label_masks) <= SELECTORS_MAX


def test_filters_meet_labels_models_and_the_subset():
    made = director({"tier": "gold"}, {"tier": "gold"}, {"tier": "silver"})
    for uid, models in (("0", {"base", "sql"}), ("1", {"base"}), ("2", {"base", "sql"})):
        made.record_sample(EngineSample(uid=uid, taken_at_seconds=1.0, engine="vllm", models=frozenset(models)))
    gold = asking("tier=gold")
    assert picked(made, model="sql") == {0, 2}
    assert picked(made, model="sql", hints=gold) == {0}
    assert picked(made, model="base", hints=gold) == {0, 1}
    assert picked(made, model="sql", subset=["10.0.0.1:80"]) == {"model_not_served"}
    assert picked(made, model="sql", hints=gold, subset=["10.0.0.2:80"]) == {"labels_unmatched"}
    assert picked(made, model="unheard of") == {0, 1, 2}, "left to the engines to refuse"


def test_ejection_never_widens_what_filters_left():
    """The only gold server fails: it is asked all the same, rather than one without the label."""
    made = director({"tier": "gold"}, {})
    for _ in range(3):
        decision = made.decide(InferenceRequest(api="other"), now=1.0, rng=Random(1), hints=asking("tier=gold"))
        made.answered(decision.booking, 503, 1.0)
        made.finish(decision.booking, reached=True)
    assert made.ejection.ejected(1.0) == [0]
    assert picked(made, hints=asking("tier=gold")) == {0} and picked(made) == {1}
