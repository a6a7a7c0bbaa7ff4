"""The excerpt of a page: `find` reads the same off it as off the page, whatever stands there."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from picker.engines import ENGINES, PageReader, read, recognise
from picker.engines.excerpt import by_line, excerpt, stems_of
from picker.engines.exposition import BLANKS_MAX, find
from picker.engines.mapping import TOLD_BYTES_MAX

PAGES = sorted((Path(__file__).resolve().parents[2] / "fixtures/engines").glob("*.txt"))
NAMES = (b"a", b"ab_total", b"ab_bucket", b"x:c", b"x:c_d")

lines = st.one_of(
    st.builds(
        lambda blanks, name, rest, end: blanks + name + rest + end,
        st.sampled_from([b"", b" ", b"\t ", b" " * (BLANKS_MAX - 1), b" " * BLANKS_MAX, b" " * (BLANKS_MAX + 1)]),
        st.sampled_from(
            [b"a", b"ab", b"ab_total", b"ab_bucket", b"ab_sum", b"x:c", b"x:c_d", b"x:", b"b", b"-", b"#", b""]
        ),
        st.sampled_from([b"", b" 1", b'{l="a 2"} 3', b" a 4", b" x", b"{", b" TYPE a gauge", b" HELP ab_total x"]),
        st.sampled_from([b"\n", b"\n", b"\n", b"\n\n", b"\r\n", b"\r", b"\x0b", b""]),
    ),
    st.sampled_from([b"# TYPE a gauge\n", b"# TYPE b gauge\n", b"# HELP ab_total a b\n", b"  # TYPE x:c x\n", b"\n"]),
    st.binary(max_size=6),
)
pages = st.lists(lines, max_size=14).map(b"".join)


@given(pages)
@example(b"#\n" + b" " * BLANKS_MAX + b"a 1\n")
@example(b"a 1\nb 2\na 3\n")
@example(b"a 1\n# HELP a x\n\na 3\n")
@example(b"x\ra 3\n")
@example(b"b 1\na 0.9")
def test_the_same_series_are_found_on_the_excerpt(page):
    stems = stems_of(NAMES)
    for told in (excerpt(page, stems), page if b"\r" in page else by_line(page, stems)):
        for name in NAMES:
            assert find(told, name) == find(page, name)


@given(pages)
def test_the_kernel_and_its_twin_make_the_same_excerpt(page):
    """Interpreted, where there is no kernel, the page stays as it is."""
    if b"\r" not in page:
        assert excerpt(page, stems_of(NAMES)) in (by_line(page, stems_of(NAMES)), page)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_recorded_page_reads_the_same(path):
    page = path.read_bytes()
    engine = recognise(page)
    if engine is None:  # a GPU exporter's
        return
    assert PageReader("1").read(engine, page, now=2.0) == read(engine, page, uid="1", now=2.0)
    assert len(by_line(page, stems_of([b"vllm:num_requests_running"]))) < 1000


def test_an_unchanged_page_gets_a_new_time_and_a_changed_one_is_read():
    page = (PAGES[0].parent / "vllm-0.32-idle.txt").read_bytes()
    reader, engine = PageReader("1"), ENGINES["vllm"]
    first = reader.read(engine, page, now=1.0)
    again = reader.read(engine, page.replace(b"process_cpu_seconds_total ", b"process_cpu_seconds_total 1"), now=2.0)
    assert again.sample == msgspec.structs.replace(first.sample, taken_at_seconds=2.0)
    busy = page.replace(b'vllm:num_requests_waiting{engine="0"', b'vllm:num_requests_waiting{engine="1"')
    assert busy != page
    changed = b"".join(
        line.rpartition(b" ")[0] + b" 7.0\n" if line.startswith(b"vllm:num_requests_waiting{") else line
        for line in page.splitlines(keepends=True)
    )
    assert reader.read(engine, changed, now=3.0).sample.waiting_requests == 7
    assert reader.read(engine, page, now=4.0) == read(engine, page, uid="1", now=4.0)
    assert reader.read(ENGINES["sglang"], page, now=5.0) == read(ENGINES["sglang"], page, uid="1", now=5.0)


def test_a_page_that_tells_nothing_is_no_repetition_of_a_long_one():
    page = (PAGES[0].parent / "vllm-0.32-idle.txt").read_bytes()
    long = page + b'vllm:num_requests_waiting{engine="9"} 0.0\n' * 2000
    reader, engine = PageReader("1"), ENGINES["vllm"]
    assert len(long) > TOLD_BYTES_MAX and reader.read(engine, long, now=1.0).sample.waiting_requests == 0
    assert reader.read(engine, b"", now=2.0).sample.waiting_requests is None


def test_stems_are_sorted_and_none_begins_another():
    assert stems_of([b"b_total", b"b", b"bc", b"a_bucket"]) == (b"a", b"b")
