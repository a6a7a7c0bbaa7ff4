"""Attacks on the Envoy of the samples and of the chart: what clients can make it hold, and for how long."""

import contextlib
import socket
import time
from typing import Any

import yaml

from picker.lab.envoy import EnvoyProcess
from tests.attack.stage import TREE, EnvoyTree, Stage

HEAP_BYTES_MAX = 400_000_000
"""In place of the sample's 2 GiB, so that attacks need not be large."""
REQUEST_SECONDS_MAX = 8
"""In place of the sample's minute."""
LARGE = 15_900_000


def sample(name: str, endpoints: list[str], picker_port: int) -> dict[str, Any]:
    """A configuration of deploy/envoy on free ports of loopback; with less heap and less time, in proportion."""
    tree: dict[str, Any] = yaml.safe_load((TREE / "deploy/envoy" / f"{name}.yaml").read_text("utf-8"))
    tree["admin"]["address"]["socket_address"]["port_value"] = 0
    heap = tree["overload_manager"]["resource_monitors"][1]["typed_config"]
    heap["max_heap_size_bytes"] = HEAP_BYTES_MAX
    [listener] = tree["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    listener["filter_chains"][0]["filters"][0]["typed_config"]["request_timeout"] = f"{REQUEST_SECONDS_MAX}s"
    servers, picker = tree["static_resources"]["clusters"]
    for member, address in zip(_members(servers), endpoints, strict=True):
        member["port_value"] = int(address.rpartition(":")[2])
    _members(picker)[0]["port_value"] = picker_port
    return tree


BUFFERED_SAMPLE = EnvoyTree(
    lambda endpoints, port: sample("buffered-override-host", endpoints, port),
    HEAP_BYTES_MAX + 100_000_000,  # Envoy looks four times a second, and loopback brings that much in between
)
DUPLEX_SAMPLE = BUFFERED_SAMPLE._replace(
    build=lambda endpoints, port: sample("full-duplex-override-host", endpoints, port)
)


def _members(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    [group] = cluster["load_assignment"]["endpoints"]
    return [each["endpoint"]["address"]["socket_address"] for each in group["lb_endpoints"]]


def _ended(made: socket.socket) -> bool:
    """Whether Envoy has answered or closed."""
    made.settimeout(0.01)
    try:
        made.recv(65_536)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def _envoy(stage: Stage) -> EnvoyProcess:
    assert stage.envoy is not None
    return stage.envoy


def uploads_without_their_last_byte(stage: Stage) -> None:
    """Envoy holds bodies until they end, no longer than a request may take, and no more than it may have."""
    port = _envoy(stage).port
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        uploads = []
        for _ in range(60):
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            uploads.append(made)
            with contextlib.suppress(OSError):  # whoever holds most is cut when the heap is full
                made.sendall(head % LARGE + b" " * (LARGE - 1))
        time.sleep(REQUEST_SECONDS_MAX + 3)
        held = sum(not _ended(made) for made in uploads)
        stage.require(held == 0, f"{held} of 60 uploads are still held")


def answers_that_nobody_reads(stage: Stage) -> None:
    """120 answers of 20 MB each, of which the clients take nothing."""
    port = _envoy(stage).port
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-answer-bytes: 20000000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(120):
            made = stack.enter_context(contextlib.closing(socket.socket()))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", port))
            made.sendall(head)
        time.sleep(8)
