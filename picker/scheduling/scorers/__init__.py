"""The objectives: each maps columns to a column of seconds of engine time.

A new scorer: one file with `seconds`, one line here, one weight in `config.Weights`.
"""

from collections.abc import Callable, Mapping

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns
from picker.scheduling.scorers import kv, prefix, queue

SCORERS: Mapping[str, Callable[[Columns], Column]] = {
    "prefix": prefix.seconds,
    "queue": queue.seconds,
    "kv": kv.seconds,
}
"""By the name of their weight."""
