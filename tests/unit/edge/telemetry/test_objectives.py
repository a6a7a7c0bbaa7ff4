"""Who kept the target of their objective, who did not, and of whom nothing can be said."""

from typing import Any

import pytest

from picker.config import Config, Objective, Targets
from picker.decision import Finished
from picker.edge.telemetry.objectives import ObjectiveCounts
from picker.outcomes import Outcome, Usage

CONFIG = Config(
    objectives={
        "chat": Objective(ttft_seconds=0.5, tpot_seconds=0.05),
        "code": Objective(ttft_seconds=0.2),
        "batch": -1,
    },
    targets=Targets(ttft_seconds=2.0),
)


def judged(config: Config = CONFIG, /, **facts: Any) -> dict[tuple[str, ...], float]:
    counts = ObjectiveCounts()
    counts.reconfigure(config)
    given: dict[str, Any] = {
        "outcome": Outcome.COMPLETED,
        "status": 200,
        "streaming": True,
        "ttft_seconds": 0.4,
        "duration_seconds": 1.4,
        "usage": Usage(100, 21),
        "objective": "chat",
    }
    counts.judge(Finished(**{**given, **facts}))
    return {labels: child[0] for labels, child in counts.counters.children.items()}


@pytest.mark.parametrize(
    ("facts", "counted"),
    [
        ({}, {("chat", "ttft", "true"), ("chat", "tpot", "true")}),  # 1.0 s for 20 tokens: 0.05
        ({"duration_seconds": 1.42}, {("chat", "ttft", "true"), ("chat", "tpot", "false")}),
        ({"ttft_seconds": 0.51, "usage": None}, {("chat", "ttft", "false")}),
        ({"ttft_seconds": 0.5, "usage": Usage(100, 1)}, {("chat", "ttft", "true")}),
        ({"objective": "code"}, {("code", "ttft", "false")}),
        ({"objective": "batch"}, {("batch", "ttft", "true")}),
        ({"objective": None}, {("", "ttft", "true")}),
        ({"objective": "made up by a client"}, {("", "ttft", "true")}),
        ({"streaming": False, "ttft_seconds": None}, set()),
        ({"status": 404, "ttft_seconds": None, "usage": None}, set()),
        ({"status": 503, "ttft_seconds": None, "usage": None}, {("chat", "ttft", "false")}),
        ({"outcome": Outcome.SHED, "status": 429, "ttft_seconds": None, "usage": None}, {("chat", "ttft", "false")}),
        ({"outcome": Outcome.REJECTED, "status": 400, "ttft_seconds": None, "usage": None}, set()),
        (
            {"outcome": Outcome.ABORTED, "ttft_seconds": None, "duration_seconds": 0.6, "usage": None},
            {("chat", "ttft", "false")},
        ),
        ({"outcome": Outcome.ABORTED, "ttft_seconds": None, "duration_seconds": 0.4, "usage": None}, set()),
        ({"outcome": Outcome.ABORTED, "usage": Usage(100, 9)}, {("chat", "ttft", "true")}),
    ],
)
def test_each_request_is_judged_by_its_objective(facts: dict[str, Any], counted: set[tuple[str, ...]]) -> None:
    assert judged(**facts) == dict.fromkeys(counted, 1.0)


def test_without_any_target_nothing_is_judged() -> None:
    counts = ObjectiveCounts()
    counts.reconfigure(Config(objectives={"batch": -1, "chat": Objective(priority=2)}))
    assert counts.targets == {}


def test_a_change_of_the_file_changes_what_is_judged() -> None:
    counts = ObjectiveCounts()
    counts.reconfigure(CONFIG)
    counts.reconfigure(Config())
    assert counts.targets == {}
