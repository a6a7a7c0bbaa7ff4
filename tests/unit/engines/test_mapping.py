"""The interpreter: reductions, label filters, copies, adapters, and what counts as unknown."""

from types import MappingProxyType

import pytest

from picker.engines.mapping import Engine, LabelValue, Lora, Product, Ratio, Read, Reading, Value, names, read


def engine(**readings: tuple[Reading, ...]) -> Engine:
    return Engine(name="e", marks=(b"e:",), expected=("waiting_requests",), readings=MappingProxyType(readings))


def reading(page: bytes, **readings: tuple[Reading, ...]) -> Read:
    return read(engine(**readings), page, uid="u", now=7.0)


def test_where_and_when_are_kept() -> None:
    sample = reading(b"").sample
    assert (sample.uid, sample.taken_at_seconds, sample.engine) == ("u", 7.0, "e")


def test_waiting_adds_up_over_series_and_kv_takes_the_largest() -> None:
    page = b'w{engine="0"} 2\nw{engine="1"} 3\nk{engine="0"} 0.1\nk{engine="1"} 0.7\n'
    sample = reading(
        page,
        waiting_requests=(Value(name=b"w"),),
        kv_cache_utilization=(Value(name=b"k", reduce="largest"),),
    ).sample
    assert (sample.waiting_requests, sample.kv_cache_utilization) == (5, 0.7)


def test_a_sum_with_an_unknown_part_is_unknown_and_the_largest_is_of_those_known() -> None:
    page = b'w{engine="0"} 2\nw{engine="1"} NaN\nk{engine="0"} 0.1\nk{engine="1"} NaN\n'
    result = reading(
        page,
        waiting_requests=(Value(name=b"w"),),
        kv_cache_utilization=(Value(name=b"k", reduce="largest"),),
    )
    assert (result.sample.waiting_requests, result.sample.kv_cache_utilization) == (None, 0.1)
    assert result.missing == ("waiting_requests",)


def test_the_first_alias_that_the_page_knows_is_taken() -> None:
    aliases = (Value(name=b"new"), Value(name=b"old"))
    assert reading(b"old 1\n", waiting_requests=aliases).sample.waiting_requests == 1
    assert reading(b"old 1\nnew 2\n", waiting_requests=aliases).sample.waiting_requests == 2
    assert reading(b"old 1\nnew NaN\n", waiting_requests=aliases).sample.waiting_requests == 1
    assert names(engine(waiting_requests=aliases), "waiting_requests") == ("new", "old")


def test_a_renamed_gauge_is_unknown_and_told_not_zero() -> None:
    result = reading(b"renamed 1\n", waiting_requests=(Value(name=b"w"),))
    assert result.sample.waiting_requests is None
    assert result.missing == ("waiting_requests",)


def test_copies_count_once_with_the_largest() -> None:
    page = b'w{tp="0",dp="0"} 4\nw{tp="1",dp="0"} 5\nw{tp="2",dp="1"} 2\n'
    wanted = (Value(name=b"w", copies=("tp",)),)
    assert reading(page, waiting_requests=wanted).sample.waiting_requests == 7


def test_label_filters_take_an_absent_label_as_empty() -> None:
    page = b'w{priority="1"} 4\nw{priority=""} 5\n'
    wanted = (Value(name=b"w", where=(("priority", ""),)),)
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
    assert reading(b"c 0\n", kv_capacity_tokens=(Value(name=b"c"),)).sample.kv_capacity_tokens is None


def test_a_ratio_over_nothing_is_unknown() -> None:
    wanted = (Ratio(Value(name=b"used"), Value(name=b"all")),)
    assert reading(b"used 1\nall 4\n", kv_cache_utilization=wanted).sample.kv_cache_utilization == 0.25
    assert reading(b"used 0\nall 0\n", kv_cache_utilization=wanted).sample.kv_cache_utilization is None


@pytest.mark.parametrize(("text", "share"), [("1.02", 1.0), ("1", 1.0), ("62", None), ("1.2", None)])
def test_a_share_is_at_most_one(text: str, share: float | None) -> None:
    wanted = (Value(name=b"k", reduce="largest"),)
    assert reading(f"k {text}\n".encode(), kv_cache_utilization=wanted).sample.kv_cache_utilization == share


def test_an_absurd_count_is_unknown() -> None:
    assert reading(b"w 1e300\n", waiting_requests=(Value(name=b"w"),)).sample.waiting_requests is None


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


def test_no_adapters_at_the_moment_is_known_and_no_gauge_is_unknown() -> None:
    assert adapters(b'l{max="4",running="",waiting=""} 1\n') == (frozenset(), frozenset(), 4)
    assert adapters(b"") == (None, None, None)
    assert adapters(b'l{max="None",running="a"} 1\n') == (frozenset({"a"}), None, None)
