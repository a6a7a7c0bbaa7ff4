"""The interpreter: reductions, label filters, copies, adapters, and what counts as unknown."""

from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from picker.engines.exposition import SERIES_MAX
from picker.engines.mapping import (
    ADAPTERS_MAX,
    Engine,
    EngineRead,
    LabelValue,
    Lora,
    MetricValue,
    Product,
    Ratio,
    Reading,
    names,
    read,
)
from picker.engines.vllm import VLLM

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"


def engine(**readings: tuple[Reading, ...]) -> Engine:
    return Engine(name="e", marks=(b"e:",), expected=("waiting_requests",), readings=MappingProxyType(readings))


def reading(page: bytes, **readings: tuple[Reading, ...]) -> EngineRead:
    return read(engine(**readings), page, uid="u", now=7.0)


def test_where_and_when_are_kept() -> None:
    sample = reading(b"").sample
    assert (sample.uid, sample.taken_at_seconds, sample.engine) == ("u", 7.0, "e")


def test_waiting_adds_up_over_series_and_kv_takes_the_largest() -> None:
    page = b'w{engine="0"} 2\nw{engine="1"} 3\nk{engine="0"} 0.1\nk{engine="1"} 0.7\n'
    sample = reading(
        page,
        waiting_requests=(MetricValue(name=b"w"),),
        kv_cache_utilization=(MetricValue(name=b"k", reduce="largest"),),
    ).sample
    assert (sample.waiting_requests, sample.kv_cache_utilization) == (5, 0.7)


def test_a_sum_with_an_unknown_part_is_unknown_and_the_largest_is_of_those_known() -> None:
    page = b'w{engine="0"} 2\nw{engine="1"} NaN\nk{engine="0"} 0.1\nk{engine="1"} NaN\n'
    result = reading(
        page,
        waiting_requests=(MetricValue(name=b"w"),),
        kv_cache_utilization=(MetricValue(name=b"k", reduce="largest"),),
    )
    assert (result.sample.waiting_requests, result.sample.kv_cache_utilization) == (None, 0.1)
    assert result.missing == ("waiting_requests",)


def test_the_first_alias_that_the_page_knows_is_taken() -> None:
    aliases = (MetricValue(name=b"new"), MetricValue(name=b"old"))
    assert reading(b"old 1\n", waiting_requests=aliases).sample.waiting_requests == 1
    assert reading(b"old 1\nnew 2\n", waiting_requests=aliases).sample.waiting_requests == 2
    assert reading(b"old 1\nnew NaN\n", waiting_requests=aliases).sample.waiting_requests == 1
    assert names(engine(waiting_requests=aliases), "waiting_requests") == ("new", "old")


def test_a_renamed_gauge_is_unknown_and_told_not_zero() -> None:
    result = reading(b"renamed 1\n", waiting_requests=(MetricValue(name=b"w"),))
    assert result.sample.waiting_requests is None
    assert result.missing == ("waiting_requests",)


def test_copies_count_once_with_the_largest() -> None:
    page = b'w{tp="0",dp="0"} 4\nw{tp="1",dp="0"} 5\nw{tp="2",dp="1"} 2\n'
    wanted = (MetricValue(name=b"w", copies=("tp",)),)
    assert reading(page, waiting_requests=wanted).sample.waiting_requests == 7


def test_label_filters_take_an_absent_label_as_empty() -> None:
    page = b'w{priority="1"} 4\nw{priority=""} 5\n'
    wanted = (MetricValue(name=b"w", where=(("priority", ""),)),)
    assert reading(page, waiting_requests=wanted).sample.waiting_requests == 5
    assert reading(b"w 6\n", waiting_requests=wanted).sample.waiting_requests == 6
    assert reading(b'w{priority="1"} 6\n', waiting_requests=wanted).sample.waiting_requests is None


@pytest.mark.parametrize("text", ["None", "", "-3", "12.5", "9" * 40, "３"])
def test_a_label_that_is_no_number_is_unknown(text: str) -> None:
    page = f'c{{blocks="{text}",size="16"}} 1\n'.encode()
    wanted = (Product(LabelValue(name=b"c", label="blocks"), LabelValue(name=b"c", label="size", reduce="largest")),)
    assert reading(page, kv_capacity_tokens=wanted).sample.kv_capacity_tokens is None


def test_capacity_adds_up_over_replicas() -> None:
    page = b'c{engine="0",blocks="100",size="16"} 1\nc{engine="1",blocks="100",size="16"} 1\n'
    wanted = (Product(LabelValue(name=b"c", label="blocks"), LabelValue(name=b"c", label="size", reduce="largest")),)
    assert reading(page, kv_capacity_tokens=wanted).sample.kv_capacity_tokens == 3200


def test_a_capacity_of_nothing_is_not_known_yet() -> None:
    assert reading(b"c 0\n", kv_capacity_tokens=(MetricValue(name=b"c"),)).sample.kv_capacity_tokens is None


def test_a_ratio_over_nothing_is_unknown() -> None:
    wanted = (Ratio(MetricValue(name=b"used"), MetricValue(name=b"all")),)
    assert reading(b"used 1\nall 4\n", kv_cache_utilization=wanted).sample.kv_cache_utilization == 0.25
    assert reading(b"used 0\nall 0\n", kv_cache_utilization=wanted).sample.kv_cache_utilization is None


@pytest.mark.parametrize(("text", "share"), [("1.02", 1.0), ("1", 1.0), ("62", None), ("1.2", None)])
def test_a_share_is_at_most_one(text: str, share: float | None) -> None:
    wanted = (MetricValue(name=b"k", reduce="largest"),)
    assert reading(f"k {text}\n".encode(), kv_cache_utilization=wanted).sample.kv_cache_utilization == share


def test_an_absurd_count_is_unknown() -> None:
    assert reading(b"w 1e300\n", waiting_requests=(MetricValue(name=b"w"),)).sample.waiting_requests is None


LORA = Lora(name=b"l", running_label="running", waiting_label="waiting", max_label="max")


def adapters(page: bytes) -> tuple[frozenset[str] | None, frozenset[str] | None, int | None]:
    described = Engine(name="e", marks=(), expected=(), readings=MappingProxyType({}), lora=LORA)
    sample = read(described, page, uid="u", now=0.0).sample
    return sample.adapters_running, sample.adapters_waiting, sample.adapters_max


def test_the_newest_label_set_tells_the_adapters() -> None:
    page = (
        b'l{max="4",running="a,b",waiting="b, c"} 1.7e9\n'
        b'l{max="4",running="",waiting=""} 1.6e9\n'
        b'l{max="4",running="old",waiting=""} 1.5e9\n'
    )
    assert adapters(page) == (frozenset({"a", "b"}), frozenset({"b", "c"}), 4)


LOADED = msgspec.structs.replace(LORA, loaded_name=b"loaded", loaded_label="name", loaded_where=("level", ("gpu",)))


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (b"", None),
        (b'loaded_also{name="a"} 1\n', None),
        (b"# TYPE loaded gauge\n", set()),
        (b'loaded{name="a",level="gpu",pinned="true"} 1\nloaded{name="b",level="cpu"} 1\n', {"a"}),
        (b'loaded{name="a",level="gpu"} 0\nloaded{name="b"} 1\n', {"b"}),
        (b'loaded{name="a",level="gpu"} NaN\nloaded{level="gpu"} 1\nloaded{name=""} 1\n', set()),
        (b'loaded{name="a",engine="0",level="cpu"} 1\nloaded{name="a",engine="1",level="gpu"} 1\n', {"a"}),
    ],
)
def test_adapters_that_are_loaded_and_idle_are_told_by_a_series_each(page: bytes, names: set[str] | None) -> None:
    described = Engine(name="e", marks=(), expected=(), readings=MappingProxyType({}), lora=LOADED)
    assert read(described, page, uid="a", now=0.0).sample.adapters_loaded == names


def test_no_engine_can_name_adapters_without_end() -> None:
    described = Engine(name="e", marks=(), expected=(), readings=MappingProxyType({}), lora=LOADED)
    counted = []
    for count in (SERIES_MAX, SERIES_MAX + 10):
        page = b"".join(b'loaded{name="a%d"} 1\n' % n for n in range(count))
        found = read(described, page, uid="a", now=0.0).sample.adapters_loaded
        counted.append(None if found is None else len(found))
    assert counted == [min(SERIES_MAX, ADAPTERS_MAX), None], "a page with more series of a name tells nothing by them"


def test_vllm_tells_which_adapters_have_a_slot_on_the_gpu() -> None:
    """Names and labels of vllm-project/vllm#45411, in a recorded page that does not have them yet."""
    page = (FIXTURES / "vllm-0.32-after.txt").read_bytes()
    assert read(VLLM, page, uid="a", now=0.0).sample.adapters_loaded is None
    page += (
        b"# HELP vllm:lora_adapter_loaded x\n# TYPE vllm:lora_adapter_loaded gauge\n"
        b'vllm:lora_adapter_loaded{adapter_name="sql",engine="0",level="gpu",pinned="false"} 1.0\n'
        b'vllm:lora_adapter_loaded{adapter_name="law",engine="0",level="cpu",pinned="false"} 1.0\n'
    )
    assert read(VLLM, page, uid="a", now=0.0).sample.adapters_loaded == {"sql"}


def test_no_adapters_at_the_moment_is_known_and_no_gauge_is_unknown() -> None:
    assert adapters(b'l{max="4",running="",waiting=""} 1\n') == (frozenset(), frozenset(), 4)
    assert adapters(b"") == (None, None, None)
    assert adapters(b'l{max="None",running="a"} 1\n') == (frozenset({"a"}), None, None)
