"""Endpoint labels: configuration's selector (prefill-only servers get no ordinary requests) and the request's.

Worked out once for each selector and set of endpoints, so that a decision looks it up.
"""

import numpy as np

from picker.pool.labels import Selector
from picker.pool.snapshot import Mask, Snapshot
from picker.scheduling.filters.query import Query

SELECTORS_MAX = 256
"""Kept at once: requests bring their own."""


def mask(snapshot: Snapshot, query: Query) -> Mask | None:
    """The endpoints that every selector selects."""
    found: Mask | None = None
    for selector in query.selectors:
        try:
            one = snapshot.label_masks[selector.text]
        except KeyError:
            one = _selected(snapshot, selector)
        if one is not None:
            found = one if found is None else found & one
    return found


def _selected(snapshot: Snapshot, selector: Selector) -> Mask | None:
    kept = snapshot.label_masks
    if len(kept) >= SELECTORS_MAX:
        kept.clear()
    selected = np.array(
        [endpoint is not None and selector.matches(endpoint.spec.labels) for endpoint in snapshot.endpoints],
        dtype=np.bool_,
    )
    kept[selector.text] = None if np.array_equal(selected, snapshot.ready_mask) else selected
    return kept[selector.text]
