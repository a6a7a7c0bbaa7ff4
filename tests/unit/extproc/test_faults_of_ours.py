"""A fault at any stage costs knowledge, never the request: it is routed, answered and told, and nothing is kept."""

import json
from collections import OrderedDict
from math import inf
from random import Random

import pytest

from picker.api.hints import HintRules
from picker.config import Config, Debug, ProxyMetadata, SessionAffinity
from picker.decision import Finished
from picker.extproc import events, exchange, replies
from picker.extproc.events import BodyMode
from picker.extproc.exchange import Exchange
from picker.outcomes import Outcome

FD = BodyMode.FULL_DUPLEX_STREAMED
SERVED = "10.0.0.2:8000"
BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 3000}]}).encode()
TOKEN = b'data: {"id":"resp_1","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


class Faulty:
    """A director that fails at one thing that an exchange asks of it."""

    def __init__(self, director, broken):
        self._director, self._broken = director, broken

    def __getattr__(self, name):
        if name == self._broken:
            return self._fail
        return getattr(self._director, name)

    def _fail(self, *_, **__):
        raise ZeroDivisionError(f"in {self._broken}")


class FaultyRules(HintRules):
    def read(self, headers):
        raise ZeroDivisionError


def fail(*_, **__):
    raise ZeroDivisionError


def play(world, policy, *, decided=None, finished=None, path="/v1/chat/completions"):
    """A whole request through an exchange: what was sent to the proxy, the records, the faults."""
    told, ended = [], []
    tested = Exchange(
        policy,
        clock=lambda: world.now,
        rng=Random(1),
        finished=finished or ended.append,
        decided=decided or (lambda picked, record: None),
        faulted=lambda where, error: told.append((where, type(error))),
    )
    head = {":method": "POST", ":path": path, "content-type": "application/json", "x-session": "s"}
    sent = tested.receive(events.RequestHeaders(head, False, FD, FD), world.now)
    sent += tested.receive(events.RequestBody(BODY, True), world.now)
    answer = {":status": "200", "content-type": "text/event-stream"}
    sent += tested.receive(events.ResponseHeaders(answer, False, SERVED), world.now)
    sent += tested.receive(events.ResponseBody(TOKEN), world.now)
    sent += tested.receive(events.ResponseBody(b"data: [DONE]\n\n", True), world.now)
    tested.close()
    return sent, ended, told


def whole(sent):
    """The request went on unharmed, and so did its answer."""
    assert isinstance(sent[0], replies.RouteOnHeaders)
    echoed = b"".join(bytes(each.data) for each in sent if isinstance(each, replies.EchoRequestBody))
    answered = b"".join(bytes(each.data) for each in sent if isinstance(each, replies.EchoResponseBody))
    assert (echoed, answered) == (BODY, TOKEN + b"data: [DONE]\n\n")
    return True


@pytest.mark.parametrize("response_mode", [BodyMode.NONE, FD])
def test_what_the_proxy_cannot_be_told_costs_nothing_else(make_world, response_mode):
    world = make_world(config=Config(epsilon=0.0, proxy_metadata=ProxyMetadata(namespace="ours")))
    told, ended = [], []

    def spoil(picked, record):
        record.predicted_ttft_seconds = inf  # milliseconds of it are no number

    tested = Exchange(
        world.director,
        clock=lambda: world.now,
        rng=Random(1),
        finished=ended.append,
        decided=spoil,
        faulted=lambda where, error: told.append((where, type(error))),
    )
    head = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
    tested.receive(events.RequestHeaders(head, False, FD, response_mode), world.now)
    tested.receive(events.RequestBody(BODY, True), world.now)
    answer = {":status": "200", "content-type": "text/event-stream"}
    sent = tested.receive(events.ResponseHeaders(answer, False, SERVED), world.now)
    if response_mode == FD:
        sent += tested.receive(events.ResponseBody(TOKEN, True), world.now)
    tested.close()
    assert [each.told for each in sent] == [None] * len(sent) and len(sent) == (2 if response_mode == FD else 1)
    assert set(told) == {("telemetry", OverflowError)}
    assert [record.outcome for record in ended] == [Outcome.COMPLETED] and world.director.ledger.open_charges == 0


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        ("priority", "headers"),
        ("decide", "decision"),
        ("served_by", "answer"),
        ("answered", "answer"),
        ("first_token", "answer"),
        ("ended_well", "end"),
    ],
)
def test_where_the_director_fails_the_request_goes_on(world, broken, where):
    sent, ended, told = play(world, Faulty(world.director, broken))
    assert whole(sent) and told == [(where, ZeroDivisionError)]
    (record,) = ended
    assert isinstance(record, Finished) and (record.outcome, record.status) == (Outcome.COMPLETED, 200)
    assert world.in_flight == 0
    world.check()


def test_where_a_body_cannot_be_read_it_is_routed_by_load(world, monkeypatch):
    monkeypatch.setattr(exchange, "read_body", fail)
    sent, ended, told = play(world, world.director)
    assert whole(sent) and told == [("body", ZeroDivisionError)]
    assert ended[0].matched_share is None and world.in_flight == 0


def test_where_headers_cannot_be_read_the_rest_is(make_world):
    world = make_world(config=Config(epsilon=0.0, session_affinity=SessionAffinity(header="x-session")))
    sent, _, told = play(world, _WithRules(world.director))
    assert whole(sent) and told == [("headers", ZeroDivisionError)] and world.in_flight == 0


class _WithRules(Faulty):
    def __init__(self, director):
        super().__init__(director, "")
        self.hint_rules = FaultyRules(None, "x-session", None)


@pytest.mark.parametrize("callback", ["decided", "finished"])
def test_who_listens_may_fail(world, callback):
    sent, _, told = play(world, world.director, **{callback: fail})
    assert whole(sent) and told == [("telemetry", ZeroDivisionError)] and world.in_flight == 0


def test_an_explanation_that_fails_is_left_out(make_world):
    world = make_world(config=Config(epsilon=0.0, debug=Debug(explain_header=True)))
    policy = _Unexplained(world.director)
    sent, _, told = play(world, policy)
    assert whole(sent) and told == [("explanation", ZeroDivisionError)]
    assert [each.explain for each in sent if isinstance(each, replies.ContinueResponseHeaders)] == [None]


class _Unexplained(Faulty):
    def __init__(self, director):
        super().__init__(director, "")

    def decide(self, *arguments, **more):
        picked = self._director.decide(*arguments, **more)
        picked.explain = fail
        return picked


@pytest.mark.parametrize("memory", ["index", "rates", "stickiness"])
def test_where_memory_is_broken_requests_go_on(world, memory):
    class Broken(dict):
        def get(self, *_):
            raise ZeroDivisionError

        __getitem__ = __contains__ = __setitem__ = get

    director = world.director
    if memory == "index":
        director.index._heads = Broken()
    elif memory == "rates":
        director.rates._models = _BrokenOrder()
    else:
        director.stickiness.stored._new = _BrokenOrder()
    sent, ended, told = play(
        world, director, path="/v1/responses" if memory == "stickiness" else "/v1/chat/completions"
    )
    assert whole(sent) and len(ended) == 1 and world.in_flight == 0
    assert {kind for _, kind in told} == {ZeroDivisionError}
    assert {where for where, _ in told} <= {"decision", "answer", "end"}


class _BrokenOrder(OrderedDict):
    def get(self, *_):
        raise ZeroDivisionError

    __setitem__ = pop = move_to_end = get


def test_only_where_not_even_a_plain_pick_is_possible_the_answer_is_500(world):
    class Hopeless(Faulty):
        def decide_plainly(self, *_, **__):
            raise ZeroDivisionError

    tested = Exchange(
        Hopeless(world.director, "decide"),
        clock=lambda: world.now,
        rng=Random(1),
        finished=world.finished.append,
        decided=lambda picked, record: None,
        faulted=lambda where, error: None,
    )
    tested.receive(events.RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"}, False, FD, FD), 1.0)
    with pytest.raises(ZeroDivisionError):
        tested.receive(events.RequestBody(BODY, True), 1.0)
    (answer,) = tested.fail()
    assert isinstance(answer, replies.Immediate) and answer.status == 500
    tested.close()
    assert [record.outcome for record in world.finished] == [Outcome.FAILED] and world.in_flight == 0
