"""What the page says after given requests, read with an independent parser."""

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.decision import Finished
from picker.edge.telemetry.models import CLASSES_MAX
from picker.edge.telemetry.page import ATTEMPTS_MAX, Telemetry
from picker.edge.telemetry.view import EndpointRow, KvEventCounts, PoolView
from picker.outcomes import Outcome, Reason, Usage

ROWS = (
    EndpointRow(
        name="vllm-0", address="10.0.0.1:8000", namespace="ns", waiting_requests=2, running_requests=4,
        kv_cache_utilization=0.2, scrape_age_seconds=0.5, in_flight_requests=3,
    ),
    EndpointRow(
        name="vllm-1", address="10.0.0.2:8000", namespace="ns", waiting_requests=4, running_requests=0,
        kv_cache_utilization=0.6, scrape_age_seconds=1.5, ejected=True,
    ),
    EndpointRow(name="vllm-2", address="10.0.0.3:8000", namespace="ns"),
)  # fmt: skip


def view(rows: Sequence[EndpointRow] = ROWS, **more: Any) -> PoolView:
    return PoolView(pool_name="pool", endpoints=rows, synced=True, **more)


def finished(**more: Any) -> Finished:
    given: dict[str, Any] = {
        "outcome": Outcome.COMPLETED,
        "path": "chat_completions",
        "model": "m",
        "status": 200,
        "reason": Reason.AFFINITY,
        "address": "10.0.0.1:8000",
        "matched_share": 0.75,
        "cached_share": 0.7,
        "decision_seconds": 0.00015,
        "predicted_ttft_seconds": 0.2,
        "ttft_seconds": 0.4,
        "duration_seconds": 2.4,
        "streaming": True,
        "request_bytes": 4000,
        "response_bytes": 900,
        "usage": Usage(1000, 11, 800),
    }
    return Finished(**{**given, **more})


def page_of(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = "".join(telemetry.parts())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(page) for s in f.samples}


def value(telemetry: Telemetry, name: str, /, **labels: str) -> float | None:
    return page_of(telemetry).get((name, tuple(sorted(labels.items()))))


def series(telemetry: Telemetry, name: str) -> list[dict[str, str]]:
    return [dict(labels) for found, labels in page_of(telemetry) if found == name]


L2 = {"model_name": "m", "target_model_name": "m"}


def test_a_request_under_our_names() -> None:
    telemetry = Telemetry(view)
    telemetry.finished(finished())
    telemetry.finished(finished(outcome=Outcome.ABORTED, reason=Reason.LOAD))
    assert value(telemetry, "picker_requests_total", outcome="completed", path="chat_completions") == 1
    assert value(telemetry, "picker_requests_total", outcome="aborted", path="chat_completions") == 1
    assert value(telemetry, "picker_decisions_total", reason="affinity") == 1
    assert value(telemetry, "picker_decisions_total", reason="load") == 1
    assert value(telemetry, "picker_matched_share_bucket", le="0.7") == 0
    assert value(telemetry, "picker_matched_share_bucket", le="0.8") == 2
    assert value(telemetry, "picker_decision_seconds_count") == 2
    assert value(telemetry, "picker_decision_seconds_bucket", le="0.0001") == 0
    assert value(telemetry, "picker_decision_seconds_bucket", le="0.0002") == 2


def test_prediction_against_observation() -> None:
    telemetry = Telemetry(view)
    telemetry.finished(finished())
    assert value(telemetry, "picker_ttft_prediction_ratio_sum") == pytest.approx(2.0)
    assert value(telemetry, "picker_predicted_hit_tokens_total") == pytest.approx(700)
    assert value(telemetry, "picker_observed_hit_tokens_total") == 800
    assert value(telemetry, "picker_hit_prompt_tokens_total") == 1000


def test_hits_count_only_where_usage_told_the_truth() -> None:
    telemetry = Telemetry(view)
    for usage in (None, Usage(1000, 11, None), Usage(None, 11, 800)):
        telemetry.finished(finished(usage=usage))
    telemetry.finished(finished(matched_share=None))
    assert value(telemetry, "picker_hit_prompt_tokens_total") == 0


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("request_duration_seconds", 2.4),
        ("request_ttft_seconds", 0.4),
        ("request_predicted_ttft_seconds", 0.2),
        ("request_tpot_seconds", 0.2),
        ("normalized_time_per_output_token_seconds", 2.4 / 11),
        ("request_sizes", 4000),
        ("response_sizes", 900),
        ("input_tokens", 1000),
        ("output_tokens", 11),
        ("prompt_cached_tokens", 800),
    ],
)
def test_a_request_under_the_names_that_dashboards_know(name: str, total: float) -> None:
    telemetry = Telemetry(view)
    telemetry.finished(finished())
    assert value(telemetry, f"inference_objective_{name}_sum", **L2) == pytest.approx(total)
    assert value(telemetry, f"inference_objective_{name}_count", **L2) == 1


def test_known_counters() -> None:
    telemetry = Telemetry(lambda: view(running_by_model={"m": 7}, index_blocks=42))
    telemetry.finished(finished(priority=-1))
    telemetry.finished(finished(status=500))
    telemetry.finished(finished(outcome=Outcome.ABORTED))
    telemetry.finished(
        finished(outcome=Outcome.UNAVAILABLE, status=503, reason=None, address=None, reject_word="empty")
    )
    assert value(telemetry, "inference_objective_request_total", priority="-1", **L2) == 1
    assert value(telemetry, "inference_objective_request_total", priority="0", **L2) == 3
    assert value(telemetry, "inference_objective_request_error_total", error_code="500", **L2) == 1
    assert value(telemetry, "inference_objective_request_error_total", error_code="503", **L2) == 1
    assert value(telemetry, "inference_objective_request_error_total", error_code="ClientDisconnected", **L2) == 1
    assert value(telemetry, "inference_objective_running_requests", model_name="m") == 7
    where = {"pod_name": "vllm-0", "namespace": "ns", "port": "8000", "target_model_name": "m"}
    assert value(telemetry, "inference_extension_scheduler_attempts_total", status="success", **where) == 3
    nowhere = {"pod_name": "", "namespace": "", "port": "", "target_model_name": "m"}
    assert value(telemetry, "inference_extension_scheduler_attempts_total", status="failure", **nowhere) == 1
    assert value(telemetry, "picker_refusals_total", reason="empty") == 1
    assert value(telemetry, "inference_extension_prefix_indexer_size") == 42
    assert value(telemetry, "inference_extension_prefix_indexer_hit_ratio_count") == 3
    assert value(telemetry, "inference_extension_scheduler_e2e_duration_seconds_count") == 4


def test_the_pool_is_averaged_over_what_is_known() -> None:
    telemetry = Telemetry(view)
    assert value(telemetry, "inference_pool_average_kv_cache_utilization", name="pool") == pytest.approx(0.4)
    assert value(telemetry, "inference_pool_average_queue_size", name="pool") == 3
    assert value(telemetry, "inference_pool_average_running_requests", name="pool") == 2
    assert value(telemetry, "inference_pool_ready_pods", name="pool") == 3
    assert value(telemetry, "inference_pool_per_pod_queue_size", name="pool", model_server_pod="vllm-1") == 4
    assert value(telemetry, "inference_pool_per_pod_queue_size", name="pool", model_server_pod="vllm-2") is None
    assert value(telemetry, "picker_ejected_endpoints") == 1
    assert value(telemetry, "picker_unread_endpoints") == 1
    age = {"endpoint": "vllm-1", "address": "10.0.0.2:8000"}
    assert value(telemetry, "picker_endpoint_scrape_age_seconds", **age) == 1.5
    assert value(telemetry, "picker_endpoint_scrape_age_seconds", endpoint="vllm-2", address="10.0.0.3:8000") is None


def test_an_unknown_average_is_absent_never_zero() -> None:
    telemetry = Telemetry(lambda: view(ROWS[2:]))
    assert value(telemetry, "inference_pool_average_kv_cache_utilization", name="pool") is None
    assert value(telemetry, "inference_pool_average_queue_size", name="pool") is None
    assert value(telemetry, "inference_pool_ready_pods", name="pool") == 1


def test_a_pod_of_several_ports_has_one_queue_series() -> None:
    rows = [ROWS[0], EndpointRow(name="vllm-0", address="10.0.0.1:8001", waiting_requests=9)]
    telemetry = Telemetry(lambda: view(rows))
    assert len(series(telemetry, "inference_pool_per_pod_queue_size")) == 1


def test_state_of_the_picker_itself() -> None:
    state: dict[str, Any] = {
        "index_bytes": 10,
        "index_bytes_max": 20,
        "index_evictions": 5,
        "requests_in_flight": 3,
        "saturation": 0.5,
    }
    telemetry = Telemetry(lambda: view(api_server_up=False, leader=True, **state))
    assert value(telemetry, "picker_index_bytes") == 10
    assert value(telemetry, "picker_index_bytes_max") == 20
    assert value(telemetry, "picker_index_evictions_total") == 5
    assert value(telemetry, "picker_requests_in_flight") == 3
    assert value(telemetry, "picker_api_server_up") == 0
    assert value(telemetry, "picker_leader") == 1
    assert value(telemetry, "picker_synced") == 1
    assert value(telemetry, "inference_extension_flow_control_pool_saturation", inference_pool="pool") == 0.5


def test_reloads() -> None:
    telemetry = Telemetry(view)
    assert value(telemetry, "picker_config_last_reload_successful") is None
    telemetry.config_reloaded(True)
    telemetry.config_reloaded(False)
    assert value(telemetry, "picker_config_reloads_total", result="failure") == 1
    assert value(telemetry, "picker_config_last_reload_successful") == 0


def test_clients_cannot_grow_the_page() -> None:
    telemetry = Telemetry(view, models_max=3)
    for number in range(600):
        telemetry.finished(finished(model=f"made-up-{number}", status=404, priority=number, reject_word=f"w{number}"))
        telemetry.finished(finished(outcome=Outcome.REJECTED, status=400, reason=None, reject_word=f"w{number}"))
    for number in range(5):
        telemetry.finished(finished(model=f"real-{number}"))
    models = {labels["model_name"] for labels in series(telemetry, "inference_objective_request_total")}
    assert models == {"other", "real-0", "real-1", "real-2"}
    assert len(series(telemetry, "picker_refusals_total")) <= 101
    assert len(series(telemetry, "inference_objective_request_total")) <= CLASSES_MAX + 4


def test_what_engines_list_keeps_a_place_of_its_own_whatever_names_clients_make_up() -> None:
    """Engines that take any name answer 200 to all of them."""
    telemetry = Telemetry(view, models_max=3, listed={"real", "adapter", "x" * 1000}.__contains__)
    for number in range(50):
        telemetry.finished(finished(model=f"junk-{number}"))
    telemetry.finished(finished(model="real"))
    telemetry.finished(finished(model="adapter", status=500))
    telemetry.finished(finished(model="x" * 1000))
    models = {labels["model_name"] for labels in series(telemetry, "inference_objective_request_total")}
    assert models == {"junk-0", "junk-1", "junk-2", "other", "real", "adapter"}


def test_engines_cannot_grow_the_page_either() -> None:
    telemetry = Telemetry(view, models_max=3, listed=lambda model: True)
    for number in range(50):
        telemetry.finished(finished(model=f"listed-{number}"))
    models = {labels["model_name"] for labels in series(telemetry, "inference_objective_request_total")}
    assert len(models) == 7  # three that are listed, three that were answered, and the others


def test_running_requests_admit_no_name() -> None:
    telemetry = Telemetry(lambda: view(running_by_model={"m": 1, "junk-1": 2, "junk-2": 3, "y" * 10**6: 1}))
    telemetry.finished(finished(model="m"))
    found = series(telemetry, "inference_objective_running_requests")
    assert {labels["model_name"] for labels in found} == {"m", "other"}
    assert value(telemetry, "inference_objective_running_requests", model_name="other") == 6


def test_a_model_that_nobody_asks_now_has_no_running_requests_which_is_known() -> None:
    """A gauge that vanished would leave an autoscaler where it is."""
    telemetry = Telemetry(view)
    assert series(telemetry, "inference_objective_running_requests") == []
    telemetry.finished(finished(priority=2))
    assert value(telemetry, "inference_objective_running_requests", model_name="m") == 0
    labels = {"fairness_id": "default-flow", "priority": "2", **L2}
    assert value(telemetry, "llm_d_epp_request_running", **labels) == 0


def test_the_series_of_an_endpoint_that_left_go_with_it() -> None:
    rows = list(ROWS)
    telemetry = Telemetry(lambda: view(rows))
    telemetry.finished(finished())
    assert len(series(telemetry, "inference_extension_scheduler_attempts_total")) == 1
    del rows[0]
    assert series(telemetry, "inference_extension_scheduler_attempts_total") == []
    assert telemetry._attempts == {}


def test_attempts_are_bounded() -> None:
    telemetry = Telemetry(view, models_max=10)
    for number in range(ATTEMPTS_MAX + 500):
        telemetry.finished(finished(address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000", model="m"))
    assert len(telemetry._attempts) <= ATTEMPTS_MAX + 1


def test_an_unseen_exchange_is_counted_and_nothing_else() -> None:
    telemetry = Telemetry(view)
    telemetry.finished(Finished(outcome=Outcome.UNSEEN))
    assert value(telemetry, "picker_requests_total", outcome="unseen", path="") == 1
    assert series(telemetry, "inference_objective_request_total") == []


def test_requests_may_finish_while_the_page_is_written() -> None:
    telemetry = Telemetry(view)
    telemetry.finished(finished())
    out = []
    for number, part in enumerate(telemetry.parts()):
        out.append(part)
        telemetry.finished(finished(model=f"m{number}", priority=number % 50, path=f"p{number % 5}"))
    for found in parse_text("".join(out)):
        counts = [s.value for s in found.samples if s.name.endswith("_bucket")]
        if found.type == "histogram" and len({s.labels.get("model_name") for s in found.samples}) == 1:
            assert counts == sorted(counts)


def test_both_formats_say_the_same() -> None:
    telemetry = Telemetry(lambda: view(saturation=0.1, api_server_up=True, leader=False, running_by_model={"m": 1}))
    telemetry.finished(finished())
    telemetry.config_reloaded(True)
    telemetry.scrape_failed()
    text = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in parse_text("".join(telemetry.parts()))
        for s in f.samples
    }
    page = "".join(telemetry.parts(openmetrics=True))
    openmetrics = {
        (s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_openmetrics(page) for s in f.samples
    }
    assert text == openmetrics
    assert page.endswith("# EOF\n")


def test_the_page_grows_with_the_pool_and_no_faster() -> None:
    def lines(count: int) -> int:
        rows = [
            EndpointRow(name=f"p{n}", address=f"10.0.{n >> 8}.{n & 255}:80", waiting_requests=1, scrape_age_seconds=1.0)
            for n in range(count)
        ]
        return "".join(Telemetry(lambda: view(rows)).parts()).count("\n")

    assert lines(1001) - lines(501) == lines(501) - lines(1)
    assert lines(1001) - lines(1) <= 6 * 1000


def test_kv_events_are_shown_where_somebody_listens():
    counts = KvEventCounts(
        events={"stored": 3, "removed": 2, "cleared": 1},
        gaps=4,
        replayed_batches=5,
        malformed=6,
        unmatched_blocks=7,
        lag_seconds=0.25,
        endpoints=2,
        whole_endpoints=1,
        confirmed_blocks=99,
    )
    telemetry = Telemetry(lambda: PoolView(pool_name="pool", kv_events=counts))
    assert value(telemetry, "picker_kv_events_total", kind="removed") == 2
    assert value(telemetry, "picker_kv_event_gaps_total") == 4
    assert value(telemetry, "picker_kv_event_unmatched_blocks_total") == 7
    assert value(telemetry, "picker_kv_event_whole_endpoints") == 1
    assert value(telemetry, "picker_kv_event_lag_seconds") == 0.25
    assert value(Telemetry(lambda: PoolView(pool_name="pool")), "picker_kv_event_gaps_total") is None
