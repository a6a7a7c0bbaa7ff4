"""A prompt's chained block hashes, against the xxhash package block by block."""

import itertools
import tracemalloc
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from picker.kernels import kernel
from picker.prefix import blocks
from picker.prefix.blocks import BLOCK_BYTES, block_hashes, chain_seed

seeds = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
sizes = st.one_of(st.sampled_from([0, 1, 1023, 1024, 1025, 2047, 2048, 3072, 65_536]), st.integers(0, 20 * BLOCK_BYTES))


cuts = st.lists(st.integers(0, 20 * BLOCK_BYTES) | st.integers(0, 20).map(lambda at: at * BLOCK_BYTES), max_size=8)


@given(seeds, sizes, cuts, st.integers(0, 99))
def test_each_link_is_xxh3_of_its_block_seeded_with_the_one_before(seed, size, cuts, content):
    prompt = Random(content).randbytes(size)
    expected, link = [], seed
    for start in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES):
        link = xxhash.xxh3_64(prompt[start : start + BLOCK_BYTES], seed=link).intdigest()
        expected.append(link)
    ends = [0, *sorted(min(cut, size) for cut in cuts), size]
    pieces = [memoryview(prompt)[start:end] for start, end in itertools.pairwise(ends)]
    for of_it in (pieces, [prompt], [prompt[: ends[1]], memoryview(prompt)[ends[1] :]]):
        found = block_hashes(seed, of_it)  # type: ignore[arg-type]
        assert found.typecode == "Q" and found.tolist() == expected
        if blocks._links is not None:
            assert kernel("picker.prefix._blocks").links_plain(seed, of_it) == found.tobytes()


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"a"])
def test_equal_blocks_in_a_row_have_different_hashes(fill):
    found = block_hashes(chain_seed("m", None), [fill * (50 * BLOCK_BYTES)])
    assert len(set(found)) == 50


def test_a_seed_counts_modulo_two_to_the_64_as_in_xxhash():
    assert block_hashes(-1, [bytes(BLOCK_BYTES)]) == block_hashes(2**64 - 1, [bytes(BLOCK_BYTES)])
    with pytest.raises(TypeError):
        block_hashes("seed", [bytes(BLOCK_BYTES)])  # type: ignore[arg-type]


def test_what_is_no_text_is_refused_and_nothing_is_no_block():
    assert block_hashes(1, []).tolist() == []
    with pytest.raises(TypeError):
        block_hashes(1, [bytes(BLOCK_BYTES), "text"])  # type: ignore[list-item]


def test_a_salt_as_long_as_a_body_is_kept_nowhere() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        seeds = {chain_seed("m", f"{number}" + "a" * 1_000_000) for number in range(50)}
        seeds |= {chain_seed(f"{number}" + "a" * 1_000_000, None) for number in range(50)}
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
    assert len(seeds) == 100
    assert chain_seed("m", "a" * 1_000) == chain_seed("m", "a" * 1_000)
