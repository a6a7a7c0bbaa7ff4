"""A model or adapter that some endpoints list and others do not goes where it is served.

An endpoint whose list is unknown stands; a model that no endpoint lists is left to the engines to refuse.
"""

from picker.pool.snapshot import Mask, Snapshot
from picker.scheduling.filters.query import Query


def mask(snapshot: Snapshot, query: Query) -> Mask | None:
    """The endpoints that may be asked for the model."""
    return query.models.serving(query.model, snapshot)
