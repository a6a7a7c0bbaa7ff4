"""request + snapshot + now + rng -> Decision: the whole policy on one screen, and its books.

The director owns the state that decisions need (datastore, in-flight ledger, prefix index,
learned rates, ejection) and is the only one who changes it. `decide` makes a decision and
charges it; `first_token`, `answered`, `served_by`, `ended_well`, `abandoned` and `finish` tell what became of it.
None of them does I/O, reads a clock or rolls dice: `now` and `rng` are passed in. Where `decide` fails for a
fault of ours, `decide_plainly` still finds an endpoint.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from xxhash import xxh3_64_intdigest

from picker import admission
from picker.api.hints import NO_HINTS, HintRules, Hints, hint_rules
from picker.api.request import BYTES_PER_TOKEN_ID, InferenceRequest
from picker.config import Config, Limits
from picker.config.config_objectives import priorities
from picker.decision import Booking, Decision, Picked
from picker.metering import Metering
from picker.outcomes import Reason, Shed, Unavailable, Usage
from picker.pool.datastore import Change, Datastore
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge, InflightLedger
from picker.pool.labels import Selector, selector
from picker.pool.snapshot import Column, Mask, Snapshot
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.blocks import BLOCK_BYTES, block_hashes, chain_seed
from picker.prefix.index import PrefixIndex
from picker.prefix.matches import NO_MATCH, Match
from picker.residency.residency import Residency
from picker.rng import Rng
from picker.scheduling import explanation, scheduler
from picker.scheduling.adapters import AdapterBook
from picker.scheduling.columns import Columns, holdings
from picker.scheduling.demand import Demand
from picker.scheduling.ejection import EjectionBook, overdue
from picker.scheduling.filters import passing_over, standing
from picker.scheduling.filters.query import Query
from picker.scheduling.fused import value_at
from picker.scheduling.loads import Loads
from picker.scheduling.rates import NAME_CHARS_MAX, Rates
from picker.scheduling.served import ServedBook
from picker.scheduling.shares import IndexShares, index_blocks
from picker.scheduling.stickiness import Stickiness
from picker.sharing.outbox import Outbox

_STICKY: Final = Reason.STICKY
_HEADERS: Final = Reason.HEADERS

ENGINE_BLOCK_TOKENS: Final = 16
"""What most engines' blocks hold. The last one of a match is of another prompt from somewhere within it on."""


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
            capacity_blocks=index_blocks(config.routing.kv_capacity_tokens, config.routing),
        )
        self.rates = Rates(config.routing, models_max=config.limits.models_max)
        self.demand = Demand(config.routing)
        self.loads = Loads(self.ledger, self.rates)
        self.shares = IndexShares(self.index, self.datastore, config.routing)
        self.ejection = EjectionBook()
        self.served = ServedBook()
        self.adapters = AdapterBook()
        self.stickiness = Stickiness(config)
        self.hint_rules: HintRules | None = hint_rules(config)
        self.metering = Metering(config)
        self._selectors = _selectors(config)
        self._priorities = priorities(config.objectives)
        self.outbox: Outbox | None = None  # where others are told what is decided here (sharing/attach.py)
        self.objectives: dict[str, int] = {}
        """Priorities that the cluster defines; those of the configuration win."""
        self.explain_header: bool = config.debug.explain_header
        self.residency: Residency | None = None
        """What engines' KV events tell; `None`: nobody listens."""
        self.stamp_header: str | None = None
        self.on_ejected: Callable[[str], None] | None = None
        """Is told the names of endpoints that failures put aside."""

    # The world changes ---------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Other knobs from now on; books and index stay."""
        self.config = config
        self.datastore.reconfigure(
            stale_seconds=config.engine_metrics.stale_seconds,
            default_capacity_tokens=config.routing.kv_capacity_tokens,
        )
        self.shares.reconfigure(config.routing)
        self.rates.reconfigure(config.routing, models_max=config.limits.models_max)
        self.demand.reconfigure(config.routing)
        self.loads.forget()
        self.stickiness.reconfigure(config)
        self.explain_header = config.debug.explain_header
        self.hint_rules = hint_rules(config)
        self.metering = Metering(config)
        self._selectors = _selectors(config)
        self._priorities = priorities(config.objectives)

    def listen(self, residency: Residency) -> None:
        """Engines' KV events are read from now on."""
        self.residency = residency
        self.stamp_header = self.config.kv_events.stamp_header

    def replace_endpoints(self, specs: Iterable[EndpointSpec]) -> Change:
        """A source tells its whole set. Those who left take their index entries with them at once."""
        change = self.datastore.replace(specs)
        for endpoint, slot in zip(change.left, change.left_slots, strict=True):
            self.index.purge(slot)
            self.ejection.forget(endpoint)
            self.adapters.forget(endpoint, slot)
            self.rates.retire(slot)
            self.shares.forget(slot)
            if self.residency is not None:
                self.residency.forget(slot)
        self.rates.adopt([endpoint.slot for endpoint in change.joined])
        if change.joined or change.left:
            self.shares.follow()
        return change

    def record_sample(self, sample: EngineSample) -> bool:
        """A reading of an engine. True if it tells that the engine lost its cache."""
        reading = self.datastore.record(sample)
        if reading is None:
            return False
        slot = reading.endpoint.slot
        self.adapters.record(reading.endpoint, sample, restarted=reading.restarted)
        if reading.restarted and (self.outbox is None or self.outbox.restarted(reading.endpoint, sample)):
            self.index.purge(slot)
            self.shares.forget(slot)
            if self.residency is not None and self.residency.tells(slot):
                self.residency.cleared(slot)
        self.shares.read(slot, sample, capacity_changed=reading.restarted or reading.capacity_changed)
        return reading.restarted

    @property
    def limits(self) -> Limits:
        """As configured now."""
        return self.config.limits

    @property
    def models_differ(self) -> bool:
        """Whether endpoints list different models, so that a request's model decides."""
        return self.datastore.models.differ

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
        candidates = self._candidates(snapshot, Query(request.model, subset, selectors, self.datastore.models), now)
        if isinstance(candidates, Unavailable):
            if not snapshot.ready_count:
                self.demand.turned_away(now)
            return candidates
        if objective is not None:
            priority = self.priority(objective)
            if admission.is_sheddable(priority) and self._saturated(snapshot, candidates):
                self.demand.turned_away(now)
                return Shed(
                    self.config.saturation.retry_after_seconds,
                    f"every endpoint is saturated and priority {priority} may be refused; try again later",
                )
        hashes = request.block_hashes
        if hashes is None:
            hashes = block_hashes(chain_seed(request.model, request.cache_salt), request.pieces)
        match = self.index.match(hashes, now) if hashes and request.reads_cache else NO_MATCH
        columns = self._columns(request, snapshot, match, now)
        hot = (
            scheduler.hot_bits(match, self.config.threshold, columns.bytes_per_token, candidates) if match.steps else 0
        )
        holder = None
        if hints is not NO_HINTS or request.previous_response_id is not None or request.conversation_id is not None:
            holder = self.stickiness.holder(request, hints, now)
        choice = scheduler.choose(
            columns, hot, candidates, self.config, rng, holder=None if holder is None else holder.slot
        )
        return self._book(request, _View(snapshot, hints, hashes, columns), choice, now, first_chunk_visible)

    def decide_plainly(self, request: InferenceRequest, *, now: float, subset: Sequence[str] | None = None) -> Decision:
        """A fault of ours kept `decide` from deciding: the endpoint with the fewest requests of ours in flight.

        Of those that are ready, that the proxy allows and that serve the model. Nothing is looked up, recorded or
        learned, so that little can fail.
        """
        snapshot = self.datastore.snapshot(now)
        candidates = standing(snapshot, Query(request.model, subset, (), self.datastore.models))
        if isinstance(candidates, Unavailable):
            return candidates
        ready = [
            each for each in snapshot.endpoints if each is not None and (candidates is None or candidates[each.slot])
        ]
        endpoint = min(ready, key=_in_flight)
        charge = self.ledger.charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, now=now, prefill_seconds=0.0)
        booking = Booking(charge, _NO_HASHES, None, request.model, None, computes=request.computes)
        explain = explanation.PlainExplanation(endpoint.spec.address, endpoint.spec.name)
        return Picked((endpoint.spec.address,), _HEADERS, None, booking, explain, None, endpoint.spec.name)

    def first_token(self, booking: Booking, now: float) -> None:
        """The first content of a 2xx streamed answer: its prefill is over."""
        charge = booking.charge
        if booking.computes:
            charge.endpoint.answered_at_seconds = now
        if self.ledger.first_token(charge, now) and not charge.timed:
            tokens = charge.backlog_tokens + charge.prefill_tokens
            own_share = charge.prefill_tokens / tokens if tokens else 0.0
            seconds = now - charge.charged_at_seconds
            slot = charge.endpoint.slot
            self.rates.observe_prefill(slot, tokens, seconds, now=now, own_share=own_share)
            if slot >= 0 and now >= self.demand.prefill_due_at_seconds:
                slowness, running = value_at(self.rates.slowness, slot), self._reported_running(charge.endpoint, now)
                self.demand.observe_prefill(charge, tokens, seconds, now, slowness, own_share, running)

    def not_streamed(self, booking: Booking) -> None:
        """The answer turned out not to stream: its prefill ends by the clock."""
        charge = booking.charge
        if charge.prefilling and not charge.timed:
            self.ledger.time_prefill(charge, charge.charged_at_seconds + self._prefill_seconds(charge))

    def answered(self, booking: Booking, status: int, now: float, *, by_proxy: bool = False, told: bool = True) -> bool:
        """Response headers came. True if this failure ejects the endpoint.

        `by_proxy`: the proxy refused by itself. `told`: it said who served, as it does where a connection is refused;
        a 503 of one that usually tells and does not is its own: it had no host to ask.
        """
        if status >= 400:  # nothing was computed that a later request could use
            self._withdraw(booking)
        else:
            self._confirm(booking, now)
        by_proxy = by_proxy or (status == 503 and not told and self.served.told_total > 0)
        return status >= 500 and not by_proxy and self._failed(booking, booking.charge, now)

    def ended_well(self, booking: Booking, now: float) -> None:
        """An answer below 400 came whole, and said nothing of a failure."""
        if not booking.computes:
            return
        booking.ended_at_seconds = booking.endpoint.answered_at_seconds = now
        self.ejection.succeeded(booking.endpoint)

    def failed_within(self, booking: Booking, now: float) -> bool:
        """An answer below 400 came whole and says that its engine failed, or says nothing at all. True if this ejects
        the endpoint."""
        self._withdraw(booking)
        return self._failed(booking, booking.charge, now)

    def abandoned(self, booking: Booking, silent_seconds: float, now: float, *, begun: bool, streams: bool) -> bool:
        """The client went away after so long without content. True if this ejects the endpoint.

        It is a failure of the endpoint where an answer was long due and others answered meanwhile, it itself
        nobody; a client that changes its mind is none. `begun`: content came before.
        """
        due_seconds = 0.0 if begun else booking.predicted_ttft_seconds
        if not streams:
            due_seconds += booking.output_seconds
        if not overdue(booking.endpoint, self.datastore.endpoints, silent_seconds, due_seconds, now, begun=begun):
            return False
        self._withdraw(booking)
        return self._failed(booking, booking.charge, now)

    def served_by(self, booking: Booking, address: str, now: float) -> bool:
        """The proxy tells who served. Another of the pool than picked: charge and index go there. True if so."""
        old = booking.charge
        endpoint = self.datastore.snapshot(now).by_address.get(address)
        if endpoint is old.endpoint:
            self.served.as_picked()
            return False
        heeded = address in booking.fallbacks
        self.served.elsewhere(known=endpoint is not None, heeded=heeded)
        if old.released:
            return False
        self._withdraw(booking)
        booking.expected = None
        self.ejection.released(old)
        if endpoint is None:  # where it is nobody knows: nothing is booked anywhere
            self.ledger.release(old)
            return False
        if heeded or self.served.heeds:  # the proxy could not reach it
            self._failed(booking, old, now, request_key=0)
        booking.charge = charge = self.ledger.moved(old, endpoint)
        if charge.prefilling and old.timed:
            self.ledger.time_prefill(charge, charge.charged_at_seconds + self._prefill_seconds(charge))
        if booking.hashes:
            booking.recorded = self.index.record(booking.hashes, endpoint.slot, now, settled=False)
        if booking.adapter is not None:
            self.adapters.released(old.endpoint, booking.adapter)
            self.adapters.picked(endpoint, booking.adapter)
        if booking.stuck is not None:
            self.stickiness.over(booking.stuck, old.endpoint)
            self.stickiness.moved(booking.stuck, endpoint)
        return True

    def created(self, booking: Booking, name: str, now: float) -> None:
        """The answer is a response or conversation of this id, stored where it was made."""
        self.stickiness.created(name, booking.endpoint, now)

    def finish(
        self, booking: Booking, *, reached: bool, usage: Usage | None = None, content_events: int | None = None
    ) -> None:
        """The request is over, however it ended. `reached`: the endpoint may have computed it.

        `content_events`: of a whole streamed answer that told no usage; engines send about a token an event.
        """
        if booking.finished:
            return
        booking.finished = True
        if not booking.computes:  # a stored answer's counts are those of another request
            usage = content_events = None
        if usage is not None and usage.output_tokens is not None and booking.ended_at_seconds > 0.0:
            self._observe_decode(booking, usage.output_tokens / max(1, booking.sequences))
        self.ledger.release(booking.charge)
        self.ejection.released(booking.charge)
        if booking.recorded is not None:
            self.index.settle(booking.recorded.slot)
        if booking.stuck is not None:
            self.stickiness.over(booking.stuck, booking.endpoint)
        if booking.adapter is not None:
            self.adapters.released(booking.endpoint, booking.adapter)
        if not reached:
            self._withdraw(booking)
        if usage is not None:
            self.rates.observe_usage(booking.model, booking.prompt_bytes, usage, sequences=booking.sequences)
        elif content_events:
            counted = Usage(output_tokens=content_events)
            self.rates.observe_usage(booking.model, None, counted, sequences=booking.sequences)
        if booking.session_id is not None and self.residency is not None:
            told = usage if reached and usage is not None else Usage()
            slot = booking.endpoint.slot
            self.residency.ended(booking.session_id, slot, told.input_tokens, told.cached_tokens)
        if reached and booking.expected is not None and booking.endpoint.slot == booking.expected.slot:
            self.shares.compare(booking.expected, usage)

    def engine_seconds(self, booking: Booking, usage: Usage) -> float:
        """Seconds of its engine's work that a request was, by the cost model. Call it before `finish`.

        The prefill of what was not cached, and each output token's share of the decode steps: what its own sequence and
        context add, and an equal part of what a step takes anyway, among the requests that run there now.
        """
        endpoint, routing = booking.endpoint, self.config.routing
        prompt, output = float(usage.input_tokens or 0), float(usage.output_tokens or 0)
        uncached = prompt - usage.cached_tokens if usage.cached_tokens is not None else booking.charge.prefill_tokens
        inverse = 1.0 / routing.prefill_tokens_per_second
        if endpoint.slot >= 0:
            inverse = value_at(self.rates.rate_inverse, endpoint.slot)
        step = routing.decode_step_seconds / max(1, endpoint.in_flight_requests)
        step += routing.decode_seconds_per_sequence + routing.decode_seconds_per_token * (prompt + output / 2)
        return min(prompt, uncached) * inverse + output * step

    def priority(self, objective: str | None) -> int:
        """Of the objective that a request names; 0 where unknown."""
        if objective is not None and objective in self._priorities:
            return self._priorities[objective]
        return admission.priority(objective, self.objectives)

    def saturation(self, now: float) -> float | None:
        """How full the pool is, 1.0 is full; `None` without endpoints. For telemetry."""
        snapshot = self.datastore.snapshot(now)
        return admission.pool_saturation(snapshot, self._backlog_seconds(snapshot), self.config.saturation)

    def wanted_replicas(self, now: float) -> float | None:
        """How many replicas the work that arrives would keep busy; `None` while that is not known. For telemetry."""
        return self.demand.wanted_replicas(now, self.datastore.snapshot(now), self.rates.slowness)

    # Steps of a decision -------------------------------------------------------------------

    def _candidates(self, snapshot: Snapshot, query: Query, now: float) -> Mask | Unavailable | None:
        """Who stands for the choice: ready, past every filter, not passed over. `None`: every slot."""
        candidates = standing(snapshot, query)
        if isinstance(candidates, Unavailable):
            return candidates
        return passing_over(snapshot, candidates, (self.datastore.closed_slots, self.ejection.ejected(now)))

    def _saturated(self, snapshot: Snapshot, candidates: Mask | None) -> bool:
        standing = snapshot.ready_mask if candidates is None else candidates
        return admission.all_saturated(snapshot, standing, self._backlog_seconds(snapshot), self.config.saturation)

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
        ready = snapshot.ready_bits
        all_alike = not (match.blocks and ready & self.index.filling_bits and ready & ~self.index.full_bits)
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
            None if all_alike else self.index.fill_of(snapshot.width),
        )

    def _book(
        self, request: InferenceRequest, view: "_View", choice: scheduler.Choice, now: float, first_chunk_visible: bool
    ) -> Picked:
        snapshot, columns = view.snapshot, view.columns
        slot = choice.slot
        endpoint = snapshot.endpoints[slot]
        assert endpoint is not None, "chose a slot without an endpoint"
        prompt_tokens = columns.prompt_tokens
        holding = columns.holding(slot) if columns.holdings else columns.nothing
        uncached = prompt_tokens - holding.held_tokens
        inverse = value_at(self.rates.rate_inverse, slot)
        ttft = (endpoint.prefill_tokens + endpoint.others.prefill_tokens + uncached) * inverse
        charge = self.ledger.charge(
            endpoint,
            prefill_tokens=uncached,
            context_tokens=prompt_tokens * request.choices,
            memory_tokens=holding.new_tokens,
            now=now,
            prefill_seconds=None if first_chunk_visible and request.stream else ttft,
            sequences=request.sequences,
        )
        try:
            return self._booked(request, view, choice, now, charge, ttft)
        except Exception:
            self.ledger.release(charge)
            raise

    def _booked(
        self,
        request: InferenceRequest,
        view: "_View",
        choice: scheduler.Choice,
        now: float,
        charge: Charge,
        ttft: float,
    ) -> Picked:
        """What is booked beside the charge, and the decision as it is told."""
        snapshot, hints, hashes, columns = view.snapshot, view.hints, view.hashes, view.columns
        slot, endpoint = choice.slot, charge.endpoint
        prompt_tokens, uncached = columns.prompt_tokens, charge.prefill_tokens
        holding = columns.holding(slot) if columns.holdings else columns.nothing
        self.rates.observe_uncached(uncached)
        self.demand.arrived(
            uncached, prompt_tokens, charge.memory_tokens, columns.output_tokens, request.sequences, now
        )
        if request.computes:
            self.ejection.picked(endpoint, charge, now)
        recorded = self.index.record(hashes, slot, now, settled=False) if hashes else None
        sized = request.sized and not (request.has_media or request.exact_tokens)
        booking = Booking(
            charge,
            hashes,
            recorded,
            request.model[:NAME_CHARS_MAX] if request.model is not None else None,  # it may be as long as a body
            request.prompt_bytes if sized else None,
            ttft,
            columns.output_tokens * self.config.routing.decode_step_seconds,
            request.sequences,
            _request_key(request, hashes),
            request.computes,
        )
        if recorded is not None and request.reads_cache and booking.prompt_bytes is not None:
            reason = choice.reason
            booking.expected = self.shares.expected(columns, holding, recorded, hashes, snapshot, reason, now)
        if hints is not NO_HINTS or request.conversation_id is not None:
            booking.stuck = self.stickiness.went(request, hints, endpoint, now)
        if columns.adapter is not None and request.model is not None:
            booking.adapter = request.model
            self.adapters.picked(endpoint, request.model)
        addresses: tuple[str, ...] = (endpoint.spec.address,)
        if self.config.destinations_max > 1:
            slots = scheduler.ranked(choice, self.config.destinations_max)
            addresses = tuple(each.spec.address for at in slots if (each := snapshot.endpoints[at]) is not None)
            booking.fallbacks = addresses[1:]
        by_prompt = request.pieces or request.block_hashes is not None or choice.reason is _STICKY
        reason = choice.reason if by_prompt else _HEADERS
        later = explanation.LazyExplanation(snapshot, choice, columns, reason, self.config)
        picked = Picked(  # by position, as the columns
            addresses,
            reason,
            (holding.blocks / len(hashes) if hashes else 0.0) if request.pieces or hashes else None,
            booking,
            later,
            ttft,
            endpoint.spec.name,
            prompt_tokens,
            holding.held_tokens / prompt_tokens if prompt_tokens else None,
        )
        if self.residency is not None and self.residency.listens and hashes:
            own = request.session_id
            booking.session_id = name = self.residency.named(own, slot, stamps=self.stamp_header is not None)
            if name is not None:
                self.residency.sent(name, slot, hashes, request.prompt_bytes, prompt_tokens)
                picked.session_id = name if own is None else None
            later.confirmed = partial(self.residency.confirmed, hashes)
            if holding.blocks and self.residency.whole(slot):
                # The engine said what it holds. It may hold some of the next block: of ours, half of it.
                unmatched_bytes = min(request.prompt_bytes - holding.blocks * BLOCK_BYTES, BLOCK_BYTES)
                half = max(0.0, unmatched_bytes / 2 / columns.bytes_per_token - ENGINE_BLOCK_TOKENS / 2)
                picked.cached_share = min(1.0, (holding.held_tokens + half) / prompt_tokens)
        return picked

    # Books ---------------------------------------------------------------------------------

    def _failed(self, booking: Booking, charge: Charge, now: float, request_key: int | None = None) -> bool:
        """A failure of the endpoint of `charge`. True if it ejects it."""
        pool_size = self.datastore.snapshot(now).ready_count
        key = booking.request_key if request_key is None else request_key
        limits = self.config.ejection
        ejected = self.ejection.failed(charge.endpoint, charge, now, limits, request_key=key, pool_size=pool_size)
        if ejected and self.on_ejected is not None:
            self.on_ejected(charge.endpoint.spec.name)
        return ejected

    def _observe_decode(self, booking: Booking, output_tokens: float) -> None:
        endpoint, now = booking.endpoint, booking.ended_at_seconds
        if endpoint.slot >= 0 and now >= self.demand.decode_due_at_seconds:
            slowness, running = value_at(self.rates.slowness, endpoint.slot), self._reported_running(endpoint, now)
            self.demand.observe_decode(booking.charge, output_tokens, now, slowness, running)

    def _reported_running(self, endpoint: Endpoint, now: float) -> int | None:
        """Requests that run there, by a reading that is fresh."""
        sample = self.datastore.samples.get(endpoint.spec.uid)
        if sample is None or now - sample.taken_at_seconds >= self.datastore.stale_seconds:
            return None
        return sample.running_requests

    def _confirm(self, booking: Booking, now: float) -> None:
        """It was taken: what the pick recorded is so, and may take the place of what is older."""
        if booking.recorded is not None:
            self.index.settle(booking.recorded.slot)
        if booking.stuck is not None:
            self.stickiness.answered(booking.stuck, booking.endpoint, now)

    def _withdraw(self, booking: Booking) -> None:
        recorded, booking.recorded = booking.recorded, None
        if recorded is not None and booking.endpoint.slot == recorded.slot:
            self.index.withdraw(booking.hashes, recorded)

    def _prefill_seconds(self, charge: Charge) -> float:
        slot = charge.endpoint.slot
        tokens = charge.backlog_tokens + charge.prefill_tokens
        return tokens * float(self.rates.rate_inverse[slot]) if slot >= 0 else 0.0


_NO_HASHES: Final = array("Q")


def _in_flight(endpoint: Endpoint) -> int:
    return endpoint.in_flight_requests


def _request_key(request: InferenceRequest, hashes: "array[int]") -> int:
    """Equal for a request that is sent again; its last block tells, or all of a short prompt."""
    if hashes:
        return hashes[-1]
    return xxh3_64_intdigest(request.prompt) if request.pieces else 0


def _selectors(config: Config) -> tuple[Selector, ...]:
    configured = selector(config.endpoint_labels.match, config.endpoint_labels.not_in)
    return () if configured is None else (configured,)
