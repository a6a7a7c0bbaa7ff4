"""What an exchange measures, charges and keeps: only what is true, and never more than is bounded."""

import json
import tracemalloc

import pytest

from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Outcome, Reason

FD = BodyMode.FULL_DUPLEX_STREAMED
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


def headers(path="/v1/chat/completions", mode=FD, *, end=False, subset=None, **extra):
    return events.RequestHeaders({":method": "POST", ":path": path, **extra}, end, mode, FD, subset)


def answer(content_type, status="200"):
    return events.ResponseHeaders({":status": status, "content-type": content_type})


def body(**more):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}], **more}).encode()


def load(world):
    return [
        (each.in_flight_requests, each.prefilling_requests, each.prefill_tokens, each.context_tokens)
        for each in world.director.datastore.endpoints
        if each.in_flight_requests
    ]


def drive(world, *sequence):
    exchange = world.exchange()
    for event in sequence:
        exchange.receive(event, world.now)
    return exchange


@pytest.mark.parametrize(
    ("stream", "content_type", "status", "measured"),
    [
        (True, "text/event-stream; charset=utf-8", "200", True),
        (False, "application/json", "200", False),
        (True, "application/json", "400", False),
        (True, "text/event-stream", "500", False),
        (False, "text/event-stream", "200", True),
    ],
)
def test_time_to_first_token_is_that_of_streams_alone(world, stream, content_type, status, measured):
    """The first chunk of an answer that does not stream is its end."""
    exchange = drive(world, headers(), events.RequestBody(body(stream=stream), True), answer(content_type, status))
    world.now += 2.0
    exchange.receive(events.ResponseBody(TOKEN, True), world.now)
    assert world.finished[0].ttft_seconds == (2.0 if measured else None)


def test_a_stream_that_was_not_announced_ends_its_prefill_at_its_first_chunk(world):
    exchange = drive(world, headers(), events.RequestBody(body(), True), answer("text/event-stream"))
    assert load(world)[0][1] == 1
    exchange.receive(events.ResponseBody(TOKEN), world.now)
    assert load(world)[0][:3] == (1, 0, 0.0)


@pytest.mark.parametrize(
    ("path", "content_type", "length", "tokens"),
    [
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", 25_000_000, 1000),
        ("/v1/files", "application/octet-stream", 500_000_000, 0),
        ("/pkg.Service/Call", "application/grpc", 500, 125),
        ("/v1/rerank", "application/json", 40_000, 10_000),
        ("/v1/images/edits", "application/json", 14_000_000, 131_072),
        ("/v1/responses/resp_1/cancel", None, 0, 0),
    ],
)
def test_an_upload_is_no_prompt(world, path, content_type, length, tokens):
    """10 MB of audio are not 2.5 million tokens: they would make an idle endpoint look busy for minutes."""
    extra = {"content-length": str(length)} | ({"content-type": content_type} if content_type else {})
    drive(world, headers(path, BodyMode.STREAMED, **extra))
    assert load(world) == [(1, 1, tokens, tokens)]
    assert world.picked[0].reason is Reason.HEADERS


def test_a_prompt_that_is_not_read_weighs_what_it_is_long(world):
    """Streamed mode shows no body before the decision, but it is a prompt all the same."""
    drive(world, headers(mode=BodyMode.STREAMED, **{"content-length": "4000000"}))
    assert load(world)[0][3] == 1_000_000
    assert world.picked[0].reason is Reason.HEADERS


def test_a_body_in_crumbs_takes_little_more_memory_than_in_one_piece(world):
    exchange = drive(world, headers())
    crumb = bytes(bytearray(b"ab"))
    tracemalloc.start()
    for _ in range(200_000):
        exchange.receive(events.RequestBody(bytes(bytearray(crumb))), world.now)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2 * 400_000
    exchange.close()


@pytest.mark.parametrize("sizes", [[2] * 9000, [5000, 1, 5000, 1], [4095, 4095, 1], [62_001], [1, 100_000, 1]])
def test_crumbs_are_echoed_whole_and_in_order(world, sizes):
    exchange = drive(world, headers("/v1/completions"))
    total = b"".join(bytes([65 + number % 26]) * size for number, size in enumerate(sizes))
    text = b'{"prompt":"' + total + b'"}'
    exchange.receive(events.RequestBody(text[:11]), world.now)
    at = 11
    for size in sizes:
        exchange.receive(events.RequestBody(text[at : at + size]), world.now)
        at += size
    sent = exchange.receive(events.RequestBody(text[at:], True), world.now)
    echoed = [each for each in sent if isinstance(each, replies.EchoRequestBody)]
    assert b"".join(each.data for each in echoed) == text
    assert [each.end_of_stream for each in echoed] == [False] * (len(echoed) - 1) + [True]
    assert max(len(each.data) for each in echoed) <= 62_000


def test_a_models_name_is_kept_short_in_the_record_and_whole_in_the_chain(world):
    name = "m" * 100_000
    first = drive(world, headers(), events.RequestBody(body(model=name + "1"), True))
    again = drive(world, headers(), events.RequestBody(body(model=name + "2"), True))
    assert world.picked[1].matched_share == 0.0, "another model is another chain"
    first.close()
    again.close()
    kept = [record.model for record in world.finished]
    assert kept[0] != kept[1]
    assert all(len(model) <= 256 and model.startswith("m" * 64) for model in kept)


def test_a_request_that_gave_up_waiting_says_how_much_had_come(world):
    exchange = drive(world, headers(), events.RequestBody(b'{"mod'))
    exchange.expire(world.now + 60.0)
    exchange.receive(events.RequestBody(b'el"}', True), world.now)
    exchange.close()
    assert world.finished[0].request_bytes == 9


def test_nothing_of_the_body_is_held_once_it_is_decided(world):
    secret = "s3cret" * 100
    exchange = drive(world, headers(), events.RequestBody(body(user=secret), True))
    held = [getattr(exchange, name) for name in dir(exchange) if not name.startswith("__") and name != "_policy"]
    assert secret.encode() not in repr(held).encode() and exchange._body == []
    exchange.close()
    assert world.finished[0].outcome is Outcome.ABORTED


def test_the_record_says_where_it_went_and_how_long_the_prompt_was_thought_to_be(world):
    exchange = drive(world, headers(subset=("10.0.0.2",)), events.RequestBody(body(), True))
    exchange.close()
    record = world.finished[0]
    assert (record.address, record.endpoint_name) == ("10.0.0.2:8000", "10.0.0.2:8000")
    assert record.prompt_tokens_estimate == round((4000 + len("\x00user\n")) / 4)
