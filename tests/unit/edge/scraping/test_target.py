"""Where a metrics page is looked for."""

import pytest

from picker.config import EngineMetrics
from picker.edge.scraping.target import targets
from picker.engines import ENGINES
from picker.pool.specs import EndpointSpec


def spec(address: str = "10.0.0.1:8000", metrics_url: str | None = None) -> EndpointSpec:
    return EndpointSpec(address=address, uid="u", name="n", metrics_url=metrics_url)


def urls(settings: EngineMetrics, engine: str | None = None, **more: str) -> list[str]:
    return [target.url for target in targets(spec(**more), settings, ENGINES[engine] if engine else None)]


def test_an_unknown_engine_is_looked_for_where_engines_keep_their_page() -> None:
    assert urls(EngineMetrics()) == [
        "http://10.0.0.1:8000/metrics",
        "http://10.0.0.1:8000/prometheus/metrics",
        "http://10.0.0.1:8002/metrics",
    ]


@pytest.mark.parametrize(
    ("engine", "url"),
    [
        ("vllm", "http://10.0.0.1:8000/metrics"),
        ("trtllm", "http://10.0.0.1:8000/prometheus/metrics"),
        ("triton", "http://10.0.0.1:8002/metrics"),
    ],
)
def test_a_known_engine_has_its_place(engine: str, url: str) -> None:
    assert urls(EngineMetrics(), engine) == [url]


def test_what_the_configuration_states_goes_before_the_engines_habit() -> None:
    assert urls(EngineMetrics(port=9100, path="/m", scheme="https"), "triton") == ["https://10.0.0.1:9100/m"]
    assert urls(EngineMetrics(port=9100)) == ["http://10.0.0.1:9100/metrics"]


def test_the_endpoints_own_url_goes_before_all() -> None:
    settings = EngineMetrics(port=9100)
    assert urls(settings, metrics_url="http://10.0.0.9:1/x?y=z") == ["http://10.0.0.9:1/x?y=z"]
    assert urls(settings, metrics_url="https://host") == ["https://host:443/metrics"]


def test_ipv6() -> None:
    assert urls(EngineMetrics(), address="[fd00::1]:8000")[0] == "http://[fd00::1]:8000/metrics"


@pytest.mark.parametrize("url", ["10.0.0.1:8000", "ftp://x/metrics", "http://", "http://h/a b", "http://h:99999/"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        urls(EngineMetrics(), metrics_url=url)
