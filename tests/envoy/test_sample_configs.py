"""deploy/envoy: every sample is accepted as it stands, started for real, and keeps what its README row says."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from picker.lab.envoy import EnvoyProcess, validate
from picker.lab.envoy_config import DESTINATION
from tests.envoy.clients import Http1Client, Http2Client, post
from tests.envoy.lab import BODY, CHAT, MIB, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.test_operations import HEALTHY, Waiting
from tests.envoy.test_refusals import assert_openai_error
from tests.envoy.upstream import Upstream, sse_events

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "envoy"
SAMPLES = sorted(path.name for path in FOLDER.glob("*.yaml"))

pytestmark = pytest.mark.parametrize("sample", SAMPLES)


def promises() -> dict[str, dict[str, str]]:
    """The README's table: by file, the cells by their heading."""
    lines = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("|")]
    headings, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {re.findall(r"`(\S+)`", cells[0])[0]: dict(zip(headings, cells, strict=True)) for cells in rows}


def load(sample: str) -> dict[str, Any]:
    tree = yaml.safe_load((FOLDER / sample).read_text())
    assert isinstance(tree, dict)
    return tree


def localized(sample: str, lab: Lab, picker_port: int) -> dict[str, Any]:
    """The sample with this test's addresses, on free ports of loopback; nothing else changes but a faster
    health check."""
    tree = load(sample)
    tree["admin"]["address"]["socket_address"]["port_value"] = 0
    [listener] = tree["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    servers, picker = tree["static_resources"]["clusters"]
    if "load_assignment" in servers:
        for member, address in zip(members(servers), lab.addresses, strict=True):
            member["endpoint"]["address"]["socket_address"]["port_value"] = int(address.rpartition(":")[2])
    members(picker)[0]["endpoint"]["address"]["socket_address"]["port_value"] = picker_port
    picker["health_checks"][0] |= {"interval": "0.1s", "no_traffic_interval": "0.1s"}
    return tree


def members(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    found = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert isinstance(found, list)
    return found


def test_envoy_accepts_it(sample: str) -> None:
    validate(FOLDER / sample)


def test_it_says_what_it_is(sample: str) -> None:
    """Body modes and balancing in the README are those of the file."""
    tree = load(sample)
    row = promises()[sample]
    [listener] = tree["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    picker_filter, _router = manager["http_filters"]
    mode = picker_filter["typed_config"]["processing_mode"]
    assert (row["request body"], row["response body"]) == (mode["request_body_mode"], mode["response_body_mode"])
    original_dst = tree["static_resources"]["clusters"][0]["type"] == "ORIGINAL_DST"
    assert original_dst == row["destinations"].startswith("one")


def test_only_what_reached_no_model_is_retried_and_only_elsewhere(sample: str) -> None:
    """Behind ORIGINAL_DST a retry has nowhere else to go."""
    tree = load(sample)
    [listener] = tree["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = [
        route["route"]
        for host in manager["route_config"]["virtual_hosts"]
        for route in host["routes"]
        if "direct_response" not in route
    ]
    assert routes and {route["cluster"] for route in routes} == {"model_servers"}
    for route in routes:
        if tree["static_resources"]["clusters"][0]["type"] == "ORIGINAL_DST":
            assert "retry_policy" not in route
        else:
            causes = route["retry_policy"]["retry_on"].split(",")
            assert set(causes) == {"connect-failure", "refused-stream", "reset-before-request"}
            assert route["retry_policy"]["num_retries"] == 2


def test_it_serves(lab: Lab, sample: str, rid: str) -> None:
    """With the picker alive: bodies, streams, upgrades, refusals; a destination of the client's own is gone."""
    row = promises()[sample]
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
        Upstream() as secret,
    ):
        spoofed = [(DESTINATION, secret.address)]
        answer = post(envoy.port, f"{CHAT}?id={rid}&do=sse&n=100", BODY, spoofed)
        assert (answer.status, answer.body) == (200, b"".join(sse_events(100)))
        upstream = lab.upstream_of(rid)
        assert bytes(upstream.recorded(rid).body) == BODY
        assert upstream.recorded(rid).values(DESTINATION) == [upstream.address]
        assert secret.requests == []
        assert websocket(envoy) == 101
        large = b'{"prompt":"' + b"x" * 16 * MIB + b'"}'
        refused = post_large(envoy, f"/v1/completions?id={rid}-large", large)
        if row["request body"] == "NONE":
            assert refused.status == 200
        else:
            assert_openai_error(refused, 413)
        if row["bidirectional streams"] == "yes":
            talk(envoy, lab, f"{rid}-talk")
        wait_until(lambda: picker.ended() >= 3, "the picker was not asked")
        learned = picker.metric("inference_objective_input_tokens_sum")
        assert (learned > 0) == (row["first token, usage"] == "yes")


def test_the_picker_is_killed(lab: Lab, sample: str, rid: str) -> None:
    row = promises()[sample]["when the picker is killed"]
    under_way, afterwards = row.split("; then ")
    with (
        PickerProcess(lab.addresses, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as envoy,
        Upstream() as secret,
    ):
        waiting = Waiting(envoy.port, rid)
        picker.kill()
        if under_way == "nothing is lost":
            waiting.finish(lab.upstream_of(rid), rid)
        else:
            assert under_way == "answers under way are cut"
            with pytest.raises(AssertionError, match="cut off"):
                waiting.finish(lab.upstream_of(rid), rid)
        wait_until(lambda: envoy.stats(HEALTHY)[HEALTHY] == 0, "the health check never noticed")
        for number in range(4):
            answer = post(envoy.port, f"{CHAT}?id={rid}.{number}", BODY, [(DESTINATION, secret.address)])
            assert answer.status == {"round robin": 200, "503": 503}[afterwards]
        served = [sum(upstream.saw(f"{rid}.{number}") for number in range(4)) for upstream in lab.upstreams]
        assert served == ([2, 2] if afterwards == "round robin" else [0, 0])
        assert secret.requests == []


def port_of(picker: PickerProcess) -> int:
    return int(picker.grpc_address.rpartition(":")[2])


def websocket(envoy: EnvoyProcess) -> int:
    """The status of a handshake."""
    with Http1Client(envoy.port) as client:
        upgrade = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
        client.head("GET", "/v1/realtime", [*upgrade, ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")])
        return client.read_head().status


def post_large(envoy: EnvoyProcess, target: str, body: bytes) -> Any:
    """A body that may be refused on the way."""
    with Http2Client(envoy.port) as client:
        stream = client.start("POST", target, [("content-type", "application/json")])
        for start in range(0, len(body), MIB):
            if not client.try_data(stream, body[start : start + MIB], end=start + MIB >= len(body)):
                break
        return client.response(stream)


def talk(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    """A request that ends only after its answer began. The samples speak HTTP/1.1 to the model servers, so the
    model server here answers as soon as it has the headers and the first bytes."""
    with Http1Client(envoy.port) as client:
        client.head("POST", f"/chat.Service/Talk?id={rid}&do=sse&n=1&early=1", [("transfer-encoding", "chunked")])
        client.chunk(b"first")
        head = client.read_head()
        assert head.status == 200
        client.chunk(b"second")
        client.last_chunk()
        assert client.read_body(head).body == b"".join(sse_events(1))
