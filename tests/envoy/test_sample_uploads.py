"""deploy/envoy where it buffers: what the picker does not read may be of any size, what it reads is read all the same.

The chart's Envoy has the same routes (tests/deploy/test_standalone_uploads.py).
"""

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from picker.api.paths import TABLE, Work
from picker.lab.envoy import EnvoyProcess
from tests.envoy.clients import Http1Client, Response, request
from tests.envoy.lab import CHAT, MIB, Lab
from tests.envoy.picker_process import PickerProcess
from tests.envoy.test_sample_configs import SAMPLES, load, localized, port_of
from tests.envoy.test_sample_edges import PATIENCE_SECONDS, manager
from tests.envoy.upstream import Recorded, large_body, sse_events

BUFFERED = [sample for sample in SAMPLES if sample.startswith("buffered")]
JSON = "application/json"
UPLOADS = [
    # Whose path says enough.
    ("/v1/files", "application/pdf"),
    ("/v1/files", JSON),
    ("/v1/files", None),
    ("/v1/uploads/upload_1/parts", None),
    ("/api/blobs/sha256:29fdb92e57cf0827ded04ae6461b5931d01fa595843f55d36f5b275a52087dd2", None),
    ("/v2/models/org/name/infer", JSON),
    ("/v2/models/m/versions/1/infer/", JSON),
    ("/v1beta/models/gemini:streamGenerateContent", JSON),
    ("/model/m/converse-stream", JSON),
    # Whose type says enough.
    ("/v1/audio/transcriptions", "Multipart/Form-Data; boundary=X"),
    ("/v1/audio/transcriptions", "application/x-www-form-urlencoded"),
    ("/invocations", "application/x-npy"),
    ("/unknown", "application/octet-stream"),
    ("/unknown", "application/zip"),
    ("/unknown", "text/plain"),
    ("/unknown", "application/x-ndjson"),
    ("/unknown", "application/jsonl"),
]
READ_TYPES = [JSON, "Application/JSON ;charset=utf-8", "text/json", "application/problem+json; x=y", None]
"""What may hold a prompt."""


def upload(envoy: EnvoyProcess, target: str, kind: str | None, body: bytes, *, chunked: bool = False) -> Response:
    headers = [] if kind is None else [("content-type", kind)]
    if not chunked:
        return request(envoy.port, "POST", target, headers, body)
    with Http1Client(envoy.port) as client:
        client.head("POST", target, [*headers, ("transfer-encoding", "chunked")])
        client.chunk(body)
        client.last_chunk()
        return client.response()


def assert_uploads_arrive_whole(envoy: EnvoyProcess, rid: str, recorded: Callable[[str], Recorded]) -> None:
    """Each of them, with a length and without one."""
    body = large_body(20 * MIB)
    for number, (path, kind) in enumerate(UPLOADS):
        for chunked in (False, True):
            name = f"{rid}-{number}-{chunked}"
            case = (path, kind, chunked)
            assert upload(envoy, f"{path}?id={name}", kind, body, chunked=chunked).status == 200, case
            arrived = recorded(name)
            assert arrived.body == body, case
            arrived.body.clear()  # all of them are a gigabyte


def assert_prompts_are_read(envoy: EnvoyProcess, rid: str) -> None:
    """What is no JSON is refused by whoever reads it; Envoy holds none without an end."""
    cases = [(kind, chunked) for kind in READ_TYPES for chunked in (False, True)]
    cases.append(("text/plain", False))  # short: read whatever it is called
    for kind, chunked in cases:
        refused = upload(envoy, f"{CHAT}?id={rid}", kind, b"{", chunked=chunked)
        assert (refused.status, refused.value("x-picker-reason")) == (400, "invalid_json"), (kind, chunked)


@pytest.mark.parametrize("sample", BUFFERED)
def test_large_bodies_that_nobody_reads_pass_and_prompts_are_read(lab: Lab, sample: str, rid: str) -> None:
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        assert_uploads_arrive_whole(envoy, rid, lambda name: lab.upstream_of(name).recorded(name))
        assert_prompts_are_read(envoy, rid)


@pytest.mark.parametrize("sample", BUFFERED)
def test_a_stream_that_says_it_is_no_json_goes_both_ways(lab: Lab, sample: str, rid: str) -> None:
    """As gRPC does: its answer begins before the request has ended."""
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
        Http1Client(envoy.port) as client,
    ):
        kind = [("content-type", "application/grpc"), ("transfer-encoding", "chunked")]
        client.head("POST", f"/chat.Service/Talk?id={rid}&do=sse&n=1&early=1", kind)
        client.chunk(b"first")
        head = client.read_head()
        client.last_chunk()
        assert (head.status, client.read_body(head).body) == (200, b"".join(sse_events(1)))


def unread_paths(config: dict[str, Any]) -> re.Pattern[str]:
    """The paths whose large bodies pass."""
    [expression] = [
        route["match"]["safe_regex"]["regex"]
        for host in manager(config)["route_config"]["virtual_hosts"]
        for route in host["routes"]
        if "safe_regex" in route["match"]
    ]
    return re.compile(expression)


@pytest.mark.parametrize("sample", BUFFERED)
def test_no_path_with_a_prompt_that_is_read_passes_for_its_name(sample: str) -> None:
    pattern = unread_paths(load(sample))
    shapes = {row.shape.removeprefix("^"): row.work for row in TABLE if "POST" in row.methods}
    for model in ("m", "org/name", "llama:8b"):
        for shape, work in shapes.items():
            path = "/v1" + re.sub(r"\{model\+?}", model, shape).replace("{id}", "1").replace("{verb}", "predict")
            assert not (work is Work.READ and pattern.fullmatch(path)), path
    for path, _ in UPLOADS[:-8]:
        assert pattern.fullmatch(path), path


@pytest.mark.parametrize("sample", SAMPLES)
def test_who_wants_a_tunnel_is_refused_at_once(lab: Lab, sample: str) -> None:
    """Where bodies are held, the end of a CONNECT was waited for: a minute, then 408."""
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        assert refusal_of_a_tunnel(envoy) in (403, 404)


def refusal_of_a_tunnel(envoy: EnvoyProcess) -> int:
    with socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
        return int(client.makefile("rb").readline().split()[1])
