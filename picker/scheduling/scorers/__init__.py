"""The objectives: each maps columns to a column of seconds of engine time.

A new scorer: one file with `seconds`, one line here, one weight in `config.Weights`. An optional
one gives `None` where it has nothing to say of a request, and is not asked where its weight is 0.
"""

from collections.abc import Callable, Mapping

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns
from picker.scheduling.scorers import gpu, kv, lora, prefix, queue

SCORERS: Mapping[str, Callable[[Columns], Column]] = {
    "prefix": prefix.seconds,
    "queue": queue.seconds,
    "kv": kv.seconds,
}
"""By the name of their weight."""

OPTIONAL_SCORERS: Mapping[str, Callable[[Columns], Column | None]] = {
    "lora": lora.seconds,
    "gpu": gpu.seconds,
}
