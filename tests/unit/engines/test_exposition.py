"""The series finder: right on every corner of the format, and on pages that are not in it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from picker.engines.exposition import Series, find, shows


def test_a_series_with_labels_and_one_without() -> None:
    page = b'# TYPE a gauge\na{x="1",y="two"} 3.5\na 4\n'
    assert find(page, b"a") == [Series({"x": "1", "y": "two"}, 3.5), Series({}, 4.0)]


def test_the_first_and_an_unfinished_last_line_count() -> None:
    assert find(b"a 1", b"a") == [Series({}, 1.0)]
    assert find(b"b 1\na 2", b"a") == [Series({}, 2.0)]


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


@given(st.binary(max_size=200))
@example(b"a" * 200)
@example(b"a{" + b'x="\\' * 60)
def test_any_bytes_are_survived(page: bytes) -> None:
    for one in find(page, b"a"):
        assert one.value is None or one.value >= 0


LABELS = st.dictionaries(
    st.sampled_from(["model", "engine", "z"]),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8).filter(lambda t: "\r" not in t),
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
