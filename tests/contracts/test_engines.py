"""Every engine through one suite, on pages recorded or written from what it documents.

The expected values are read off the pages (tests/fixtures/engines/README.md says where these
come from); names and labels are checked against an independent parser.
"""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from picker.engines import ENGINES, Engine, engine_named, names, read, recognise
from picker.engines.exposition import find

FIXTURES = Path(__file__).parents[1] / "fixtures" / "engines"

# engine, then waiting, running, KV share, KV capacity, block size, prompt tokens, prefix queries and hits, adapters
PAGES: dict[
    str,
    tuple[
        str, int | None, int, float | None, int | None, int | None, float | None, float | None, float | None, int | None
    ],
] = {
    "vllm-0.32-idle": ("vllm", 0, 0, 0.0, 1048576, 32, 0.0, 0.0, 0.0, None),
    "vllm-0.32-busy": ("vllm", 0, 12, 0.0027466658528397803, 1048576, 32, 15239.0, 15239.0, 11232.0, 2),
    "vllm-0.32-after": ("vllm", 0, 0, 0.0, 1048576, 32, 15239.0, 15239.0, 11232.0, 2),
    "vllm-0.8": ("vllm", 3, 8, 0.62, 440960, 16, 123456.0, 4000.0, 1000.0, None),
    "sglang-0.5": ("sglang", 6, 16, 0.71, 800000, 64, 8128902.0, 8128902.0, 640000.0, 8),
    "sglang-0.4": ("sglang", 2826, 162, 0.28, 442368, 16, 8128902.0, 8128902.0, None, None),
    "trtllm-1.2": ("trtllm", 1, 3, 0.62, 3240192, 32, 52000.0, 52000.0, 13000.0, None),
    "triton-25": ("triton", 5, 7, 0.4, 400000, 64, None, None, None, None),
    "triton-23.11": ("triton", None, 1, 1 / 6239, 399296, 64, None, None, None, None),
    "llamacpp-2026": ("llamacpp", 2, 3, None, None, None, 15234.0, None, None, None),
    "llamacpp-2024": ("llamacpp", 1, 3, 0.42, None, None, None, None, None, None),
}

MISSING = {"triton-23.11": ("waiting_requests",)}


def page_of(name: str) -> bytes:
    return (FIXTURES / f"{name}.txt").read_bytes()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_stands_in_it(name: str) -> None:
    engine_name, waiting, running, kv, capacity, block, prompt, queries, hits, slots = PAGES[name]
    page = page_of(name)
    engine = recognise(page)
    assert engine is not None and engine.name == engine_name
    result = read(engine, page, uid="u", now=1.0)
    sample = result.sample
    assert sample.engine == engine_name
    assert sample.waiting_requests == waiting
    assert sample.running_requests == running
    assert sample.kv_cache_utilization == (kv if kv is None else pytest.approx(kv))
    assert sample.kv_capacity_tokens == capacity
    assert sample.block_size_tokens == block
    assert sample.prompt_tokens_total == prompt
    assert sample.prefix_queries_total == queries
    assert sample.prefix_hits_total == hits
    assert sample.adapters_max == slots
    assert result.missing == MISSING.get(name, ())


def test_the_recorded_adapter_runs_and_waits_at_once_and_is_gone_afterwards() -> None:
    busy = read(ENGINES["vllm"], page_of("vllm-0.32-busy"), uid="u", now=1.0).sample
    after = read(ENGINES["vllm"], page_of("vllm-0.32-after"), uid="u", now=1.0).sample
    idle = read(ENGINES["vllm"], page_of("vllm-0.32-idle"), uid="u", now=1.0).sample
    assert (busy.adapters_running, busy.adapters_waiting) == ({"sql"}, {"sql"})
    assert (after.adapters_running, after.adapters_waiting) == (frozenset(), frozenset())
    assert (idle.adapters_running, idle.adapters_waiting) == (None, None)
    assert busy.started_at_seconds == 1796010998.57


@pytest.mark.parametrize("name", PAGES)
def test_each_series_of_a_page_is_found_as_an_independent_parser_finds_it(name: str) -> None:
    page = page_of(name)
    expected: dict[str, list[tuple[dict[str, str], float]]] = {}
    text = page.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The reference parser calls a counter ..._total whether or not the page does.
            if f"\n{sample.name}" in text:
                expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    assert len(expected) >= 2
    for series_name, rows in expected.items():
        assert [(one.labels, one.value) for one in find(page, series_name.encode())] == rows, series_name


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
class TestEveryEngine:
    def test_is_listed_under_its_name(self, engine: Engine) -> None:
        assert ENGINES[engine.name] is engine
        assert engine_named(engine.name.upper()) is engine

    def test_has_a_page_among_the_fixtures(self, engine: Engine) -> None:
        assert any(page[0] == engine.name for page in PAGES.values())

    @pytest.mark.parametrize("page", [b"", b"\n", b"# HELP", b"<html>", b'[{"numActiveRequests": 1}]', b"\xff\xfe{"])
    def test_knows_nothing_from_a_page_that_is_none(self, engine: Engine, page: bytes) -> None:
        result = read(engine, page, uid="u", now=1.0)
        assert result.missing == engine.expected
        for field in ("waiting_requests", "running_requests", "kv_cache_utilization", "kv_capacity_tokens"):
            assert getattr(result.sample, field) is None
        assert recognise(page) is None

    @pytest.mark.parametrize("nonsense", ["NaN", "-1", "+Inf", "1e400", "x"])
    def test_takes_nonsense_for_unknown(self, engine: Engine, nonsense: str) -> None:
        name = next(name for name, page in PAGES.items() if page[0] == engine.name)
        lines = page_of(name).decode().splitlines()
        broken = "\n".join(line if line[:1] == "#" else f"{line.rpartition(' ')[0]} {nonsense}" for line in lines)
        sample = read(engine, broken.encode(), uid="u", now=1.0).sample
        assert sample.waiting_requests is None
        assert sample.running_requests is None
        assert sample.kv_cache_utilization is None
        assert sample.started_at_seconds is None
        assert sample.adapters_running is None

    def test_expects_only_what_it_can_read(self, engine: Engine) -> None:
        assert {"waiting_requests", "running_requests"} <= set(engine.expected)
        for field in engine.expected:
            assert names(engine, field), field


@pytest.mark.parametrize(
    ("also_called", "name"), [("trtllm-serve", "trtllm"), ("triton-tensorrt-llm", "triton"), ("SGLang", "sglang")]
)
def test_the_names_of_pod_labels_are_known(also_called: str, name: str) -> None:
    assert engine_named(also_called) is ENGINES[name]


def test_a_name_nobody_bears_is_no_engine() -> None:
    assert engine_named("tgi") is None


def test_vllm_inside_triton_is_read_as_vllm() -> None:
    page = page_of("triton-25") + page_of("vllm-0.8")
    recognised = recognise(page)
    assert recognised is not None and recognised.name == "vllm"
