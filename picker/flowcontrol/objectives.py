"""Priorities: the InferenceObjective that a request names, looked up."""

from collections.abc import Mapping

HEADERS = ("x-gateway-inference-objective", "x-llm-d-inference-objective")
"""The request header, and its alias."""

SHEDDABLE_BELOW = 0


def priority(name: str | None, objectives: Mapping[str, int]) -> int:
    """0 where none is named or the name is not known."""
    return objectives.get(name, 0) if name is not None else 0


def is_sheddable(priority_value: int) -> bool:
    """May be refused under load."""
    return priority_value < SHEDDABLE_BELOW
