"""The page has the names, types, labels and bounds that the llm-d router's source has (peer_metrics.yaml)."""

from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.decision import Finished
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import EndpointRow, KvEventCounts, PoolView
from picker.outcomes import Outcome, Reason, Usage
from tests.telemetry.peer_facts import EMITTED, NEWER

VIEW = PoolView(
    pool_name="pool",
    endpoints=[
        EndpointRow(
            name=f"vllm-{n}",
            address=f"10.0.0.{n}:8000",
            namespace="models",
            waiting_requests=n,
            running_requests=2 * n,
            kv_cache_utilization=n / 10,
            scrape_age_seconds=n,
            in_flight_requests=n,
            prefill_tokens=100.5 * n,
        )
        for n in (1, 2, 4)
    ],
    saturation=0.4,
    stale_seconds=3.0,
    index_blocks=7,
    running_by_model={"m": 3},
    running_by_priority={("m", -1): 1},
    kv_events=KvEventCounts(
        events={"stored": 1}, gaps=0, replayed_batches=0, malformed=0, unmatched_blocks=0, lag_seconds=None,
        endpoints=3, whole_endpoints=2, confirmed_blocks=0,
    ),
)  # fmt: skip


def request(**more: object) -> Finished:
    given: dict[str, object] = {
        "outcome": Outcome.COMPLETED,
        "path": "chat_completions",
        "model": "m",
        "status": 200,
        "reason": Reason.LOAD,
        "address": "10.0.0.1:8000",
        "matched_share": 0.5,
        "cached_share": 0.5,
        "decision_seconds": 0.00015,
        "predicted_ttft_seconds": 0.2,
        "ttft_seconds": 0.4,
        "duration_seconds": 2.4,
        "streaming": True,
        "request_bytes": 4000,
        "response_bytes": 900,
        "usage": Usage(1000, 11, 800),
    }
    return Finished(**{**given, **more})  # type: ignore[arg-type]


def filled() -> Telemetry:
    """With something in every family."""
    telemetry = Telemetry(lambda: VIEW)
    telemetry.finished(request())
    telemetry.finished(request(streaming=False, ttft_seconds=None, duration_seconds=3.0))
    telemetry.finished(request(priority=-1, status=500, ttft_seconds=0.02))
    telemetry.finished(request(outcome=Outcome.SHED, status=429, reason=None, priority=-1, matched_share=None))
    telemetry.finished(request(outcome=Outcome.UNAVAILABLE, status=503, reason=None, matched_share=None))
    telemetry.scrape_failed()
    return telemetry


@pytest.fixture(scope="module", params=["text", "openmetrics"])
def families(request: pytest.FixtureRequest) -> dict[str, Metric]:
    """By the name that its series have, but for the suffixes of a histogram."""
    openmetrics = request.param == "openmetrics"
    page = "".join(filled().parts(openmetrics))

    def named() -> Iterator[tuple[str, Metric]]:
        for family in (parse_openmetrics if openmetrics else parse_text)(page):
            yield (f"{family.name}_total" if family.type == "counter" else family.name), family

    return dict(named())


def test_every_name_of_theirs_is_known_to_the_table_and_emitted_unless_it_says_why_not(
    families: dict[str, Metric],
) -> None:
    theirs = {name for name in families if name.startswith(("llm_d_epp_", "inference_"))}
    assert theirs == set(EMITTED)
    assert len(NEWER) > 80


@pytest.mark.parametrize("name", EMITTED)
def test_a_metric_has_their_type_labels_and_bounds(families: dict[str, Metric], name: str) -> None:
    fact, family = EMITTED[name], families[name]
    assert family.type == fact.type
    assert family.samples, "nothing to compare"
    seen = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    assert seen == {fact.labels}
    if fact.type == "histogram":
        assert fact.bounds is not None
        les = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
        one = les[: len(fact.bounds) + 1]
        assert tuple(map(float, one)) == (*fact.bounds, float("inf"))
        assert les == one * (len(les) // len(one))


def samples(name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Series of that name by their labels, but for those that are the same everywhere."""
    page = "".join(filled().parts())
    same = {"model_name", "target_model_name", "fairness_id", "name", "inference_pool", "producer_name", "namespace"}
    return {
        tuple(sorted((label, value) for label, value in sample.labels.items() if label not in same)): sample.value
        for family in parse_text(page)
        for sample in family.samples
        if sample.name == name
    }


def test_priorities_are_told_apart_under_the_newer_names_and_add_up_under_the_older() -> None:
    assert samples("llm_d_epp_request_total") == {(("priority", "0"),): 3, (("priority", "-1"),): 2}
    assert samples("llm_d_epp_request_duration_seconds_count") == {(("priority", "0"),): 2, (("priority", "-1"),): 1}
    assert samples("inference_objective_request_duration_seconds_count") == {(): 3}
    assert samples("inference_objective_request_duration_seconds_sum") == {(): pytest.approx(2.4 + 3.0 + 2.4)}
    assert samples("inference_objective_request_duration_seconds_bucket")[(("le", "2.0"),)] == 0
    assert samples("inference_objective_request_duration_seconds_bucket")[(("le", "3.0"),)] == 3
    assert samples("llm_d_epp_request_running") == {(("priority", "0"),): 2, (("priority", "-1"),): 1}
    assert samples("inference_objective_running_requests") == {(): 3}
    error = "llm_d_epp_request_error_total"
    assert samples(error) == {
        (("error_code", "503"), ("priority", "0")): 1,
        (("error_code", "500"), ("priority", "-1")): 1,
        (("error_code", "429"), ("priority", "-1")): 1,
    }


def test_the_first_token_of_an_answer_that_is_not_streamed_comes_at_its_end() -> None:
    name = "llm_d_epp_request_ttft_seconds"
    assert samples(f"{name}_sum") == {
        (("priority", "0"), ("streaming", "true")): pytest.approx(0.4),
        (("priority", "0"), ("streaming", "false")): pytest.approx(3.0),
        (("priority", "-1"), ("streaming", "true")): pytest.approx(0.02),
    }
    assert samples("inference_objective_request_ttft_seconds_count") == {(): 2}


def test_admission_is_told_in_their_words() -> None:
    assert samples("llm_d_epp_flow_control_requests_total") == {
        (("outcome", "Dispatched"), ("priority", "0")): 2,
        (("outcome", "Dispatched"), ("priority", "-1")): 1,
        (("outcome", "RejectedCapacity"), ("priority", "-1")): 1,
        (("outcome", "RejectedNoEndpoints"), ("priority", "0")): 1,
    }
    assert samples("llm_d_epp_flow_control_pool_saturation") == {
        (("stage", "decode"),): 0.4,
        (("stage", "effective"),): 0.4,
    }
    assert samples("llm_d_epp_flow_control_stale_endpoints") == {(("detector", "utilization-detector"),): 1}


def test_the_pool() -> None:
    assert samples("llm_d_epp_average_queue_size") == {(): pytest.approx(7 / 3)}
    # Of a sample: the squares of 1, 2 and 4 from their mean add up to 42/9, over two.
    assert samples("llm_d_epp_std_dev_queue_size") == {(): pytest.approx((42 / 9 / 2) ** 0.5)}
    assert samples("llm_d_epp_ready_endpoints") == {(): 3}
    assert samples("llm_d_epp_kv_cache_events_active_subscribers") == {(): 3}
    in_flight = samples("llm_d_epp_inflight_tokens")
    assert in_flight == {(("endpoint_name", f"vllm-{n}"), ("priority", "")): 100.5 * n for n in (1, 2, 4)}


def test_ports_of_one_pod_add_up_where_only_its_name_tells_them_apart() -> None:
    rows = [
        EndpointRow(name="p", address=f"10.0.0.1:{port}", in_flight_requests=2, prefill_tokens=10.0)
        for port in (8000, 8001)
    ]
    page = "".join(Telemetry(lambda: PoolView(pool_name="pool", endpoints=rows)).parts())
    found = {s.name: s.value for family in parse_text(page) for s in family.samples if "inflight" in s.name}
    assert found == {"llm_d_epp_inflight_requests": 4, "llm_d_epp_inflight_tokens": 20}


def test_what_is_unknown_is_absent() -> None:
    rows = [EndpointRow(name="p", address="10.0.0.1:8000")]
    page = "".join(Telemetry(lambda: PoolView(pool_name="pool", endpoints=rows)).parts())
    found = {s.name for family in parse_text(page) for s in family.samples}
    assert "llm_d_epp_ready_endpoints" in found
    assert not {name for name in found if "average" in name or "std_dev" in name or "saturation" in name}
    assert "llm_d_epp_flow_control_stale_endpoints" not in found
