"""The three objectives at once: what the scorers say, weighted and added, in one matrix product.

Endpoints that hold equally much of a prompt have equal u and n; then each term of the rule is a
number of this request times a row of `loads`, but for two that bend:

    u / R                      u       * RATE_INVERSE
    a d min(x, x x / T)        a u     * SLOWED           where every x = u / R is above T
                               a u u/T * SLOWED_SQUARED   where every x is below
    (Q + foreign mean) / R     1       * BACKLOG_SECONDS  + mean * FOREIGN
    E s (d + 1) + E c (K + p)  E s     * REQUESTS         + E c  * CONTEXT_TOKENS + E (s + c p)

Where some x are above T and some below, the scorers themselves are asked; where somebody may be
full, the queue's scorer about the wait for room. Groups of few holders are put right one by one.
A test holds the sum against the scorers'.
"""

import numpy as np

from picker.config import Weights
from picker.pool.snapshot import Column, bits_to_slots
from picker.scheduling.columns import FEW, Columns, Holding
from picker.scheduling.loads import (
    BACKLOG_SECONDS,
    CONTEXT_TOKENS,
    FOREIGN,
    ONES,
    OVER_TOKENS,
    RATE_INVERSE,
    REQUESTS,
    ROWS,
    SLOWED,
    SLOWED_SQUARED,
)
from picker.scheduling.scorers import kv, prefix, queue

# The order of the sums below is that of the rows.
assert (RATE_INVERSE, REQUESTS, CONTEXT_TOKENS, OVER_TOKENS, BACKLOG_SECONDS) == (0, 1, 2, 3, 4)
assert (FOREIGN, SLOWED, SLOWED_SQUARED, ONES, ROWS) == (5, 6, 7, 8, 9)


Sum = tuple[float, float, float, float, float, float, float, float, float]
"""What each row counts."""


def cost(columns: Columns, weights: Weights) -> Column:
    """Seconds, weighted, by slot: a new column."""
    queue_weight = weights.queue / weights.prefix
    groups = _largest_first(columns) if columns.holdings else [columns.nothing]
    sums: list[Sum] = []
    few: list[Holding] = []
    many: list[int] = []
    decoding = columns.output_tokens * weights.kv / weights.prefix
    sequence = columns.routing.decode_seconds_per_sequence * decoding
    token = columns.routing.decode_seconds_per_token * decoding
    rest = (sequence, token, 0.0, queue_weight, queue_weight * columns.mean_uncached_tokens)
    constant = sequence + token * columns.prompt_tokens
    low, high, requests_max, over_tokens_max = columns.bounds
    disturbance, ramp = columns.routing.decode_disturbance, columns.routing.disturbance_seconds
    for group in groups:
        if many and group.bits.bit_count() <= FEW:
            few.append(group)
            continue
        many.append(group.bits)
        unmatched = group.unmatched_tokens
        if unmatched * high <= ramp:
            sums.append((unmatched, *rest, 0.0, disturbance / ramp * unmatched * unmatched, constant))
        elif unmatched * low >= ramp:
            sums.append((unmatched, *rest, disturbance * unmatched, 0.0, constant))
        else:
            return _scored(columns, weights)
    total: Column
    if len(sums) == 1:
        total = np.array(sums[0]).dot(columns.table)
    else:
        rows = np.array(sums).dot(columns.table)
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
    return total


def _scored(columns: Columns, weights: Weights) -> Column:
    """The same by the scorers' own words."""
    total: Column = kv.seconds(columns) * (weights.kv / weights.prefix)
    total += queue.seconds(columns) * (weights.queue / weights.prefix)
    total += prefix.seconds(columns)
    return total


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
    routing = columns.routing
    disturbance, ramp = routing.decode_disturbance, routing.disturbance_seconds
    table = columns.table
    inverses, requests = table[RATE_INVERSE], table[REQUESTS]
    for group in groups:
        bits, unmatched = group.bits, group.unmatched_tokens
        while bits:
            least = bits & -bits
            bits ^= least
            slot = least.bit_length() - 1
            inverse, beside = inverses.item(slot), disturbance * requests.item(slot)
            mine, theirs = unmatched * inverse, thought * inverse
            mine *= 1.0 + beside * (mine / ramp if mine < ramp else 1.0)
            theirs *= 1.0 + beside * (theirs / ramp if theirs < ramp else 1.0)
            total[slot] += mine - theirs
