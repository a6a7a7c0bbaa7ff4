"""Accumulators and the page they make, checked by prometheus_client's parsers of both formats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.edge.telemetry import buckets as telemetry_buckets
from picker.edge.telemetry.series import PART_LINES, CappedLabel, Counters, Histogram, family, label_text


@given(st.text())
def test_any_label_value_can_be_written_and_read_back(value: str) -> None:
    page = "".join(family("a", "Help.", "gauge", [("", label_text(("x",), (value,)), 1)], False))
    (sample,) = next(iter(parse_text(page))).samples
    # The reference parser strips what str.splitlines takes for a line end; the page itself has one line a series.
    assert page.count("\n") == 3
    if value.isprintable():
        assert sample.labels == {"x": value}


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert label_text(("x",), ("a\ud800b",)) == 'x="a?b"'


@given(st.lists(st.floats(min_value=0, max_value=1e12, allow_nan=False), max_size=30), st.sampled_from([1, 13]))
def test_a_histogram_counts_as_the_reference_does(values: list[float], times: int) -> None:
    values = values * times  # up to three batches of values that wait
    bounds = telemetry_buckets.GENERAL_SECONDS
    registry = CollectorRegistry()
    reference = ReferenceHistogram("h", "Help.", ["m"], buckets=bounds, registry=registry)
    ours = Histogram(bounds)
    for value in values:
        ours.observe(value)
        reference.labels("x").observe(value)
    if not values:
        reference.labels("x")
    page = "".join(family("h", "Help.", "histogram", ours.lines('m="x"'), False))
    mine = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(page) for s in f.samples}
    theirs = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in registry.collect()
        for s in f.samples
        if not s.name.endswith("_created")
    }
    assert mine == pytest.approx(theirs)


def test_coarser_buckets_show_the_same_counts() -> None:
    histogram = Histogram(telemetry_buckets.DECISION_SECONDS)
    for value in (0.00002, 0.00015, 0.3, 7):
        histogram.observe(value)
    lines = {labels: value for suffix, labels, value in histogram.lines("", telemetry_buckets.SCHEDULER_SECONDS)}
    assert lines['le="0.0001"'] == 1
    assert lines['le="0.0002"'] == 2
    assert lines['le="0.1"'] == 2
    assert lines['le="+Inf"'] == 4
    assert 'le="0.3"' not in lines and 'le="1e-05"' not in lines


@pytest.mark.parametrize("name", [name for name in dir(telemetry_buckets) if name.isupper()])
def test_bounds_rise(name: str) -> None:
    bounds = getattr(telemetry_buckets, name)
    assert list(bounds) == sorted(set(bounds))


def test_the_known_buckets_are_the_peers() -> None:
    # Gateway API Inference Extension, pkg/epp/metrics/metrics.go.
    assert len(telemetry_buckets.GENERAL_SECONDS) == 35
    assert telemetry_buckets.REQUEST_BYTES[0] == 64 and telemetry_buckets.REQUEST_BYTES[-1] == 2**30
    assert telemetry_buckets.RESPONSE_BYTES[-1] == 65536 and telemetry_buckets.OUTPUT_TOKENS[-1] == 8192
    assert telemetry_buckets.INPUT_TOKENS[-1] == 1048576 and telemetry_buckets.HIT_BYTES[-1] == 65536
    assert set(telemetry_buckets.SCHEDULER_SECONDS) <= set(telemetry_buckets.DECISION_SECONDS)


def test_counters_in_both_formats() -> None:
    counters = Counters("hits_total", "Hits.", ("a", "b"))
    counters.add("1", "2")
    counters.add("1", "2", by=2)
    counters.add("1", "3")
    text = "".join(counters.parts(False))
    openmetrics = "".join(counters.parts(True))
    assert "# TYPE hits_total counter" in text
    assert "# TYPE hits counter" in openmetrics
    for parse, page in ((parse_text, text), (parse_openmetrics, openmetrics + "# EOF\n")):
        (found,) = parse(page)
        assert {(s.name, s.labels["b"]): s.value for s in found.samples} == {
            ("hits_total", "2"): 3,
            ("hits_total", "3"): 1,
        }


def test_parts_are_small() -> None:
    lines = [("", f'n="{number}"', float(number)) for number in range(3 * PART_LINES)]
    parts = list(family("a", "Help.", "gauge", lines, False))
    assert max(part.count("\n") for part in parts) <= PART_LINES + 1
    assert sum(part.count("\n") for part in parts) == len(lines) + 2


class TestCappedLabel:
    def test_the_first_admitted_values_then_other(self) -> None:
        label = CappedLabel(2)
        assert [label.of(value, admit=True) for value in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]
        assert len(label) == 2

    def test_nonsense_takes_no_place(self) -> None:
        label = CappedLabel(1)
        assert label.of("made-up", admit=False) == "other"
        assert label.of("real", admit=True) == "real"
        assert label.of("real", admit=False) == "real"

    def test_no_value_is_the_empty_label_and_a_long_one_other(self) -> None:
        label = CappedLabel(9)
        assert label.of(None, admit=True) == label.of("", admit=True) == ""
        assert label.of("x" * 201, admit=True) == "other"
