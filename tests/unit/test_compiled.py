"""Which build is tested, and what may be compiled: `hatch_build.py` and `picker/kernels.py`."""

import importlib
import os
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

import hatch_build
from picker import kernels
from picker.api import document
from picker.edge.grpc.h2 import bulk
from picker.engines import excerpt
from picker.extproc import headers
from picker.prefix import blocks
from picker.scheduling import fused, loads
from picker.scheduling.loads import ROWS

REPOSITORY = Path(__file__).resolve().parents[2]
COMPILED = os.environ.get("PICKER_COMPILED") == "1"


def sources() -> list[str]:
    empty = [name for name in (*hatch_build.COMPILED, *hatch_build.INTERPRETED) if not list(REPOSITORY.glob(name))]
    assert not empty, f"nothing matches {empty}"
    return hatch_build.sources(REPOSITORY)


def test_what_runs_is_what_is_tested():
    for path in sources():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        compiled = str(module.__file__).endswith(".so")
        assert compiled is COMPILED, f"{path}: `make test-compiled` is for the compiled build"
    assert (fused._weigh is not None) is COMPILED
    assert (loads._renew is not None) is COMPILED
    assert (blocks._links is not None) is COMPILED
    assert (excerpt._excerpt is not None) is COMPILED
    assert (headers.SCAN is not None) is COMPILED
    assert (bulk.data_frames is not None) is COMPILED
    assert (document._shorten is not None) is COMPILED
    built = ("document", "bulk", "excerpt", "headers", "blocks", "fused")
    assert kernels.build() == (COMPILED, built if COMPILED else ())


def test_every_kernel_is_listed_and_has_a_twin():
    found = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "picker").rglob("*.c") if path.name[0] == "_"}
    found -= {path for path in found if "__native" in path}
    assert set(hatch_build.kernels(REPOSITORY).values()) == found
    for path in found:
        assert (REPOSITORY / path.replace("/_", "/").replace(".c", ".py")).is_file(), path


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
        found = [fused._least(cost, 1e-3, 0.02, slots, lambda draw=draw: draw) for draw in (0.0, 0.34, 0.99)]
        assert found == [0, 1, 2]
        for draw in (1.0, -1.0):
            with pytest.raises(ValueError):
                fused._least(cost, 1e-3, 0.02, slots, lambda draw=draw: draw)
        with pytest.raises(ZeroDivisionError):
            fused._least(cost, 1e-3, 0.02, slots, lambda: 1 / 0)
    for column, slots in ((np.zeros(0), None), (cost, b""), (cost, b"\x08"), (np.zeros(0), b"\x01")):
        with pytest.raises(ValueError):
            fused._least(column, 1e-3, 0.02, slots, float)
    with pytest.raises(TypeError):
        fused._least(cost, 1e-3, 0.02, 1, float)
    with pytest.raises(TypeError):
        fused._least(cost, 1e-3, 0.02, None, str)


@pytest.mark.skipif(not COMPILED, reason="the kernel is of the compiled build")
def test_no_dice_are_thrown_where_one_is_the_least():
    cost = np.array([3.0, 1.0, 2.0])
    assert fused._least(cost, 1e-3, 0.02, None, None) == 1
    assert fused._least(cost, 1e-3, 0.02, b"\x05", None) == 2


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
    for call in (lambda: fused._value([1.0], 0), lambda: loads._copied(three), lambda: fused._value(three, 0.5)):  # type: ignore[arg-type, assignment]
        with pytest.raises(TypeError):
            call()
