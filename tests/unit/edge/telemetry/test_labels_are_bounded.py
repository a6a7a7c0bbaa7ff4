"""All families of the page at once, after a flood of names: labels are bounded in length, families in number."""

from collections import Counter
from random import Random

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.decision import Finished
from picker.edge.telemetry.models import CLASSES_MAX
from picker.edge.telemetry.page import ATTEMPTS_MAX, MODELS_MAX, Telemetry
from picker.edge.telemetry.series import CHILDREN_MAX, LABEL_CHARS_MAX
from picker.edge.telemetry.view import EndpointRow, PoolView
from picker.outcomes import Outcome, Reason, Usage

FLOOD = 6_000
ENDPOINTS = 40
LONG = "n" * 5_000


def flood(telemetry: Telemetry) -> None:
    """Everything that a client, a proxy or an engine may choose, different each time, and long half of the time."""
    rng = Random(1)

    def made_up(what: str, number: int) -> str:
        return f'{LONG if rng.random() < 0.5 else ""}{what} \x1b"{number}\n'

    for number in range(FLOOD):
        telemetry.finished(
            Finished(
                outcome=rng.choice(list(Outcome)),
                path=made_up("path", number),
                model=made_up("model", number),
                objective=made_up("objective", number),
                request_id=made_up("id", number),
                priority=number,
                status=rng.choice([200, 404, 429, 503, number % 600]),
                reason=rng.choice([None, *Reason]),
                reject_word=made_up("word", number),
                address=rng.choice([f"10.0.0.{number % ENDPOINTS}:8000", made_up("address", number)]),
                endpoint_name=made_up("name", number),
                matched_share=rng.random(),
                cached_share=rng.random(),
                decision_seconds=0.001,
                duration_seconds=1.0,
                ttft_seconds=0.5,
                usage=Usage(10, 10, 5),
            )
        )


def view() -> PoolView:
    return PoolView(
        pool_name=LONG,
        endpoints=[
            EndpointRow(name=f"{LONG}{n}", address=f"10.0.0.{n}:8000", namespace=LONG, waiting_requests=1)
            for n in range(ENDPOINTS)
        ],
        running_by_model={f"{LONG}{n}": 1 for n in range(FLOOD)},
        running_by_priority={(f"{LONG}{n}", n): 1 for n in range(1, FLOOD)},
        memory_bytes={"index": 1},
    )


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_label_of_every_family_is_bounded(openmetrics: bool) -> None:
    telemetry = Telemetry(view)
    flood(telemetry)
    page = "".join(telemetry.parts(openmetrics))
    series: Counter[str] = Counter()
    seen = set()
    for family in (parse_openmetrics if openmetrics else parse_text)(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, "a series twice"
            seen.add(key)
            if "le" not in sample.labels:
                series[sample.name] += 1
            for name, value in sample.labels.items():
                assert len(value) <= LABEL_CHARS_MAX, (sample.name, name)
    by_model = (CLASSES_MAX + MODELS_MAX + 2) * 202  # a status or a word of ours for each model and priority
    assert max(series.values()) <= max(CHILDREN_MAX + 1, ATTEMPTS_MAX + 2, by_model)
    assert series["picker_requests_total"] <= CHILDREN_MAX + 1
    assert series["inference_objective_running_requests"] <= MODELS_MAX + 2
    assert series["llm_d_epp_request_total"] <= CLASSES_MAX + MODELS_MAX + 2
    assert series["llm_d_epp_request_running"] <= CLASSES_MAX + MODELS_MAX + 2
    assert series["llm_d_epp_flow_control_requests_total"] <= 3 * (CLASSES_MAX + 1)
    assert series["picker_refusals_total"] <= 101
    assert series["inference_pool_per_pod_queue_size"] == ENDPOINTS
