"""The event loop: scripts of requests through routers to simulated model servers.

One heap of `(time, order, what, argument)`; equal times keep the order in which they were
scheduled, so a run is a function of its inputs. A router is told what it would be told in
production and when: response headers of a stream at once, its first chunk when the first token
is made, the end at the end, gauges as it scrapes them.

Invariants (`check()`): every request that arrived is in flight on exactly one replica, or ended
exactly once; the servers' and routers' own invariants.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from random import Random

import msgspec

from picker.outcomes import Usage
from picker.residency.wire import Event, Removed, Stored
from picker.sim.autoscale import SYNC_SECONDS, Autoscale, Scaler, value_of
from picker.sim.engine import EngineRequest, Kind, ModelServer
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import Gauges, PolicyTicket, RoutingPolicy
from picker.sim.pooled_lru import PooledLru
from picker.sim.profiles import BLOCK_TOKENS, Profile
from picker.sim.records import Records
from picker.sim.scripts import Script, SimRequest
from picker.sim.sharing import FLUSH_SECONDS, Network, Sharing


class Failure(msgspec.Struct, frozen=True):
    """Replica number `replica` dies at `at_seconds`; its requests fail, and those sent there until it is noticed."""

    replica: int
    at_seconds: float


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """End a run early once more than `late_share_max` of its measured requests waited too long for a first token."""

    late_seconds: float
    late_share_max: float


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the fleet and its routers are run."""

    scrape_seconds: float | None = None
    """Instead of each policy's own period; infinite: nobody scrapes."""
    idle_scrape_seconds: float | None = None
    """Between two readings of a replica that told of no request, while the router's own books know of none there;
    `None`: as of others."""
    metrics_age_seconds: float = 0.0
    """How old a reading is when it arrives."""
    failures: tuple[Failure, ...] = ()
    joins: tuple[float, ...] = ()
    """When a further replica becomes ready."""
    autoscale: Autoscale | None = None
    """Adds and removes replicas; `None`: there are as many as there are."""
    kv_events_delay_seconds: float | None = None
    """Until an event of an engine's cache arrives at the routers that read them; `None`: none are published."""
    kv_events_loss: float = 0.0
    """Share of these events that are lost on the way."""
    notice_seconds: float = 5.0
    """From a replica's death to its leaving the pool."""
    requests: int = 0
    """How many of them are measured; 0: unknown."""
    stop: Stop | None = None
    sharing: Sharing | None = None
    """How the routers tell each other what they decide; `None`: they do not."""
    check_every: int | None = None
    """Check all invariants every so many events. For tests."""


class _Replica:
    """A model server and the requests on it."""

    __slots__ = ("alive", "draining", "flights", "gone_at", "number", "scheduled_at", "server", "wanted_at")

    def __init__(self, number: int, server: ModelServer, wanted_at: float) -> None:
        self.wanted_at = wanted_at
        """When it began to cost: before it was ready."""
        self.gone_at: float | None = None
        self.draining = False
        """It gets no more requests, and goes when it has ended those it has."""
        self.number = number
        self.server = server
        self.alive = True
        self.flights: dict[object, _Flight] = {}
        self.scheduled_at: float | None = None


class _Flight:
    """A request between its arrival and its end."""

    __slots__ = ("arrived_at", "first_token_at", "policy", "replica", "request", "script", "ticket")

    def __init__(self, request: SimRequest, script: Script, arrived_at: float, policy: RoutingPolicy) -> None:
        self.request = request
        self.script = script
        self.arrived_at = arrived_at
        self.policy = policy
        self.ticket: PolicyTicket | None = None
        self.replica: _Replica | None = None
        self.first_token_at: float | None = None


class Fleet:
    """Replicas, routers and the clock between them."""

    def __init__(
        self,
        profiles: Sequence[Profile],
        policies: Sequence[RoutingPolicy],
        scripts: Iterator[Script],
        *,
        rng: Random,
        options: FleetOptions,
    ) -> None:
        """One replica a profile; with several policies each request meets one of them at random."""
        self.now = 0.0
        self.records = Records(len(profiles) + len(options.joins))
        self.replicas: list[_Replica] = []
        self._profiles = list(profiles)
        self.policies = list(policies)
        self._scripts = scripts
        self._rng = rng
        self._options = options
        self._events: list[tuple[float, int, Callable[..., None], object]] = []
        self._order = 0
        self._arrived = 0
        self._open = 0  # sessions begun and not over
        self._exhausted = False
        self._idle_since: dict[tuple[RoutingPolicy, int], float] = {}  # when a replica was read that was idle then
        self.readings = 0
        self._late = 0  # requests whose first token came later than the run's limit
        stop = options.stop
        self._late_seconds = stop.late_seconds if stop else float("inf")
        self._late_max = stop.late_share_max * options.requests if stop and options.requests else float("inf")
        self._pooled = PooledLru(sum(profile.kv_capacity_tokens for profile in profiles))
        self._starting: list[float] = []
        """When replicas were wanted that are not ready yet."""
        self._cancelled = 0.0
        """Seconds that replicas cost which were wanted and given up before they were ready."""
        for profile in profiles:
            self._join(0.0, profile)
        if options.autoscale is not None:
            self._at(SYNC_SECONDS, self._scale, Scaler(options.autoscale))
        for at in options.joins:
            self._at(at, self._join, profiles[0])
        for failure in options.failures:
            self._at(failure.at_seconds, self._fail, failure.replica)
        self._at(0.0, self._sample_load, 1.0)
        self._network: Network | None = None
        if options.sharing is not None and len(policies) > 1:
            self._network = Network(policies, options.sharing, Random(rng.random()))
            self._at(FLUSH_SECONDS, self._share, self._network)
        self._next_script()

    def run(self, progress: Callable[[int], None] | None = None) -> Records:
        """Play everything. `progress` gets the number of ended requests now and then."""
        events, check_every, count = self._events, self._options.check_every, 0
        while self._open or not self._exhausted:
            at, _, what, argument = heappop(events)
            self.now = at
            what(at, argument)
            count += 1
            if progress is not None and not count & 1023:
                progress(self.records.ended)
            if check_every is not None and not count % check_every:
                self.check()
            if self._late > self._late_max:
                self.records.stopped_early = True
                break
        self.records.close(self.now, self._pooled.hit_rate, [each.server for each in self.replicas])
        self.records.replica_seconds = self._replica_seconds()
        if progress is not None:
            progress(self.records.ended)
        return self.records

    def check(self) -> None:
        """Assert the invariants."""
        in_flight = [flight for replica in self.replicas for flight in replica.flights.values()]
        assert len(in_flight) + self.records.ended == self._arrived
        for replica in self.replicas:
            if replica.alive:
                replica.server.check()
                assert all(name in replica.server for name in replica.flights)
        for policy in self.policies:
            policy.check()
        if self._network is not None:
            self._network.check()

    def _at(self, at: float, what: Callable[..., None], argument: object) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, what, argument))

    # Requests ------------------------------------------------------------------------------

    def _next_script(self) -> None:
        script = next(self._scripts, None)
        if script is None:
            self._exhausted = True
        else:
            assert script.at_seconds >= self.now, "scripts must come in the order of their start"
            self._open += 1
            self._at(script.at_seconds, self._begin, script)

    def _begin(self, at: float, script: Script) -> None:
        self._next_script()
        self._arrive(at, script)

    def _arrive(self, at: float, script: Script) -> None:
        self._arrived += 1
        request = script.request(self._arrived)
        self._pooled.prompt(request.ids, request.prompt_tokens, counted=request.measured)
        policies = self.policies
        policy = policies[0] if len(policies) == 1 else policies[int(self._rng.random() * len(policies))]
        flight = _Flight(request, script, at, policy)
        ticket = flight.ticket = policy.pick(request, at)
        if ticket is None:
            self._end(at, flight, failed=True)
            return
        replica = flight.replica = self.replicas[ticket.replica]
        if not replica.alive:  # connection refused: the proxy answers 503
            policy.answered(ticket, 503, at)
            self._end(at, flight, failed=True)
            return
        replica.flights[request.number] = flight
        self._step(at, replica)
        replica.server.submit(
            at, EngineRequest(request.number, request.prompt_tokens, request.output_tokens, request.ids)
        )
        self._schedule(replica)
        if request.streaming:
            policy.answered(ticket, 200, at)

    def _end(self, at: float, flight: _Flight, *, cached_tokens: int = 0, failed: bool = False) -> None:
        """The request is over; the session goes on after its pause, or with a failed answer not at all."""
        request, ticket = flight.request, flight.ticket
        if ticket is not None:
            usage = None if failed else Usage(request.prompt_tokens, request.output_tokens, cached_tokens)
            flight.policy.finished(ticket, request, usage, at)
        self.records.add(
            request,
            arrived_at=flight.arrived_at,
            first_token_at=flight.first_token_at,
            ended_at=at,
            cached_tokens=cached_tokens,
            replica=None if flight.replica is None else flight.replica.number,
            failed=failed,
        )
        if not failed:
            self._pooled.answer(request.ids, request.prompt_tokens + request.output_tokens - 1)
        pause = None if failed else flight.script.pause_seconds()
        if pause is None:
            self._open -= 1
        else:
            self._at(at + pause, self._arrive, flight.script)

    # Replicas ------------------------------------------------------------------------------

    def _schedule(self, replica: _Replica) -> None:
        at = replica.server.next_event_at()
        if at != replica.scheduled_at:
            replica.scheduled_at = at
            if at is not None:
                self._at(at, self._wake, replica)

    def _wake(self, at: float, replica: _Replica) -> None:
        if at == replica.scheduled_at and replica.alive:
            self._step(at, replica)
            self._schedule(replica)

    def _step(self, at: float, replica: _Replica) -> None:
        for event in replica.server.advance(at):
            if event.kind is Kind.FIRST_TOKEN:
                flight = replica.flights[event.name]
                flight.first_token_at = event.at
                self._late += flight.request.measured and event.at - flight.arrived_at > self._late_seconds
                if flight.request.streaming:
                    assert flight.ticket is not None
                    flight.policy.first_token(flight.ticket, flight.request, event.at)
            elif event.kind is Kind.FINISHED:
                flight = replica.flights.pop(event.name)
                if not flight.request.streaming:
                    assert flight.ticket is not None
                    flight.policy.answered(flight.ticket, 200, event.at)
                self._end(event.at, flight, cached_tokens=event.cached_tokens)
                self._gone(event.at, replica)

    # The autoscaler ------------------------------------------------------------------------

    def _scale(self, at: float, scaler: Scaler) -> None:
        """Look, and add or remove."""
        signal = scaler.rules.signal
        ready = [replica for replica in self.replicas if replica.alive and not replica.draining]
        for replica in ready:
            self._step(at, replica)
            self._schedule(replica)
        value = value_of(signal, at, [replica.server for replica in ready], self.policies)
        current = len(ready) + len(self._starting)
        desired = scaler.desired(at, value, ready=len(ready), current=current)
        for _ in range(desired - current):
            self._starting.append(at)
            self._at(at + scaler.rules.start_seconds, self._started, at)
        for _ in range(current - desired):  # as a ReplicaSet does: those that are not ready first, then the youngest
            if self._starting:
                self._cancelled += at - self._starting.pop()
            else:
                self._drain(at, ready.pop())
        self._at(at + SYNC_SECONDS, self._scale, scaler)

    def _started(self, at: float, wanted_at: float) -> None:
        if wanted_at in self._starting:
            self._starting.remove(wanted_at)
            self._join(at, self._profiles[len(self.replicas) % len(self._profiles)])
            self.replicas[-1].wanted_at = wanted_at

    def _drain(self, at: float, replica: _Replica) -> None:
        """It leaves the pool, and goes when it has nothing more to do."""
        replica.draining = True
        self._leave(at, replica)
        self._gone(at, replica)

    def _gone(self, at: float, replica: _Replica) -> None:
        if replica.draining and not replica.flights and replica.gone_at is None:
            replica.gone_at = at

    def _replica_seconds(self) -> float:
        """What all replicas cost until now, from the wish for each."""
        ends = [(replica.gone_at or self.now) - replica.wanted_at for replica in self.replicas]
        return sum(ends) + sum(self.now - wanted_at for wanted_at in self._starting) + self._cancelled

    def _join(self, at: float, profile: Profile) -> None:
        replica = _Replica(len(self.replicas), ModelServer(profile, at), at)
        self.replicas.append(replica)
        for policy in self.policies:
            policy.join(replica.number, replica.server.cache, at)
            if self._options.kv_events_delay_seconds is not None and isinstance(policy, PickerPolicy):
                self._publish(replica, policy)
            period = self._period(policy)
            if period is not None:
                self._at(at + self._rng.random() * period, self._scrape, (policy, replica, period))

    def _fail(self, at: float, number: object) -> None:
        assert isinstance(number, int)
        replica = self.replicas[number]
        self._step(at, replica)
        replica.alive = False
        replica.gone_at = at
        flights = list(replica.flights.values())
        replica.flights.clear()
        for flight in flights:
            self._end(at, flight, failed=True)
        self._at(at + self._options.notice_seconds, self._leave, replica)

    def _leave(self, at: float, replica: _Replica) -> None:
        for policy in self.policies:
            policy.leave(replica.number, at)

    # KV events -----------------------------------------------------------------------------

    def _publish(self, replica: _Replica, policy: PickerPolicy) -> None:
        """From now on the router hears of the replica's cache, as late and as incompletely as the options say."""
        policy.listen(replica.number)
        number, rng, loss = replica.number, self._rng, self._options.kv_events_loss
        delay = self._options.kv_events_delay_seconds or 0.0

        def send(event: Event) -> None:
            if rng.random() >= loss:
                self._at(self.now + delay, self._hear, (policy, number, event))
            else:
                policy.missed(number)

        def stored(name: object, ids: "array[int]", start: int, stop: int) -> None:
            session = policy.session_of(name)
            parent = ids[start - 1] if start else None
            send(Stored(list(ids[start:stop]), parent, BLOCK_TOKENS, session, True, 0))

        replica.server.on_stored = stored
        replica.server.cache.on_removed = lambda ids: send(Removed(list(reversed(ids)), True, 0))

    def _hear(self, at: float, what: tuple[PickerPolicy, int, Event]) -> None:
        policy, number, event = what
        policy.heard(number, event)

    # Gauges --------------------------------------------------------------------------------

    def _period(self, policy: RoutingPolicy) -> float | None:
        period = policy.scrape_seconds
        if period is None:
            return None
        if self._options.scrape_seconds is not None:
            period = self._options.scrape_seconds
        return period if 0.0 < period < float("inf") else None

    def _scrape(self, at: float, what: tuple[RoutingPolicy, _Replica, float]) -> None:
        policy, replica, period = what
        if not replica.alive or replica.draining:
            return
        if self._is_left_alone(at, policy, replica, period):
            self._at(at + period, self._scrape, what)
            return
        server = replica.server
        self.readings += 1
        gauges = Gauges(
            taken_at_seconds=at,
            waiting_requests=server.waiting,
            running_requests=server.running,
            kv_cache_utilization=server.utilization(at),
            kv_capacity_tokens=server.profile.kv_capacity_tokens,
            prompt_tokens_total=server.prompt_tokens_total,
            prefix_queries_total=server.prefix_queries_tokens,
            prefix_hits_total=server.prefix_hits_tokens,
        )
        if not gauges.waiting_requests and not gauges.running_requests:
            self._idle_since[policy, replica.number] = at
        else:
            self._idle_since.pop((policy, replica.number), None)
        age = self._options.metrics_age_seconds
        if age:
            self._at(at + age, self._deliver, (policy, replica, gauges))
        else:
            policy.scraped(replica.number, gauges)
        self._at(at + period, self._scrape, what)

    def _is_left_alone(self, at: float, policy: RoutingPolicy, replica: _Replica, period: float) -> bool:
        """Whether a router has no reason to read an idle replica yet."""
        seconds = self._options.idle_scrape_seconds
        read_at = self._idle_since.get((policy, replica.number))
        if seconds is None or read_at is None or at - read_at > seconds - period / 2:
            return False
        shared = self._options.sharing is not None
        return not any(shared or flight.policy is policy for flight in replica.flights.values())

    def _deliver(self, at: float, what: tuple[RoutingPolicy, _Replica, Gauges]) -> None:
        policy, replica, gauges = what
        if replica.alive and not replica.draining:
            policy.scraped(replica.number, gauges)

    def _share(self, at: float, network: Network) -> None:
        for then, arrive in network.flush(at):
            self._at(then, self._arrive_at, arrive)
        self._at(at + FLUSH_SECONDS, self._share, network)

    def _arrive_at(self, at: float, arrive: Callable[[float], None]) -> None:
        arrive(at)

    def _sample_load(self, at: float, period: float) -> None:
        self.records.load(
            at, [len(each.flights) for each in self.replicas if not each.draining or each.gone_at is None]
        )
        self._at(at + period, self._sample_load, period)
