"""Headers, paths and answers that say where a request belongs, through the exchange."""

import json
from pathlib import Path

import pytest

from picker.config import load
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Outcome, Reason

FD = BodyMode.FULL_DUPLEX_STREAMED
RECORDED = Path(__file__).parents[2] / "fixtures" / "exchanges" / "vllm-0.32"


def start(path="/v1/responses", method="POST", *, end=False, mode=FD, response=FD, **headers):
    return events.RequestHeaders({":method": method, ":path": path, **headers}, end, mode, response)


def body(**fields):
    return events.RequestBody(json.dumps({"model": "m", "input": "hi", **fields}).encode(), True)


def ask(world, *sequence):
    """Play a request; its exchange and the endpoint that it got."""
    exchange = world.exchange()
    for event in sequence:
        exchange.receive(event, world.now)
    return exchange, world.picked[-1]


def answer(world, exchange, *chunks, content_type="application/json", status="200"):
    exchange.receive(events.ResponseHeaders({":status": status, "content-type": content_type}), world.now)
    for chunk in chunks:
        exchange.receive(events.ResponseBody(chunk), world.now)
    exchange.receive(events.ResponseBody(b"", True), world.now)


@pytest.mark.parametrize(
    ("name", "content_type", "response_id"),
    [
        ("responses", "application/json", "resp_a017a04f37616574"),
        ("responses-stream", "text/event-stream; charset=utf-8", "resp_bdcbfad72d7f86b7"),
    ],
)
def test_a_recorded_response_is_continued_where_it_was_made(make_world, name, content_type, response_id):
    world = make_world(tuple(f"10.0.0.{n}:80" for n in range(8)))
    exchange, first = ask(world, start(), body())
    recorded = (RECORDED / f"{name}.response.bin").read_bytes()
    answer(world, exchange, recorded[:9], recorded[9:30], recorded[30:], content_type=content_type)
    for event in (
        (start(), body(previous_response_id=response_id)),
        (start(f"/v1/responses/{response_id}", "GET", end=True),),
        (start(f"/v1/responses/{response_id}/cancel", end=True),),
        (start(f"/v1/responses/{response_id}/cancel?x=1"),),
        (start(f"/v1/responses/{response_id}", "DELETE", end=True),),
    ):
        _, again = ask(world, *event)
        assert (again.addresses, again.reason) == (first.addresses, Reason.STICKY)
    world.check()


def test_a_conversation_is_found_by_path_and_body(make_world):
    world = make_world(tuple(f"10.0.0.{n}:80" for n in range(8)))
    exchange, first = ask(world, start("/v1/conversations"), body())
    answer(world, exchange, b'{"id":"conv_9","object":"conversation"}')
    _, in_body = ask(world, start(), body(conversation="conv_9"))
    _, in_path = ask(world, start("/v1/conversations/conv_9/items", "GET", end=True))
    assert in_body.addresses == in_path.addresses == first.addresses


def test_files_and_batches_are_asked_for_where_they_are(make_world):
    """An upload, a batch of it, what the batch wrote; each by its id in the path, and the file in a batch's body."""
    world = make_world(tuple(f"10.0.0.{n}:80" for n in range(8)))
    upload = start("/v1/files", **{"content-type": "multipart/form-data; boundary=x"})
    exchange, home = ask(world, upload, events.RequestBody(b"--x--", True))
    answer(world, exchange, b'{"id":"file-in","object":"file"}')
    batch = body(input_file_id="file-in", endpoint="/v1/completions")
    json_headers = {"content-type": "application/json", "content-length": str(len(batch.data))}
    exchange, made = ask(world, start("/v1/batches", **json_headers), batch)
    answer(world, exchange, b'{"id":"batch_1","object":"batch","input_file_id":"file-in"}')
    done = b'{"id":"batch_1","object":"batch","output_file_id":"file-out","error_file_id":null}'
    exchange, seen = ask(world, start("/v1/batches/batch_1", "GET", end=True))
    answer(world, exchange, done)
    for path, method in (
        ("/v1/files/file-in", "GET"),
        ("/v1/files/file-in/content", "GET"),
        ("/v1/files/file-out/content?x=y", "GET"),
        ("/v1/files/file-out", "DELETE"),
        ("/v1/batches/batch_1/cancel", "POST"),
    ):
        _, found = ask(world, start(path, method, end=True))
        assert (path, found.addresses) == (path, home.addresses)
    assert made.addresses == seen.addresses == home.addresses
    world.check()


@pytest.mark.parametrize("status", ["400", "404", "500"])
def test_an_error_stores_nothing(world, status):
    exchange, _ = ask(world, start(), body())
    answer(world, exchange, b'{"id":"resp_1"}', status=status)
    assert len(world.director.stickiness.stored) == 0


@pytest.mark.parametrize(
    ("path", "method", "sent"),
    [
        ("/v1/responses/resp_0/input_items", "GET", b'{"data":[{"id":"msg_1"}]}'),
        ("/v1/conversations/conv_1/items", "POST", b'{"data":[{"id":"msg_1"}]}'),
        ("/v1/conversations", "GET", b'{"data":[{"id":"conv_1"}]}'),
        ("/v1/chat/completions", "POST", b'{"id":"chatcmpl-1"}'),
        ("/v1/files/file-1/content", "GET", b'{"id":"batch_req_1","custom_id":"a"}'),
        ("/v1/files/file-1", "DELETE", b'{"id":"file-1","deleted":true}'),
    ],
)
def test_what_stores_nothing_is_not_remembered(world, path, method, sent):
    exchange, _ = ask(world, start(path, method, end=True))
    answer(world, exchange, sent)
    assert len(world.director.stickiness.stored) == 0


def test_a_session_by_header_holds_for_every_kind_of_request(make_world):
    config = load("epsilon: 0\nsession_affinity: {header: X-Session, cookie: sid}")
    world = make_world(tuple(f"10.0.0.{n}:80" for n in range(8)), config)
    assert world.director.hint_rules.headers == {"x-session", "cookie"}
    _, first = ask(world, start(**{"x-session": "ann"}), body())
    for event in (
        (start("/v1/models", "GET", end=True, **{"x-session": "ann"}),),
        (start("/v1/audio/transcriptions", **{"x-session": "ann", "content-type": "multipart/form-data"}),),
        (start("/v1/realtime", "GET", upgrade="websocket", **{"x-session": "ann"}),),
        (start(**{"x-session": "ann", "cookie": "sid=other"}), body()),
    ):
        _, again = ask(world, *event)
        assert (again.addresses, again.reason) == (first.addresses, Reason.STICKY)
    _, cookie = ask(world, start(cookie="sid=ann"), body())
    assert cookie.reason is not Reason.STICKY, "a cookie of the same text is another session"


def test_a_label_header_that_cannot_be_read_is_400_and_goes_nowhere(make_world):
    world = make_world(config=load("endpoint_labels: {header: x-labels}"))
    exchange = world.exchange()
    (refused,) = exchange.receive(start(**{"x-labels": "tier is gold"}), world.now)
    assert isinstance(refused, replies.Immediate) and refused.status == 400
    assert dict(refused.headers)["x-picker-reason"] == "invalid_header"
    message = json.loads(refused.body)["error"]["message"]
    assert "x-labels" in message and "gold" not in message
    (record,) = world.finished
    assert (record.outcome, record.reject_word, world.in_flight) == (Outcome.REJECTED, "invalid_header", 0)


def test_labels_that_nobody_has_are_503_with_the_word(make_world):
    world = make_world(config=load("endpoint_labels: {header: x-labels}"))
    (refused,) = world.exchange().receive(start(end=True, **{"x-labels": "tier=gold"}), world.now)
    assert (refused.status, dict(refused.headers)["x-picker-reason"]) == (503, "labels_unmatched")


def test_headers_that_configuration_does_not_name_say_nothing(world):
    _, first = ask(world, start(end=True, **{"x-session": "ann", "x-labels": "nonsense", "cookie": "sid=1"}))
    assert first.reason is Reason.HEADERS and len(world.director.stickiness.sessions) == 0


def test_the_explanation_travels_in_the_answers_headers_where_configured(make_world):
    world = make_world(config=load("epsilon: 0\ndebug: {explain_header: true}"))
    exchange, picked = ask(
        world, start("/v1/completions"), events.RequestBody(b'{"prompt":"' + b"h" * 3000 + b'"}', True)
    )
    (reply,) = exchange.receive(events.ResponseHeaders({":status": "200"}), world.now)
    text = reply.explain
    assert text is not None and text.isascii() and text.isprintable()
    fields = dict(part.split("=", 1) for part in text.split("; "))
    assert fields["address"] == picked.addresses[0] and fields["reason"] == "load"
    assert float(fields["matched"]) == 0.0 and float(fields["cost"]) > 0
    assert {"prefix", "queue", "kv"} <= fields.keys() and "hhh" not in text


def test_no_explanation_by_default_nor_for_what_was_never_routed(make_world):
    world = make_world()
    exchange, _ = ask(world, start(end=True))
    assert exchange.receive(events.ResponseHeaders({":status": "200"}), world.now) == [
        replies.ContinueResponseHeaders()
    ]
    world = make_world(config=load("debug: {explain_header: true}"))
    local = world.exchange().receive(events.ResponseHeaders({":status": "404"}), world.now)
    assert local == [replies.ContinueResponseHeaders()]


def test_a_name_that_no_header_can_hold_is_made_printable(make_world):
    from picker.outcomes import EndpointView, Explanation
    from picker.scheduling.explanation import header_text

    view = EndpointView("10.0.0.1:80", "p\u00f6d\r\nset-cookie: x", 0.5, {"prefix": 1.0}, 1.0, True, "")
    text = header_text(Explanation("load", "", 1, 1, (view,)))
    assert text.isprintable() and text.isascii() and "\n" not in text


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_a_body_that_is_no_prompt_adds_no_load(world, path):
    text = events.RequestBody(json.dumps({"prompt": "x" * 100_000}).encode(), True)
    ask(world, start(path, **{"content-length": str(len(text.data)), "content-type": "application/json"}), text)
    (endpoint,) = [each for each in world.director.datastore.endpoints if each.in_flight_requests]
    assert (endpoint.prefill_tokens, endpoint.context_tokens) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("path", "label"),
    [("/v1/rerank", "rerank"), ("/v1/responses/resp_1", "responses"), ("/zzz", "other")],
)
def test_the_record_names_the_path(world, path, label):
    exchange, _ = ask(world, start(path, end=True))
    exchange.close()
    assert world.finished[0].path == label


def test_a_compressed_body_is_not_read_but_keeps_its_apis_name(world):
    exchange, picked = ask(world, start("/v1/chat/completions", **{"content-encoding": "gzip"}))
    exchange.close()
    assert picked.reason is Reason.HEADERS and world.finished[0].path == "chat_completions"
