"""The series finder: right on every corner of the format, and on pages that are not in it."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from picker.engines.exposition import CANDIDATES_MAX, SERIES_MAX, Series, find, shows


def test_a_series_with_labels_and_one_without() -> None:
    page = b'# TYPE a gauge\na{x="1",y="two"} 3.5\na 4\n'
    assert find(page, b"a") == [Series({"x": "1", "y": "two"}, 3.5), Series({}, 4.0)]


def test_the_first_line_counts_and_an_unfinished_last_one_does_not() -> None:
    """ "The last line must end with a line feed character" (Prometheus text format): else the page was cut, in a
    number perhaps, and 0.93 would read as 0."""
    assert find(b"a 1\n", b"a") == [Series({}, 1.0)]
    assert find(b"b 1\na 2", b"a") == find(b"a 1", b"a") == []
    assert find(b'a{x="1"} 1\na{x="2"} 0.', b"a") == [Series({"x": "1"}, 1.0)]


def test_comments_are_no_series() -> None:
    page = b"# HELP a a 5 of a\n# TYPE a gauge\n#a 7\na 1\n"
    assert find(page, b"a") == [Series({}, 1.0)]


@pytest.mark.parametrize("line", [b"waiting_by_reason 1", b"waiting_created 1", b"not_waiting 1", b"x:waiting 1"])
def test_a_longer_name_is_another_name(line: bytes) -> None:
    page = line + b"\nwaiting 2\n"
    assert find(page, b"waiting") == [Series({}, 2.0)]


def test_a_name_inside_a_label_value_or_a_help_text_is_none() -> None:
    page = b'# HELP z counts waiting 3\nz{why="waiting 4"} 1\nwaiting 2\n'
    assert find(page, b"waiting") == [Series({}, 2.0)]


def test_label_escapes() -> None:
    page = rb'a{path="C:\\dir\\n",said="\"hi\"",lines="1\n2",odd="\q"} 1' + b"\n"
    assert find(page, b"a")[0].labels == {"path": "C:\\dir\\n", "said": '"hi"', "lines": "1\n2", "odd": "\\q"}


def test_braces_commas_and_equals_inside_label_values() -> None:
    page = b'a{x="}{,=\' ",y=""} 2\n'
    assert find(page, b"a") == [Series({"x": "}{,=' ", "y": ""}, 2.0)]


def test_blanks_a_trailing_comma_and_other_bytes() -> None:
    page = b' \ta { x = "1" , } \t 2\r\na{n="\xff"} 3\r\n'
    assert find(page, b"a") == [Series({"x": "1"}, 2.0), Series({"n": "\ufffd"}, 3.0)]


def test_timestamps_and_exemplars_are_skipped() -> None:
    page = b'a{x="1"} 2 1395066363000\na 3 # {trace="x"} 9.5 1.2\n'
    assert [one.value for one in find(page, b"a")] == [2.0, 3.0]


@pytest.mark.parametrize(
    "text", [b"NaN", b"+Inf", b"-Inf", b"inf", b"-1", b"-0.5", b"1_000", b"0x10", b"many", b"1e999"]
)
def test_a_value_that_measures_nothing_is_unknown(text: bytes) -> None:
    assert find(b"a " + text + b"\n", b"a") == [Series({}, None)]


@pytest.mark.parametrize(("text", "value"), [(b"0", 0.0), (b"-0", 0.0), (b"1.7960111e+09", 1796011100.0), (b"+2", 2.0)])
def test_values(text: bytes, value: float) -> None:
    assert find(b"a " + text + b"\n", b"a")[0].value == value


@pytest.mark.parametrize("line", [b"a", b"a ", b"a{", b'a{x="1', b'a{x="1"}', b'a{x="1" 2', b"a\n"])
def test_an_unfinished_series_is_none(line: bytes) -> None:
    assert find(line, b"a") == []


def test_a_group_may_hold_comments_and_blank_lines() -> None:
    page = b'a{x="1"} 1\n\n# note\na{x="2"} 2\nb 3\n'
    assert [one.value for one in find(page, b"a")] == [1.0, 2.0]


def test_shows_looks_at_names_only() -> None:
    assert shows(b"vllm:x 1\n", b"vllm:")
    assert shows(b"# HELP vllm:x y\nvllm:x 1\n", b"vllm:")
    assert not shows(b'# HELP up seen by vllm:x\nup{by="vllm:"} 1\n', b"vllm:")
    assert not shows(b"", b"vllm:")


PIECES = [b"a", b" ", b"{", b"}", b'"', b"\\", b"\n", b"\r", b"x=", b",", b"\xff", b"#", b"\na ", b'\na{x="1"} ']
NUMBERS = [b"1", b"-1", b"NaN", b"+Inf", b"-inf", b"1e999", b"-1e999", b"1_0", b"0x1", b"--1", b"1.5.1", b"many"]


@given(st.lists(st.sampled_from(PIECES + NUMBERS), max_size=60).map(b"".join) | st.binary(max_size=200))
@example(b"a" * 200)
@example(b"a{" + b'x="\\' * 60)
@example(b"a -1")
def test_whatever_follows_a_good_series_it_counts_and_the_rest_is_measured_or_unknown(rest: bytes) -> None:
    first, *others = find(b"a 1\n" + rest, b"a")
    assert first == Series({}, 1.0)
    assert all(one.value is None or 0 <= one.value < math.inf for one in others)


LABELS = st.dictionaries(
    st.sampled_from(["model", "engine", "z"]),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8).filter(lambda t: "\r" not in t),  # type: ignore[arg-type]
    max_size=3,
)


@given(st.lists(st.tuples(LABELS, st.floats(min_value=0, allow_nan=False, allow_infinity=False)), max_size=4))
def test_what_the_reference_parser_reads(rows: list[tuple[dict[str, str], float]]) -> None:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    lines = ["# TYPE a gauge", "b 1"]
    for labels, value in rows:
        inner = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
        lines.append(f"a{{{inner}}} {value!r}" if inner else f"a {value!r}")
    page = "\n".join(lines) + "\n"
    reference = [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "a"
    ]
    assert [(one.labels, one.value) for one in find(page.encode(), b"a")] == reference


def test_a_line_of_megabytes_is_not_read_and_the_next_is() -> None:
    for label in (b"\\" * 1_900_000, b'x",' + b'a="b",' * 200_000 + b'c="'):
        page = b'a{model="' + label + b'"} 5\na{model="m"} 2\n'
        assert find(page, b"a") == [Series({"model": "m"}, 2.0)]


def test_more_series_than_an_engine_has_are_not_believed() -> None:
    def page(count: int) -> bytes:
        return b"".join(b'a{model="%d"} 1\n' % number for number in range(count)) + b"b 3\n"

    assert len(find(page(SERIES_MAX), b"a")) == SERIES_MAX
    assert find(page(SERIES_MAX + 1), b"a") == []
    assert find(page(100_000), b"a") == []
    assert find(page(100_000), b"b") == [Series({}, 3.0)]


def test_a_page_full_of_what_looks_like_the_name_is_given_up() -> None:
    assert find(b"xa{ " * CANDIDATES_MAX + b"\na 1\n", b"a") == []
    assert find(b"xa{ " * (CANDIDATES_MAX - 1) + b"\na 1\n", b"a") == [Series({}, 1.0)]
    assert not shows(b"xa{ " * CANDIDATES_MAX + b"\na 1\n", b"a")


def test_a_run_of_blanks_is_no_line_of_ours() -> None:
    assert find(b" " * 1_000 + b"a 1\n  a 2\n", b"a") == [Series({}, 2.0)]
