"""One exchange, mode by mode (reference: Envoy 1.40's measured message flow)."""

import json

import pytest

from picker.config import Config, Limits
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Outcome, Reason
from picker.pool.specs import EngineSample

FD, BUFFERED, STREAMED, NONE = (
    BodyMode.FULL_DUPLEX_STREAMED,
    BodyMode.BUFFERED,
    BodyMode.STREAMED,
    BodyMode.NONE,
)
CHAT = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


def chat(text: str = "hello", **more) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def headers(mode=FD, response=FD, *, end=False, subset=None, **extra):
    return events.RequestHeaders({**CHAT, **extra}, end, mode, response, subset)


def drive(exchange, now, *sequence):
    out = []
    for event in sequence:
        out += exchange.receive(event, now)
    return out


def response(status="200", **extra):
    return events.ResponseHeaders({":status": status, **extra}, False, None)


def test_full_duplex_holds_the_headers_and_echoes_every_byte_with_one_end_flag(world):
    exchange = world.exchange()
    body = chat("x" * 200_000)
    assert exchange.receive(headers(), world.now) == []
    assert exchange.receive(events.RequestBody(body[:130_000]), world.now) == []
    assert exchange.receive(events.RequestBody(body[130_000:]), world.now) == []
    sent = exchange.receive(events.RequestBody(b"", True), world.now)
    assert isinstance(sent[0], replies.RouteOnHeaders)
    assert b"".join(each.data for each in sent[1:]) == body
    assert [each.end_of_stream for each in sent[1:]] == [False] * (len(sent) - 2) + [True]
    assert max(len(each.data) for each in sent[1:]) <= 62_000


def test_the_end_flag_rides_on_the_last_piece_of_data_where_it_came_with_data(world):
    sent = drive(world.exchange(), world.now, headers(), events.RequestBody(chat(), True))
    assert sent[1:] == [replies.EchoRequestBody(chat(), True)]


def test_an_empty_body_is_echoed_as_one_empty_end(world):
    sent = drive(world.exchange(), world.now, headers(), events.RequestBody(b"", True))
    assert sent[1:] == [replies.EchoRequestBody(b"", True)]


def test_trailers_end_the_body_and_then_no_end_flag_is_sent(world):
    sent = drive(world.exchange(), world.now, headers(), events.RequestBody(chat()), events.RequestTrailers())
    assert isinstance(sent[0], replies.RouteOnHeaders)
    assert sent[1:] == [replies.EchoRequestBody(chat(), False), replies.ContinueRequestTrailers()]


def test_buffered_answers_the_headers_and_routes_on_the_body(world):
    exchange = world.exchange()
    assert exchange.receive(headers(BUFFERED, NONE), world.now) == [replies.ContinueRequestHeaders()]
    (routed,) = exchange.receive(events.RequestBody(chat(), True), world.now)
    assert isinstance(routed, replies.RouteOnBody)


def test_buffered_with_trailers_decides_on_the_only_body_message(world):
    exchange = world.exchange()
    exchange.receive(headers(BUFFERED, NONE), world.now)
    (routed,) = exchange.receive(events.RequestBody(chat(), False), world.now)
    assert isinstance(routed, replies.RouteOnBody)
    assert exchange.receive(events.RequestTrailers(), world.now) == [replies.ContinueRequestTrailers()]


def test_buffered_without_a_body_but_with_trailers_is_routed_by_the_answer_to_the_trailers(world):
    exchange = world.exchange()
    exchange.receive(headers(BUFFERED, NONE), world.now)
    (routed,) = exchange.receive(events.RequestTrailers(), world.now)
    assert isinstance(routed, replies.RouteOnTrailers) and world.in_flight == 1


@pytest.mark.parametrize(
    "event",
    [
        headers(end=True, **{":method": "GET", ":path": "/v1/models"}),
        headers(STREAMED, STREAMED),
        headers(NONE, NONE),
        headers(**{"upgrade": "websocket", ":method": "GET"}),
        headers(**{":method": "CONNECT", ":protocol": "websocket"}),
        headers(**{"content-type": "application/grpc"}),
        headers(**{":path": "/v1/audio/transcriptions", "content-type": "multipart/form-data; boundary=x"}),
        headers(**{"content-encoding": "gzip"}),
        headers(**{":path": "/unknown", "content-type": "application/octet-stream"}),
    ],
)
def test_where_the_body_is_not_read_the_headers_decide(world, event):
    exchange = world.exchange()
    (routed,) = exchange.receive(event, world.now)
    assert isinstance(routed, replies.RouteOnHeaders)
    assert world.picked[0].reason is Reason.HEADERS or event.headers.get("content-length") is None


def test_a_body_that_is_not_read_passes_as_it_comes(world):
    exchange = world.exchange()
    exchange.receive(headers(**{":path": "/unknown", "content-type": "application/octet-stream"}), world.now)
    assert exchange.receive(events.RequestBody(b"abc", False), world.now) == [replies.EchoRequestBody(b"abc", False)]
    assert exchange.receive(events.RequestBody(b"", True), world.now) == [replies.EchoRequestBody(b"", True)]
    assert exchange.receive(events.RequestBody(b"", True), world.now) == [], "told twice"


def test_streamed_mode_answers_each_body_message(world):
    exchange = world.exchange()
    exchange.receive(headers(STREAMED, STREAMED), world.now)
    for last in (False, True):
        assert exchange.receive(events.RequestBody(b"abc", last), world.now) == [replies.ContinueRequestBody()]


def test_invalid_json_is_400_with_the_position_and_without_the_content(world):
    (refused,) = drive(world.exchange(), world.now, headers(), events.RequestBody(b'{"model": "m", secret', True))
    assert (refused.status, dict(refused.headers)["x-picker-reason"]) == (400, "invalid_json")
    error = json.loads(refused.body)["error"]
    assert error["code"] == 400 and "char 15" in error["message"] and "secret" not in error["message"]
    assert error["type"] == "invalid_request_error" and error["param"] is None
    assert (world.finished[0].outcome, world.in_flight) == (Outcome.REJECTED, 0)


def test_anthropic_paths_get_anthropic_errors(world):
    (refused,) = drive(
        world.exchange(), world.now, headers(**{":path": "/v1/messages"}), events.RequestBody(b"{", True)
    )
    assert json.loads(refused.body)["type"] == "error"
    assert json.loads(refused.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413(make_world, announced):
    world = make_world(config=Config(limits=Limits(request_body_bytes_max=2048)))
    exchange = world.exchange()
    if announced:
        (refused,) = exchange.receive(headers(**{"content-length": "2049"}), world.now)
    else:
        sent = drive(exchange, world.now, headers(), *[events.RequestBody(b"x" * 1000) for _ in range(3)])
        (refused,) = sent
    assert refused.status == 413
    assert exchange.receive(events.RequestBody(b"more"), world.now) == [], "nothing is sent after an own answer"
    assert world.finished[0].outcome is Outcome.REJECTED


def test_paths_that_are_not_read_have_no_limit(make_world):
    world = make_world(config=Config(limits=Limits(request_body_bytes_max=1024)))
    sent = drive(
        world.exchange(),
        world.now,
        headers(**{":path": "/upload", "content-length": "9999999"}),
        events.RequestBody(b"x" * 5000, True),
    )
    assert [type(each) for each in sent] == [replies.RouteOnHeaders, replies.EchoRequestBody]


def test_no_endpoint_is_503_with_retry_after(make_world):
    world = make_world(addresses=())
    (refused,) = drive(world.exchange(), world.now, headers(), events.RequestBody(chat(), True))
    named = dict(refused.headers)
    assert (refused.status, named["x-picker-reason"], named["retry-after"]) == (503, "no_endpoints", "1")
    assert world.finished[0].outcome is Outcome.UNAVAILABLE


def test_a_sheddable_request_is_429_while_every_endpoint_is_saturated(make_world):
    world = make_world(config=Config(objectives={"batch": -1}))
    for endpoint in world.director.datastore.endpoints:
        world.director.record_sample(
            EngineSample(uid=endpoint.spec.uid, taken_at_seconds=world.now, engine="vllm", waiting_requests=5)
        )
    batch = headers(**{"x-gateway-inference-objective": "batch"})
    (refused,) = drive(world.exchange(), world.now, batch, events.RequestBody(chat(), True))
    assert (refused.status, dict(refused.headers)["retry-after"]) == (429, "1")
    assert isinstance(
        drive(world.exchange(), world.now, headers(), events.RequestBody(chat(), True))[0], replies.RouteOnHeaders
    )
    alias = headers(**{"x-llm-d-inference-objective": "batch"})
    assert drive(world.exchange(), world.now, alias, events.RequestBody(chat(), True))[0].status == 429


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (("10.0.0.2:8000",), {"10.0.0.2:8000"}),
        (("10.0.0.2",), {"10.0.0.2:8000"}),
        (("10.0.0.2:9999",), None),
        ((), None),
        (("[fd00::1]:8000",), {"[fd00::1]:8000"}),
        (("fd00::1",), {"[fd00::1]:8000"}),
        (("nonsense", "10.0.0.1"), {"10.0.0.1:8000"}),
    ],
)
@pytest.mark.parametrize("get", [True, False])
def test_the_subset_hint_holds_with_and_without_a_body(make_world, subset, expected, get):
    world = make_world(addresses=("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"))
    if get:
        (first,) = drive(world.exchange(), world.now, headers(end=True, subset=subset, **{":method": "GET"}))
    else:
        first = drive(world.exchange(), world.now, headers(subset=subset), events.RequestBody(chat(), True))[0]
    if expected is None:
        assert first.status == 503
    else:
        assert set(first.addresses) == expected


def test_the_subset_may_come_with_the_body(world):
    sent = drive(world.exchange(), world.now, headers(), events.RequestBody(chat(), True, ("10.0.0.2",)))
    assert sent[0].addresses == ("10.0.0.2:8000",)


def test_a_streamed_answer_is_echoed_and_measured(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(), events.RequestBody(chat("y" * 8000, stream=True), True))
    load = world.director.datastore.endpoints
    assert sum(each.prefilling_requests for each in load) == 1
    world.now += 0.5
    sse = {"content-type": "text/event-stream"}
    assert drive(exchange, world.now, response(**sse)) == [replies.ContinueResponseHeaders()]
    assert sum(each.prefilling_requests for each in load) == 1, "headers of a stream come before its first token"
    world.now += 1.5
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    token = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    assert drive(exchange, world.now - 1.0, events.ResponseBody(role)) == [replies.EchoResponseBody(role, False)]
    assert sum(each.prefilling_requests for each in load) == 1, "a role is no token"
    assert drive(exchange, world.now, events.ResponseBody(token)) == [replies.EchoResponseBody(token, False)]
    assert sum(each.prefilling_requests for each in load) == 0
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":7}}\n\ndata: [DONE]\n\n'
    drive(exchange, world.now, events.ResponseBody(usage[:30]), events.ResponseBody(usage[30:], True))
    (record,) = world.finished
    assert (record.outcome, record.status, record.ttft_seconds) == (Outcome.COMPLETED, 200, 2.0)
    assert (record.usage.input_tokens, record.usage.output_tokens, record.streaming) == (2000, 7, True)
    assert world.in_flight == 0
    world.check()


@pytest.mark.parametrize("cut", range(1, 6))
def test_however_it_ends_the_charge_is_released_once(world, cut):
    exchange = world.exchange()
    sequence = [
        headers(),
        events.RequestBody(chat()),
        events.RequestBody(b"", True),
        response(),
        events.ResponseBody(b"{}"),
    ][:cut]
    drive(exchange, world.now, *sequence)
    exchange.close()
    exchange.close()
    assert (world.in_flight, len(world.finished), world.finished[0].outcome) == (0, 1, Outcome.ABORTED)
    world.check()


def test_without_response_bodies_the_end_of_the_stream_is_the_end_of_the_answer(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(BUFFERED, NONE), events.RequestBody(chat(), True), response())
    assert world.in_flight == 1
    exchange.close()
    assert (world.finished[0].outcome, world.in_flight) == (Outcome.COMPLETED, 0)


def test_a_local_reply_before_any_request_is_let_through(world):
    exchange = world.exchange()
    assert drive(exchange, world.now, response("403")) == [replies.ContinueResponseHeaders()]
    exchange.close()
    assert [record.outcome for record in world.finished] == [Outcome.UNSEEN]


def test_after_a_local_reply_nothing_of_the_body_goes_on_without_its_beginning(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(), events.RequestBody(b"{", False), response())
    assert exchange.receive(events.RequestBody(b'"model"', False), world.now) == []
    assert exchange.receive(events.RequestBody(b"}", True), world.now) == []
    exchange.close()
    assert len(world.finished) == 1


def test_a_local_reply_while_the_body_is_awaited(world):
    exchange = world.exchange()
    assert drive(exchange, world.now, headers(), response("413")) == [replies.ContinueResponseHeaders()]
    exchange.close()
    assert len(world.finished) == 1 and world.in_flight == 0


def test_a_body_that_does_not_come_is_picked_by_load_and_then_passes(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(), events.RequestBody(b'{"mod'))
    assert exchange.deadline_seconds == world.now + 60.0
    assert exchange.expire(world.now + 59) == []
    world.now += 60
    routed, echoed = exchange.expire(world.now)
    assert isinstance(routed, replies.RouteOnHeaders) and echoed == replies.EchoRequestBody(b'{"mod', False)
    assert exchange.receive(events.RequestBody(b'el"}', True), world.now) == [replies.EchoRequestBody(b'el"}', True)]


def test_a_request_that_waited_too_long_is_not_parsed(world):
    exchange = world.exchange()
    exchange.receive(headers(), world.now)
    read_at = world.now
    world.now += 0.3
    sent = exchange.receive(events.RequestBody(b"{not json", True), read_at)
    assert isinstance(sent[0], replies.RouteOnHeaders)


def test_a_proxy_that_does_not_tell_its_mode_and_does_not_wait_is_full_duplex(world):
    sent = drive(world.exchange(), world.now, headers(None, None), events.RequestBody(chat(), True))
    assert [type(each) for each in sent] == [replies.RouteOnHeaders, replies.EchoRequestBody]


def test_a_proxy_that_does_not_tell_its_mode_and_waits_is_buffered(world):
    exchange = world.exchange()
    exchange.receive(headers(None, None), world.now)
    world.now += 0.25
    assert exchange.expire(world.now) == [replies.ContinueRequestHeaders()]
    (routed,) = exchange.receive(events.RequestBody(chat(), True), world.now)
    assert isinstance(routed, replies.RouteOnBody)


def test_out_of_order_messages_end_this_stream_with_a_reason(world):
    exchange = world.exchange()
    assert exchange.receive(events.RequestBody(b"x"), world.now) == []
    assert exchange.problem.text == "RequestBody in START"
    other = world.exchange()
    other.receive(headers(), world.now)
    other.receive(events.Malformed("not a ProcessingRequest"), world.now)
    assert other.problem.text == "not a ProcessingRequest"
    other.close()
    assert len(world.finished) == 1


def test_another_endpoint_served_so_charge_and_index_move_there(world):
    exchange = world.exchange()
    text = "z" * 5000
    sent = drive(exchange, world.now, headers(), events.RequestBody(chat(text), True))
    (picked,) = sent[0].addresses
    other = next(each for each in ("10.0.0.1:8000", "10.0.0.2:8000") if each != picked)
    exchange.receive(events.ResponseHeaders({":status": "200"}, False, other), world.now)
    by_address = {each.spec.address: each for each in world.director.datastore.endpoints}
    assert (by_address[picked].in_flight_requests, by_address[other].in_flight_requests) == (0, 1)
    exchange.close()
    assert world.finished[0].address == other
    follow = drive(world.exchange(), world.now, headers(), events.RequestBody(chat(text), True))
    assert follow[0].addresses == (other,)
    world.check()


@pytest.mark.parametrize("whole", [True, False])
def test_an_answered_request_leaves_its_prefix_where_it_was_computed_also_where_the_client_left(world, whole):
    body = events.RequestBody(chat("q" * 5000), True)
    homes = set()
    for _ in range(8):
        exchange = world.exchange()
        sent = drive(exchange, world.now, headers(), body, response(), events.ResponseBody(b"{}", whole))
        exchange.close()
        homes.add(sent[0].addresses)
        assert world.director.index.blocks >= 4, "5,000 bytes have four whole blocks of 1,024"
    assert len(homes) == 1, "the same prompt goes where it is cached"


def test_a_refused_request_leaves_no_prefix_behind(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(), events.RequestBody(chat("q" * 5000), True), response("503"))
    exchange.close()
    assert world.director.index.blocks == 0


def test_three_failures_in_a_row_eject_and_a_trial_brings_back(world):
    def ask(status):
        exchange = world.exchange()
        sent = drive(exchange, world.now, headers(subset=None), events.RequestBody(chat(), True), response(status))
        exchange.close()
        return sent[0].addresses[0]

    bad = "10.0.0.1:8000"
    failures = 0
    while failures < 3:
        exchange = world.exchange()
        sent = drive(exchange, world.now, headers(subset=(bad,)), events.RequestBody(chat(), True), response("502"))
        exchange.close()
        assert sent[0].addresses == (bad,)
        failures += 1
    assert {ask("200") for _ in range(20)} == {"10.0.0.2:8000"}
    world.now += 5.0
    assert bad in {ask("200") for _ in range(40)}, "one trial, and it succeeded"


def test_the_record_never_holds_the_prompt(world):
    exchange = world.exchange()
    drive(exchange, world.now, headers(), events.RequestBody(chat("TOPSECRET" * 500), True), response())
    exchange.close()
    record = world.finished[0]
    shown = {name: str(getattr(record, name)) for name in dir(record) if not name.startswith("__")}
    assert shown["path"] == "chat_completions" and "TOPSECRET" not in str(shown)
