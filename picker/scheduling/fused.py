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
"""

import numpy as np

from picker.config import Routing, Weights
from picker.pool.snapshot import Column, bits_to_slots
from picker.scheduling.columns import FEW, Columns, Holding
from picker.scheduling.loads import (
    BACKLOG_TOKENS,
    CONTEXT_TOKENS,
    FOREIGN,
    ONES,
    OVER_TOKENS,
    REQUESTS,
    ROWS,
    SLOWNESS,
)
from picker.scheduling.scorers import queue

# The order of the sums below is that of the rows.
assert (REQUESTS, CONTEXT_TOKENS, BACKLOG_TOKENS, FOREIGN, ONES) == (0, 1, 2, 3, 4)
assert (OVER_TOKENS, SLOWNESS, ROWS) == (5, 6, 7)


Sum = tuple[float, float, float, float, float, float, float]
"""What each row counts."""


def cost(columns: Columns, weights: Weights) -> Column:
    """Seconds, weighted, by slot: a new column."""
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
