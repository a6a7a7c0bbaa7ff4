"""The three objectives at once: what the scorers say, weighted and added, in one matrix product.

Endpoints that hold equally much of a prompt have equal u and n; then each term of the rule is a
number of this request times a row of `loads`, but for the wait for room, which bends:

    x = u / R                  x                * ONES
    x a d min(1, x / T)        x a min(1, x/T)  * REQUESTS
    (Q + foreign mean) / R     1 / R            * BACKLOG_TOKENS + mean / R * FOREIGN
    E s (d + 1) + E c (K + p)  E s              * REQUESTS + E c * CONTEXT_TOKENS + E (s + c p) * ONES

and all of it times the endpoint's SLOWNESS. Where somebody may be full, the queue's scorer is asked
about the wait for room. Groups of few holders are put right one by one. A test holds the sum
against the scorers'.

The compiled build does the same in one loop over the slots (`_fused.c`), under the same test.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from picker.config import Routing, Weights
from picker.pool.snapshot import Column, bits_to_slots
from picker.rng import Rng
from picker.scheduling.columns import FEW, Columns, Holding
from picker.scheduling.loads import (
    BACKLOG_TOKENS,
    CONTEXT_TOKENS,
    FOREIGN,
    KERNEL,
    ONES,
    OVER_TOKENS,
    REQUESTS,
    ROWS,
    SLOWNESS,
)
from picker.scheduling.scorers import queue

_weigh: Final[Callable[..., Column] | None] = getattr(KERNEL, "weigh", None)
_least: Final[Callable[..., int] | None] = getattr(KERNEL, "least", None)
_value: Final[Callable[[Column, int], float] | None] = getattr(KERNEL, "value", None)

# The order of the sums below is that of the rows.
assert (REQUESTS, CONTEXT_TOKENS, BACKLOG_TOKENS, FOREIGN, ONES) == (0, 1, 2, 3, 4)
assert (OVER_TOKENS, SLOWNESS, ROWS) == (5, 6, 7)


Sum = tuple[float, float, float, float, float, float, float]
"""What each row counts."""


def cost(columns: Columns, weights: Weights) -> Column:
    """Seconds, weighted, by slot: a new column."""
    return _by_product(columns, weights) if _weigh is None else _by_kernel(_weigh, columns, weights)


TIE_SECONDS: Final = 1e-3
TIE_RATIO: Final = 0.02


def tied_up_to(least: float) -> float:
    """What counts as equal to the least cost."""
    return least + TIE_SECONDS if least < TIE_SECONDS / TIE_RATIO else least * (1.0 + TIE_RATIO)


def least(cost: Column, rng: Rng) -> int:
    """The slot of the least cost, at random among those that count as equal to it. No cost is NaN."""
    if _least is not None:
        return _least(cost, TIE_SECONDS, TIE_RATIO, None, rng.random)
    slot = int(cost.argmin())
    equal = (cost <= tied_up_to(cost.item(slot))).nonzero()[0]
    return slot if len(equal) <= 1 else int(equal.item(int(rng.random() * len(equal))))


def least_among(cost: Column, bits: int, rng: Rng) -> int:
    """The slot of the least cost among those of a bitmask, which has at least one."""
    if not bits & (bits - 1):  # a session's one home
        return bits.bit_length() - 1
    if _least is not None:
        return _least(cost, TIE_SECONDS, TIE_RATIO, _bytes_of(bits), rng.random)
    if bits.bit_count() > FEW:
        held = bits_to_slots(bits, len(cost))
        return held.item(least(cost[held], rng))
    few: list[int] = []
    while bits:
        low = bits & -bits
        bits ^= low
        few.append(low.bit_length() - 1)
    costs = [cost.item(slot) for slot in few]
    limit = tied_up_to(min(costs))
    tied = [slot for slot, value in zip(few, costs, strict=True) if value <= limit]
    return tied[0] if len(tied) == 1 else tied[int(rng.random() * len(tied))]


def value_at(column: Column, slot: int) -> float:
    """A column's number for a slot."""
    return column.item(slot) if _value is None else _value(column, slot)


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) >> 3, "little")


class _Configured:
    """The configuration's part of the kernel's numbers, of the last configuration that was asked for."""

    __slots__ = ("numbers", "routing", "weights")

    def __init__(self) -> None:
        self.routing: Routing | None = None
        self.weights: Weights | None = None
        self.numbers: tuple[float, ...] = ()

    def of(self, routing: Routing, weights: Weights) -> tuple[float, ...]:
        if routing is not self.routing or weights is not self.weights:
            self.routing, self.weights = routing, weights
            self.numbers = (  # in the order of _fused.c
                routing.prefill_tokens_per_second,
                routing.decode_disturbance,
                routing.disturbance_seconds,
                weights.queue / weights.prefix,
                weights.kv / weights.prefix,
                routing.decode_seconds_per_sequence,
                routing.decode_seconds_per_token,
                routing.decode_step_seconds,
                routing.overflow_wait,
            )
        return self.numbers


_CONFIGURED: Final = _Configured()


def _by_kernel(weigh: Callable[..., Column], columns: Columns, weights: Weights) -> Column:
    nothing = columns.nothing
    numbers = (  # in the order of _fused.c
        columns.mean_uncached_tokens,
        columns.output_tokens,
        columns.mean_output_tokens,
        columns.prompt_tokens,
        nothing.unmatched_tokens,
        nothing.new_tokens,
    )
    held = [(_bytes_of(each.bits), each.unmatched_tokens, each.new_tokens) for each in columns.holdings]
    configured = _CONFIGURED.of(columns.routing, weights)
    return weigh(columns.table, columns.capacity_tokens, configured, numbers, held)


def _by_product(columns: Columns, weights: Weights) -> Column:
    queue_weight = weights.queue / weights.prefix
    groups = _largest_first(columns) if columns.holdings else [columns.nothing]
    sums: list[Sum] = []
    few: list[Holding] = []
    many: list[int] = []
    routing, table = columns.routing, columns.table
    decoding = columns.output_tokens * weights.kv / weights.prefix
    sequence = routing.decode_seconds_per_sequence * decoding
    token = routing.decode_seconds_per_token * decoding
    inverse = 1.0 / routing.prefill_tokens_per_second
    waiting = queue_weight * inverse
    foreign = waiting * columns.mean_uncached_tokens
    constant = sequence + token * columns.prompt_tokens
    requests_max, over_tokens_max = columns.bounds
    for group in groups:
        if many and group.bits.bit_count() <= FEW:
            few.append(group)
            continue
        many.append(group.bits)
        alone = group.unmatched_tokens * inverse
        sums.append((sequence + _disturbed(alone, routing), token, waiting, foreign, alone + constant, 0.0, 0.0))
    total: Column
    if len(sums) == 1:
        total = np.array(sums[0]).dot(table)
    else:
        rows = np.array(sums).dot(table)
        total = rows[0]
        for bits, row in zip(many[1:], rows[1:], strict=True):
            slots = bits_to_slots(bits, len(total))
            total[slots] = row[slots]
    if few:
        _put_right(total, few, groups[0].unmatched_tokens, columns)
    fullest = over_tokens_max + requests_max * columns.mean_output_tokens / 2 + columns.prompt_tokens
    overflow = queue.overflow_seconds(columns) if fullest > 0.0 else None
    if overflow is not None:
        total += overflow * queue_weight
    total *= table[SLOWNESS]
    return total


def _disturbed(alone: float, routing: Routing) -> float:
    """Seconds that each request beside it adds to a prefill of `alone` seconds."""
    ramp = routing.disturbance_seconds
    return alone * routing.decode_disturbance * (alone / ramp if alone < ramp else 1.0)


def _largest_first(columns: Columns) -> list[Holding]:
    groups = [columns.nothing, *columns.holdings]
    largest = most = 0
    for number, group in enumerate(groups):
        count = group.bits.bit_count()
        if count > most:
            largest, most = number, count
    groups[0], groups[largest] = groups[largest], groups[0]
    return groups


def _put_right(total: Column, groups: list[Holding], thought: float, columns: Columns) -> None:
    """The few who hold otherwise: their own prefill for that of one with `thought` tokens unmatched."""
    routing, requests = columns.routing, columns.table[REQUESTS]
    inverse = 1.0 / routing.prefill_tokens_per_second
    theirs = thought * inverse
    their_disturbance = _disturbed(theirs, routing)
    for group in groups:
        bits, mine = group.bits, group.unmatched_tokens * inverse
        more, beside = mine - theirs, _disturbed(mine, routing) - their_disturbance
        while bits:
            least = bits & -bits
            bits ^= least
            slot = least.bit_length() - 1
            total[slot] += more + beside * requests.item(slot)
