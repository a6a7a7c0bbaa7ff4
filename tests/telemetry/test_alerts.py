"""Every alert fires on series that show its trouble and stays quiet on healthy ones (promtool)."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "alerts" / "picker.yaml"

# A healthy picker, one sample a minute: 100 requests a second, hits as predicted, two endpoints alike.
HEALTHY: dict[str, str] = {
    'picker_build_info{job="p",version="1"}': "1+0x120",
    'picker_ready_endpoints{job="p"}': "10+0x120",
    'picker_ejected_endpoints{job="p"}': "1+0x120",
    'picker_unread_endpoints{job="p"}': "0+0x120",
    'picker_synced{job="p"}': "1+0x120",
    'picker_api_server_up{job="p"}': "1+0x120",
    'picker_config_last_reload_successful{job="p"}': "1+0x120",
    'picker_requests_total{job="p",outcome="completed"}': "0+6000x120",
    'picker_requests_total{job="p",outcome="shed"}': "0+60x120",
    'picker_requests_total{job="p",outcome="unavailable"}': "0+0x120",
    'picker_requests_total{job="p",outcome="failed"}': "0+0x120",
    'inference_objective_request_total{job="p",model_name="m"}': "0+6000x120",
    'inference_objective_request_error_total{job="p",error_code="500"}': "0+60x120",
    'inference_objective_request_error_total{job="p",error_code="429"}': "0+3000x120",
    'inference_extension_flow_control_pool_saturation{job="p",inference_pool="pool"}': "0.5+0x120",
    'picker_endpoint_in_flight_requests{job="p",endpoint="a"}': "30+0x120",
    **{f'picker_endpoint_in_flight_requests{{job="p",endpoint="{name}"}}': "20+0x120" for name in "bcdefgh"},
    'picker_endpoint_scrape_age_seconds{job="p",endpoint="a"}': "1+0x120",
    'picker_faults_total{job="p",where="decision"}': "0+0x120",
    'picker_served_total{job="p",by="picked"}': "0+6x120",
    'picker_served_total{job="p",by="another"}': "0+1x120",
    'picker_decision_seconds_bucket{job="p",le="0.0001"}': "0+5990x120",
    'picker_decision_seconds_bucket{job="p",le="0.02"}': "0+6000x120",
    'picker_decision_seconds_bucket{job="p",le="0.1"}': "0+6000x120",
    'picker_decision_seconds_bucket{job="p",le="+Inf"}': "0+6000x120",
    'picker_predicted_hit_tokens_total{job="p"}': "0+700000x120",
    'picker_observed_hit_tokens_total{job="p"}': "0+680000x120",
    'picker_hit_prompt_tokens_total{job="p"}': "0+1000000x120",
    'picker_recording_lost_total{job="p"}': "0+0x120",
    'picker_usage_lost_total{job="p"}': "0+0x120",
    'picker_shared_up{job="p"}': "1+0x120",
    'picker_memory_gave_way_total{job="p"}': "5+0x120",
    'picker_loop_lag_seconds_bucket{job="p",le="0.02"}': "0+3000x120",
    'picker_loop_lag_seconds_bucket{job="p",le="0.1"}': "0+3000x120",
    'picker_loop_lag_seconds_bucket{job="p",le="+Inf"}': "0+3000x120",
    'picker_index_bytes{job="p"}': "500+0x120",
    'picker_index_bytes_max{job="p"}': "1000+0x120",
    'picker_index_evictions_total{job="p"}': "0+6000x120",
    'picker_ttft_prediction_ratio_bucket{job="p",le="0.3"}': "0+100x120",
    'picker_ttft_prediction_ratio_bucket{job="p",le="1.0"}': "0+4000x120",
    'picker_ttft_prediction_ratio_bucket{job="p",le="3.0"}': "0+5000x120",
    'picker_ttft_prediction_ratio_bucket{job="p",le="10.0"}': "0+6000x120",
    'picker_ttft_prediction_ratio_bucket{job="p",le="+Inf"}': "0+6000x120",
    'picker_ttft_prediction_ratio_count{job="p"}': "0+6000x120",
}

# What differs from health so that exactly this alert fires (None: the series is gone).
TROUBLE: dict[str, dict[str, str | None]] = {
    "PickerAbsent": {'picker_build_info{job="p",version="1"}': None},
    "PickerNoReadyEndpoints": {
        'picker_ready_endpoints{job="p"}': "0+0x120",
        'picker_ejected_endpoints{job="p"}': "0+0x120",
    },
    "PickerNotSynced": {'picker_synced{job="p"}': "0+0x120"},
    "PickerUnavailableAnswers": {'picker_requests_total{job="p",outcome="unavailable"}': "0+6x120"},
    "PickerFaults": {'picker_faults_total{job="p",where="decision"}': "0+1x120"},
    "PickerNotHeeded": {
        'picker_served_total{job="p",by="picked"}': "0+2x120",
        'picker_served_total{job="p",by="another"}': "0+2x120",
    },
    "PickerApiServerUnreachable": {'picker_api_server_up{job="p"}': "0+0x120"},
    "PickerSharedStoreDown": {'picker_shared_up{job="p"}': "0+0x120"},
    "PickerConfigRejected": {'picker_config_last_reload_successful{job="p"}': "0+0x120"},
    "PickerRecordingLost": {'picker_recording_lost_total{job="p"}': "0+10x120"},
    "PickerUsageLost": {'picker_usage_lost_total{job="p"}': "0+10x120"},
    "PickerPoolSaturated": {
        'inference_extension_flow_control_pool_saturation{job="p",inference_pool="pool"}': "1.2+0x120"
    },
    "PickerShedding": {'picker_requests_total{job="p",outcome="shed"}': "0+600x120"},
    "PickerMemoryGaveWay": {'picker_memory_gave_way_total{job="p"}': "5+1x120"},
    "PickerEndpointsEjected": {'picker_ejected_endpoints{job="p"}': "4+0x120"},
    "PickerUpstreamErrors": {'inference_objective_request_error_total{job="p",error_code="500"}': "0+400x120"},
    "PickerLoadUneven": {'picker_endpoint_in_flight_requests{job="p",endpoint="a"}': "300+0x120"},
    "PickerEngineMetricsStale": {'picker_endpoint_scrape_age_seconds{job="p",endpoint="a"}': "5+60x120"},
    "PickerEngineMetricsMissing": {'picker_unread_endpoints{job="p"}': "2+0x120"},
    "PickerSlowDecisions": {'picker_decision_seconds_bucket{job="p",le="0.02"}': "0+5900x120"}
    | {'picker_decision_seconds_bucket{job="p",le="0.0001"}': "0+5900x120"},
    "PickerLoopLate": {'picker_loop_lag_seconds_bucket{job="p",le="0.02"}': "0+2900x120"},
    "PickerPrefixHitsBelowPrediction": {'picker_observed_hit_tokens_total{job="p"}': "0+100000x120"},
    "PickerIndexTooSmall": {'picker_index_bytes{job="p"}': "999+0x120"},
    "PickerTtftPredictionOff": {
        'picker_ttft_prediction_ratio_bucket{job="p",le="1.0"}': "0+200x120",
        'picker_ttft_prediction_ratio_bucket{job="p",le="3.0"}': "0+300x120",
    },
}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_rules_are_valid(promtool: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_explains_itself() -> None:
    assert [alert["alert"] for alert in alerts()] == list(TROUBLE)
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        runbook = alert["annotations"]["runbook"]
        assert re.fullmatch(r"Meaning: .*\nDo: .*\nSee: docs/runbook\.md#[a-z0-9-]+\n", runbook, re.DOTALL), alert[
            "alert"
        ]
        assert alert["annotations"]["summary"].endswith(".")


def test_every_alert_fires_on_its_trouble_and_on_nothing_else(promtool: Path, tmp_path: Path) -> None:
    """Two hours in: in health nobody fires, in each trouble its own alert and no other."""
    tests = [_case("health", {}, [])]
    tests += [_case(name, change, [name]) for name, change in TROUBLE.items()]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _case(name: str, change: dict[str, str | None], firing: list[str]) -> dict[str, Any]:
    assert change.keys() <= HEALTHY.keys(), name
    series = {**HEALTHY, **change}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items() if values is not None],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in firing],
            }
        ],
    }


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_a_template_in_an_annotation_names_labels_that_the_expression_keeps(alert: dict[str, Any]) -> None:
    wanted = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
    kept = re.findall(r"by \(([^)]*)\)", alert["expr"])
    if kept:
        assert wanted <= {name.strip() for name in kept[0].split(",")}
