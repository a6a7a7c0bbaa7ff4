"""What the end of an answer says of its server: success, failure, or nothing; and what its counts teach."""

import json
from itertools import count

import pytest

from picker.extproc import events
from picker.extproc.events import BodyMode

FD = BodyMode.FULL_DUPLEX_STREAMED
BAD = "10.0.0.1:8000"
SSE = "text/event-stream"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
NUMBERS = count()


def body(**more):
    """A prompt of its own: a request that fails wherever it goes says nothing of its servers."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{next(NUMBERS)} " * 400}], **more})


def request(path="/v1/chat/completions", method="POST", *, subset=(BAD,)):
    return events.RequestHeaders({":method": method, ":path": path}, method == "GET", FD, FD, subset)


def ask(world, *answer, content_type=SSE, status="200", served=None, **headers):
    """One streamed chat that may go to the bad server alone. `answer`: the pieces of its body."""
    exchange = world.exchange()
    exchange.receive(request(), world.now)
    exchange.receive(events.RequestBody(body(stream=True).encode(), True), world.now)
    told = {":status": status, "content-type": content_type, **headers}
    exchange.receive(events.ResponseHeaders(told, not answer, served), world.now)
    for at, piece in enumerate(answer, 1):
        exchange.receive(events.ResponseBody(piece, at == len(answer)), world.now)
    exchange.close()


def look(world, path="/v1/models"):
    """A listing of the bad server, answered."""
    exchange = world.exchange()
    exchange.receive(request(path, "GET"), world.now)
    exchange.receive(events.ResponseHeaders({":status": "200", "content-type": "application/json"}), world.now)
    exchange.receive(events.ResponseBody(b'{"data":[]}', True), world.now)
    exchange.close()


def ejected(world):
    return bool(world.director.ejection.ejected(world.now))


def event(**error):
    return b"data: " + json.dumps({"error": {"message": "x", **error}}).encode() + b"\n\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([event(code=500), DONE], id="an error at once"),
        pytest.param([TOKEN, event(type="InternalServerError"), DONE], id="an error after words"),
        pytest.param([DONE], id="no event"),
        pytest.param([], id="no body"),
    ],
)
def test_a_stream_that_ends_in_a_failure_is_one_whatever_its_status(world, answer):
    for _ in range(3):
        assert not ejected(world)
        ask(world, *answer)
    assert ejected(world)
    assert world.director.index.blocks == 0, "nothing was computed that could be used"


@pytest.mark.parametrize("mode", [None, BodyMode.NONE])
def test_a_stream_that_is_not_shown_is_not_an_empty_one(world, mode):
    for _ in range(6):
        exchange = world.exchange()
        path = {":method": "POST", ":path": "/v1/chat/completions"}
        exchange.receive(events.RequestHeaders(path, False, FD, mode, (BAD,)), world.now)
        exchange.receive(events.RequestBody(body(stream=True).encode(), True), world.now)
        exchange.receive(events.ResponseHeaders({":status": "200", "content-type": SSE}), world.now)
        exchange.close()
    assert not ejected(world)


def test_a_whole_answer_that_says_it_failed_is_a_failure(world):
    for _ in range(3):
        ask(world, b'{"error": {"message": "EngineDeadError", "code": 500}}', content_type="application/json")
    assert ejected(world)


@pytest.mark.parametrize("error", [{"code": 400}, {"type": "invalid_request_error"}, {"code": 429}])
def test_an_error_that_is_the_requests_own_says_nothing(world, error):
    for _ in range(6):
        ask(world, event(**error), DONE)
    assert not ejected(world)
    for _ in range(2):
        ask(world, status="500")
    ask(world, event(**error), DONE)
    ask(world, status="500")
    assert ejected(world), "it did not clear the failures either"


def test_listings_do_not_clear_what_inference_failed(world):
    """The API process answers while the engine behind it is dead."""
    for _ in range(2):
        ask(world, status="500")
        look(world)
    ask(world, status="500")
    assert ejected(world)
    world.now += 5.5  # ejection.seconds: its time is over, and the next inference is the trial
    look(world)
    ask(world, status="500")
    assert ejected(world)
    world.now += 5.5
    assert ejected(world), "twice as long: the trial failed"


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity"])
def test_an_answer_that_is_compressed_counts_as_a_success(world, encoding):
    for _ in range(5):
        ask(world, status="503")
        ask(world, status="503")
        ask(world, b"\x1f\x8b" + bytes(100) if encoding != "identity" else TOKEN, **{"content-encoding": encoding})
    assert not ejected(world)


def test_a_proxy_that_had_no_host_to_ask_blames_nobody(world):
    """It tells who served, also where a connection is refused; a 503 without that is the proxy's own."""
    for _ in range(6):
        ask(world, TOKEN, DONE, served=BAD)
    for _ in range(6):
        ask(world, b"no healthy upstream", content_type="text/plain", status="503")
    assert not ejected(world)
    for _ in range(3):
        ask(world, b"refused", content_type="text/plain", status="503", served=BAD)
    assert ejected(world)


def test_a_proxy_that_never_tells_is_believed(world):
    for _ in range(3):
        ask(world, b"refused", content_type="text/plain", status="503")
    assert ejected(world)


def answered(world, path, told, *, method="POST", whole=True):
    exchange = world.exchange()
    exchange.receive(request(path, method, subset=None), world.now)
    if method == "POST":
        exchange.receive(events.RequestBody(body(stream=True).encode(), True), world.now)
    exchange.receive(events.ResponseHeaders({":status": "200", "content-type": SSE}), world.now)
    exchange.receive(events.ResponseBody(TOKEN + b"data: " + json.dumps(told).encode() + b"\n\n", whole), world.now)
    exchange.close()


def test_what_a_cut_answer_counted_until_then_is_no_length_of_an_answer(world):
    before = world.director.rates.model("m").output_tokens
    for _ in range(20):
        answered(world, "/v1/chat/completions", {"usage": {"prompt_tokens": 300, "completion_tokens": 1}}, whole=False)
    assert world.director.rates.model("m").output_tokens == before
    assert world.director.rates.model("m").bytes_per_token != 4.0, "its prompt was counted whole"


def test_a_stored_answers_counts_are_those_of_another_request(world):
    before = world.director.rates.model(None)
    for _ in range(20):
        told = {"usage": {"input_tokens": 5, "output_tokens": 90_000}}
        answered(world, "/v1/responses/resp_1", told, method="GET")
    assert world.director.rates.model(None) == before


def test_a_failed_answers_counts_teach_nothing(world):
    before = world.director.rates.model("m")
    failed = {"error": {"message": "x", "code": 500}, "usage": {"prompt_tokens": 900, "completion_tokens": 0}}
    for _ in range(2):
        answered(world, "/v1/chat/completions", failed)
    assert world.director.rates.model("m") == before


def test_bytes_of_a_prompt_that_the_engine_cut_are_no_sample(world):
    before = world.director.rates.model("m").bytes_per_token
    for _ in range(20):
        answered(world, "/v1/chat/completions", {"usage": {"prompt_tokens": 10, "completion_tokens": 3}})
    assert world.director.rates.model("m").bytes_per_token == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/invocations", {"odd": "x" * 20_000}),
        ("/generate", {"odd_embeds": [0.5] * 4_000}),
        ("/v2/embed", {"odd": ["x" * 20_000]}),
    ],
)
def test_a_prompt_in_words_that_we_do_not_know_weighs_what_it_is_long(world, path, words):
    exchange = world.exchange()
    exchange.receive(request(path, subset=None), world.now)
    data = json.dumps({"model": "m", **words}).encode()
    exchange.receive(events.RequestBody(data, True), world.now)
    (endpoint,) = [each for each in world.director.datastore.endpoints if each.in_flight_requests]
    assert endpoint.prefill_tokens == pytest.approx(len(data) / 4)
    exchange.close()
