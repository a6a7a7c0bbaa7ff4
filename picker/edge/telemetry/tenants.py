"""Who used what: requests, tokens and engine seconds by tenant and model.

A row is the pair of labels and how well its counts are known, so that what was reported and what was estimated
never become one number. Bounded: tenants as `CappedLabel` has them, rows by `ROWS_MAX`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from picker.config.config_usage import NAMES_MAX
from picker.decision import Finished
from picker.edge.telemetry.series import CappedLabel, family, label_text
from picker.outcomes import Metered, Outcome

ROWS_MAX: Final = 4096
"""Beyond it everything counts under `other`."""

_FAMILIES: Final = (
    ("picker_tenant_requests_total", "Requests by tenant, and how well it is known what they used."),
    ("picker_tenant_prompt_tokens_total", "Prompt tokens by tenant, cached ones included."),
    ("picker_tenant_cached_tokens_total", "Prompt tokens by tenant that engines reported as cached."),
    ("picker_tenant_output_tokens_total", "Output tokens by tenant."),
    ("picker_tenant_engine_seconds_total", "Seconds of engines' work by tenant, by the cost model."),
)
_NONE: Final = Metered.NONE
_UNSEEN: Final = Outcome.UNSEEN


class TenantBook:
    """Counters since the start. One event loop owns it."""

    def __init__(self, tenants_max: int, named: Callable[[str], bool]) -> None:
        """`named`: whether configuration lists a tenant of that name."""
        self._label = CappedLabel(tenants_max, listed=named, listed_max=NAMES_MAX)
        self._rows: dict[tuple[str, str, Metered], tuple[str, list[float]]] = {}
        """With the labels of each as the page has them: thousands are too many to render in one step."""

    def count(self, record: Finished, model: str) -> None:
        """One exchange is over. `model`: its label on the page."""
        if record.outcome is _UNSEEN:
            return
        metered = record.metered
        tenant = record.tenant
        label = "" if tenant is None else self._label.of(tenant, admit=metered is not _NONE)
        key = (label, model, metered)
        row = (self._rows.get(key) or self._begin(key))[1]
        row[0] += 1
        charged = record.charged
        if charged is None:
            return
        if charged.input_tokens is not None:
            row[1] += charged.input_tokens
        if charged.cached_tokens is not None:
            row[2] += charged.cached_tokens
        if charged.output_tokens is not None:
            row[3] += charged.output_tokens
        if record.engine_seconds is not None:
            row[4] += record.engine_seconds

    def _begin(self, key: tuple[str, str, Metered]) -> tuple[str, list[float]]:
        if len(self._rows) >= ROWS_MAX:
            key = (CappedLabel.OTHER, CappedLabel.OTHER, key[2])
        tenant, model, metered = key
        labels = label_text(("tenant", "model_name", "usage"), (tenant, model, metered.value))
        return self._rows.setdefault(key, (labels, [0.0, 0.0, 0.0, 0.0, 0.0]))

    def parts(self, openmetrics: bool) -> Iterator[str]:
        """The families of the page. A count that is 0 for want of anything to count is not shown."""
        rows = [(labels, row.copy()) for labels, row in self._rows.values()]  # counting goes on between the parts
        for column, (name, help_text) in enumerate(_FAMILIES):
            lines = (("", labels, row[column]) for labels, row in rows if column == 0 or row[column])
            yield from family(name, help_text, "counter", lines, openmetrics)
