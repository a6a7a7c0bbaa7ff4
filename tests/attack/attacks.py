"""The attacks, by name: what is run against which picker. Those kept from a review have its number.

An attack is a function of the `Stage`; it returns when it has done its worst and let go.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig
from tests.attack.engines import TRICKS
from tests.attack.on_envoy import (
    BUFFERED_SAMPLE,
    DUPLEX_SAMPLE,
    answers_that_nobody_reads,
    uploads_without_their_last_byte,
)
from tests.attack.on_files import (
    ENDPOINTS,
    a_long_endpoints_file_changes,
    a_recording_without_room,
    bad_configuration_files,
    bad_endpoints_files,
    few_endpoints,
    many_endpoints,
)
from tests.attack.on_protocol import (
    answers_of_crumbs,
    calls_that_end_at_every_step,
    frames_that_say_nothing,
    header_blocks_that_grow,
    headers_without_number,
    messages_of_crumbs,
    names_in_other_scripts,
)
from tests.attack.raw import (
    CHAT,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SMALL_BODY,
    Raw,
    block,
    call_fields,
    frame,
    message,
    request_body,
    request_headers,
)
from tests.attack.stage import EnvoyTree, Stage

LARGE = 15_900_000


class Attack(NamedTuple):
    """What to do, and on what."""

    run: Callable[[Stage], None]
    says: str
    config: str = ""
    flags: tuple[str, ...] = ()
    tricks: Sequence[str] = ("decent", "decent")
    files_max: int | None = None
    envoy: EnvoyConfig | EnvoyTree | None = None
    tls: bool = False
    patience_seconds: float = 0.0
    endpoints_file: Callable[[Sequence[str]], str] | None = None


# Memory ------------------------------------------------------------------------------------


def bodies_never_finished(stage: Stage) -> None:
    with Raw(stage.port) as made:
        for _ in range(60):
            stream_id = made.open()
            made.say(stream_id, request_headers(CHAT))
            made.upload(stream_id, 15_000_000)
        time.sleep(1)


def messages_never_finished(stage: Stage) -> None:
    """Greedy, then a byte a second each. Meanwhile bodies of 400 KB, which must all be routed."""
    with contextlib.ExitStack() as stack:
        hogs = []
        for _ in range(40):
            made = stack.enter_context(Raw(stage.port))
            stream_id = made.open()
            made.raw_data(stream_id, struct.pack(">BL", 0, 16_000_000) + bytes(13_500_000))
            hogs.append((made, stream_id))
        body = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * 400_000 + b'"}]}'
        large = stack.enter_context(Raw(stage.port))
        refused = 0
        for _ in range(6):
            for made, stream_id in hogs:
                made.send(frame(DATA, 0, stream_id, b"x"))
            for _ in range(5):
                stream_id = large.ask(CHAT, body)
                refused += large.received.get(stream_id, 0) == 0
            time.sleep(0.5)
        stage.require(refused == 0, f"{refused} of 30 bodies of 400 KB were refused")


def small_bodies_never_finished(stage: Stage) -> None:
    """Many calls with a little each, on many connections."""
    with contextlib.ExitStack() as stack:
        body = message(request_body(b" " * 3_000, end=False))
        for _ in range(8):
            made = stack.enter_context(Raw(stage.port))
            for _ in range(8_000):
                stream_id = made.open()
                if not made.send(
                    frame(DATA, 0, stream_id, message(request_headers(CHAT))) + frame(DATA, 0, stream_id, body)
                ):
                    break
        time.sleep(1)


def calls_without_a_message(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            made = stack.enter_context(Raw(stage.port))
            opening = block(call_fields())
            made.send(b"".join(frame(HEADERS, 4, 1 + 2 * number, opening) for number in range(16_000)))
        time.sleep(2)


def names_as_long_as_bodies(stage: Stage) -> None:
    """A `cache_salt`, or a model, of 4 MB, never the same, in requests that are answered and over."""
    with Raw(stage.port) as made:
        for key in ("cache_salt", "model"):
            for number in range(40):
                document: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                document[key] = f"{number}" + "a" * 4_000_000 + "\U0001f600"
                made.ask(CHAT, json.dumps(document, ensure_ascii=False).encode())


def long_headers(stage: Stage) -> None:
    with Raw(stage.port) as made:
        for _ in range(300):
            headers = {":path": "/v1/models", ":method": "GET"}
            headers |= {"x-request-id": "i" * 500_000, "x-gateway-inference-objective": "o" * 500_000}
            stream_id = made.open()
            made.say(stream_id, request_headers(headers, end=True))
            made.wait(lambda stream_id=stream_id: stream_id in made.received or stream_id in made.ended)
            made.send(frame(DATA, 1, stream_id))
        stage.require(len(stage.get("/debug/decisions?count=256")) < 1_000_000, "the ring keeps whole headers")


def long_names_of_open_requests(stage: Stage) -> None:
    """Routed, and left open: what they sent is not kept with them."""
    with Raw(stage.port) as made:
        body = json.dumps({"model": "m" * 8_000_000, "messages": []}).encode()
        for _ in range(60):
            made.ask(CHAT, body, answered=False)
        time.sleep(1)


def answers_never_taken(stage: Stage) -> None:
    """Windows closed for ever: what is echoed waits in the picker."""
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            made = stack.enter_context(Raw(stage.port, window=0))
            for _ in range(4):
                stream_id = made.open()
                made.say(stream_id, request_headers(CHAT))
                made.upload(stream_id, 12_000_000, end=True)
        time.sleep(3)


def sockets_never_read(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            made = stack.enter_context(Raw(stage.port, reads=False, small_buffer=True))
            made.socket.settimeout(0.5)
            for _ in range(3):
                stream_id = made.open()
                made.say(stream_id, request_headers(CHAT))
                made.upload(stream_id, 1_500_000, end=True)
        time.sleep(3)


def a_gzip_bomb(stage: Stage) -> None:
    """60 KB that are 60 MB. Only grpcio could inflate it."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = squeeze.compress(request_body(b" " * LARGE, end=False)) + squeeze.flush()
    with Raw(stage.port) as made:
        for _ in range(60):
            stream_id = made.open(
                block(call_fields("/envoy.service.ext_proc.v3.ExternalProcessor/Process", ("grpc-encoding", "gzip")))
            )
            made.say(stream_id, request_headers(CHAT))
            made.raw_data(stream_id, struct.pack(">BL", 1, len(bomb)) + bomb)
        time.sleep(2)


def frames_of_a_byte(stage: Stage) -> None:
    """A message in frames of one byte, each of which an interpreter would keep as an object."""
    with Raw(stage.port) as made:
        for _ in range(20):
            stream_id = made.open()
            made.send(frame(DATA, 0, stream_id, struct.pack(">BL", 0, 8_000_000)))
            made.send(frame(DATA, 0, stream_id, b"x") * 300_000)
        time.sleep(1)


def large_bodies_at_once(stage: Stage) -> None:
    """Through an Envoy: all but their last byte, then the last bytes together; its other clients must not notice."""
    assert stage.envoy is not None
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 6_000_000}]}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        uploads = [
            stack.enter_context(socket.create_connection(("127.0.0.1", stage.envoy.port), 20)) for _ in range(16)
        ]
        for each in uploads:
            each.sendall(head % len(body) + body[:-1])
        time.sleep(1)
        for each in uploads:
            each.sendall(body[-1:])
        statuses = [each.recv(12)[9:12] for each in uploads]
        stage.require(set(statuses) <= {b"200", b"503"}, f"answers {statuses}")


# Connections and files -----------------------------------------------------------------------


def idle_connections(stage: Stage) -> None:
    """More than there are places and files; then a proxy reconnects."""
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            made = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", stage.port), 5)))
            with contextlib.suppress(OSError):
                made.sendall(PREFACE + frame(SETTINGS, 0, 0))
        time.sleep(2)
        new = stack.enter_context(Raw(stage.port))
        stream_id = new.ask(CHAT, SMALL_BODY)
        stage.require(new.received.get(stream_id, 0) > 0, "a proxy that reconnects is locked out")
        stage.require(len(stage.get("/metrics")) > 1_000, "no metrics")


def half_handshakes(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            made = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", stage.port), 5)))
            made.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        time.sleep(2)
        new = stack.enter_context(Raw(stage.port, tls=True))
        stream_id = new.ask(CHAT, SMALL_BODY)
        stage.require(new.received.get(stream_id, 0) > 0, "a proxy that reconnects is locked out")


def half_requests_for_metrics(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            made = stack.enter_context(
                contextlib.closing(socket.create_connection(("127.0.0.1", stage.metrics_port), 5))
            )
            with contextlib.suppress(OSError):
                made.sendall(b"GET /metr")
        time.sleep(1)
        stage.require(len(stage.get("/metrics")) > 1_000, "no metrics")


def slow_readers_of_metrics(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            made = stack.enter_context(contextlib.closing(socket.socket()))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", stage.metrics_port))
            with contextlib.suppress(OSError):
                made.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
        time.sleep(1)
        stage.require(len(stage.get("/metrics")) > 1_000, "no metrics")


def questions_about_decisions(stage: Stage) -> None:
    with Raw(stage.port) as made:
        for _ in range(256):
            made.ask(CHAT, SMALL_BODY)
        for _ in range(10):
            stage.get("/debug/decisions?count=256", 30)


def viewers_that_take_nothing(stage: Stage) -> None:
    """Of the page's stream: those that fall behind are dropped, and those who read get what they ask for."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            made = stack.enter_context(contextlib.closing(socket.socket()))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", stage.metrics_port))
            with contextlib.suppress(OSError):
                made.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(8)
        stage.require(len(stage.get("/metrics")) > 1_000, "no metrics")


def replays(stage: Stage) -> None:
    """The page's what-if, from 12 connections at once."""
    with Raw(stage.port) as made:
        for _ in range(300):
            made.ask(CHAT, SMALL_BODY)
    body = b'{"weights":{"queue":9}}'
    head = f"POST /live/what-if HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            asking = socket.create_connection(("127.0.0.1", stage.metrics_port))
            stack.enter_context(contextlib.closing(asking)).sendall((head + body) * 20)
        time.sleep(8)
        stage.require(len(stage.get("/metrics")) > 1_000, "no metrics")


# Frames -------------------------------------------------------------------------------------


def rapid_reset(stage: Stage) -> None:
    with Raw(stage.port) as made:
        opening = block(call_fields())
        reset = struct.pack(">L", 8)
        for start in range(0, 100_000, 100):
            ids = range(1 + 2 * start, 1 + 2 * (start + 100), 2)
            if not made.send(
                b"".join(frame(HEADERS, 4, each, opening) + frame(RST_STREAM, 0, each, reset) for each in ids)
            ):
                return


def ping_flood(stage: Stage) -> None:
    with Raw(stage.port) as made:
        for _ in range(2_000):
            if not made.send(frame(PING, 0, 0, bytes(8)) * 500):
                return


# Time ---------------------------------------------------------------------------------------


def bodies_of_many_small_things(stage: Stage) -> None:
    """JSON of the right shape that is all structure: a document of millions of parts."""
    parts = b",".join([b'{"role":"user","content":"x"}'] * 500_000)
    shapes = [
        (b'{"model":"m","messages":[%b]}' % parts, "/v1/chat/completions"),
        (
            b'{"model":"m","messages":[{"role":"user","content":[%b]}]}'
            % b",".join([b'{"type":"text","text":"x"}'] * 500_000),
            "/v1/chat/completions",
        ),
        (b'{"model":"m","prompt":[%b]}' % b",".join([b"1"] * 7_000_000), "/v1/completions"),
        (b'{"model":"m","prompt":[%b]}' % b",".join([b'"x"'] * 3_500_000), "/v1/completions"),
        (b'{"model":"m","messages":[],"x":%b}' % (b"[" * 7_000_000), "/v1/chat/completions"),
        (
            b'{"model":"m","messages":[],"x":{%b}}' % b",".join([b'"k%d":1' % n for n in range(1_000_000)]),
            "/v1/chat/completions",
        ),
    ]
    with Raw(stage.port) as made:
        for body, path in shapes:
            made.ask(CHAT | {":path": path}, body[:LARGE])


def a_picker_that_is_stopped(stage: Stage) -> None:
    """SIGSTOP for 25 s, longer than a message may take: nobody is blamed for it."""
    with Raw(stage.port) as made:
        stream_id = made.open()
        whole = message(request_headers(CHAT))
        made.send(frame(DATA, 0, stream_id, whole[:-5]))
        stage.stopped = True  # type: ignore[attr-defined]
        os.kill(stage.picker.pid, signal.SIGSTOP)
        try:
            made.send(frame(DATA, 0, stream_id, whole[-5:]))
            time.sleep(25)
        finally:
            os.kill(stage.picker.pid, signal.SIGCONT)
        time.sleep(0.5)
        stage.stopped = False  # type: ignore[attr-defined]
        made.say(stream_id, request_body(SMALL_BODY, end=True))
        routed = made.wait(lambda: made.received.get(stream_id, 0) > 0)
        stage.require(bool(routed) and not made.closed, "a call was ended for the picker's own pause")


def engine_pages(stage: Stage) -> None:
    """Metrics are read once a second, models at the start."""
    time.sleep(8)


# Words ---------------------------------------------------------------------------------------


def words_of_clients(stage: Stage) -> None:
    """Markup, escape sequences and forged fields, shown by `picker explain` and the log."""
    words = ["[/]", "[bold red]PICKED 10.9.9.9:8000[/]", "\x1b]0;owned\x07\x1b[2J", "m outcome=completed status=200"]
    with Raw(stage.port) as made:
        for model in words:
            made.ask(CHAT, json.dumps({"model": model, "messages": []}).encode())
    command = [
        sys.executable,
        "-m",
        "picker",
        "explain",
        "--address",
        f"127.0.0.1:{stage.metrics_port}",
        "--count",
        "256",
    ]
    said = subprocess.run(command, cwd=stage.tree, capture_output=True, text=True, timeout=30, check=False)
    stage.require(said.returncode == 0, f"explain ends with {said.returncode}: {said.stderr[-100:]}")
    stage.require("\x1b]" not in said.stdout and "\x1b[2J" not in said.stdout, "explain lets escape sequences through")
    stage.require("[/]" in said.stdout, "explain does not show a model's name")
    log = stage.log()
    stage.require("\x1b" not in log, "the log lets escape sequences through")
    stage.require(" model=m outcome=" not in log, "a field of the log can be forged")


def nobody(count: int) -> Callable[[Sequence[str]], str]:
    """An endpoints file of so many, at addresses where nobody answers."""
    return lambda _: many_endpoints((), count)


FULL_DUPLEX_ENVOY = EnvoyConfig(
    picker_address="127.0.0.1:1",
    balancing=Balancing.ORIGINAL_DST,
    request_body=BodySendMode.FULL_DUPLEX_STREAMED,
    message_timeout_seconds=30.0,
)

ATTACKS: dict[str, Attack] = {
    "bodies_never_finished": Attack(bodies_never_finished, "60 bodies of 15 MB without their end (03)"),
    "messages_never_finished": Attack(messages_never_finished, "40 messages of 13.5 MB, then a byte now and then (06)"),
    "small_bodies_never_finished": Attack(small_bodies_never_finished, "64,000 calls with 3 KB of body each"),
    "calls_without_a_message": Attack(calls_without_a_message, "320,000 calls of which nothing comes"),
    "frames_of_a_byte": Attack(frames_of_a_byte, "messages in 6,000,000 frames of a byte"),
    "names_as_long_as_bodies": Attack(names_as_long_as_bodies, "80 salts and models of 4 MB, all answered (01)"),
    "long_headers": Attack(long_headers, "300 ids and objectives of 500 KB, all answered (04)"),
    "long_names_of_open_requests": Attack(
        long_names_of_open_requests, "60 routed requests with a model of 8 MB, left open"
    ),
    "answers_never_taken": Attack(answers_never_taken, "40 echoes of 12 MB to windows that stay closed"),
    "sockets_never_read": Attack(sockets_never_read, "150 connections that do not read"),
    "a_gzip_bomb": Attack(a_gzip_bomb, "60 messages of 15 KB that are 16 MB (23)", flags=("--transport", "grpcio")),
    "large_bodies_at_once": Attack(
        large_bodies_at_once, "16 bodies of 6 MB end at once, through Envoy (10)", envoy=FULL_DUPLEX_ENVOY
    ),
    "idle_connections": Attack(idle_connections, "1,100 idle connections, 1,024 files (06, 11)", files_max=1_024),
    "half_handshakes": Attack(half_handshakes, "1,100 TLS handshakes begun (11)", files_max=1_024, tls=True),
    "half_requests_for_metrics": Attack(
        half_requests_for_metrics, "1,100 half requests for metrics (11)", files_max=1_024
    ),
    "slow_readers_of_metrics": Attack(
        slow_readers_of_metrics, "40 readers of the metrics page that do not read", endpoints_file=nobody(2_000)
    ),
    "questions_about_decisions": Attack(
        questions_about_decisions,
        "256 decisions among 1,000 endpoints, explained ten times",
        endpoints_file=nobody(1_000),
    ),
    "viewers_that_take_nothing": Attack(
        viewers_that_take_nothing, "40 viewers of the live page that do not read", endpoints_file=nobody(2_000)
    ),
    "replays": Attack(replays, "240 replays of the last decisions from 12 connections", endpoints_file=nobody(200)),
    "rapid_reset": Attack(rapid_reset, "100,000 calls opened and broken off"),
    "ping_flood": Attack(ping_flood, "1,000,000 PINGs"),
    "bodies_of_many_small_things": Attack(bodies_of_many_small_things, "JSON of 16 MB that is all structure"),
    "a_picker_that_is_stopped": Attack(a_picker_that_is_stopped, "SIGSTOP for 25 s", patience_seconds=25.6),
    "words_of_clients": Attack(
        words_of_clients,
        "markup and escape sequences as model (13)",
        flags=("--log-format", "text", "--log-level", "debug"),
    ),
    "names_in_other_scripts": Attack(names_in_other_scripts, "salts, models and sessions of 16 MB of emoji"),
    "headers_without_number": Attack(headers_without_number, "requests and answers of 1,400,000 headers"),
    "messages_of_crumbs": Attack(messages_of_crumbs, "messages of 16 MB in fields of two bytes"),
    "answers_of_crumbs": Attack(answers_of_crumbs, "answers of up to 16 MB in lines and events of a few bytes"),
    "header_blocks_that_grow": Attack(header_blocks_that_grow, "HPACK that grows, CONTINUATION without end"),
    "frames_that_say_nothing": Attack(frames_that_say_nothing, "3,000,000 frames that say nothing"),
    "calls_that_end_at_every_step": Attack(calls_that_end_at_every_step, "10,000 calls broken off at every step"),
    "a_long_endpoints_file_changes": Attack(
        a_long_endpoints_file_changes,
        "an endpoints file of 4,000 entries changes (17)",
        config="engine_metrics: {interval_seconds: 600, timeout_seconds: 0.2}\n",
        endpoints_file=nobody(ENDPOINTS),
    ),
    "bad_endpoints_files": Attack(
        bad_endpoints_files, "an endpoints file that is cut, empty, a folder, a pipe (18)", endpoints_file=few_endpoints
    ),
    "bad_configuration_files": Attack(bad_configuration_files, "a configuration file that is too long, odd, a pipe"),
    "uploads_without_their_last_byte": Attack(
        uploads_without_their_last_byte,
        "60 uploads of 15.9 MB less a byte: the buffered sample's Envoy (26)",
        envoy=BUFFERED_SAMPLE,
        tls=True,
    ),
    "uploads_without_their_last_byte_in_full_duplex": Attack(
        uploads_without_their_last_byte,
        "60 uploads of 15.9 MB less a byte: the full-duplex sample's Envoy",
        envoy=DUPLEX_SAMPLE,
        tls=True,
    ),
    "answers_that_nobody_reads": Attack(
        answers_that_nobody_reads,
        "120 answers of 20 MB that nobody reads: the buffered sample's Envoy",
        envoy=BUFFERED_SAMPLE,
        tls=True,
    ),
    "answers_that_nobody_reads_in_full_duplex": Attack(
        answers_that_nobody_reads,
        "120 answers of 20 MB that nobody reads: the full-duplex sample's Envoy",
        envoy=DUPLEX_SAMPLE,
        tls=True,
    ),
    "a_recording_without_room": Attack(
        a_recording_without_room,
        "a recording and a usage file on a disk that is full (27)",
        config="usage_file: {folder}/usage.jsonl\n",
        flags=("--record", "{folder}/traffic.jsonl"),
    ),
    **{
        f"engine_{name}": Attack(engine_pages, f"an engine with {name.replace('_', ' ')} (16)", tricks=("decent", name))
        for name in TRICKS
        if name != "decent"
    },
}
