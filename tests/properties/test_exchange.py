"""Any order of events, on many streams at once: one end each, nothing left in flight, the protocol's order kept.

Hypothesis plays the proxy (also a mad one), the clients, the clock, and the pool that changes meanwhile. For each
stream a `Ledger` keeps what came in and what went out, and says after every message whether that is still a
conversation the protocol allows (envoy/service/ext_proc/v3: one answer a message, in its order, none after
an immediate response; in full duplex the body is what we send).
"""

import json
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from picker.config import Config, Ejection, Limits
from picker.decision import Finished
from picker.director import Director
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.extproc.exchange import Exchange, Phase
from picker.outcomes import Outcome
from picker.pool.specs import EndpointSpec, EngineSample
from tests.faults import raised

FD = BodyMode.FULL_DUPLEX_STREAMED
STREAMS = 4
ADDRESSES = [f"10.0.0.{number}:80" for number in range(4)]

_TEXT = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 3000}]}, separators=(",", ":")
).encode()
CHUNKS = {
    "nothing": b"",
    "whole": _TEXT,
    "first half": _TEXT[:1000],
    "second half": _TEXT[1000:],
    "brace": b"{",
    "no text": b"\xff",
    "too much": b"z" * 70_000,
}
ANSWERS = {
    "nothing": b"",
    "token": b"data: {}\n\n",
    "json": b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}',
    "much": b"y" * 130_000,
}


request_headers = st.builds(
    lambda path, method, mode, response, end, subset, objective, length: events.RequestHeaders(
        {":method": method, ":path": path, "content-type": "application/json", **objective, **length},
        end,
        mode,
        response,
        subset,
    ),
    st.sampled_from(["/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/other", ""]),
    st.sampled_from(["POST", "POST", "POST", "GET", "CONNECT"]),
    st.sampled_from([None, BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED, FD, FD, 77]),
    st.sampled_from([None, BodyMode.NONE, BodyMode.STREAMED, FD]),
    st.booleans(),
    st.sampled_from([None, None, None, (), ("10.0.0.1",), (ADDRESSES[2], ADDRESSES[3]), ("nonsense",)]),
    st.sampled_from([{}, {}, {"x-gateway-inference-objective": "batch"}]),
    st.sampled_from([{}, {"content-length": "100"}, {"content-length": "9999999"}, {"content-length": "x"}]),
)
request_body = st.builds(
    events.RequestBody,
    st.sampled_from(sorted(CHUNKS)).map(lambda name: CHUNKS[name]),
    st.booleans(),
    st.sampled_from([None, None, ("10.0.0.1",)]),
)
response_headers = st.builds(
    lambda status, kind, end, served: events.ResponseHeaders({":status": status, "content-type": kind}, end, served),
    st.sampled_from(["200", "200", "200", "404", "429", "503", "xyz", ""]),
    st.sampled_from(["text/event-stream", "application/json"]),
    st.booleans(),
    st.sampled_from([None, None, ADDRESSES[0], ADDRESSES[3], "10.9.9.9:1"]),
)
response_body = st.builds(
    events.ResponseBody,
    st.sampled_from(sorted(ANSWERS)).map(lambda name: ANSWERS[name]),
    st.booleans(),
)
any_event = st.one_of(
    request_headers,
    request_body,
    request_body,
    st.just(events.RequestTrailers()),
    response_headers,
    response_body,
    response_body,
    st.just(events.ResponseTrailers()),
    st.just(events.Malformed("not a ProcessingRequest")),
)


class Ledger:
    """What one stream has seen, and whether the answers still make a conversation."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.received = b""
        self.echoed = b""
        self.echo_ended = False
        self.answered: list[type] = []
        self.refused = False
        self.request_bodies = 0
        self.response_received = b""
        self.response_echoed = b""
        self.response_ended = False

    def came(self, event: events.Event) -> None:
        if isinstance(event, events.RequestHeaders):
            self.mode = event.request_mode
        if isinstance(event, events.RequestBody):
            self.received += event.data
            self.request_bodies += 1
        if isinstance(event, events.ResponseBody):
            self.response_received += event.data

    def went(self, sent: list[replies.Reply]) -> None:
        for reply in sent:
            assert not self.refused, "something after an immediate response"
            kind = type(reply)
            if isinstance(reply, replies.Immediate):
                self.refused = True
                assert 400 <= reply.status < 600 and reply.body
            elif isinstance(reply, replies.EchoRequestBody):
                assert self.mode in (None, FD), "a streamed answer to a proxy that did not ask for it"
                assert not self.echo_ended, "body after its end"
                assert {replies.RouteOnHeaders} & set(self.answered) or self.local, "body before headers"
                self.echoed += reply.data
                self.echo_ended = reply.end_of_stream
                assert len(reply.data) <= 62_000 and self.received.startswith(self.echoed)
            elif isinstance(reply, replies.EchoResponseBody):
                assert not self.response_ended, "answer after its end"
                self.response_ended = reply.end_of_stream
                self.response_echoed += reply.data
                assert len(reply.data) <= 62_000 and self.response_received.startswith(self.response_echoed)
            elif isinstance(reply, ROUTES):
                assert reply.addresses
                assert not set(ROUTES) & set(self.answered), "routed twice"
            elif isinstance(reply, replies.ContinueRequestHeaders):
                assert replies.RouteOnHeaders not in self.answered, "headers answered twice"
            self.answered.append(kind)
        bodies = sum(kind in (replies.ContinueRequestBody, replies.RouteOnBody) for kind in self.answered)
        assert bodies <= self.request_bodies, "more answers to bodies than bodies"

    @property
    def local(self) -> bool:
        return replies.ContinueResponseHeaders in self.answered


ROUTES = (replies.RouteOnHeaders, replies.RouteOnBody, replies.RouteOnTrailers)


class Streams(RuleBasedStateMachine):
    """Streams that come and go over one director."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        config = Config(
            objectives={"batch": -1},
            epsilon=0.3,
            limits=Limits(request_body_bytes_max=60_000),
            ejection=Ejection(failures=2),
        )
        self.director = Director(config)
        self.rng = Random(5)
        self.open: dict[int, tuple[Exchange, Ledger, list[Finished]]] = {}
        self.uids = 0
        self.endpoints(2, True)

    @rule(count=st.integers(0, 4), anew=st.booleans())
    def endpoints(self, count: int, anew: bool) -> None:
        if anew:
            self.uids += 1
        self.director.replace_endpoints(
            EndpointSpec(address=address, uid=f"{address}/{self.uids}", name=address) for address in ADDRESSES[:count]
        )

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.26, 1.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(waiting=st.sampled_from([None, 0, 9]), start=st.sampled_from([None, 1.0, 2.0]))
    def scrape(self, waiting: int | None, start: float | None) -> None:
        for endpoint in self.director.datastore.endpoints:
            self.director.record_sample(
                EngineSample(
                    uid=endpoint.spec.uid,
                    taken_at_seconds=self.now,
                    engine="vllm",
                    waiting_requests=waiting,
                    started_at_seconds=start,
                    kv_capacity_tokens=5000,
                )
            )

    def stream(self, number: int) -> tuple[Exchange, Ledger, list[Finished]]:
        if number not in self.open:
            finished: list[Finished] = []
            exchange = Exchange(
                self.director,
                clock=lambda: self.now,
                rng=self.rng,
                finished=finished.append,
                decided=lambda picked, record: None,
                faulted=raised,
            )
            self.open[number] = (exchange, Ledger(), finished)
        return self.open[number]

    def tell(self, number: int, event: events.Event) -> None:
        exchange, ledger, _ = self.stream(number)
        ledger.came(event)
        ledger.went(exchange.receive(event, self.now))
        if exchange.problem is not None:
            self.close(number)

    @rule(number=st.integers(0, STREAMS - 1), event=any_event)
    def anything(self, number: int, event: events.Event) -> None:
        self.tell(number, event)

    @rule(
        number=st.integers(0, STREAMS - 1),
        start=request_headers,
        bodies=st.lists(request_body, max_size=3),
        answer=response_headers,
        rest=st.lists(response_body, max_size=3),
    )
    def mostly_sane(self, number, start, bodies, answer, rest) -> None:
        for event in (start, *bodies, answer, *rest):
            if number in self.open or event is start:
                self.tell(number, event)

    @rule(number=st.integers(0, STREAMS - 1))
    def expire(self, number: int) -> None:
        if number in self.open:
            exchange, ledger, _ = self.open[number]
            ledger.went(exchange.expire(self.now))

    @rule(number=st.integers(0, STREAMS - 1))
    def fault(self, number: int) -> None:
        """A fault of ours while an event is handled: the client is told if it is not too late."""
        if number in self.open:
            exchange, ledger, _ = self.open[number]
            ledger.went(exchange.fail())
            self.close(number)

    @rule(number=st.integers(0, STREAMS - 1))
    def close(self, number: int) -> None:
        if number not in self.open:
            return
        exchange, ledger, finished = self.open.pop(number)
        shown = exchange.phase is not Phase.START
        exchange.close()
        exchange.close()
        assert len(finished) == int(shown), "exactly one end for what was shown, none for what was not"
        assert exchange.receive(events.RequestHeaders({}), self.now) == [] and exchange.deadline_seconds is None
        for record in finished:
            assert record.duration_seconds >= 0 and isinstance(record.outcome, Outcome)
            assert record.request_bytes <= len(ledger.received)
            if record.outcome in (Outcome.REJECTED, Outcome.SHED, Outcome.UNAVAILABLE):
                assert ledger.refused and record.reject_word

    @invariant()
    def books_agree(self) -> None:
        self.director.datastore.check()
        self.director.index.check()
        bookings = [exchange._booking for exchange, _, _ in self.open.values() if exchange._booking is not None]
        # Of what a stranger serves nothing is charged any more.
        assert self.director.ledger.open_charges == sum(not booking.charge.released for booking in bookings)
        for exchange, _, finished in self.open.values():
            assert len(finished) <= 1
            assert not (finished and exchange._booking is not None), "ended, and still charged"
            if exchange.phase not in (Phase.COLLECTING,):
                assert not exchange._body, "a body outlives its decision"

    def teardown(self) -> None:
        for number in list(self.open):
            self.close(number)
        self.books_agree()
        assert self.director.ledger.open_charges == 0
        for endpoint in self.director.datastore.endpoints:
            assert (endpoint.in_flight_requests, endpoint.prefill_tokens, endpoint.context_tokens) == (0, 0.0, 0.0)


Streams.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestStreams = Streams.TestCase


def world() -> Exchange:
    director = Director(Config(epsilon=0.0))
    director.replace_endpoints([EndpointSpec(address=ADDRESSES[0], uid="a", name="a")])
    return Exchange(
        director,
        clock=lambda: 0.0,
        rng=Random(1),
        finished=lambda record: None,
        decided=lambda picked, record: None,
        faulted=raised,
    )


sizes = st.lists(st.sampled_from([0, 1, 2, 100, 4095, 4096, 61_999, 62_000, 62_001, 124_000, 130_001]), max_size=8)


@settings(max_examples=150, deadline=None)
@given(sizes, st.sampled_from(["flag on the last", "empty flag", "trailers"]), st.sampled_from(["chat", "other"]))
def test_in_full_duplex_every_byte_comes_back_with_one_end_however_it_was_cut(cut, end, kind):
    """A body that is read and one that is not; ends by flag, by an empty last message, or by trailers."""
    exchange = world()
    path = "/v1/completions" if kind == "chat" else "/other"
    chunks = [bytes([97 + number]) * size for number, size in enumerate(cut)]
    if kind == "chat":
        chunks = [b'{"prompt":"', *chunks, b'"}']
    stream: list[events.Event] = [events.RequestHeaders({":method": "POST", ":path": path}, False, FD, FD)]
    last = len(chunks) - 1 if end == "flag on the last" else -1
    stream += [events.RequestBody(chunk, number == last) for number, chunk in enumerate(chunks)]
    if end == "empty flag" or (not chunks and end != "trailers"):
        stream.append(events.RequestBody(b"", True))
    if end == "trailers":
        stream.append(events.RequestTrailers())
    sent = [reply for event in stream for reply in exchange.receive(event, 0.0)]
    assert isinstance(sent[0], replies.RouteOnHeaders)
    echoed = [reply for reply in sent if isinstance(reply, replies.EchoRequestBody)]
    assert b"".join(reply.data for reply in echoed) == b"".join(chunks)
    flags = [reply.end_of_stream for reply in echoed]
    if end == "trailers":
        assert not any(flags) and sent[-1] == replies.ContinueRequestTrailers()
    else:
        assert flags == [False] * (len(flags) - 1) + [True]


@settings(max_examples=100, deadline=None)
@given(sizes, st.booleans(), st.sampled_from([BodyMode.STREAMED, FD]))
def test_answers_flow_as_they_come(cut, by_trailers, mode):
    exchange = world()
    exchange.receive(events.RequestHeaders({":method": "GET", ":path": "/x"}, True, FD, mode), 0.0)
    exchange.receive(events.ResponseHeaders({":status": "200"}), 0.0)
    chunks = [bytes([97 + number]) * size for number, size in enumerate(cut)] or [b""]
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1 and not by_trailers
        sent = exchange.receive(events.ResponseBody(chunk, last), 0.0)
        if mode == FD:
            assert b"".join(reply.data for reply in sent) == chunk, "nothing is held back"
            assert [reply.end_of_stream for reply in sent] == [False] * (len(sent) - 1) + [last]
        else:
            assert sent == [replies.ContinueResponseBody()]
    if by_trailers:
        assert exchange.receive(events.ResponseTrailers(), 0.0) == [replies.ContinueResponseTrailers()]
