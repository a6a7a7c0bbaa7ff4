"""A director with endpoints and decisions, for the page's tests."""

from random import Random

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.decision import Finished, Picked
from picker.director import Director
from picker.edge.telemetry.decisions import DecisionRing
from picker.outcomes import Outcome
from picker.pool.specs import EndpointSpec, EngineSample

NOW = 100.0
KIB = 1024


def director_of(count: int, **config) -> Director:
    config.setdefault("epsilon", 0.0)
    director = Director(Config(**config))
    director.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{n}:80", uid=f"u{n}", name=f"pod-{n}") for n in range(count)
    )
    return director


def prompt(seed: int, size: int = 8 * KIB) -> InferenceRequest:
    text = Random(seed).randbytes(size)
    return InferenceRequest(api="completions", model="m", prompt=text, prompt_bytes=size)


def decide(
    director: Director, ring: DecisionRing, seed: int, now: float = NOW, request_id: str | None = None
) -> Picked:
    picked = director.decide(prompt(seed), now=now, rng=Random(seed))
    assert isinstance(picked, Picked)
    record = Finished(
        outcome=Outcome.COMPLETED,
        path="completions",
        model="m",
        reason=picked.reason,
        address=picked.addresses[0],
        request_id=request_id,
    )
    ring.add(picked, record)
    return picked


def read(director: Director, number: int, **values) -> None:
    director.record_sample(EngineSample(uid=f"u{number}", engine="vllm", **{"taken_at_seconds": NOW, **values}))
