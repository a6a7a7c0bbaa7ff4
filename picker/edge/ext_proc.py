"""The ext_proc service: one exchange a stream, between a transport and the director.

Bytes come in, the exchange decides, bytes go out, all in one synchronous call; no task, queue or
timer a stream. Deadlines are few (a request whose body is awaited), so one periodic `tick` over
those that have one serves all. Whatever goes wrong on a stream ends that stream alone.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from picker.api.hints import HintRules, Hints
from picker.api.request import InferenceRequest
from picker.config import Limits
from picker.decision import Decision, Finished, Picked
from picker.director import Director
from picker.edge.transport import Call, GrpcStatus, Handler, MethodTable
from picker.extproc.exchange import Exchange, Policy
from picker.extproc.replies import Reply
from picker.extproc.wire import decode, encode
from picker.outcomes import Usage

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class BoundPolicy:
    """The director as an exchange sees it: with a clock and dice of its own."""

    def __init__(self, director: Director, *, clock: Callable[[], float], rng: Random) -> None:
        self._director = director
        self._clock = clock
        self._rng = rng
        self.not_streamed = director.not_streamed
        self.priority = director.priority
        self.ejected: Callable[[str], None] = lambda name: None
        self.limits: Limits
        self.hint_rules: HintRules | None
        self.explain_header: bool
        self.reconfigure()

    def reconfigure(self) -> None:
        """The director's configuration changed. What each request asks of it is kept at hand."""
        config = self._director.config
        self.limits = config.limits
        self.hint_rules = self._director.hint_rules
        self.explain_header = config.debug.explain_header

    def decide(
        self,
        request: InferenceRequest,
        *,
        subset: tuple[str, ...] | None,
        objective: str | None,
        first_chunk_visible: bool,
        hints: Hints,
    ) -> Decision:
        """Choose, charge, record."""
        return self._director.decide(
            request,
            now=self._clock(),
            rng=self._rng,
            subset=subset,
            objective=objective,
            first_chunk_visible=first_chunk_visible,
            hints=hints,
        )

    def first_token(self, booking: Any) -> None:
        """The first body chunk of a 2xx streamed answer."""
        self._director.first_token(booking, self._clock())

    def answered(self, booking: Any, status: int) -> bool:
        """Response headers came."""
        ejected = self._director.answered(booking, status, self._clock())
        if ejected:
            self.ejected(booking.endpoint.spec.name)
        return ejected

    def served_by(self, booking: Any, address: str) -> bool:
        """The proxy tells who served."""
        return self._director.served_by(booking, address, self._clock())

    def created(self, booking: Any, name: str) -> None:
        """The answer is a response or conversation of this id, stored where it was made."""
        self._director.created(booking, name, self._clock())

    def finish(self, booking: Any, *, reached: bool, usage: Usage | None) -> None:
        """The request is over."""
        self._director.finish(booking, reached=reached, usage=usage)


class LivePolicy(Policy, Protocol):
    """A policy whose configuration may change."""

    def reconfigure(self) -> None:
        """It did."""


class ExtProcService:
    """All ext_proc streams of this process."""

    def __init__(
        self,
        policy: LivePolicy,
        *,
        clock: Callable[[], float],
        finished: Callable[[Finished], None],
        decided: Callable[[Picked, Finished], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.finished = finished
        self.decided = decided
        self.on_error = on_error
        self.open_streams = 0
        self.malformed_total = 0
        self.waiting: dict[_Stream, None] = {}
        self.also_read: frozenset[str] = frozenset()
        """Request headers that configuration names, besides the usual."""
        self.reconfigure()

    def reconfigure(self) -> None:
        """The configuration changed."""
        self.policy.reconfigure()
        rules = self.policy.hint_rules
        self.also_read = rules.headers if rules is not None else frozenset()

    def methods(self) -> MethodTable:
        """For the transport."""
        return {METHOD: self._open}

    def tick(self) -> None:
        """Expire deadlines that have passed. Call it every 50 ms or so."""
        now = self.clock()
        for stream in list(self.waiting):
            stream.expire(now)

    def _open(self, call: Call) -> Handler:
        self.open_streams += 1
        return _Stream(self, call)


class _Stream:
    """One ext_proc stream: a `Handler`."""

    __slots__ = ("_call", "_exchange", "_service", "_waits")

    def __init__(self, service: ExtProcService, call: Call) -> None:
        self._service = service
        self._call = call
        self._waits = False
        self._exchange = Exchange(
            service.policy, clock=service.clock, finished=service.finished, decided=service.decided
        )

    def receive(self, message: bytes) -> None:
        """One message of the proxy."""
        exchange, service, call = self._exchange, self._service, self._call
        try:
            replies = exchange.receive(decode(message, also_read=service.also_read), call.received_at_seconds)
        except Exception as error:
            self._failed(error)
            return
        for reply in replies:
            head, body = encode(reply)
            call.send(head, body)
        self._wait(exchange.deadline_seconds is not None)
        if exchange.problem is not None:
            service.malformed_total += 1
            call.finish(GrpcStatus.INVALID_ARGUMENT, exchange.problem.text)

    def expire(self, now: float) -> None:
        """A deadline may have passed."""
        try:
            replies = self._exchange.expire(now)
        except Exception as error:
            self._failed(error)
            return
        self._send(replies)
        self._wait(self._exchange.deadline_seconds is not None)

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
            self._service.on_error(error)

    def _wait(self, waits: bool) -> None:
        """For a deadline, or for none any more."""
        if waits is self._waits:
            return
        self._waits = waits
        if waits:
            self._service.waiting[self] = None
        else:
            del self._service.waiting[self]

    def _failed(self, error: Exception) -> None:
        """A fault of ours: tell the client while that is possible, else end the stream."""
        self._service.on_error(error)
        self._wait(False)
        replies = self._exchange.fail()
        if replies:
            self._send(replies)
        else:
            self._call.finish(GrpcStatus.INTERNAL, "the endpoint picker failed")

    def _send(self, replies: list[Reply]) -> None:
        for reply in replies:
            head, body = encode(reply)
            self._call.send(head, body)
