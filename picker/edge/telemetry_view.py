"""What telemetry asks for when the page is read, instead of keeping gauges up to date.

Plain values, filled by whoever knows (the wiring). Unknown is `None` and leaves its series out:
an autoscaler that reads no value keeps its hands still, one that reads 0 scales down.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from picker.director import Director

NO_MODELS: Mapping[str, int] = MappingProxyType({})


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of the pool, as it stands now. Gauges as the engine reported them last."""

    name: str
    address: str
    namespace: str = ""
    ejected: bool = False
    in_flight_requests: int = 0
    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_cache_utilization: float | None = None
    scrape_age_seconds: float | None = None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one priority that flow control holds back."""

    priority: int
    requests: int
    bytes: int
    fairness_id: str = ""
    model: str = ""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The pool, the index and the picker's own state at one moment.

    `endpoints`: those that are ready to serve, ejected ones included. `saturation`: 1.0 is full.
    `api_server_up` and `leader` are `None` where there is no Kubernetes and no election.
    """

    pool_name: str
    endpoints: Sequence[EndpointRow] = ()
    synced: bool = False
    requests_in_flight: int = 0
    running_by_model: Mapping[str, int] = NO_MODELS
    queued: Sequence[QueueRow] = ()
    saturation: float | None = None
    index_blocks: int = 0
    index_bytes: int = 0
    index_bytes_max: int = 0
    index_evictions: int = 0
    api_server_up: bool | None = None
    leader: bool | None = None


def endpoint_rows(director: Director, now: float) -> list[EndpointRow]:
    """The live endpoints as they stand at `now`, on the director's clock."""
    ejected = set(director.ejection.ejected(now))
    rows = []
    for endpoint in director.datastore.endpoints:
        sample = director.datastore.samples.get(endpoint.spec.uid)
        rows.append(
            EndpointRow(
                name=endpoint.spec.name,
                address=endpoint.spec.address,
                namespace=endpoint.spec.namespace,
                ejected=endpoint.slot in ejected,
                in_flight_requests=endpoint.in_flight_requests,
                waiting_requests=sample.waiting_requests if sample else None,
                running_requests=sample.running_requests if sample else None,
                kv_cache_utilization=sample.kv_cache_utilization if sample else None,
                scrape_age_seconds=now - sample.taken_at_seconds if sample else None,
            )
        )
    return rows
