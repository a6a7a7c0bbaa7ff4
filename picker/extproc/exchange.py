"""One HTTP request and its response as a state machine. No I/O, no gRPC, no protobuf.

    receive(event)  -> replies      one event of the proxy
    expire(now)     -> replies      the deadline (`deadline_seconds`) has passed
    close()                         the stream ended, whatever ended it

Where the body is read (a known API path, in FULL_DUPLEX_STREAMED or BUFFERED), the decision
waits for it; everywhere else it is made on the headers. In full-duplex the answer to the headers
is held back until then, and the body is what we send: every byte is echoed, in pieces of at most
`ECHO_BYTES_MAX`, with exactly one end flag, on the last, and none where trailers end it.
In BUFFERED the headers are answered at once, and the destination comes with the body's answer.

Invariants: replies keep the protocol's order (headers, body, trailers, per direction); after an
`Immediate` nothing is sent; `policy.finish` and `finished` happen exactly once for every exchange
that made a decision or showed a request; nothing of the prompt outlives the decision.
"""

from collections.abc import Callable
from enum import IntEnum, auto
from typing import Any, Final, NamedTuple, Protocol

from picker.api import Api, find_api, read_body, unparsed
from picker.api.hints import NO_HINTS, HintRules, Hints, InvalidHint, held_id
from picker.api.paths import OTHER, Path, find_path
from picker.api.request import MEDIUM_BYTES, InferenceRequest, InvalidBody
from picker.api.response_id import ResponseIdReader
from picker.api.usage import UsageReader
from picker.config import Limits
from picker.decision import Decision, Finished, Picked
from picker.extproc.errors import answer
from picker.extproc.events import (
    BodyMode,
    Event,
    Malformed,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.extproc.remembered import remember
from picker.extproc.replies import (
    ECHO_BYTES_MAX,
    ContinueRequestBody,
    ContinueRequestHeaders,
    ContinueRequestTrailers,
    ContinueResponseBody,
    ContinueResponseHeaders,
    ContinueResponseTrailers,
    EchoRequestBody,
    EchoResponseBody,
    Reply,
    RouteOnBody,
    RouteOnHeaders,
    RouteOnTrailers,
)
from picker.flowcontrol.objectives import HEADERS as OBJECTIVE_HEADERS
from picker.outcomes import Outcome, Shed, Usage
from picker.scheduling.explanation import header_text

MODE_WAIT_SECONDS: Final = 0.25
"""A proxy that does not tell its mode and sends no body while its headers are unanswered is not full-duplex."""

UNREAD_BYTES_MAX: Final = 512 * 1024
"""What a body that nobody reads may weigh: the tokens of a full context, whatever else is uploaded."""

SMALL_CHUNK_BYTES: Final = 4096
"""Chunks below this are joined as they come: a body in crumbs takes no more memory than in pieces."""

MODEL_CHARS_MAX: Final = 256
"""Of a model's name in the record, which outlives the request."""

TRACE_PARENT_CHARS_MAX: Final = 256
"""Version 00 has 55; later ones may append."""

_REMEMBERED_PATHS_MAX: Final = 512
_REMEMBERED_PATH_CHARS_MAX: Final = 128

_UNKNOWN: Final = Path(OTHER)
_STORED: Final = ("responses", "conversations")
"""Names of paths where a POST makes something that its server stores."""


class Policy(Protocol):
    """What the exchange asks of the director, with `now` and `rng` already bound."""

    @property
    def limits(self) -> Limits:
        """As configured now."""

    @property
    def hint_rules(self) -> HintRules | None:
        """Which headers say where a request should go; `None`: none does."""

    @property
    def explain_header(self) -> bool:
        """Whether answers carry their explanation."""

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

    def priority(self, objective: str | None) -> int:
        """Of an objective."""

    def first_token(self, booking: Any) -> None:
        """The first body chunk of a 2xx streamed answer."""

    def not_streamed(self, booking: Any) -> None:
        """The answer does not stream."""

    def answered(self, booking: Any, status: int) -> bool:
        """Response headers came."""

    def served_by(self, booking: Any, address: str) -> bool:
        """The proxy tells who served."""

    def created(self, booking: Any, name: str) -> None:
        """The answer is a response or conversation of this id, stored where it was made."""

    def finish(self, booking: Any, *, reached: bool, usage: Usage | None) -> None:
        """The request is over."""


class Phase(IntEnum):
    """Where an exchange stands. Integers: each event is a look-up in `_TRANSITIONS`, and an Enum hashes slowly."""

    START = auto()
    COLLECTING = auto()
    """The request's body is awaited; the decision is not made."""
    ROUTED = auto()
    """Decided. More of the request may pass."""
    RESPONSE = auto()
    """The response began."""
    REJECTED = auto()
    """We answered the client ourselves."""
    CLOSED = auto()


# Looked up once: on a class of members each look-up takes longer than the rest of a transition (Python 3.11).
_START: Final = Phase.START
_COLLECTING: Final = Phase.COLLECTING
_ROUTED: Final = Phase.ROUTED
_RESPONSE: Final = Phase.RESPONSE
_REJECTED: Final = Phase.REJECTED
_CLOSED: Final = Phase.CLOSED
_NONE: Final = int(BodyMode.NONE)
_BUFFERED: Final = int(BodyMode.BUFFERED)
_FULL_DUPLEX: Final = int(BodyMode.FULL_DUPLEX_STREAMED)
_ABORTED: Final = Outcome.ABORTED
_COMPLETED: Final = Outcome.COMPLETED
_UNSEEN: Final = Outcome.UNSEEN


class Problem(NamedTuple):
    """A violation of the protocol: the stream ends with INVALID_ARGUMENT and this text."""

    text: str


class Exchange:
    """One HTTP exchange on one ext_proc stream."""

    __slots__ = (
        "_api",
        "_body",
        "_body_bytes",
        "_booking",
        "_clock",
        "_decided",
        "_explain",
        "_finished",
        "_headers",
        "_hints",
        "_ids",
        "_objective",
        "_path",
        "_phase",
        "_policy",
        "_reader",
        "_record",
        "_request_ended",
        "_request_mode",
        "_response_ended",
        "_response_mode",
        "_started_at",
        "_streams",
        "_subset",
        "_success",
        "deadline_seconds",
        "problem",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        clock: Callable[[], float],
        finished: Callable[[Finished], None],
        decided: Callable[[Picked, Finished], None],
    ) -> None:
        """`decided` gets every pick, `finished` every end, each at most once."""
        self.problem: Problem | None = None
        self._policy = policy
        self._clock = clock
        self._finished = finished
        self._decided = decided
        self._phase = _START
        self._started_at = 0.0
        self.deadline_seconds: float | None = None
        """When `expire` wants to be called, on the exchange's clock."""
        self._headers: dict[str, str] = {}
        self._api: Api | None = None
        self._path = _UNKNOWN
        self._hints = NO_HINTS
        self._subset: tuple[str, ...] | None = None
        self._objective: str | None = None
        self._request_mode: int | None = None
        self._response_mode: int | None = None
        self._body: list[bytes | memoryview] = []
        self._body_bytes = 0
        self._request_ended = False
        self._response_ended = False
        self._booking: Any = None
        self._success = False
        self._streams = False
        self._reader: UsageReader | None = None
        self._ids: ResponseIdReader | None = None
        self._explain: str | None = None
        self._record: Finished | None = None

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self._phase

    def receive(self, event: Event, received_at: float) -> list[Reply]:
        """One event. `received_at`: when its bytes were read, on the exchange's clock."""
        handler = _TRANSITIONS[self._phase].get(type(event))
        if handler is not None:
            return handler(self, event, received_at)
        if self._phase in (_REJECTED, _CLOSED):
            return []
        why = event.why if isinstance(event, Malformed) else f"{type(event).__name__} in {self._phase.name}"
        self.problem = Problem(why)
        return []

    def expire(self, now: float) -> list[Reply]:
        """The deadline passed: the body did not come in time, or the proxy waits for us."""
        if self.deadline_seconds is None or now < self.deadline_seconds or self._phase is not _COLLECTING:
            return []
        self.deadline_seconds = None
        if self._request_mode is None and not self._body:
            self._request_mode = _BUFFERED
            self._response_mode = self._response_mode if self._response_mode is not None else BodyMode.STREAMED
            return [ContinueRequestHeaders()]
        if self._request_mode == _BUFFERED:
            return []  # the proxy holds the body and its own timeout; nothing of it is here
        if self._record is not None:
            self._record.request_bytes = self._body_bytes
        size = self._content_length() or self._body_bytes
        routed = self._decide(unparsed(self._path.name, size))
        return self._echo_collected(routed)

    def fail(self) -> list[Reply]:
        """A fault of ours, while handling an event: answer the client if it is not too late."""
        record = self._record
        if record is not None and self._phase in (_START, _COLLECTING):
            return self._reject(500, "the endpoint picker failed on this request", "internal_error", Outcome.FAILED)
        return []

    def close(self) -> None:
        """The stream ended. Everything that is still open is released; the second call does nothing."""
        if self._phase is _CLOSED:
            return
        responding = self._phase is _RESPONSE
        self._phase = _CLOSED
        self.deadline_seconds = None
        if self._record is None:
            return
        # With response bodies not sent, the stream's end is the response's end.
        unseen_end = responding and self._response_mode in (None, _NONE)
        self._end(_COMPLETED if unseen_end else _ABORTED)

    # Request -------------------------------------------------------------------------------

    def _on_request_headers(self, event: RequestHeaders, received_at: float) -> list[Reply]:
        headers = self._headers = event.headers
        self._started_at = received_at
        self._request_mode, self._response_mode = event.request_mode, event.response_mode
        self._subset = event.subset
        self._request_ended = event.end_of_stream
        for name in OBJECTIVE_HEADERS:
            if name in headers:
                self._objective = headers[name]
                break
        path = headers.get(":path", "")
        plain = len(path) <= _REMEMBERED_PATH_CHARS_MAX and "?" not in path  # a query is its client's own
        known, self._path = _remembered_names(path) if plain else _names(path)
        self._api = known if known is not None and self._readable() else None
        self._record = Finished(
            outcome=_ABORTED,
            path=self._path.name,
            objective=self._objective,
            priority=self._policy.priority(self._objective),
            request_id=headers.get("x-request-id"),
            trace_parent=headers["traceparent"][:TRACE_PARENT_CHARS_MAX] if "traceparent" in headers else None,
        )
        rules = self._policy.hint_rules
        if rules is not None:
            try:
                self._hints = rules.read(headers)
            except InvalidHint as error:
                return self._reject(400, str(error), "invalid_header", Outcome.REJECTED)
        if event.end_of_stream or self._api is None:
            if known is None and (held := held_id(path)) is not None:
                self._hints = self._hints._replace(held_id=held)
            return self._decide(unparsed(self._path.name, self._unread_bytes()))
        limit = self._policy.limits.request_body_bytes_max
        if (self._content_length() or 0) > limit:
            return self._too_large()
        self._phase = _COLLECTING
        wait = MODE_WAIT_SECONDS if self._request_mode is None else self._policy.limits.body_wait_seconds
        self.deadline_seconds = self._clock() + wait
        return [ContinueRequestHeaders()] if self._request_mode == _BUFFERED else []

    def _readable(self) -> bool:
        """Whether a body decides; else the headers must do."""
        headers = self._headers
        if headers.get(":method", "POST") != "POST" or "upgrade" in headers or ":protocol" in headers:
            return False
        if self._request_mode not in (None, _BUFFERED, _FULL_DUPLEX):
            return False
        if headers.get("content-encoding", "identity") != "identity":
            return False
        return not headers.get("content-type", "").startswith(("application/grpc", "multipart/"))

    def _on_body(self, event: RequestBody, received_at: float) -> list[Reply]:
        if self._request_mode is None:
            self._request_mode = _FULL_DUPLEX  # it did not wait for our answer
            self.deadline_seconds = self._clock() + self._policy.limits.body_wait_seconds
        if event.subset is not None:
            self._subset = event.subset
        self._body_bytes += len(event.data)
        if self._body_bytes > self._policy.limits.request_body_bytes_max:
            return self._too_large()
        if event.data:
            self._collect(event.data)
        if not event.end_of_stream and self._request_mode == _FULL_DUPLEX:
            return []
        self._request_ended = event.end_of_stream
        return self._decide_on_body(received_at)

    def _collect(self, data: bytes | memoryview) -> None:
        body = self._body
        if body and len(data) < SMALL_CHUNK_BYTES and len(body[-1]) < SMALL_CHUNK_BYTES:
            body[-1] = b"".join((body[-1], data))
        else:
            body.append(data)

    def _on_request_end_by_trailers(self, event: RequestTrailers, received_at: float) -> list[Reply]:
        """Trailers end the body in place of an end of stream."""
        routed = self._decide_on_body(received_at)
        self._request_ended = True
        if routed and isinstance(routed[0], RouteOnBody):  # BUFFERED, and there was no body to answer
            return [RouteOnTrailers(routed[0].addresses)]
        if self._phase is _ROUTED:
            routed.append(ContinueRequestTrailers())
        return routed

    def _on_more_body(self, event: RequestBody, received_at: float) -> list[Reply]:
        """Decided already: the body passes."""
        if self._record is not None:
            self._record.request_bytes += len(event.data)
        if self._request_mode not in (None, _FULL_DUPLEX):
            return [ContinueRequestBody()]
        if self._request_ended:
            return []  # told twice: one end flag is enough
        self._request_ended = event.end_of_stream
        return _pieces(EchoRequestBody, event.data, event.end_of_stream)

    def _on_request_trailers(self, event: RequestTrailers, received_at: float) -> list[Reply]:
        self._request_ended = True
        return [ContinueRequestTrailers()]

    # Decision ------------------------------------------------------------------------------

    def _decide_on_body(self, received_at: float) -> list[Reply]:
        assert self._api is not None
        if self._record is not None:
            self._record.request_bytes = self._body_bytes
        began = self._clock()
        late = began - received_at > self._policy.limits.decision_seconds
        if late or not self._body:
            return self._echo_collected(self._decide(unparsed(self._api.name, self._body_bytes)))
        try:
            request = read_body(self._api, self._body[0] if len(self._body) == 1 else b"".join(self._body))
        except InvalidBody as error:
            return self._reject(400, f"the request body is not valid JSON: {error}", "invalid_json", Outcome.REJECTED)
        return self._echo_collected(self._decide(request, began))

    def _decide(self, request: InferenceRequest, began: float | None = None) -> list[Reply]:
        """The reply that routes, or the one that refuses."""
        record = self._record
        assert record is not None
        began = began if began is not None else self._clock()
        self.deadline_seconds = None
        decision = self._policy.decide(
            request,
            subset=self._subset,
            objective=self._objective,
            first_chunk_visible=self._response_mode not in (None, _NONE),
            hints=self._hints,
        )
        record.decision_seconds = self._clock() - began
        record.model = request.model[:MODEL_CHARS_MAX] if request.model is not None else None
        record.streaming = request.stream
        if not isinstance(decision, Picked):
            status, outcome = (429, Outcome.SHED) if isinstance(decision, Shed) else (503, Outcome.UNAVAILABLE)
            return self._reject(
                status, decision.message, decision.reason_word, outcome, retry_after=decision.retry_after_seconds
            )
        self._booking = decision.charge
        record.reason = decision.reason
        record.address, record.endpoint_name = decision.addresses[0], decision.endpoint_name
        record.matched_share, record.cached_share = decision.matched_share, decision.cached_share
        record.predicted_ttft_seconds = decision.predicted_ttft_seconds
        record.prompt_tokens_estimate = round(decision.prompt_tokens) if decision.prompt_tokens is not None else None
        if self._policy.explain_header:
            self._explain = header_text(decision.explain())
        on_body = self._phase is _COLLECTING and self._request_mode == _BUFFERED
        self._phase = _ROUTED
        self._decided(decision, record)
        return [RouteOnBody(decision.addresses) if on_body else RouteOnHeaders(decision.addresses)]

    def _echo_collected(self, routed: list[Reply]) -> list[Reply]:
        """Full-duplex: behind the route, the body that was held back."""
        if self._phase is _ROUTED and self._request_mode == _FULL_DUPLEX:
            body, self._body = self._body, []
            for at, chunk in enumerate(body):
                last = self._request_ended and at == len(body) - 1
                if len(chunk) <= ECHO_BYTES_MAX:
                    routed.append(EchoRequestBody(chunk, last))
                else:
                    routed += _pieces(EchoRequestBody, chunk, last)
            if self._request_ended and not body:
                routed.append(EchoRequestBody(b"", True))
        self._body = []
        return routed

    def _too_large(self) -> list[Reply]:
        limit = self._policy.limits.request_body_bytes_max
        return self._reject(
            413,
            f"the request body exceeds {limit} bytes (limits.request_body_bytes_max)",
            "too_large",
            Outcome.REJECTED,
        )

    def _reject(
        self, status: int, message: str, word: str, outcome: Outcome, *, retry_after: int | None = None
    ) -> list[Reply]:
        self._phase = _REJECTED
        self.deadline_seconds = None
        self._body = []
        record = self._record
        assert record is not None
        record.status, record.reject_word = status, word
        anthropic = self._api is not None and self._api.anthropic_errors
        self._end(outcome)
        return [answer(status, message, word, anthropic=anthropic, retry_after_seconds=retry_after)]

    # Response ------------------------------------------------------------------------------

    def _on_local_reply(self, event: ResponseHeaders, received_at: float) -> list[Reply]:
        """The proxy answered by itself before we saw or decided the request."""
        if self._record is None:
            self._started_at = received_at
            self._request_mode, self._response_mode = event.request_mode, event.response_mode
            self._record = Finished(outcome=_UNSEEN, path=OTHER)
        self.deadline_seconds = None
        self._body = []
        self._request_ended = True  # of what was held back nothing goes on, so nothing of what follows may
        return self._begin_response(event)

    def _on_response_headers(self, event: ResponseHeaders, received_at: float) -> list[Reply]:
        return self._begin_response(event)

    def _begin_response(self, event: ResponseHeaders) -> list[Reply]:
        self._phase = _RESPONSE
        record = self._record
        status = _STATUSES.get(event.headers.get(":status", ""))
        if record is not None:
            record.status = status
        booking = self._booking
        if booking is not None:
            if event.served is not None and self._policy.served_by(booking, event.served) and record is not None:
                record.address, record.endpoint_name = event.served, None
            if status is not None:
                self._policy.answered(booking, status)
            self._success = status is not None and 200 <= status < 300
            content_type = event.headers.get("content-type", "")
            sse = content_type.startswith("text/event-stream")
            self._streams = self._success and (sse or (record is not None and record.streaming))
            if not self._streams:
                self._policy.not_streamed(booking)
            if self._success and self._response_mode != _NONE and "content-encoding" not in event.headers:
                if self._api is not None:
                    self._reader = UsageReader(sse=sse)
                if self._creates():
                    self._ids = ResponseIdReader()
        if event.end_of_stream:
            self._response_over()
        return [ContinueResponseHeaders(self._explain)]

    def _creates(self) -> bool:
        """Whether the answer is something that its server stores, under an id."""
        return (
            self._path.name in _STORED
            and self._hints.held_id is None
            and self._headers.get(":method", "POST") == "POST"
        )

    def _on_response_body(self, event: ResponseBody, received_at: float) -> list[Reply]:
        data = event.data
        record = self._record
        if data and record is not None:
            if not record.response_bytes and self._streams:
                record.ttft_seconds = received_at - self._started_at
                self._policy.first_token(self._booking)
            record.response_bytes += len(data)
            if self._reader is not None:
                self._reader.feed(data)
            if self._ids is not None:
                self._look_for_id(self._ids, data)
        if self._response_mode is None:
            self._response_mode = _FULL_DUPLEX if self._request_mode == _FULL_DUPLEX else BodyMode.STREAMED
        ended_before = self._response_ended
        if event.end_of_stream:
            self._response_over()
        if self._response_mode != _FULL_DUPLEX:
            return [ContinueResponseBody()]
        if ended_before:
            return []
        if len(data) <= ECHO_BYTES_MAX:
            return [EchoResponseBody(data, event.end_of_stream)]
        return _pieces(EchoResponseBody, data, event.end_of_stream)

    def _look_for_id(self, ids: ResponseIdReader, data: bytes) -> None:
        name = ids.feed(data)
        if name is not None:
            self._policy.created(self._booking, name)
        if ids.done:
            self._ids = None

    def _on_response_trailers(self, event: ResponseTrailers, received_at: float) -> list[Reply]:
        self._response_over()
        return [ContinueResponseTrailers()]

    def _response_over(self) -> None:
        self._response_ended = True
        if self._record is not None:
            self._end(_COMPLETED)

    # End -----------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        """Release and report, once."""
        record, self._record = self._record, None
        assert record is not None
        if record.outcome is not _UNSEEN:
            record.outcome = outcome
        record.duration_seconds = max(0.0, self._clock() - self._started_at)
        reader, self._reader = self._reader, None
        self._ids = None
        booking, self._booking = self._booking, None
        try:
            record.usage = reader.usage() if reader is not None else None
        finally:
            if booking is not None:
                self._policy.finish(booking, reached=True, usage=record.usage if self._success else None)
        self._finished(record)

    def _unread_bytes(self) -> int:
        """What the prompt in a body that is not read may weigh: uploads of media are no text."""
        if not self._path.prefills:
            return 0
        length = self._content_length() or 0
        if not self._headers.get("content-type", "application/json").startswith(("application/json", "text/")):
            return min(length, MEDIUM_BYTES)
        known = find_api(self._headers.get(":path", "")) is not None
        return length if known else min(length, UNREAD_BYTES_MAX)

    def _content_length(self) -> int | None:
        text = self._headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _names(path: str) -> tuple[Api | None, Path]:
    """The API whose body is read at a path, and what the path is called."""
    known = find_api(path)
    return known, Path(known.name) if known is not None else find_path(path)


def _remembered_names(path: str) -> tuple[Api | None, Path]:
    found = _named.get(path)
    return found if found is not None else remember(_named, path, _names(path), _REMEMBERED_PATHS_MAX)


_named: Final[dict[str, tuple[Api | None, Path]]] = {}


_STATUSES: Final = {f"{number:03}": number for number in range(1_000)}


def _pieces(
    kind: type[EchoRequestBody] | type[EchoResponseBody], data: bytes | memoryview, end_of_stream: bool
) -> list[Reply]:
    """`data` in pieces of at most `ECHO_BYTES_MAX`, the end flag on the last."""
    limit = ECHO_BYTES_MAX
    if len(data) <= limit:
        return [kind(data, end_of_stream)]
    last = (len(data) - 1) // limit * limit
    view = memoryview(data)  # not copied before the socket
    return [kind(view[at : at + limit], end_of_stream and at == last) for at in range(0, len(data), limit)]


_Handler = Callable[[Exchange, Any, float], list[Reply]]

_TRANSITIONS: Final[dict[Phase, dict[type, _Handler]]] = {
    Phase.START: {
        RequestHeaders: Exchange._on_request_headers,
        ResponseHeaders: Exchange._on_local_reply,
    },
    Phase.COLLECTING: {
        RequestBody: Exchange._on_body,
        RequestTrailers: Exchange._on_request_end_by_trailers,
        ResponseHeaders: Exchange._on_local_reply,
    },
    Phase.ROUTED: {
        RequestBody: Exchange._on_more_body,
        RequestTrailers: Exchange._on_request_trailers,
        ResponseHeaders: Exchange._on_response_headers,
    },
    Phase.RESPONSE: {
        RequestBody: Exchange._on_more_body,
        RequestTrailers: Exchange._on_request_trailers,
        ResponseHeaders: Exchange._on_response_headers,
        ResponseBody: Exchange._on_response_body,
        ResponseTrailers: Exchange._on_response_trailers,
    },
    Phase.REJECTED: {},
    Phase.CLOSED: {},
}
"""What is handled where. Anything else in a live phase is a violation and ends the stream."""
