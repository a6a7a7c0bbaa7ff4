"""One HTTP request and its response as a state machine. No I/O, no gRPC, no protobuf.

    receive(event)  -> replies      one event of the proxy
    expire(now)     -> replies      the deadline (`deadline_seconds`) has passed
    close()                         the stream ended, whatever ended it

Where the body is read (a known API path, in FULL_DUPLEX_STREAMED or BUFFERED), the decision
waits for it; everywhere else it is made on the headers. In full-duplex the answer to the headers
is held back until then, and the body is what we send: every byte is echoed, in pieces of at most
`ECHO_BYTES_MAX`, with exactly one end flag, on the last, and none where trailers end it.
In BUFFERED the headers are answered at once, and the destination comes with the body's answer.

A fault of ours costs knowledge, not the request: where reading, deciding or learning fails, `faulted` is told, and the
request is routed by load. Only where not even that is possible it fails.

Invariants: replies keep the protocol's order (headers, body, trailers, per direction); after an
`Immediate` nothing is sent; `policy.finish` and `finished` happen exactly once for every exchange
that made a decision or showed a request; nothing of the prompt outlives the decision.
"""

from collections.abc import Callable
from enum import IntEnum, auto
from typing import Any, Final, NamedTuple, Protocol

from picker.admission import OBJECTIVE_HEADERS
from picker.api import OTHER, Api, Path, find_path, read_body, read_model, unparsed
from picker.api.answers import AnswerReader, Framing, framing_of
from picker.api.hints import NO_HINTS, HintRules, Hints, InvalidHint, held_id
from picker.api.model_name import BEGINNING_BYTES_MAX, FORMS, is_json
from picker.api.model_name import parse as parse_model
from picker.api.request import MEDIUM_BYTES, InferenceRequest, InvalidBody
from picker.api.response_id import ResponseIdReader, ids_told
from picker.config import Limits
from picker.decision import Booking, Decision, Finished, Picked
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
from picker.metering import Metering, Told
from picker.outcomes import Outcome, Shed, Usage
from picker.rng import Rng
from picker.scheduling.explanation import header_text

MODE_WAIT_SECONDS: Final = 0.25
"""A proxy that does not tell its mode and sends no body while its headers are unanswered is not full-duplex."""

UNREAD_BYTES_MAX: Final = 512 * 1024
"""What a body that nobody reads may weigh: the tokens of a full context, whatever else is uploaded."""

SMALL_CHUNK_BYTES: Final = 4096
"""Chunks below this are joined as they come: a body in crumbs takes no more memory than in pieces."""

MODEL_CHARS_MAX: Final = 256
"""Of a model's name in the record, which outlives the request."""

NAME_CHARS_MAX: Final = 256
"""Of a request's id and its objective's name, which outlive it too."""

TRACE_PARENT_CHARS_MAX: Final = 256
"""Version 00 has 55; later ones may append."""

_REMEMBERED_PATHS_MAX: Final = 512
_REMEMBERED_PATH_CHARS_MAX: Final = 128

_POST: Final = {":method": "POST"}
_UNKNOWN: Final = find_path("")


class Policy(Protocol):
    """What the exchange asks of the director."""

    explain_header: bool
    """Whether answers carry their explanation."""
    stamp_header: str | None
    """The header by which an engine's KV events tell which request they are of; `None`: none is set."""
    hint_rules: HintRules | None
    """Which headers say where a request should go; `None`: none does."""

    metering: Metering
    """Whose requests they are, and what the proxy is told of them."""

    @property
    def limits(self) -> Limits:
        """As configured now."""

    @property
    def models_differ(self) -> bool:
        """Whether endpoints are known to serve different models, so that a request's model decides."""

    def decide(
        self,
        request: InferenceRequest,
        *,
        now: float,
        rng: Rng,
        subset: tuple[str, ...] | None,
        objective: str | None,
        first_chunk_visible: bool,
        hints: Hints,
    ) -> Decision:
        """Choose, charge, record."""

    def decide_plainly(self, request: InferenceRequest, *, now: float, subset: tuple[str, ...] | None) -> Decision:
        """The same where `decide` failed."""

    def priority(self, objective: str | None) -> int:
        """Of an objective."""

    def first_token(self, booking: Booking, now: float) -> None:
        """The first content of a 2xx streamed answer."""

    def not_streamed(self, booking: Booking) -> None:
        """The answer does not stream."""

    def answered(self, booking: Booking, status: int, now: float, *, by_proxy: bool, told: bool) -> bool:
        """Response headers came."""

    def ended_well(self, booking: Booking, now: float) -> None:
        """The answer came whole."""

    def failed_within(self, booking: Booking, now: float) -> bool:
        """The answer came whole, with a success's status, and tells of a failure."""

    def abandoned(self, booking: Booking, silent_seconds: float, now: float, *, begun: bool, streams: bool) -> bool:
        """The client went away before that."""

    def served_by(self, booking: Booking, address: str, now: float) -> bool:
        """The proxy tells who served."""

    def created(self, booking: Booking, name: str, now: float) -> None:
        """The answer is a response or conversation of this id, stored where it was made."""

    def engine_seconds(self, booking: Booking, usage: Usage) -> float:
        """How much of its engine's work a request was."""

    def finish(self, booking: Booking, *, reached: bool, usage: Usage | None, content_events: int | None) -> None:
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


_EMPTY_STREAM_BYTES: Final = len(b"data: [DONE]\r\n\r\n")


class Problem(NamedTuple):
    """A violation of the protocol: the stream ends with INVALID_ARGUMENT and this text."""

    text: str


class Exchange:
    """One HTTP exchange on one ext_proc stream."""

    __slots__ = (
        "_alive_at",
        "_api",
        "_body",
        "_body_bytes",
        "_booking",
        "_clock",
        "_counts_events",
        "_decided",
        "_decision",
        "_explain",
        "_faulted",
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
        "_rng",
        "_started_at",
        "_streams",
        "_subset",
        "_success",
        "_told",
        "deadline_seconds",
        "problem",
    )

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
        """`decided` gets every pick, `finished` every end, each at most once; `faulted` every fault, where first."""
        self.problem: Problem | None = None
        self._policy = policy
        self._clock = clock
        self._finished = finished
        self._rng = rng
        self._decided = decided
        self._faulted = faulted
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
        self._booking: Booking | None = None
        self._decision: Picked | None = None
        """Kept where its explanation may be asked for once more."""
        self._alive_at = 0.0
        """When the request was sent on, or content last came."""
        self._counts_events = False
        self._success = False
        self._streams = False
        self._reader: AnswerReader | None = None
        self._ids: ResponseIdReader | None = None
        self._explain: str | None = None
        self._told: Told | None = None
        """For the proxy, with the reply to the end of the answer."""
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
        return self._echo_collected(self._decide(self._begun(self._content_length() or self._body_bytes)))

    def fail(self) -> list[Reply]:
        """A fault of ours, while handling an event: answer the client if it is not too late."""
        if self._record is None or self._phase not in (_START, _COLLECTING):
            return []
        # Before a body, and where the proxy has it and waits for our answer to it, nothing of it can be lost.
        if self._phase is _START or (self._request_mode == _BUFFERED and self._body_bytes):
            try:
                return self._decide(self._unread(self._unread_bytes()), plainly=True)
            except Exception as error:
                self._faulted("decision", error)
        return self._reject(500, "the endpoint picker failed on this request", "internal_error", Outcome.FAILED)

    def give_way(self) -> list[Reply]:
        """Its memory is needed for others, while the body is awaited."""
        if self._record is None or self._phase not in (_START, _COLLECTING):
            return []
        return self._reject(
            503,
            "the endpoint picker has no memory left for a body of this size; try again",
            "out_of_memory",
            Outcome.SHED,
            retry_after=1,
        )

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
        record = self._record = Finished(outcome=_ABORTED, path=OTHER)
        try:
            self._read_headers(headers, record)
        except InvalidHint as error:
            return self._reject(400, str(error), "invalid_header", Outcome.REJECTED)
        except Exception as fault:  # another name: mypyc gives one name one type
            self._faulted("headers", fault)
        api = self._api
        if event.end_of_stream or api is None:
            return self._decide(self._unread(self._unread_bytes()))
        if self._is_too_long():
            if api.understood:
                return self._too_large()
            if self._request_mode != _FULL_DUPLEX or not self._policy.models_differ:
                return self._decide(self._unread(self._unread_bytes()))
        self._phase = _COLLECTING
        wait = MODE_WAIT_SECONDS if self._request_mode is None else self._policy.limits.body_wait_seconds
        self.deadline_seconds = self._clock() + wait
        return [ContinueRequestHeaders()] if self._request_mode == _BUFFERED else []

    def _read_headers(self, headers: dict[str, str], record: Finished) -> None:
        """What they say: the API, an objective, where the request belongs. Raises `InvalidHint`."""
        if "x-request-id" in headers:
            record.request_id = headers["x-request-id"][:NAME_CHARS_MAX]
        if "traceparent" in headers:
            record.trace_parent = headers["traceparent"][:TRACE_PARENT_CHARS_MAX]
        path, method = headers.get(":path", ""), headers.get(":method", "POST")
        plain = len(path) <= _REMEMBERED_PATH_CHARS_MAX and "?" not in path  # a query is its client's own
        self._path = _remembered_path(path, method) if plain else find_path(path, method)
        record.path = self._path.name
        if (path == "/" or path.startswith("/?") or self._path.name == "invocations") and not self._may_be_json():
            # TGI's door and SageMaker's take whatever the model behind them takes.
            self._path = self._path._replace(api=self._path.api._replace(parse=parse_model, understood=False))
        self._api = self._path.api if self._readable() else None
        for name in OBJECTIVE_HEADERS:
            if name in headers:
                self._objective = record.objective = headers[name][:NAME_CHARS_MAX]
                break
        record.priority = self._policy.priority(self._objective)
        record.tenant = self._policy.metering.tenant(headers)
        rules = self._policy.hint_rules
        if rules is not None:
            self._hints = rules.read(headers)
        if not self._path.api.understood and (held := held_id(path)) is not None:
            self._hints = self._hints._replace(held_id=held)

    def _readable(self) -> bool:
        """Whether a body decides; else the headers must do."""
        headers = self._headers
        if headers.get(":method", "POST") not in ("POST", "PUT") or "upgrade" in headers or ":protocol" in headers:
            return False
        mode = self._request_mode
        if mode is not None and mode != _BUFFERED and mode != _FULL_DUPLEX:
            return False
        if headers.get("content-encoding", "identity") != "identity":
            return False
        content_type = self._content_type()
        if self._path.api.understood:
            return not content_type.startswith(("application/grpc", "multipart/"))
        if mode is None:
            return False  # only a prompt is worth waiting for a proxy that does not say whether a body comes
        is_octets = content_type.startswith("application/octet-stream")
        is_text = self._may_be_json() or content_type.startswith("text/plain")
        if not (is_text or is_octets or content_type.startswith(FORMS)):
            return False
        ends = self._content_length() is not None
        if ends and is_text:
            return True
        if not self._policy.models_differ:  # megabytes for one name: only where it decides
            return False
        # A stream of one's own may wait for the answer before it ends, or have trailers alone.
        return ends or (bool(content_type) and not is_octets) or self._path.name != OTHER

    def _on_body(self, event: RequestBody, received_at: float) -> list[Reply]:
        if self._request_mode is None:
            self._request_mode = _FULL_DUPLEX  # it did not wait for our answer
            self.deadline_seconds = self._clock() + self._policy.limits.body_wait_seconds
        if event.subset is not None:
            self._subset = event.subset
        self._body_bytes += len(event.data)
        if event.data:
            self._collect(event.data)
        size = self._body_bytes
        if size > self._policy.limits.request_body_bytes_max or (size > BEGINNING_BYTES_MAX and self._is_too_long()):
            return self._overflowed(event.end_of_stream)
        if not event.end_of_stream and self._request_mode == _FULL_DUPLEX:
            return []
        self._request_ended = event.end_of_stream
        return self._decide_on_body(received_at)

    def _overflowed(self, end_of_stream: bool) -> list[Reply]:
        """More body than is read: refused where it is a prompt, else it goes on, by what is here of it."""
        if self._api is not None and self._api.understood:
            return self._too_large()
        self._request_ended = end_of_stream
        if self._record is not None:
            self._record.request_bytes = self._body_bytes
        return self._echo_collected(self._decide(self._begun(self._unread_bytes())))

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
            return self._echo_collected(self._decide(self._unread(self._body_bytes)))
        try:
            request = self._read(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        except InvalidBody as error:
            return self._reject(400, f"the request body is not valid JSON: {error}", "invalid_json", Outcome.REJECTED)
        except Exception as fault:
            self._faulted("body", fault)
            request = self._unread(self._body_bytes)
        return self._echo_collected(self._decide(request, began))

    def _read(self, body: bytes | memoryview) -> InferenceRequest:
        """The body as its API has it. Raises `InvalidBody` where that is JSON and this is none."""
        api = self._api
        assert api is not None
        if api.understood:
            request = read_body(api, body)
            if not (request.prompt_bytes or request.pieces):  # in words that we do not know
                request.prompt_bytes = min(self._unread_bytes(len(body)), UNREAD_BYTES_MAX)
                request.sized = False
        else:
            request = read_model(api, self._content_type(), body)
            request.prompt_bytes = self._unread_bytes(len(body))
        if request.model is None:
            request.model = self._path.model
        return request

    def _unread(self, size: int) -> InferenceRequest:
        """A request of which only the headers are known, and about how much it carries."""
        return unparsed(self._path.name, size, self._path.model)

    def _begun(self, size: int) -> InferenceRequest:
        """The same of a body that is not here whole; the model too, where it stands in what is here."""
        request = self._unread(size)
        if self._api is not None and not self._api.understood and self._body:
            try:
                found = read_model(self._api, self._content_type(), b"".join(self._body), whole=False)
                request.model = found.model or request.model
            except Exception as error:
                self._faulted("body", error)
        return request

    def _decide(self, request: InferenceRequest, began: float | None = None, *, plainly: bool = False) -> list[Reply]:
        """The reply that routes, or the one that refuses. `plainly`: after a fault."""
        record = self._record
        assert record is not None
        began = began if began is not None else self._clock()
        self.deadline_seconds = None
        request.computes = self._path.prefills
        decision = None if plainly else self._decided_by_rule(request, began)
        if decision is None:
            decision = self._policy.decide_plainly(request, now=self._clock(), subset=self._subset)
        record.decision_seconds = self._clock() - began
        record.model = request.model[:MODEL_CHARS_MAX] if request.model is not None else None
        record.streaming = request.stream
        if not isinstance(decision, Picked):
            status, outcome = (429, Outcome.SHED) if isinstance(decision, Shed) else (503, Outcome.UNAVAILABLE)
            return self._reject(
                status, decision.message, decision.reason_word, outcome, retry_after=decision.retry_after_seconds
            )
        self._booking = decision.booking
        self._alive_at = began
        self._counts_events = request.stream and (not request.reports_usage or self._policy.metering.estimates)
        record.reason = decision.reason
        record.address, record.endpoint_name = decision.addresses[0], decision.endpoint_name
        record.matched_share, record.cached_share = decision.matched_share, decision.cached_share
        record.predicted_ttft_seconds = decision.predicted_ttft_seconds
        record.prompt_tokens_estimate = round(decision.prompt_tokens) if decision.prompt_tokens is not None else None
        if self._policy.explain_header:
            self._decision = decision
        on_body = self._phase is _COLLECTING and self._request_mode == _BUFFERED
        self._phase = _ROUTED
        self._subset = None
        if self._headers.get(":method") == "POST":
            self._headers = _POST  # all that is asked of them from here on: a long stream keeps no client's words
        try:
            self._decided(decision, record)
        except Exception as error:
            self._faulted("telemetry", error)
        stamp = None
        if decision.session_id is not None and self._policy.stamp_header is not None:
            stamp = (self._policy.stamp_header, decision.session_id)
        addresses, why = decision.addresses, self._policy.metering.why(decision.reason)
        return [RouteOnBody(addresses, stamp, why) if on_body else RouteOnHeaders(addresses, stamp, why)]

    def _decided_by_rule(self, request: InferenceRequest, now: float) -> Decision | None:
        """`None`: a fault of ours."""
        stamped = self._policy.stamp_header
        if stamped is not None and request.session_id is None:
            request.session_id = self._headers.get(stamped)
        try:
            return self._policy.decide(
                request,
                now=now,
                rng=self._rng,
                subset=self._subset,
                objective=self._objective,
                first_chunk_visible=self._response_mode not in (None, _NONE),
                hints=self._hints,
            )
        except Exception as error:
            self._faulted("decision", error)
            return None

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
            self._success = status is not None and 200 <= status < 300
            try:
                self._learn_headers(booking, event, status, record)
            except Exception as error:
                self._faulted("answer", error)
        if event.end_of_stream:
            self._response_over()
        elif record is not None and booking is not None and self._response_mode in (None, _NONE):
            self._tell(record)  # its end is not shown
        told, self._told = self._told, None  # once: a body may come after all, in many pieces
        return [ContinueResponseHeaders(self._explained(), told)]

    def _learn_headers(
        self, booking: Booking, event: ResponseHeaders, status: int | None, record: Finished | None
    ) -> None:
        """Who served, with what success, and in what form the answer comes."""
        policy, headers, now = self._policy, event.headers, self._clock()
        if event.served is not None:
            if policy.served_by(booking, event.served, now) and record is not None and record.address != event.served:
                record.address, record.endpoint_name = event.served, booking.endpoint.spec.name
            if record is not None:
                record.served_address = event.served
        if status is not None:
            by_proxy = "x-envoy-overloaded" in headers
            policy.answered(booking, status, now, by_proxy=by_proxy, told=event.served is not None)
        plain = headers.get("content-encoding", "identity").lower() == "identity"
        visible = self._success and self._response_mode != _NONE and plain
        framing = framing_of(headers.get("content-type", ""), record is not None and record.streaming)
        self._streams = visible and framing is not Framing.WHOLE
        if not self._streams:
            policy.not_streamed(booking)
        if visible:
            self._reader = AnswerReader(framing, understood=self._path.api.understood, count_events=self._counts_events)
            self._ids = ids_told(self._path.name, self._headers.get(":method", "POST"), self._hints.held_id)
        if self._success and self._response_mode in (None, _NONE):
            policy.ended_well(booking, now)  # of what is not seen the headers must do

    def _explained(self) -> str | None:
        """The explanation of the pick, and who served in its place; for a header."""
        decision, self._decision = self._decision, None
        if decision is None:
            return None
        try:
            return header_text(decision.explain(), None if self._record is None else self._record.served_address)
        except Exception as error:
            self._faulted("explanation", error)
            return None

    def _on_response_body(self, event: ResponseBody, received_at: float) -> list[Reply]:
        data = event.data
        record = self._record
        if data and record is not None:
            record.response_bytes += len(data)
            if self._reader is not None or self._ids is not None:
                try:
                    self._learn_body(record, data, received_at)
                except Exception as error:
                    self._reader = self._ids = None
                    self._faulted("answer", error)
            elif self._success:
                self._alive_at = received_at  # of what is compressed each byte may be content
        if self._response_mode is None:
            self._response_mode = _FULL_DUPLEX if self._request_mode == _FULL_DUPLEX else BodyMode.STREAMED
        ended_before = self._response_ended
        if event.end_of_stream:
            self._response_over()
        if self._response_mode != _FULL_DUPLEX:
            return [ContinueResponseBody(self._told)]
        if ended_before:
            return []
        if len(data) <= ECHO_BYTES_MAX:
            return [EchoResponseBody(data, event.end_of_stream, self._told)]
        return _pieces(EchoResponseBody, data, event.end_of_stream, self._told)

    def _learn_body(self, record: Finished, data: bytes, received_at: float) -> None:
        """A piece of an answer: first token, counts, an id."""
        booking, reader, ids = self._booking, self._reader, self._ids
        if booking is None:
            return
        if reader is not None:
            began = reader.feed(data)
            if reader.started:
                self._alive_at = received_at
            if began and self._streams:
                record.ttft_seconds = received_at - self._started_at
                self._policy.first_token(booking, self._clock())
        if ids is not None:
            for name in ids.feed(data):
                self._policy.created(booking, name, self._clock())
            if ids.done:
                self._ids = None

    def _on_response_trailers(self, event: ResponseTrailers, received_at: float) -> list[Reply]:
        self._response_over()
        return [ContinueResponseTrailers(self._told)]

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
        now = self._clock()
        record.duration_seconds = max(0.0, now - self._started_at)
        reader, self._reader = self._reader, None
        self._ids = None
        booking, self._booking = self._booking, None
        try:
            if booking is not None:
                self._settle(booking, record, reader, now)
        except Exception as error:
            self._faulted("end", error)
        finally:
            self._report(record)

    def _settle(self, booking: Booking, record: Finished, reader: AnswerReader | None, now: float) -> None:
        """What the end of a routed request says of its server, and what its counts teach."""
        policy = self._policy
        events: int | None = None
        failure: int | None = None
        whole = record.outcome is _COMPLETED
        try:
            if reader is not None:
                record.usage = reader.usage()
            failure = self._failure_told(record, reader)
            self._meter(booking, record, reader)
            if self._success and whole:
                if failure is None:
                    policy.ended_well(booking, now)
                elif failure >= 500:
                    policy.failed_within(booking, now)
            elif record.outcome is _ABORTED:
                begun = reader.started if reader is not None else record.response_bytes > 0
                silent = now - self._alive_at
                policy.abandoned(booking, silent, now, begun=begun, streams=record.streaming)
            if reader is not None and whole and failure is None and self._counts_events:
                events = reader.content_events
        finally:
            usage = record.usage if self._success and failure is None else None
            if usage is not None and not whole:  # of a cut answer the output is what came until then
                usage = Usage(usage.input_tokens, None, usage.cached_tokens)
            policy.finish(booking, reached=True, usage=usage, content_events=events)

    def _failure_told(self, record: Finished, reader: AnswerReader | None) -> int | None:
        """The status of the failure that an answer tells of, whatever its own: it says so, or a stream has no event."""
        if reader is not None and reader.failure is not None:
            return reader.failure
        if self._response_mode in (None, _NONE) or not (self._streams and self._path.api.understood):
            return None  # what is not seen may be there
        return 500 if record.response_bytes <= _EMPTY_STREAM_BYTES else None

    def _meter(self, booking: Booking, record: Finished, reader: AnswerReader | None) -> None:
        """What is charged for it; the proxy is told."""
        metering = self._policy.metering
        usage = record.usage if self._success else None
        counted = reader.content_events if reader is not None and self._counts_events else None
        metering.meter(record, usage, prefills=self._path.prefills, content_events=counted)
        if record.charged is not None:
            record.engine_seconds = self._policy.engine_seconds(booking, record.charged)
        self._tell(record)

    def _tell(self, record: Finished) -> None:
        try:
            self._told = self._policy.metering.told(record)
        except Exception as error:
            self._faulted("telemetry", error)

    def _report(self, record: Finished) -> None:
        try:
            self._finished(record)
        except Exception as error:
            self._faulted("telemetry", error)

    def _unread_bytes(self, length: int | None = None) -> int:
        """What the prompt in a body that is not read may weigh: uploads of media are no text."""
        if not self._path.prefills:
            return 0
        size = (self._content_length() or 0) if length is None else length
        if not (self._content_type() or "application/json").startswith(("application/json", "text/")):
            return min(size, MEDIUM_BYTES)
        return size if self._path.api.understood else min(size, UNREAD_BYTES_MAX)

    def _is_too_long(self) -> bool:
        """Whether its length is told, and is more than is read."""
        return (self._content_length() or 0) > self._policy.limits.request_body_bytes_max

    def _content_type(self) -> str:
        """In lower case, as media types compare (RFC 9110, 8.3.1)."""
        return self._headers.get("content-type", "").lower()

    def _may_be_json(self) -> bool:
        """Whether no content type says otherwise."""
        content_type = self._content_type()
        return not content_type or is_json(content_type)

    def _content_length(self) -> int | None:
        text = self._headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _remembered_path(path: str, method: str) -> Path:
    """What a path is, of those that come again and again."""
    key = (path, method)
    found = _paths.get(key)
    return found if found is not None else remember(_paths, key, find_path(path, method), _REMEMBERED_PATHS_MAX)


_paths: Final[dict[tuple[str, str], Path]] = {}


_STATUSES: Final = {f"{number:03}": number for number in range(1_000)}


def _pieces(
    kind: type[EchoRequestBody] | type[EchoResponseBody],
    data: bytes | memoryview,
    end_of_stream: bool,
    told: Told | None = None,
) -> list[Reply]:
    """`data` in pieces of at most `ECHO_BYTES_MAX`, the end flag on the last, and with it what is told."""
    limit = ECHO_BYTES_MAX
    if len(data) <= limit:
        return [kind(data, end_of_stream, told)]
    last = (len(data) - 1) // limit * limit
    view = memoryview(data)  # not copied before the socket
    return [
        kind(view[at : at + limit], end_of_stream and at == last, told if at == last else None)
        for at in range(0, len(data), limit)
    ]


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
