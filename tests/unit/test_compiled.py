"""Which build is tested, and what may be compiled: `deploy/image/compiled.py`."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from picker.api import document
from picker.edge.h2 import bulk
from picker.extproc import headers
from picker.prefix import blocks
from picker.scheduling import fused, loads
from picker.scheduling.loads import ROWS

REPOSITORY = Path(__file__).resolve().parents[2]
COMPILED = os.environ.get("PICKER_COMPILED") == "1"
CPU_FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


def sources() -> list[str]:
    spec = importlib.util.spec_from_file_location("compiled", REPOSITORY / "deploy/image/compiled.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    empty = [name for name in (*module.COMPILED, *module.INTERPRETED) if not list(REPOSITORY.glob(name))]
    assert not empty, f"nothing matches {empty}"
    found: list[str] = module.sources(REPOSITORY)
    return found


def test_what_runs_is_what_is_tested():
    for path in sources():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        compiled = str(module.__file__).endswith(".so")
        assert compiled is COMPILED, f"{path}: `make test-compiled` is for the compiled build"
    assert fused.COMPILED is COMPILED
    assert (blocks._links is not None) is (COMPILED and sys.byteorder == "little")
    assert (headers.SCAN is not None) is COMPILED
    assert (bulk.data_frames is not None) is COMPILED
    assert (document._shorten is not None) is (COMPILED and " avx2 " in CPU_FLAGS)


def test_no_struct_is_compiled():
    """Its `frozen` and the inner types of its annotations would be gone."""
    for path in sources():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, msgspec.Struct):
                assert found.__module__ != module.__name__, f"{path}: move {found.__name__} to another module"


costs = st.lists(
    st.floats(0, 1e4) | st.sampled_from([0.0, 1e-3, 0.05, 0.051, 1.0, 1.02, 1.03, float("inf")]),
    min_size=1,
    max_size=40,
)


@given(costs, st.integers(0, 99))
def test_the_least_is_one_of_those_within_a_millisecond_or_two_percent(values, seed):
    limit = max(min(values) + 1e-3, min(values) * 1.02)
    found = fused.least(np.array(values), Random(seed))
    assert values[found] <= limit * (1 + 1e-12)
    if sum(value <= limit * (1 - 1e-12) for value in values) > 1:
        draws = {fused.least(np.array(values), Random(each)) for each in range(40)}
        assert len(draws) > 1, "ties are broken by the draw"


@pytest.mark.skipif(not COMPILED, reason="the kernel is of the compiled build")
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"table": np.zeros((ROWS, 3), dtype=np.float32)}, TypeError),
        ({"table": np.zeros((3, ROWS)).T}, TypeError),
        ({"table": np.zeros((ROWS - 1, 3))}, ValueError),
        ({"table": np.zeros((ROWS, 4))}, ValueError),
        ({"table": None}, TypeError),
        ({"capacity": [1.0, 1.0, 1.0]}, TypeError),
        ({"configured": (1.0,) * 8}, TypeError),
        ({"numbers": (1.0,) * 7}, TypeError),
        ({"numbers": ("1",) * 6}, TypeError),
        ({"numbers": [1.0] * 6}, TypeError),
        ({"holdings": ()}, TypeError),
        ({"holdings": [(b"\x01", 1.0)]}, TypeError),
        ({"holdings": [(1, 1.0, 1.0)]}, TypeError),
        ({"holdings": [5]}, TypeError),
        ({"table": np.ones((ROWS, 3)).astype(">f8")}, TypeError),
    ],
)
def test_the_kernel_refuses_what_it_cannot_read(changed, error):
    given = {
        "table": np.ones((ROWS, 3)),
        "capacity": np.ones(3),
        "configured": (1.0,) * 9,
        "numbers": (1.0,) * 6,
        "holdings": [],
    } | changed
    with pytest.raises(error):
        fused._weigh(*given.values())


@pytest.mark.skipif(not COMPILED, reason="the kernel is of the compiled build")
def test_bits_beyond_the_table_are_nobody():
    table = np.zeros((ROWS, 3))
    table[loads.SLOWNESS] = 1.0
    cost = fused._weigh(table, np.ones(3), (1.0,) * 9, (1.0,) * 6, [(b"\xff\xff", 5.0, 0.0)])
    assert cost.shape == (3,) and np.isfinite(cost).all()
    for slots in (None, b"\xff\xff"):
        assert fused._lowest(cost, 1e-3, 0.02, slots) == (0, 3)
        assert [fused._tied(cost, 1e-3, 0.02, slots, at) for at in range(3)] == [0, 1, 2]
        with pytest.raises(IndexError):
            fused._tied(cost, 1e-3, 0.02, slots, 3)
    for column, slots in ((np.zeros(0), None), (cost, b""), (cost, b"\x08"), (np.zeros(0), b"\x01")):
        with pytest.raises(ValueError):
            fused._lowest(column, 1e-3, 0.02, slots)
    with pytest.raises(TypeError):
        fused._lowest(cost, 1e-3, 0.02, 1)


@given(costs, st.integers(1, 2**40 - 1), st.integers(0, 99))
def test_the_least_among_some_is_the_least_of_their_costs_alone(values, bits, seed):
    bits &= (1 << len(values)) - 1
    if not bits:
        return
    slots = [slot for slot in range(len(values)) if bits >> slot & 1]
    expected = slots[fused.least(np.array([values[slot] for slot in slots]), Random(seed))]
    assert fused.least_among(np.array(values), bits, Random(seed)) == expected


@pytest.mark.skipif(not COMPILED, reason="the kernel is of the compiled build")
def test_the_kernel_writes_a_slot_and_nothing_beside_it():
    """Unknown, it would write into memory that is not the table's."""
    table, three = np.arange(3.0 * ROWS).reshape(ROWS, 3), np.array([10.0, 20.0, 30.0])
    before = loads._copied(table)
    assert before is not table and (before == table).all() and not np.shares_memory(before, table)
    assert loads._renew(table, 1, three, three + 5.0, three + 1.0, 7.0, 19.0, 21.0, 9.0) == -4.0
    assert table[:, 1].tolist() == [7.0, 20.0, 9.0, before[3, 1], before[4, 1], -4.0, 21.0]
    assert (np.delete(table, 1, axis=1) == np.delete(before, 1, axis=1)).all()
    assert fused._value(three, 2) == 30.0
    read_only = table.copy()
    read_only.flags.writeable = False
    for wrong, slot, column in ((table, 3, three), (table, -1, three), (read_only, 0, three), (table, 2, three[:2])):
        with pytest.raises((ValueError, IndexError)):
            loads._renew(wrong, slot, column, three, three, 1.0, 1.0, 1.0, 1.0)
    for call in (lambda: fused._value(three, 3), lambda: fused._value(three, -1)):
        with pytest.raises(IndexError):
            call()
    for call in (lambda: fused._value([1.0], 0), lambda: loads._copied(three), lambda: fused._value(three, 0.5)):
        with pytest.raises(TypeError):
            call()
