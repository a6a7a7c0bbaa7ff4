"""What filters look at besides the snapshot."""

from collections.abc import Sequence

import msgspec

from picker.pool.labels import Selector
from picker.pool.model_lists import ModelLists


class Query(msgspec.Struct, frozen=True, gc=False):
    """One request's restrictions, and what endpoints say they serve."""

    model: str | None
    subset: Sequence[str] | None
    """`ip:port`, or `ip` for all its ports; `None` is all."""
    selectors: tuple[Selector, ...]
    models: ModelLists
