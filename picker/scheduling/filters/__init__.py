"""Who may be asked at all, before costs decide. Each filter maps a query to the slots that stand.

A new filter: one file with `mask`, one line here. A mask of `None` restricts nothing and costs
nothing; one that leaves nobody refuses the request with the filter's words.

    subset.py   the subset hint of the Endpoint Picker Protocol
    labels.py   labels of configuration and request
    models.py   who serves the model
    query.py    what filters look at besides the snapshot
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from picker.outcomes import Unavailable
from picker.pool.snapshot import Mask, Snapshot
from picker.scheduling.filters import labels, models, subset
from picker.scheduling.filters.query import Query


class Filter(NamedTuple):
    """One filter. `word` and `message` are what a client reads where nobody is left."""

    mask: Callable[[Snapshot, Query], Mask | None]
    word: str
    message: str


FILTERS: tuple[Filter, ...] = (
    Filter(subset.mask, "subset_empty", "no endpoint of the requested subset is ready"),
    Filter(labels.mask, "labels_unmatched", "no ready endpoint has the labels that were asked for"),
    Filter(models.mask, "model_not_served", "no endpoint that may take this request serves the model"),
)
"""In this order, each among those that the ones before it left."""


def standing(snapshot: Snapshot, query: Query) -> Mask | Unavailable | None:
    """Who may be asked: ready, and past every filter. `None`: every slot."""
    if not snapshot.ready_count:
        word = "no_endpoints" if snapshot.synced else "not_synced"
        return Unavailable("no ready endpoint in the pool", word)
    candidates = snapshot.ready_mask if snapshot.ready_count < snapshot.width else None
    for mask_of, word, message in FILTERS:
        mask = mask_of(snapshot, query)
        if mask is not None:
            candidates = mask if candidates is None else candidates & mask
            if not candidates.any():
                return Unavailable(message, word)
    return candidates


def passing_over(snapshot: Snapshot, candidates: Mask | None, asides: Iterable[Sequence[int]]) -> Mask | None:
    """`candidates` without the slots of each of `asides`, unless that would leave nobody."""
    for aside in asides:
        if aside:
            rest = np.copy(snapshot.ready_mask if candidates is None else candidates)
            rest[[slot for slot in aside if slot < snapshot.width]] = False
            if rest.any():
                candidates = rest
    return candidates
