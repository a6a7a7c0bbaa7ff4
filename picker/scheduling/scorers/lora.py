"""Seconds until the request's LoRA adapter is loaded here.

    0 where it is; adapter_load_seconds where it is not; adapter_wait_seconds where no slot is free

and in between where that is not known, by the share of those that are known to have none.

Only for requests that name an adapter. 0.5 s and 2 s rank loading above waiting for a slot, and
both below a prefill of many thousand tokens.
"""

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column | None:
    """One value a slot; `None` where the request names no adapter."""
    if columns.adapter is None:
        return None
    loaded, full = columns.adapter
    routing = columns.routing
    column: Column = full * (routing.adapter_wait_seconds - routing.adapter_load_seconds)
    column += routing.adapter_load_seconds
    column[loaded] = 0.0
    return column
