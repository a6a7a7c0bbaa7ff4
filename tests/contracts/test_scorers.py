"""Every registered scorer, on every kind of column: seconds that are finite, not negative, and one a slot."""

from typing import Any

import msgspec
import numpy as np
import pytest

from picker.config import Config, Routing, Weights
from picker.prefix.index import NO_MATCH, Match
from picker.scheduling import normalized, scorers
from picker.scheduling.columns import Columns

ALL = {**scorers.SCORERS, **getattr(scorers, "OPTIONAL_SCORERS", {})}


def columns(width: int, *, kind: str = "busy", **more: Any) -> Columns:
    """Columns of `width` slots: an idle pool, a busy one, one full beyond measure, one of which nothing is known."""
    rng = np.random.default_rng(width)
    scale = {"idle": 0.0, "busy": 1.0, "full": 1e6, "unknown": 1.0}[kind]
    gauges = np.full(width, np.nan) if kind == "unknown" else rng.random(width)
    prompt = 25_600.0
    holds = rng.random(width) > 0.5 if kind != "idle" else np.zeros(width, dtype=bool)
    holders = sum(1 << slot for slot in np.flatnonzero(holds).tolist())
    matched = holds * prompt
    values: dict[str, Any] = {
        "prompt_tokens": prompt,
        "bytes_per_token": 4.0,
        "output_tokens": 250.0,
        "mean_uncached_tokens": 512.0,
        "match": Match(((holders, 100),) if holders else (), (), 100),
        "unmatched_tokens": prompt - matched,
        "requests": np.floor(rng.random(width) * 10 * scale),
        "backlog_tokens": rng.random(width) * 1e4 * scale,
        "foreign_requests": None if kind == "unknown" else np.floor(rng.random(width) * 5 * scale),
        "mean_output_tokens": 250.0,
        "step_seconds": rng.random(width) * 1e-2 * scale,
        "memory_tokens": rng.random(width) * 1e5 * scale,
        "new_tokens": prompt - matched,
        "capacity_tokens": np.full(width, 4e5),
        "waiting_requests": gauges * 10,
        "kv_cache_utilization": gauges,
        "rate_inverse": np.full(width, 1e-4),
        "routing": Routing(),
    } | more
    known = {field.name for field in msgspec.structs.fields(Columns)}
    return Columns(**{name: value for name, value in values.items() if name in known})


def frozen(given: Columns) -> dict[str, bytes]:
    """Every column's bytes, and the columns made read-only: who writes raises."""
    held = {}
    for field in msgspec.structs.fields(Columns):
        value = getattr(given, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
            held[field.name] = value.tobytes()
    return held


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("kind", ["idle", "busy", "full", "unknown"])
@pytest.mark.parametrize("width", [1, 3, 1000])
def test_a_scorer_maps_columns_to_a_column_of_seconds(name, kind, width):
    given = columns(width, kind=kind)
    before = frozen(given)
    result = ALL[name](given)
    if result is None:
        assert name not in scorers.SCORERS, "only an optional scorer may have nothing to say"
        return
    assert result.shape == (width,) and result.dtype == np.float64
    assert np.isfinite(result).all() and (result >= 0).all()
    assert frozen(given) == before
    assert (ALL[name](given) == result).all(), "the same again: no state"
    result += 1.0  # a scorer's column is the caller's to change
    assert frozen(given) == before


@pytest.mark.parametrize("name", sorted(scorers.SCORERS))
@pytest.mark.parametrize(
    "edge",
    [{"prompt_tokens": 0.0, "unmatched_tokens": np.zeros(4)}, {"output_tokens": 0.0}, {"mean_uncached_tokens": 0.0}],
)
def test_a_scorer_stands_the_edges(name, edge):
    result = scorers.SCORERS[name](columns(4, **edge))
    assert np.isfinite(result).all() and (result >= 0).all()


@pytest.mark.parametrize("name", sorted(scorers.SCORERS))
def test_a_slower_or_fuller_endpoint_never_scores_better(name):
    base = columns(2, kind="busy", match=NO_MATCH, unmatched_tokens=np.full(2, 25_600.0))
    counted = ("requests", "backlog_tokens", "foreign_requests", "memory_tokens", "step_seconds")
    for worse in (*counted, "rate_inverse"):
        column = np.array([1.0, 2.0]) * {"rate_inverse": 1e-4, "step_seconds": 1e-2}.get(worse, 1e5)
        equal = {field: np.full(2, 1.0) for field in counted}
        given = msgspec.structs.replace(base, **(equal | {"rate_inverse": np.full(2, 1e-4)} | {worse: column}))
        result = scorers.SCORERS[name](given)
        assert result[1] >= result[0], worse


@pytest.mark.parametrize("name", sorted(scorers.SCORERS))
def test_each_scorer_has_a_weight_of_its_name(name):
    assert getattr(Weights(), name) > 0


@pytest.mark.parametrize("kind", ["idle", "busy", "unknown"])
@pytest.mark.parametrize("width", [1, 5])
def test_normalized_penalties_lie_between_nothing_and_one(kind, width):
    given = columns(width, kind=kind)
    before = frozen(given)
    cost, penalties = normalized.cost(given, Config().weights)
    for penalty in penalties.values():
        assert penalty.shape == (width,) and np.isfinite(penalty).all()
        assert (penalty >= 0).all() and (penalty <= 1).all()
    assert np.isfinite(cost).all() and frozen(given) == before
