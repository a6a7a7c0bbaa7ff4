"""What telemetry asks for when the page is read, instead of keeping gauges up to date.

Plain values, filled by whoever knows (the wiring). Unknown is `None` and leaves its series out:
an autoscaler that reads no value keeps its hands still, one that reads 0 scales down.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from picker.budget import Budget
from picker.director import Director
from picker.files.line_writer import LineWriter
from picker.residency.heard import Heard
from picker.residency.residency import Residency
from picker.sharing.status import SharedStatus

NO_MODELS: Mapping[str, int] = MappingProxyType({})
NO_PRIORITIES: Mapping[tuple[str, int], int] = MappingProxyType({})


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of the pool, as it stands now. Gauges as the engine reported them last."""

    name: str
    address: str
    namespace: str = ""
    ejected: bool = False
    in_flight_requests: int = 0
    prefill_tokens: float = 0.0
    """Prompt tokens of these that were not cached and are not prefilled yet, as the picker estimates them."""
    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_cache_utilization: float | None = None
    scrape_age_seconds: float | None = None


class KvEventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard of engines' KV events."""

    events: Mapping[str, int]
    """By kind: stored, removed, cleared."""
    gaps: int
    replayed_batches: int
    malformed: int
    unmatched_blocks: int
    lag_seconds: float | None
    endpoints: int
    whole_endpoints: int
    confirmed_blocks: int


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The pool, the index and the picker's own state at one moment.

    `endpoints`: those that are ready to serve, ejected ones included. `saturation`: 1.0 is full.
    `wanted_replicas`: what the work that arrives would keep busy; `None`: unknown.
    `stale_seconds`: the age at which engine metrics count as unknown; `None`: never.
    `address_collisions`: claims of the source's entries to an address that another entry has.
    `recorded_requests` and `recording_lost` are `None` where nothing is recorded, `usage_lines` and `usage_lost`
    where there is no usage file.
    `memory_bytes`: what the ledger of memory holds, by part; `gave_way`: how often something of it had to go.
    `api_server_up` and `leader` are `None` where there is no Kubernetes and no election.
    """

    pool_name: str
    endpoints: Sequence[EndpointRow] = ()
    synced: bool = False
    requests_in_flight: int = 0
    running_by_model: Mapping[str, int] = NO_MODELS
    running_by_priority: Mapping[tuple[str, int], int] = NO_PRIORITIES
    """Of these, by model and priority, the ones whose priority is another than 0."""
    saturation: float | None = None
    wanted_replicas: float | None = None
    stale_seconds: float | None = None
    index_blocks: int = 0
    index_bytes: int = 0
    index_bytes_max: int = 0
    index_evictions: int = 0
    served_told: int = 0
    served_another: int = 0
    served_unknown: int = 0
    """Answers of which the proxy told who gave them; of them, by another endpoint than picked; by a stranger."""
    closed_endpoints: int = 0
    kv_events: KvEventCounts | None = None
    """`None`: nobody listens."""
    api_server_up: bool | None = None
    leader: bool | None = None
    shared: SharedStatus | None = None
    """`None`: no store."""
    address_collisions: int = 0
    recorded_requests: int | None = None
    recording_lost: int | None = None
    usage_lines: int | None = None
    usage_lost: int | None = None
    memory_bytes: Mapping[str, int] = NO_MODELS
    memory_bytes_max: int = 0
    gave_way: int = 0


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
                prefill_tokens=endpoint.prefill_tokens,
                waiting_requests=sample.waiting_requests if sample else None,
                running_requests=sample.running_requests if sample else None,
                kv_cache_utilization=sample.kv_cache_utilization if sample else None,
                scrape_age_seconds=now - sample.taken_at_seconds if sample else None,
            )
        )
    return rows


def pool_view(
    director: Director,
    budget: Budget,
    now: float,
    *,
    pool_name: str,
    running_by_model: Mapping[str, int],
    running_by_priority: Mapping[tuple[str, int], int],
    api_server_up: bool | None,
    leader: bool | None,
    address_collisions: int = 0,
    recording: LineWriter | None = None,
    usage_file: LineWriter | None = None,
    shared: SharedStatus | None = None,
    kv_events: Heard | None = None,
) -> PoolView:
    """Everything as it stands at `now`, on the director's clock."""
    director.ledger.expire(now)
    return PoolView(
        pool_name=pool_name,
        endpoints=endpoint_rows(director, now),
        synced=director.datastore.synced,
        requests_in_flight=director.ledger.open_charges,
        running_by_model=running_by_model,
        running_by_priority=running_by_priority,
        saturation=director.saturation(now),
        wanted_replicas=director.wanted_replicas(now),
        stale_seconds=director.config.engine_metrics.stale_seconds,
        index_blocks=director.index.blocks,
        index_bytes=director.index.bytes_estimate,
        index_bytes_max=director.index.bytes_max,
        index_evictions=director.index.evicted_blocks_total,
        api_server_up=api_server_up,
        leader=leader,
        address_collisions=address_collisions,
        recorded_requests=recording.written if recording is not None else None,
        recording_lost=recording.lost if recording is not None else None,
        usage_lines=usage_file.written if usage_file is not None else None,
        usage_lost=usage_file.lost if usage_file is not None else None,
        shared=shared,
        memory_bytes={"index": director.index.bytes_estimate, **budget.parts()},
        memory_bytes_max=director.index.bytes_max + budget.bytes_max,
        gave_way=budget.gave_way_total,
        served_told=director.served.told_total,
        served_another=director.served.another_total,
        served_unknown=director.served.unknown_total,
        closed_endpoints=len(director.datastore.closed_slots),
        kv_events=kv_event_counts(director.residency, kv_events),
    )


def kv_event_counts(residency: Residency | None, heard: Heard | None) -> KvEventCounts | None:
    """`None`: nobody listens."""
    if residency is None or heard is None:
        return None
    endpoints, whole, blocks = residency.counts()
    return KvEventCounts(
        events=dict(residency.events_total),
        gaps=heard.gaps_total,
        replayed_batches=heard.replayed_total,
        malformed=heard.malformed_total + heard.skipped_total,
        unmatched_blocks=residency.unmatched_blocks_total,
        lag_seconds=heard.lag_seconds,
        endpoints=endpoints,
        whole_endpoints=whole,
        confirmed_blocks=blocks,
    )
