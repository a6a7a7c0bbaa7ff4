"""Attacks by what is allowed to be said, in too many pieces: headers, frames, fields, lines."""

import json

from picker.extproc.wire import SUBSET_KEY, SUBSET_NAMESPACE
from picker.generated import ext_proc_pb2 as pb
from tests.attack.raw import (
    CHAT,
    CONTINUATION,
    DATA,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    SMALL_BODY,
    WINDOW_UPDATE,
    Raw,
    block,
    call_fields,
    frame,
    message,
    request_headers,
    response_body,
    response_headers,
)
from tests.attack.stage import Stage

LARGE = 15_900_000
EMOJI = "\U0001f600"


def names_in_other_scripts(stage: Stage) -> None:
    """As long as a body, four bytes a character: to decode, encode and compare them takes a tenth of a second."""
    bodies = [
        json.dumps({"model": "m", "messages": [], field: EMOJI * (LARGE // 4 - 100)}, ensure_ascii=False).encode()
        for field in ("cache_salt", "model", "session_id")
    ]
    with Raw(stage.port) as made:
        for _ in range(3):
            for body in bodies:
                made.ask(CHAT, body)


def headers_without_number(stage: Stage) -> None:
    """A message of 16 MB is a request of 1.4 million headers, or an answer of as many."""
    made = pb.ProcessingRequest()
    for _ in range(1_400_000):
        made.request_headers.headers.headers.add(key="a", raw_value=b"b")
    asked = made.SerializeToString()
    answered = b"\x1a" + asked[1:]
    with Raw(stage.port) as connection:
        for first in (asked, request_headers(CHAT)):
            for _ in range(5):
                stream_id = connection.open()
                connection.say(stream_id, first)
                if first is not asked:
                    connection.say(stream_id, answered)
                connection.wait(lambda stream_id=stream_id: stream_id in connection.ended)


def messages_of_crumbs(stage: Stage) -> None:
    """Fields that nobody knows, fields said again and again, a subset of a million endpoints."""
    subset = pb.ProcessingRequest()
    hint = subset.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields[SUBSET_KEY]
    for _ in range(900_000):
        hint.list_value.values.add(string_value="1.2.3.4:5")
    subset.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/models")
    crumbs = [b"\x20\x01", b"\x12\x00", b"\x22\x00", b"\x52\x00"]
    messages = [*(each * (LARGE // 2) for each in crumbs), subset.SerializeToString()]
    with Raw(stage.port) as made:
        for _ in range(3):
            for content in messages:
                stream_id = made.open()
                made.say(stream_id, content)
                made.wait(lambda stream_id=stream_id: stream_id in made.ended or stream_id in made.received)
                made.send(frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"))


def answers_of_crumbs(stage: Stage) -> None:
    """Streams of line ends, of empty events and of empty data; what an engine writes, or whoever plays a proxy."""
    pieces = [b"\n", b"\r", b"data:{}\n\n", b"data:x\n\n", b"data:\n", b'data:{"text":"x"}\n\n', b'"\\\\",', b"{}\n"]
    kinds = ["text/event-stream"] * 6 + ["application/json", "application/x-ndjson"]
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    for size in (250_000, 1_000_000, LARGE):
        with Raw(stage.port) as made:
            for piece, kind in zip(pieces, kinds, strict=True):
                for _ in range(3):
                    stream_id = made.ask(CHAT, body, answered=False)
                    made.say(stream_id, response_headers(content_type=kind))
                    made.say(stream_id, response_body(piece * (size // len(piece)), end=False))
                    made.say(stream_id, response_body(b"x"))
                    made.send(frame(DATA, 1, stream_id))


def header_blocks_that_grow(stage: Stage) -> None:
    """One field of 4,000 bytes in HPACK's table, named again 60,000 times: a megabyte that stands for 240."""
    opening = block(call_fields())
    name, value = b"a", b"v" * 3_900
    insert = b"\x40\x01" + name + b"\x7f" + bytes([(len(value) - 127) & 127 | 128, (len(value) - 127) >> 7]) + value
    with Raw(stage.port) as made:
        for _ in range(10):
            made.last_id += 2
            made.send(frame(HEADERS, 4, made.last_id, opening + insert + b"\xbe" * 4_000))
    for _ in range(10):
        with Raw(stage.port) as made:
            made.last_id += 2
            made.send(frame(HEADERS, 0, made.last_id, opening))
            for _ in range(1_000):
                if not made.send(frame(CONTINUATION, 0, made.last_id, b"") * 100):
                    break


def frames_that_say_nothing(stage: Stage) -> None:
    """SETTINGS, windows that open by a byte, resets of nobody, empty DATA, kinds that do not exist."""
    empty = frame(DATA, 0, 1)
    for each in (
        frame(SETTINGS, 0, 0),
        frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"),
        frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\x01"),
        frame(0x77, 0, 0),
        empty,
        frame(DATA, 8, 1, b"\xff" + bytes(255)),
    ):
        with Raw(stage.port) as made:
            made.open()
            for _ in range(500):
                if not made.send(each * 1_000):
                    break


def calls_that_end_at_every_step(stage: Stage) -> None:
    """Broken off before the headers, in them, in a body, before and in the answer; as resets and as ends."""
    with Raw(stage.port) as made:
        steps = [message(request_headers(CHAT)), b"\0\0\0\0", b"\0" * 3, message(b"\x22\x02\x0a\x00")]
        for _ in range(1_000):
            for count in range(len(steps) + 1):
                for end in (True, False):
                    stream_id = made.open()
                    made.send(b"".join(frame(DATA, 0, stream_id, each) for each in steps[:count]))
                    made.send(frame(DATA, 1, stream_id) if end else frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
    with Raw(stage.port) as made:
        stream_id = made.ask(CHAT, SMALL_BODY)
        stage.require(made.received.get(stream_id, 0) > 0, "nobody is served afterwards")
