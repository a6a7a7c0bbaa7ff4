"""request + snapshot + now + rng -> Decision: the whole policy on one screen, and its books.

The director owns the state that decisions need (datastore, in-flight ledger, prefix index,
learned rates, ejection) and is the only one who changes it. `decide` makes a decision and
charges it; `first_token`, `answered`, `served_by` and `finish` tell what became of it. None of
them does I/O, reads a clock or rolls dice: `now` and `rng` are passed in.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from picker.api.hints import NO_HINTS, HintRules, Hints, hint_rules
from picker.api.request import BYTES_PER_TOKEN_ID, InferenceRequest
from picker.config import Config
from picker.decision import Decision, Picked
from picker.flowcontrol import objectives, saturation
from picker.outcomes import Reason, Shed, Unavailable, Usage
from picker.pool.backoff import Rng
from picker.pool.datastore import Change, Datastore
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge, InflightLedger
from picker.pool.labels import Selector, selector
from picker.pool.snapshot import Column, Mask, Snapshot
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.blocks import BLOCK_BYTES, block_hashes, chain_seed
from picker.prefix.index import PrefixIndex
from picker.prefix.matches import NO_MATCH, Match, Recorded
from picker.scheduling import explanation, scheduler
from picker.scheduling.adapters import AdapterBook
from picker.scheduling.columns import Columns, holdings
from picker.scheduling.ejection import EjectionBook
from picker.scheduling.filters import FILTERS
from picker.scheduling.filters.query import Query
from picker.scheduling.fused import value_at
from picker.scheduling.loads import Loads
from picker.scheduling.rates import Rates
from picker.scheduling.stickiness import Stickiness, Stuck

_STICKY: Final = Reason.STICKY
_HEADERS: Final = Reason.HEADERS


class Booking:
    """A decision's entries in the books: what `finish` must undo or learn from. One per pick."""

    __slots__ = ("adapter", "charge", "hashes", "model", "prompt_bytes", "recorded", "stuck")

    def __init__(
        self,
        charge: Charge,
        hashes: "array[int]",
        recorded: Recorded | None,
        model: str | None,
        prompt_bytes: int | None,
    ) -> None:
        self.charge = charge
        self.hashes = hashes
        self.recorded = recorded
        self.model = model
        self.prompt_bytes = prompt_bytes
        self.adapter: str | None = None
        self.stuck: Stuck | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the request went, as far as is known."""
        return self.charge.endpoint


class _View:
    """What a decision looks at."""

    __slots__ = ("columns", "hashes", "hints", "snapshot")

    def __init__(self, snapshot: Snapshot, hints: Hints, hashes: "array[int]", columns: Columns) -> None:
        self.snapshot = snapshot
        self.hints = hints
        self.hashes = hashes
        self.columns = columns


class Director:
    """The policy and its books. One event loop owns it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ledger = InflightLedger()
        self.datastore = Datastore(
            self.ledger,
            stale_seconds=config.engine_metrics.stale_seconds,
            default_capacity_tokens=config.routing.kv_capacity_tokens,
        )
        self.index = PrefixIndex(
            bytes_max=config.limits.index_bytes_max,
            capacity_blocks=self._index_blocks(config.routing.kv_capacity_tokens),
        )
        self.rates = Rates(config.routing, models_max=config.limits.models_max)
        self.loads = Loads(self.ledger, self.rates)
        self.ejection = EjectionBook()
        self.adapters = AdapterBook()
        self.stickiness = Stickiness(config)
        self.hint_rules: HintRules | None = hint_rules(config)
        self._selectors = _selectors(config)
        self.objectives: dict[str, int] = {}
        """Priorities that the cluster defines; those of the configuration win."""

    # The world changes ---------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Other knobs from now on; books and index stay."""
        self.config = config
        self.datastore.reconfigure(
            stale_seconds=config.engine_metrics.stale_seconds,
            default_capacity_tokens=config.routing.kv_capacity_tokens,
        )
        self.index.default_capacity_blocks = self._index_blocks(config.routing.kv_capacity_tokens)
        for endpoint in self.datastore.endpoints:
            sample = self.datastore.samples.get(endpoint.spec.uid)
            capacity = sample.kv_capacity_tokens if sample is not None else None
            self.index.set_capacity(endpoint.slot, None if capacity is None else self._index_blocks(capacity))
        self.rates.reconfigure(config.routing, models_max=config.limits.models_max)
        self.loads.forget()
        self.stickiness.reconfigure(config)
        self.hint_rules = hint_rules(config)
        self._selectors = _selectors(config)

    def replace_endpoints(self, specs: Iterable[EndpointSpec]) -> Change:
        """A source tells its whole set. Those who left take their index entries with them at once."""
        change = self.datastore.replace(specs)
        for endpoint, slot in zip(change.left, change.left_slots, strict=True):
            self.index.purge(slot)
            self.ejection.forget(endpoint)
            self.adapters.forget(endpoint, slot)
        for endpoint in change.joined:
            self.rates.adopt(endpoint.slot)
        return change

    def record_sample(self, sample: EngineSample) -> bool:
        """A reading of an engine. True if it tells that the engine lost its cache."""
        reading = self.datastore.record(sample)
        if reading is None:
            return False
        slot = reading.endpoint.slot
        self.adapters.record(reading.endpoint, sample, restarted=reading.restarted)
        if reading.restarted:
            self.index.purge(slot)
        if (reading.restarted or reading.capacity_changed) and sample.kv_capacity_tokens is not None:
            self.index.set_capacity(slot, self._index_blocks(sample.kv_capacity_tokens))
        return reading.restarted

    # One request ---------------------------------------------------------------------------

    def decide(
        self,
        request: InferenceRequest,
        *,
        now: float,
        rng: Rng,
        subset: Sequence[str] | None = None,
        objective: str | None = None,
        first_chunk_visible: bool = False,
        hints: Hints = NO_HINTS,
    ) -> Decision:
        """Choose, charge, record.

        `subset`: the endpoints the proxy allows (`ip:port`, or `ip` for all its ports); `None` is all.
        `first_chunk_visible`: response bodies pass here, so a stream's first chunk will be seen.
        `hints`: what the request's headers and path say.
        """
        self.ledger.expire(now)
        if now >= self.rates.fade_due_at_seconds:
            self.rates.fade(now)
            self.loads.forget()
        snapshot = self.datastore.snapshot(now)
        selectors = self._selectors if hints.labels is None else (*self._selectors, hints.labels)
        among = self._among(snapshot, Query(request.model, subset, selectors, self.datastore.models), now)
        if among is not None and isinstance(among, Unavailable):
            return among
        if objective is not None:
            priority = self.priority(objective)
            if objectives.is_sheddable(priority) and self._saturated(snapshot, among):
                return Shed(
                    self.config.saturation.retry_after_seconds,
                    f"every endpoint is saturated and priority {priority} may be refused; try again later",
                )
        hashes = request.block_hashes
        if hashes is None:
            hashes = block_hashes(chain_seed(request.model, request.cache_salt), request.pieces)
        match = self.index.match(hashes, now) if hashes else NO_MATCH
        columns = self._columns(request, snapshot, match, now)
        hot = scheduler.hot_bits(match, self.config.threshold, columns.bytes_per_token, among) if match.steps else 0
        holder = None
        if hints is not NO_HINTS or request.previous_response_id is not None or request.conversation_id is not None:
            holder = self.stickiness.holder(request, hints, now)
        choice = scheduler.choose(columns, hot, among, self.config, rng, holder=None if holder is None else holder.slot)
        return self._book(request, _View(snapshot, hints, hashes, columns), choice, now, first_chunk_visible)

    def first_token(self, booking: Booking, now: float) -> None:
        """The first body chunk of a 2xx streamed answer: its prefill is over."""
        charge = booking.charge
        if self.ledger.first_token(charge) and not charge.timed:
            tokens = charge.backlog_tokens + charge.prefill_tokens
            own_share = charge.prefill_tokens / tokens if tokens else 0.0
            seconds = now - charge.charged_at_seconds
            self.rates.observe_prefill(charge.endpoint.slot, tokens, seconds, now=now, own_share=own_share)

    def not_streamed(self, booking: Booking) -> None:
        """The answer turned out not to stream: its prefill ends by the clock."""
        charge = booking.charge
        if charge.prefilling and not charge.timed:
            self.ledger.time_prefill(charge, charge.charged_at_seconds + self._prefill_seconds(charge))

    def answered(self, booking: Booking, status: int, now: float) -> bool:
        """Response headers came. True if this failure ejects the endpoint."""
        endpoint = booking.endpoint
        if status >= 400:  # nothing was computed that a later request could use
            self._withdraw(booking)
        if status >= 500:
            return self.ejection.failed(endpoint, booking.charge, now, self.config.ejection)
        if status != 429:
            self.ejection.succeeded(endpoint)
        return False

    def served_by(self, booking: Booking, address: str, now: float) -> bool:
        """The proxy tells who served. Another than picked: charge and index move there. True if so."""
        old = booking.charge
        endpoint = self.datastore.snapshot(now).by_address.get(address)
        if endpoint is None or endpoint is old.endpoint or old.released:
            return False
        self._withdraw(booking)
        timed, prefilling = old.timed, old.prefilling
        self.ledger.release(old)
        self.ejection.failed(old.endpoint, old, now, self.config.ejection)  # the proxy could not reach it
        booking.charge = charge = self.ledger.charge(
            endpoint,
            prefill_tokens=old.prefill_tokens,
            context_tokens=old.context_tokens,
            memory_tokens=old.memory_tokens,
            now=old.charged_at_seconds,  # it has been there all the time: rates are learned from then on
        )
        if not prefilling:
            self.ledger.first_token(charge)
        elif timed:
            self.ledger.time_prefill(charge, charge.charged_at_seconds + self._prefill_seconds(charge))
        if booking.hashes:
            booking.recorded = self.index.record(booking.hashes, endpoint.slot, now)
        if booking.adapter is not None:
            self.adapters.released(old.endpoint, booking.adapter)
            self.adapters.picked(endpoint, booking.adapter)
        if booking.stuck is not None:
            self.stickiness.moved(booking.stuck, endpoint, now)
        return True

    def created(self, booking: Booking, name: str, now: float) -> None:
        """The answer is a response or conversation of this id, stored where it was made."""
        self.stickiness.created(name, booking.endpoint, now)

    def finish(self, booking: Booking, *, reached: bool, usage: Usage | None = None) -> None:
        """The request is over, however it ended. `reached`: the endpoint may have computed it."""
        if not self.ledger.release(booking.charge):
            return
        self.ejection.released(booking.charge)
        if booking.adapter is not None:
            self.adapters.released(booking.endpoint, booking.adapter)
        if not reached:
            self._withdraw(booking)
        if usage is not None:
            self.rates.observe_usage(booking.model, booking.prompt_bytes, usage)

    def priority(self, objective: str | None) -> int:
        """Of the objective that a request names; 0 where unknown."""
        if objective is not None and objective in self.config.objectives:
            return self.config.objectives[objective]
        return objectives.priority(objective, self.objectives)

    def saturation(self, now: float) -> float | None:
        """How full the pool is, 1.0 is full; `None` without endpoints. For telemetry."""
        snapshot = self.datastore.snapshot(now)
        return saturation.pool_saturation(snapshot, self._backlog_seconds(snapshot), self.config.saturation)

    # Steps of a decision -------------------------------------------------------------------

    def _among(self, snapshot: Snapshot, query: Query, now: float) -> Mask | Unavailable | None:
        """Who stands for the choice: ready, past every filter, not ejected. `None`: every slot."""
        if not snapshot.ready_count:
            word = "no_endpoints" if snapshot.synced else "not_synced"
            return Unavailable("no ready endpoint in the pool", word)
        among = snapshot.ready_mask if snapshot.ready_count < snapshot.width else None
        for mask_of, word, message in FILTERS:
            mask = mask_of(snapshot, query)
            if mask is not None:
                among = mask if among is None else among & mask
                if not among.any():
                    return Unavailable(message, word)
        ejected = self.ejection.ejected(now)
        if ejected:
            healthy = np.copy(snapshot.ready_mask if among is None else among)
            healthy[[slot for slot in ejected if slot < snapshot.width]] = False
            if healthy.any():
                among = healthy
        return among

    def _saturated(self, snapshot: Snapshot, among: Mask | None) -> bool:
        standing = snapshot.ready_mask if among is None else among
        return saturation.all_saturated(snapshot, standing, self._backlog_seconds(snapshot), self.config.saturation)

    def _backlog_seconds(self, snapshot: Snapshot) -> Column:
        width = snapshot.width
        backlog: Column = self.ledger.columns(width)[1] * self.rates.rate_inverse[:width]
        return backlog

    def _columns(self, request: InferenceRequest, snapshot: Snapshot, match: Match, now: float) -> Columns:
        bytes_per_token, mean_output = self.rates.model(request.model)
        if request.exact_tokens:
            bytes_per_token = BYTES_PER_TOKEN_ID
        tokens = request.prompt_bytes / bytes_per_token
        output = mean_output
        if request.max_tokens is not None and request.max_tokens < output:
            output = max(0.0, request.max_tokens)
        table, routing = self.loads.copied(snapshot), self.config.routing
        shared: Sequence[tuple[float, float]] = ()
        if match.shared:
            shared = scheduler.copy_weights(
                match.shared,
                residence_seconds=self.index.residence_seconds(now),
                fullness=self.loads.fullness(mean_output),
                floor=routing.shared_weight,
                bytes_per_token=bytes_per_token,
                prompt_tokens=tokens,
            )
        holders, nothing = holdings(match, snapshot.ready_bits, tokens, bytes_per_token, shared)
        return Columns(  # by position, in the order of the fields: names cost half a microsecond more (interpreted)
            tokens,
            bytes_per_token,
            output,
            mean_output,
            self.rates.mean_uncached_tokens,
            match.blocks,
            holders,
            nothing,
            table,
            self.loads.bounds,
            snapshot.capacity_tokens,
            snapshot.waiting_requests,
            snapshot.kv_cache_utilization,
            routing,
            self.adapters.masks(request.model, snapshot) if self.datastore.models.is_adapter(request.model) else None,
            snapshot.gpu_utilization,
        )

    def _book(
        self, request: InferenceRequest, view: "_View", choice: scheduler.Choice, now: float, first_chunk_visible: bool
    ) -> Picked:
        snapshot, hints, hashes, columns = view.snapshot, view.hints, view.hashes, view.columns
        slot = choice.slot
        endpoint = snapshot.endpoints[slot]
        assert endpoint is not None, "chose a slot without an endpoint"
        prompt_tokens = columns.prompt_tokens
        holding = columns.holding(slot) if columns.holdings else columns.nothing
        uncached = prompt_tokens - holding.held_tokens
        inverse = value_at(self.rates.rate_inverse, slot)
        ttft = endpoint.prefill_tokens * inverse + uncached * inverse
        charge = self.ledger.charge(
            endpoint,
            prefill_tokens=uncached,
            context_tokens=prompt_tokens,
            memory_tokens=holding.new_tokens,
            now=now,
            prefill_seconds=None if first_chunk_visible and request.stream else ttft,
        )
        self.rates.observe_uncached(uncached)
        self.ejection.picked(endpoint, charge, now)
        recorded = self.index.record(hashes, slot, now) if hashes else None
        sized = None if request.has_media or request.exact_tokens else request.prompt_bytes
        booking = Booking(charge, hashes, recorded, request.model, sized)
        if hints is not NO_HINTS or request.conversation_id is not None:
            booking.stuck = self.stickiness.went(request, hints, endpoint, now)
        if columns.adapter is not None and request.model is not None:
            booking.adapter = request.model
            self.adapters.picked(endpoint, request.model)
        addresses: tuple[str, ...] = (endpoint.spec.address,)
        if self.config.destinations_max > 1:
            slots = scheduler.ranked(choice, self.config.destinations_max)
            addresses = tuple(each.spec.address for at in slots if (each := snapshot.endpoints[at]) is not None)
        by_prompt = request.pieces or request.block_hashes is not None or choice.reason is _STICKY
        reason = choice.reason if by_prompt else _HEADERS
        return Picked(  # by position, as the columns
            addresses,
            reason,
            (holding.blocks / len(hashes) if hashes else 0.0) if request.pieces or hashes else None,
            booking,
            explanation.Later(snapshot, choice, columns, reason, self.config),
            ttft,
            endpoint.spec.name,
            prompt_tokens,
            holding.held_tokens / prompt_tokens if prompt_tokens else None,
        )

    # Books ---------------------------------------------------------------------------------

    def _withdraw(self, booking: Booking) -> None:
        recorded, booking.recorded = booking.recorded, None
        if recorded is not None and booking.endpoint.slot == recorded.slot:
            self.index.withdraw(booking.hashes, recorded)

    def _prefill_seconds(self, charge: Charge) -> float:
        slot = charge.endpoint.slot
        tokens = charge.backlog_tokens + charge.prefill_tokens
        return tokens * float(self.rates.rate_inverse[slot]) if slot >= 0 else 0.0

    def _index_blocks(self, capacity_tokens: int) -> int:
        """An engine's KV capacity in our blocks, oversized as configured."""
        routing = self.config.routing
        return max(1, int(capacity_tokens * routing.bytes_per_token * routing.index_oversize / BLOCK_BYTES))


def _selectors(config: Config) -> tuple[Selector, ...]:
    configured = selector(config.endpoint_labels.match, config.endpoint_labels.not_in)
    return () if configured is None else (configured,)
