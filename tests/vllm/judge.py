"""What the contest must have shown, from its runs alone."""

from tests.vllm.contest import PICKER, ROUND_ROBIN, Run
from tests.vllm.servers import BLOCK_TOKENS, BLOCKS
from tests.vllm.stand import Finding

GAIN_MIN = 0.10
"""How much higher the hit rate must be behind the picker: its worst run against the best of round robin."""
EXPECTED_WITHIN = 0.15
"""How far the picker's expectation may be from what vLLM found, over a whole run."""


def judge(runs: list[Run], distinct_tokens: int) -> list[Finding]:
    """`distinct_tokens`: of all requests of a run together."""
    picked = [run for run in runs if run.policy == PICKER]
    return [
        Finding("contest", claim, holds, seen)
        for claim, holds, seen in (
            _pressure(distinct_tokens),
            _errors(runs),
            _gain(picked, [run for run in runs if run.policy == ROUND_ROBIN]),
            _usage(runs),
            _telemetry(picked),
            _expectation(picked),
        )
    ]


def _pressure(distinct_tokens: int) -> tuple[str, bool, str]:
    capacity = BLOCKS * BLOCK_TOKENS
    claim = "a server's cache holds more than half of the distinct tokens, and not all"
    return claim, capacity < distinct_tokens < 2 * capacity, f"{capacity:,} of {distinct_tokens:,}"


def _errors(runs: list[Run]) -> tuple[str, bool, str]:
    errors = sum(run.summary.errors for run in runs)
    first = next((run.first_error for run in runs if run.first_error is not None), "")
    return "no request failed", not errors, f"{errors} errors {first}".strip()


def _gain(picked: list[Run], others: list[Run]) -> tuple[str, bool, str]:
    worst, best = min(run.hit_rate for run in picked), max(run.hit_rate for run in others)
    claim = f"the picker's worst run hits at least {100 * GAIN_MIN:.0f} points more than the best of round robin"
    return claim, worst >= best + GAIN_MIN, f"{100 * worst:.1f} % and {100 * best:.1f} %"


def _usage(runs: list[Run]) -> tuple[str, bool, str]:
    engine = [(run.engine.queries_tokens, run.engine.hits_tokens) for run in runs]
    client = [(run.client_prompt_tokens, run.client_cached_tokens) for run in runs]
    claim = "answers' usage adds up to the engines' counters, to the token"
    return claim, client == engine, _of(client)


def _telemetry(picked: list[Run]) -> tuple[str, bool, str]:
    engine = [(run.engine.queries_tokens, run.engine.hits_tokens) for run in picked]
    booked = [(run.observed_of_tokens or 0.0, run.observed_tokens or 0.0) for run in picked]
    return "so does the picker's telemetry", booked == engine, _of(booked)


def _of(pairs: "list[tuple[int, int]] | list[tuple[float, float]]") -> str:
    return "; ".join(f"{hits:,.0f} of {prompt:,.0f}" for prompt, hits in pairs)


def _expectation(picked: list[Run]) -> tuple[str, bool, str]:
    gap = max(abs((run.predicted_rate or 0.0) - run.hit_rate) for run in picked)
    claim = f"what the picker expected is within {100 * EXPECTED_WITHIN:.0f} points of what vLLM found"
    return claim, gap <= EXPECTED_WITHIN, f"{100 * gap:.1f} points at most"
