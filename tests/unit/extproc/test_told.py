"""The proxy hears why with the route and what was used with the end of the answer, whichever reply that is."""

import json

import pytest

from picker.config import Config, ProxyMetadata, Tenants
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Metered, Outcome, Usage

NONE, STREAMED, BUFFERED, FD = BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED
ANSWER = json.dumps({"choices": [{}], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}).encode()
CONFIG = Config(epsilon=0.0, proxy_metadata=ProxyMetadata(namespace="ours"), tenants=Tenants(header="X-Tenant"))
USED = {"input_tokens": 40, "output_tokens": 2, "total_tokens": 42, "usage": "reported", "tenant": "acme"}


@pytest.fixture
def world(make_world):
    return make_world(config=CONFIG)


def asked(world, request_mode, response_mode, *, path="/v1/chat/completions", **body):
    exchange = world.exchange()
    headers = {":path": path, ":method": "POST", "content-type": "application/json", "x-tenant": "acme"}
    sent = exchange.receive(events.RequestHeaders(headers, False, request_mode, response_mode, None), world.now)
    whole = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **body}).encode()
    sent += exchange.receive(events.RequestBody(whole, True), world.now)
    (route,) = [each for each in sent if isinstance(each, replies.RouteOnHeaders | replies.RouteOnBody)]
    assert route.told == ("ours", (("reason", "load"),))
    return exchange


def began(world, exchange, *, ends=False, kind="application/json", status="200"):
    headers = {":status": status, "content-type": kind}
    (reply,) = exchange.receive(events.ResponseHeaders(headers, ends, None, None, None), world.now)
    return reply


def told(reply):
    namespace, pairs = reply.told
    assert namespace == "ours"
    return dict(pairs)


@pytest.mark.parametrize(("request_mode", "response_mode"), [(FD, FD), (BUFFERED, STREAMED), (BUFFERED, BUFFERED)])
def test_with_the_last_piece_of_the_body(world, request_mode, response_mode):
    exchange = asked(world, request_mode, response_mode)
    assert began(world, exchange).told is None
    (first,) = exchange.receive(events.ResponseBody(ANSWER[:9], False), world.now)
    (last,) = exchange.receive(events.ResponseBody(ANSWER[9:], True), world.now)
    assert first.told is None and told(last).items() >= USED.items()
    (record,) = world.finished
    assert (record.metered, record.charged, record.tenant) == (Metered.REPORTED, Usage(40, 2), "acme")
    assert record.engine_seconds > 0


def test_with_the_trailers_that_end_it(world):
    exchange = asked(world, FD, FD)
    began(world, exchange)
    (body,) = exchange.receive(events.ResponseBody(ANSWER, False), world.now)
    (trailers,) = exchange.receive(events.ResponseTrailers(), world.now)
    assert body.told is None and told(trailers).items() >= USED.items()


def test_of_a_large_last_piece_with_its_end(world):
    exchange = asked(world, FD, FD)
    began(world, exchange)
    padded = ANSWER.replace(b"[{}]", b'["%b"]' % (b"x" * 3 * replies.ECHO_BYTES_MAX))
    sent = exchange.receive(events.ResponseBody(padded, True), world.now)
    assert len(sent) == 4 and [each.told is not None for each in sent] == [False, False, False, True]
    assert told(sent[-1]).items() >= USED.items()


def test_with_the_headers_where_no_end_is_shown(world):
    exchange = asked(world, BUFFERED, NONE)
    reply = began(world, exchange)
    assert told(reply)["reason"] == "load" and "usage" not in told(reply)


def test_where_the_proxy_does_not_say_whether_an_end_is_shown_it_hears_at_both_places_and_nowhere_else(world):
    exchange = asked(world, FD, None)
    assert told(began(world, exchange))["reason"] == "load"
    (first,) = exchange.receive(events.ResponseBody(ANSWER[:9], False), world.now)
    (last,) = exchange.receive(events.ResponseBody(ANSWER[9:], True), world.now)
    assert first.told is None and told(last).items() >= USED.items()


def test_with_headers_that_end_the_answer(world):
    reply = began(world, asked(world, FD, FD), ends=True, status="503")
    assert told(reply)["reason"] == "load" and "usage" not in told(reply)
    assert world.finished[0].metered is Metered.NONE


def test_estimates_count_the_prompt_by_its_bytes_and_the_output_by_its_events(make_world):
    world = make_world(config=Config(epsilon=0.0, tenants=Tenants(estimates=True)))
    exchange = world.exchange()
    headers = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
    exchange.receive(events.RequestHeaders(headers, False, FD, FD, None), world.now)
    body = json.dumps({"model": "m", "prompt": "four" * 30, "stream": True}).encode()
    exchange.receive(events.RequestBody(body, True), world.now)
    began(world, exchange, kind="text/event-stream")
    for word in (b"a", b"b", b"c"):
        exchange.receive(events.ResponseBody(b'data: {"choices":[{"text":"%b"}]}\n\n' % word, False), world.now)
    exchange.receive(events.ResponseBody(b"data: [DONE]\n\n", True), world.now)
    (record,) = world.finished
    assert (record.metered, record.charged) == (Metered.ESTIMATED, Usage(30, 3, None)), "four bytes a token"
    assert record.usage is None, "what teaches, and the histograms of what engines reported, stay free of guesses"


def test_estimates_count_the_output_of_a_stream_that_was_to_report_and_was_cut_off(make_world):
    world = make_world(config=Config(epsilon=0.0, tenants=Tenants(estimates=True)))
    exchange = world.exchange()
    headers = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
    exchange.receive(events.RequestHeaders(headers, False, FD, FD, None), world.now)
    asks = {"stream": True, "stream_options": {"include_usage": True}}
    exchange.receive(events.RequestBody(json.dumps({"prompt": "four" * 30, **asks}).encode(), True), world.now)
    began(world, exchange, kind="text/event-stream")
    for word in (b"a", b"b", b"c"):
        exchange.receive(events.ResponseBody(b'data: {"choices":[{"text":"%b"}]}\n\n' % word, False), world.now)
    exchange.close()
    (record,) = world.finished
    assert (record.outcome, record.metered) == (Outcome.ABORTED, Metered.ESTIMATED)
    assert record.charged == Usage(30, 3, None)
