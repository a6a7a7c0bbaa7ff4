"""Every registered scorer, on every kind of column: seconds that are finite, not negative, and one a slot."""

from typing import Any

import numpy as np
import pytest

from picker.config import Config, Routing, Weights
from picker.prefix.matches import NO_MATCH, Match
from picker.scheduling import loads, normalized, scorers
from picker.scheduling.columns import Columns, Shares, holdings
from picker.scheduling.loads import Bounds

ALL = {**scorers.SCORERS, **scorers.OPTIONAL_SCORERS}


def columns(
    width: int,
    *,
    kind: str = "busy",
    rows: dict[int, Any] | None = None,
    match: Match | None = None,
    shared: Shares = (),
    **more: Any,
) -> Columns:
    """Columns of `width` slots: an idle pool, a busy one, one full beyond measure, one of which nothing is known.

    `rows`: other values for rows of the table.
    """
    rng = np.random.default_rng(width)
    scale = {"idle": 0.0, "busy": 1.0, "full": 1e6, "unknown": 1.0}[kind]
    gauges = np.full(width, np.nan) if kind == "unknown" else rng.random(width)
    holds = rng.random(width) > 0.5 if kind != "idle" else np.zeros(width, dtype=bool)
    holders = sum(1 << slot for slot in np.flatnonzero(holds).tolist())
    table = np.ones((loads.ROWS, width))
    table[loads.REQUESTS] = np.floor(rng.random(width) * 10 * scale)
    table[loads.CONTEXT_TOKENS] = rng.random(width) * 1e5 * scale
    table[loads.OVER_TOKENS] = rng.random(width) * 1e5 * scale - 4e5
    table[loads.BACKLOG_TOKENS] = rng.random(width) * 1e4 * scale
    table[loads.FOREIGN] = 0.0 if kind == "unknown" else np.floor(rng.random(width) * 5 * scale)
    for row, values in (rows or {}).items():
        table[row] = values
    tokens = more.get("prompt_tokens", 25_600.0)
    match = Match(((holders, 100),) if holders else (), (), 100) if match is None else match
    found, nothing = holdings(match, (1 << width) - 1, tokens, 4.0, shared)
    given: dict[str, Any] = {
        "prompt_tokens": tokens,
        "bytes_per_token": 4.0,
        "output_tokens": 250.0,
        "mean_output_tokens": 250.0,
        "mean_uncached_tokens": 512.0,
        "matchable_blocks": match.blocks,
        "holdings": found,
        "nothing": nothing,
        "table": table,
        "bounds": Bounds(table[loads.REQUESTS].max(), table[loads.OVER_TOKENS].max()),
        "capacity_tokens": np.full(width, 4e5),
        "waiting_requests": gauges * 10,
        "kv_cache_utilization": gauges,
        "routing": Routing(),
    }
    return Columns(**(given | more))


def frozen(given: Columns) -> dict[str, bytes]:
    """Every column's bytes, and the columns made read-only: who writes raises."""
    held = {}
    for name in dir(given):
        value = None if name.startswith("_") else getattr(given, name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
            held[name] = value.tobytes()
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
    [{"prompt_tokens": 0.0, "match": NO_MATCH}, {"output_tokens": 0.0}, {"mean_uncached_tokens": 0.0}],
)
def test_a_scorer_stands_the_edges(name, edge):
    result = scorers.SCORERS[name](columns(4, **edge))
    assert np.isfinite(result).all() and (result >= 0).all()


@pytest.mark.parametrize("name", sorted(scorers.SCORERS))
def test_a_slower_or_fuller_endpoint_never_scores_better(name):
    counted = {
        loads.REQUESTS: 10.0,
        loads.CONTEXT_TOKENS: 1e5,
        loads.OVER_TOKENS: 1e5,
        loads.BACKLOG_TOKENS: 1e4,
        loads.FOREIGN: 10.0,
        loads.SLOWNESS: 1.0,
    }
    for worse, much in counted.items():
        # Of more requests that fill a cache together one ends sooner: they are worse where the prompt fits.
        fits = {loads.OVER_TOKENS: -1e6} if worse == loads.REQUESTS else {}
        given = columns(2, match=NO_MATCH, rows=counted | fits | {worse: np.array([1.0, 2.0]) * much})
        result = scorers.SCORERS[name](given)
        assert result[1] >= result[0], worse


DEARER: dict[str, tuple[dict[str, Any], ...]] = {
    "prefix": (
        {"match": Match(((1, 100),), (), 100)},
        {"rows": {loads.REQUESTS: [1.0, 20.0]}},
        {"rows": {loads.SLOWNESS: [1.0, 1.5]}},
    ),
    "queue": (
        {"rows": {loads.BACKLOG_TOKENS: [1e3, 1e4]}},
        {"rows": {loads.FOREIGN: [1.0, 9.0]}},
        {"rows": {loads.OVER_TOKENS: [1e4, 2e4]}},
        {"rows": {loads.OVER_TOKENS: [-1e5, -1e5], loads.REQUESTS: [1.0, 2000.0]}},
        {"rows": {loads.OVER_TOKENS: [-1e5, 1.0]}},
        {"rows": {loads.OVER_TOKENS: [1e4, 1e4], loads.REQUESTS: [20.0, 1.0]}},  # fewer who could make room
        {"rows": {loads.OVER_TOKENS: [1e4, 1e4]}, "capacity_tokens": np.array([4e5, 2e5])},
        {"rows": {loads.BACKLOG_TOKENS: [1e4, 1e4], loads.SLOWNESS: [1.0, 1.5]}},
    ),
    "kv": (
        {"rows": {loads.REQUESTS: [1.0, 20.0]}},
        {"rows": {loads.CONTEXT_TOKENS: [1e3, 1e5]}},
        {"rows": {loads.SLOWNESS: [1.0, 1.5]}},
    ),
    "lora": (
        {"adapter": (np.array([True, False]), np.array([False, False]))},
        {"adapter": (np.array([False, False]), np.array([False, True]))},
        {"adapter": (np.array([True, False]), np.array([True, True]))},
    ),
    "eviction": ({"fill": np.array([0.0, 0.5])}, {"fill": np.array([0.5, 1.0])}),
    "gpu": (
        {"gpu_utilization": np.array([0.2, 0.9])},
        {"gpu_utilization": np.array([0.5, 0.5]), "rows": {loads.SLOWNESS: [1.0, 1.5]}},
    ),
}
"""By scorer: what makes the second of two slots cost more."""


def test_every_scorer_says_what_costs_more():
    assert set(DEARER) == set(ALL)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in DEARER.items() for case in cases])
def test_what_costs_more_scores_higher(name, case):
    first, second = ALL[name](columns(2, **({"kind": "idle", "match": NO_MATCH} | case)))
    assert second > first


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
