"""The objectives: each maps columns to a column of seconds of engine time.

A new scorer: one file with `seconds`, one line here, one weight in `config.Weights`. An optional
one gives `None` where it has nothing to say of a request, and is not asked where its weight is 0.

    prefix.py   prefill of what is not cached
    queue.py    the wait until prefill begins
    kv.py       decoding beside the others
    lora.py     loading the adapter
    eviction.py what a full cache loses by it
    gpu.py      a GPU that is busy
"""

from collections.abc import Callable, Mapping

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns
from picker.scheduling.scorers import eviction, gpu, kv, lora, prefix, queue

SCORERS: Mapping[str, Callable[[Columns], Column]] = {
    "prefix": prefix.seconds,
    "queue": queue.seconds,
    "kv": kv.seconds,
}
"""By the name of their weight."""

OPTIONAL_SCORERS: Mapping[str, Callable[[Columns], Column | None]] = {
    "lora": lora.seconds,
    "eviction": eviction.seconds,
    "gpu": gpu.seconds,
}
