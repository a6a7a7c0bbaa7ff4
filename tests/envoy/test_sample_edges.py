"""deploy/envoy towards its clients: those who stop halfway, who do not read, who send trailers, files or HTTP/1.0."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from picker.lab.envoy import EnvoyProcess
from tests.envoy.clients import Http1Client, Http2Client, post, request
from tests.envoy.lab import BODY, CHAT, MIB, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.test_sample_configs import SAMPLES, load, localized, port_of
from tests.envoy.upstream import large_body, sse_events

EVERY = pytest.mark.parametrize("sample", SAMPLES)
BOTH_WAYS = pytest.mark.parametrize("sample", ["buffered-override-host.yaml", "full-duplex-override-host.yaml"])
"""What rests on what all have in common (the last test) is tried with a body held by Envoy, and by the picker."""

PATIENCE_SECONDS = 10.0
"""For what comes after a second: not a bound that is tested."""


def manager(config: dict[str, Any]) -> dict[str, Any]:
    """The HTTP connection manager of the sample's one listener."""
    found = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert isinstance(found, dict)
    return found


def heap(config: dict[str, Any], size: int) -> None:
    """Another limit of its heap monitor."""
    (monitor,) = (m for m in config["overload_manager"]["resource_monitors"] if m["name"].endswith("fixed_heap"))
    monitor["typed_config"]["max_heap_size_bytes"] = size


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@EVERY
def test_a_body_that_ends_with_trailers_arrives_once(lab: Lab, sample: str, rid: str) -> None:
    """envoyproxy/envoy#45470: full duplex with a retry policy sent it twice. The body is compared byte by byte."""
    words = b" ".join(b"word%d" % number for number in range(30_000))
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        for number, body in enumerate((BODY, BODY.replace(b"hello", words))):
            with Http2Client(envoy.port) as client:
                stream = client.start("POST", f"{CHAT}?id={rid}-{number}", [("content-type", "application/json")])
                client.data(stream, body)
                client.trailers(stream, [("x-checksum", "abc")])
                answer = client.response(stream)
            arrived = bytes(lab.upstream_of(f"{rid}-{number}").recorded(f"{rid}-{number}").body)
            assert (answer.status, len(arrived)) == (200, len(body)) and arrived == body


@EVERY
@pytest.mark.parametrize("mebibytes", [1, 25])
def test_a_file_passes(lab: Lab, sample: str, rid: str, mebibytes: int) -> None:
    """OpenAI and vLLM take recordings of 25 MB; nobody here holds them. Small ones are held where JSON is."""
    head = b'--X\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = head + large_body(mebibytes * MIB) + b"\r\n--X--\r\n"
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        kind = [("content-type", "multipart/form-data; boundary=X")]
        target = f"/v1/audio/transcriptions?id={rid}"
        assert request(envoy.port, "POST", target, kind, body).status == 200
        assert bytes(lab.upstream_of(rid).recorded(rid).body) == body
        with Http1Client(envoy.port) as client:  # of no stated length
            client.head("POST", f"{target}-chunked", [*kind, ("transfer-encoding", "chunked")])
            client.chunk(body)
            client.last_chunk()
            assert client.response().status == 200
        assert bytes(lab.upstream_of(f"{rid}-chunked").recorded(f"{rid}-chunked").body) == body


@EVERY
def test_http_1_0_is_answered(lab: Lab, sample: str, rid: str) -> None:
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
        socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS) as client,
    ):
        head = f"POST {CHAT}?id={rid} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
        client.sendall(head.encode() + BODY)
        assert client.makefile("rb").readline().split()[1] == b"200"


@BOTH_WAYS
def test_who_stops_in_the_middle_of_a_body_is_let_go_and_a_long_answer_is_not(lab: Lab, sample: str, rid: str) -> None:
    with PickerProcess(lab.addresses, insecure=False) as picker:
        config = localized(sample, lab, port_of(picker))
        manager(config)["request_timeout"] = "1s"
        with EnvoyProcess(config) as envoy, Http1Client(envoy.port) as honest:
            honest.head("POST", f"{CHAT}?id={rid}&do=sse&n=5&stall=1", [("content-length", str(len(BODY)))])
            honest.send(BODY)
            head = honest.read_head()
            begun = honest.read_chunk()
            stopped = socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS)
            stopped.sendall(
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode() + b" " * 500_000
            )
            with stopped:
                assert b" 408 " in stopped.makefile("rb").readline()
            lab.upstream_of(rid).recorded(rid).release.set()
            rest = honest.read_body(head)
            assert begun + rest.body == b"".join(sse_events(5)), "twice as long as the timeout, and whole"


@BOTH_WAYS
def test_a_reader_that_does_not_read_is_cut_off(lab: Lab, sample: str, rid: str) -> None:
    """And while it is there it holds a share, not its whole answer."""
    with PickerProcess(lab.addresses, insecure=False) as picker:
        config = localized(sample, lab, port_of(picker))
        (option,) = config["static_resources"]["listeners"][0]["socket_options"]
        option["int_value"] = 2000
        with EnvoyProcess(config) as envoy:
            before = resident_bytes(envoy.pid)
            readers = []
            for number in range(8):
                reader = socket.socket()
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # else the kernel takes megabytes for it
                reader.connect(("127.0.0.1", envoy.port))
                head = f"POST {CHAT}?id={rid}-{number}&do=large&bytes={32 * MIB} HTTP/1.1\r\nhost: x\r\n"
                reader.sendall(f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
                readers.append(reader)
            wait_until(lambda: active(envoy) == 8, "they never came", 30)
            wait_until(lambda: active(envoy) == 0, "they are still there", 90)
            assert resident_bytes(envoy.pid) - before < 8 * 32 * MIB / 3
            for reader in readers:
                reader.close()


def active(envoy: EnvoyProcess) -> int:
    return envoy.stats("^http.in.downstream_rq_active$")["http.in.downstream_rq_active"]


def is_served(envoy: EnvoyProcess, rid: str) -> bool:
    """Whether a small request is answered; a proxy that takes no connections says nothing."""
    try:
        return post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200
    except OSError:
        return False


def test_unfinished_uploads_do_not_take_the_proxy_along(lab: Lab, rid: str) -> None:
    """Twice what its heap monitor allows; it lives, and serves those who ask for little."""
    limit = 96 * MIB
    with PickerProcess(lab.addresses, insecure=False) as picker:
        config = localized("buffered-override-host.yaml", lab, port_of(picker))
        heap(config, limit)
        with EnvoyProcess(config) as envoy:
            uploads = []
            for _ in range(12):
                upload = socket.create_connection(("127.0.0.1", envoy.port), timeout=2)
                uploads.append(upload)
                try:
                    upload.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {15 * MIB}\r\n\r\n".encode())
                    upload.sendall(b" " * (15 * MIB - 1))
                except OSError:  # shed, or no longer read
                    continue
            # At the latest when the uploads' minute is over.
            wait_until(lambda: is_served(envoy, rid), "honest requests are not served", 80)
            assert envoy.is_running()
            for upload in uploads:
                upload.close()


def test_the_access_log_says_what_happened_and_no_more(lab: Lab, rid: str) -> None:
    sample = "buffered-override-host.yaml"
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        post(envoy.port, f"{CHAT}?id={rid}&key=secret", BODY, [("x-request-id", rid), ("authorization", "secret")])
        served = lab.upstream_of(rid).address
        wait_until(lambda: rid in envoy.log(), "no line", 30)  # it is written every ten seconds
        (line,) = (line for line in envoy.log().splitlines() if rid in line)
        assert "secret" not in line
        entry = json.loads(line)
        assert (entry["method"], entry["path"], entry["status"]) == ("POST", CHAT, 200)
        assert (entry["upstream"], entry["request_id"], entry["flags"]) == (served, rid, "-")
        assert (entry["details"], entry["reason"]) == ("via_upstream", None)


def test_the_access_log_says_why_the_picker_refused(lab: Lab, rid: str) -> None:
    """In `%RESPONSE_CODE_DETAILS%` stands the word of `x-picker-reason`."""
    sample = "buffered-override-host.yaml"
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
    ):
        refused = post(envoy.port, f"{CHAT}?id={rid}", b"{", [("x-request-id", rid)])
        assert (refused.status, refused.value("x-picker-reason")) == (400, "invalid_json")
        wait_until(lambda: rid in envoy.log(), "no line", 30)
        (line,) = (line for line in envoy.log().splitlines() if rid in line)
        entry = json.loads(line)
        assert (entry["status"], entry["details"], entry["reason"]) == (400, "invalid_json", "invalid_json")
        assert (entry["upstream"], entry["flags"]) == (None, "-")


def test_all_samples_meet_their_clients_alike() -> None:
    """So what is tried with one or two of them holds for all."""
    alike = [
        *("access_log", "http_protocol_options", "http2_protocol_options", "common_http_protocol_options"),
        *("request_timeout", "request_headers_timeout", "normalize_path", "merge_slashes", "use_remote_address"),
    ]
    found = set()
    for sample in SAMPLES:
        tree = load(sample)
        [listener] = tree["static_resources"]["listeners"]
        edge = {key: manager(tree)[key] for key in alike}
        edge["listener"] = (listener["per_connection_buffer_limit_bytes"], listener["socket_options"])
        edge["overload"] = tree["overload_manager"]
        found.add(json.dumps(edge, sort_keys=True))
    assert len(found) == 1
