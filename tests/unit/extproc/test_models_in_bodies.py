"""Two endpoints list different models: each request goes where its model is, wherever a client names it."""

import json

import pytest

from picker.config import Config, Limits
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Outcome
from picker.pool.specs import EngineSample

FD, BUFFERED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED
URL_ENCODED = "application/x-www-form-urlencoded"
FORM = "multipart/form-data; boundary=B"
FIELD = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
FILE = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
JSON = b'{"model":"whisper","query":"q"}'
KIB = 1024


@pytest.fixture
def models(make_world):
    """Of two endpoints only the second has `whisper`; bodies of more than 256 KiB are not read."""
    world = make_world(config=Config(epsilon=0.0, limits=Limits(request_body_bytes_max=256 * KIB)))
    for uid, listed in (("10.0.0.1:8000", {"m"}), ("10.0.0.2:8000", {"m", "whisper"})):
        world.director.datastore.record(
            EngineSample(uid=uid, taken_at_seconds=world.now, engine="vllm", models=frozenset(listed))
        )
    assert world.director.models_differ
    return world


def ask(world, path, content_type, body, *, length=True, mode=FD, chunk=16 * KIB, end=True):
    """One request, in chunks: what went back, and the events that it took until it was routed."""
    head = {":method": "POST", ":path": path}
    head |= {"content-type": content_type} if content_type else {}
    head |= {"content-length": str(len(body))} if length else {}
    exchange = world.exchange()
    sent = list(exchange.receive(events.RequestHeaders(head, False, mode, mode), world.now))
    size = len(body) if mode == BUFFERED else chunk
    for at in range(0, len(body), size):
        last = end and at + size >= len(body)
        sent += exchange.receive(events.RequestBody(body[at : at + size], last), world.now)
    return exchange, sent


def routed_by(sent):
    (route,) = [each for each in sent if isinstance(each, replies.RouteOnHeaders | replies.RouteOnBody)]
    return route.addresses[0]


@pytest.mark.parametrize("mode", [FD, BUFFERED])
@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/v1/audio/transcriptions", FORM, FIELD + FILE % (b"\0" * 50_000) + b"--B--\r\n"),
        ("/v1/audio/transcriptions", "Multipart/Form-Data; boundary=B", FILE % b"\0" + FIELD + b"--B--\r\n"),
        ("/v1/images/edits", FORM, FILE % (b"\0" * 100_000) + FIELD + FILE % (b"\0" * 100_000) + b"--B--\r\n"),
        ("/my/own/upload", FORM, FIELD + FILE % b"\0" + b"--B--\r\n"),
        ("/v1/rerank", URL_ENCODED, JSON),
        ("/v1/rerank", "Application/X-WWW-Form-Urlencoded", b"query=q&model=whisper"),
        ("/v1/rerank", "Application/JSON; Charset=UTF-8", JSON),
        ("/v1/rerank", "application/octet-stream", JSON),
        ("/v1/rerank", "", JSON),
        ("/invocations", FORM, FIELD + FILE % b"\0" + b"--B--\r\n"),
        ("/", URL_ENCODED, JSON),
    ],
)
def test_a_model_is_found_in_any_form(models, path, content_type, body, length, mode):
    for _ in range(3):
        _, sent = ask(models, path, content_type, body, length=length, mode=mode)
        assert routed_by(sent) == "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/chat.Service/Talk", ""), ("/my/own/stream", "application/octet-stream"), ("/v1/rerank", "application/grpc")],
)
def test_a_stream_that_may_wait_for_its_answer_is_not_held_back(models, path, content_type):
    head = {":method": "POST", ":path": path} | ({"content-type": content_type} if content_type else {})
    assert isinstance(
        models.exchange().receive(events.RequestHeaders(head, False, FD, FD), models.now)[0], replies.RouteOnHeaders
    )


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/v1/audio/transcriptions", FORM, FIELD + FILE % (b"\0" * 900 * KIB) + b"--B--\r\n"),
        ("/v1/rerank", "application/json", JSON[:-1] + b',"documents":["' + b"x" * 900 * KIB + b'"]}'),
    ],
)
def test_of_a_body_over_the_limit_the_beginning_is_read(models, path, content_type, body, length):
    exchange, sent = ask(models, path, content_type, body, length=length)
    assert routed_by(sent) == "10.0.0.2:8000"
    assert b"".join(each.data for each in sent[1:]) == body
    assert [each.end_of_stream for each in sent[1:]] == [False] * (len(sent) - 2) + [True]
    exchange.close()
    assert models.finished[0].request_bytes == len(body)


def test_what_is_told_to_be_over_the_limit_is_let_go_after_64_kib(models):
    body = FIELD + FILE % (b"\0" * 900 * KIB) + b"--B--\r\n"
    head = {":method": "POST", ":path": "/v1/files", "content-type": FORM, "content-length": str(len(body))}
    exchange = models.exchange()
    assert exchange.receive(events.RequestHeaders(head, False, FD, FD), models.now) == []
    assert exchange.receive(events.RequestBody(body[: 64 * KIB]), models.now) == []
    assert routed_by(exchange.receive(events.RequestBody(b"\0"), models.now)) == "10.0.0.2:8000"


def test_what_has_come_when_time_is_up_is_read(models):
    exchange, sent = ask(models, "/v1/audio/transcriptions", FORM, FIELD + FILE % b"\0", length=False, end=False)
    assert sent == []
    models.now += 3_600
    assert routed_by(exchange.expire(models.now)) == "10.0.0.2:8000"


def test_where_all_have_the_same_models_no_upload_is_held_back(world):
    for content_type in (FORM, URL_ENCODED, "application/octet-stream"):
        _, sent = ask(world, "/v1/audio/transcriptions", content_type, FIELD)
        assert [type(each) for each in sent] == [replies.RouteOnHeaders, replies.EchoRequestBody]


@pytest.mark.parametrize("path", ["/invocations", "/", "/?x=1", "/sagemaker/invocations?x=1"])
@pytest.mark.parametrize(
    ("content_type", "body", "refused"),
    [
        ("application/x-npy", b"\x93NUMPY", False),
        ("text/csv", b"1,2,3", False),
        ("text/plain", b"hello", False),
        ("application/jsonlines", b'{"a":1}\n{"a":2}\n', False),
        (URL_ENCODED, b"a=1", False),
        ("application/json", b"{1,2,3", True),
        ("Application/JSON", b"hello", True),
        ("", b"{1,2,3", True),
    ],
)
def test_what_is_not_said_to_be_json_is_no_fault_at_a_door_for_anything(world, path, content_type, body, refused):
    exchange, sent = ask(world, path, content_type, body)
    assert isinstance(sent[0], replies.Immediate if refused else replies.RouteOnHeaders)
    exchange.close()
    assert world.finished[0].path == ("invocations" if "invocations" in path else "generate")
    assert (world.finished[0].outcome is Outcome.REJECTED) is refused


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", ""])
@pytest.mark.parametrize(("path", "field"), [("/invocations", "prompt"), ("/", "inputs")])
def test_json_at_these_doors_is_a_prompt(world, path, field, content_type):
    body = json.dumps({field: "x" * 4_000}).encode()
    for reason in ("load", "affinity"):
        exchange, _ = ask(world, path, content_type, body)
        assert world.picked[-1].reason.value == reason
        exchange.close()
