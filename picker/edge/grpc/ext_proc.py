"""The ext_proc service: one exchange a stream, between a transport and the director.

Bytes come in, the exchange decides, bytes go out, all in one synchronous call; no task, queue or
timer a stream. Deadlines are few (a request whose body is awaited), so one periodic `tick` over
those that have one serves all. Whatever goes wrong on a stream ends that stream alone.
"""

from collections.abc import Callable

from picker.budget import UNANSWERED_BYTES
from picker.decision import Finished, Picked
from picker.edge.grpc.transport import Call, GrpcStatus, Handler, MethodTable
from picker.extproc.events import Event
from picker.extproc.exchange import Exchange, Policy
from picker.extproc.replies import Reply
from picker.extproc.wire import decode, decode_any, encode
from picker.rng import Rng

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class ExtProcService:
    """All ext_proc streams of this process."""

    def __init__(
        self,
        policy: Policy,
        *,
        clock: Callable[[], float],
        rng: Rng,
        finished: Callable[[Finished], None],
        decided: Callable[[Picked, Finished], None],
        faulted: Callable[[str, Exception], None],
    ) -> None:
        """`faulted` is told every fault of ours: where, and what. It must not raise."""
        self.policy = policy
        self.clock = clock
        self.rng = rng
        self.finished = finished
        self.decided = decided
        self.faulted = faulted
        self.open_streams = 0
        self.malformed_total = 0
        self.waiting: dict[_Stream, None] = {}
        self.also_read: frozenset[str] = frozenset()
        """Request headers that configuration names, besides the usual."""
        self.reconfigure()

    def reconfigure(self) -> None:
        """The configuration changed."""
        rules = self.policy.hint_rules
        self.also_read = rules.headers if rules is not None else frozenset()
        stamped = self.policy.stamp_header
        if stamped is not None:
            self.also_read |= {stamped}
        self.also_read |= self.policy.metering.headers

    def methods(self) -> MethodTable:
        """The methods that the transport serves."""
        return {METHOD: self._open}

    def tick(self) -> None:
        """Expire deadlines that have passed. Call it every 50 ms or so."""
        now = self.clock()
        for stream in list(self.waiting):
            stream.expire(now)

    def forgive(self, seconds: float) -> None:
        """The process stood still so long, and has not read what came meanwhile: no deadline passes for it."""
        for stream in self.waiting:
            stream.forgive(seconds)

    def _open(self, call: Call) -> Handler:
        self.open_streams += 1
        return _Stream(self, call)


class _Stream:
    """One ext_proc stream: a `Handler`."""

    __slots__ = ("_call", "_exchange", "_held_bytes", "_service", "_waits")

    def __init__(self, service: ExtProcService, call: Call) -> None:
        self._service = service
        self._call = call
        self._waits = False
        self._held_bytes = 0  # of messages whose content waits for a decision
        self._exchange = Exchange(
            service.policy,
            clock=service.clock,
            rng=service.rng,
            finished=service.finished,
            decided=service.decided,
            faulted=service.faulted,
        )

    def receive(self, message: bytes) -> None:
        """One message of the proxy."""
        exchange, service, call = self._exchange, self._service, self._call
        try:
            replies = exchange.receive(self._decoded(message), call.received_at_seconds)
        except Exception as error:
            self._failed(error)
            return
        for reply in replies:
            head, body = encode(reply)
            call.send(head, body)
        waits = exchange.deadline_seconds is not None
        self._wait(waits)
        if exchange.problem is not None:
            service.malformed_total += 1
            call.finish(GrpcStatus.INVALID_ARGUMENT, exchange.problem.text)
        elif waits:
            held = self._held_bytes = self._held_bytes + len(message)
            if held > UNANSWERED_BYTES:
                call.hold(held)
        elif self._held_bytes:
            self._let_go()

    def _decoded(self, message: bytes) -> Event:
        service = self._service
        try:
            return decode(message, also_read=service.also_read)
        except Exception as error:
            service.faulted("decode", error)
            return decode_any(message, service.also_read)

    def expire(self, now: float) -> None:
        """A deadline may have passed."""
        try:
            replies = self._exchange.expire(now)
        except Exception as error:
            self._failed(error)
            return
        self._send(replies)
        waits = self._exchange.deadline_seconds is not None
        self._wait(waits)
        if not waits:
            self._let_go()

    def forgive(self, seconds: float) -> None:
        """The deadline is later by so much."""
        exchange = self._exchange
        if exchange.deadline_seconds is not None:
            exchange.deadline_seconds += seconds

    def give_way(self) -> None:
        """Memory is short, and this request has held most for longest: its client is told while that is possible."""
        self._wait(False)
        self._send(self._exchange.give_way())

    def _let_go(self) -> None:
        """The decision is made, or the body of no use: nothing waits any more."""
        if self._held_bytes > UNANSWERED_BYTES:
            self._call.hold(0)
        self._held_bytes = 0

    def half_closed(self) -> None:
        """The proxy has nothing more to say, so neither have we."""
        self._exchange.close()
        self._call.finish(GrpcStatus.OK)

    def closed(self) -> None:
        """The stream is over."""
        self._service.open_streams -= 1
        self._wait(False)
        try:
            self._exchange.close()
        except Exception as error:
            self._service.faulted("end", error)

    def _wait(self, waits: bool) -> None:
        """Be among those whose deadline is watched, or be no longer."""
        if waits is self._waits:
            return
        self._waits = waits
        if waits:
            self._service.waiting[self] = None
        else:
            del self._service.waiting[self]

    def _failed(self, error: Exception) -> None:
        """A fault of ours: tell the client while that is possible, else end the stream."""
        self._service.faulted("stream", error)
        self._wait(False)
        try:
            replies = self._exchange.fail()
            if replies:
                self._send(replies)
                return
        except Exception as following:
            self._service.faulted("stream", following)
        self._call.finish(GrpcStatus.INTERNAL, "the endpoint picker failed")

    def _send(self, replies: list[Reply]) -> None:
        for reply in replies:
            head, body = encode(reply)
            self._call.send(head, body)
