"""What filters look at besides the snapshot."""

from collections.abc import Sequence

from picker.pool.labels import Selector
from picker.pool.model_lists import ModelLists


class Query:
    """One request's restrictions, and what endpoints say they serve."""

    __slots__ = ("model", "models", "selectors", "subset")

    subset: Sequence[str] | None
    """`ip:port`, or `ip` for all its ports; `None` is all."""

    def __init__(
        self, model: str | None, subset: Sequence[str] | None, selectors: tuple[Selector, ...], models: ModelLists
    ) -> None:
        self.model = model
        self.subset = subset
        self.selectors = selectors
        self.models = models
