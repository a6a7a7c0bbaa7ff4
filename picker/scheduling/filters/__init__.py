"""Who may be asked at all, before costs decide. Each filter maps a query to the slots that stand.

A new filter: one file with `mask`, one line here. A mask of `None` restricts nothing and costs
nothing; one that leaves nobody refuses the request with the filter's words.
"""

from collections.abc import Callable
from typing import NamedTuple

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
