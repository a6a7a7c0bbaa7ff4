"""GPU utilization by pod, off a DCGM exporter's page."""

from pathlib import Path

import pytest

from picker.engines.dcgm import gpu_utilization

PAGE = (Path(__file__).parents[2] / "fixtures" / "engines" / "dcgm-exporter.txt").read_bytes()


def test_pods_are_as_busy_as_their_busiest_gpu() -> None:
    assert gpu_utilization(PAGE) == pytest.approx(
        {("llm", "vllm-0"): 0.97, ("other", "vllm-0"): 0.12, ("llm", "vllm-mig"): 0.25}
    )


def test_labels_renamed_by_a_prometheus_in_between_name_the_real_pod() -> None:
    page = b'DCGM_FI_DEV_GPU_UTIL{exported_namespace="llm",exported_pod="a",namespace="gpu",pod="dcgm-x"} 40\n'
    assert gpu_utilization(page) == {("llm", "a"): 0.4}


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b'DCGM_FI_DEV_GPU_UTIL{pod="a"} NaN\n', b'DCGM_FI_DEV_GPU_UTIL{pod="a"} 101\n']
)
def test_a_page_without_measurements_tells_nothing(page: bytes) -> None:
    assert gpu_utilization(page) == {}
