"""The chart's standalone Envoy in the real Envoy: its file is accepted, and it never trusts a client."""

import http.client
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from picker.lab.envoy import EnvoyProcess, validate
from tests.deploy.standalone import bootstrap, listener_port, manager, on_this_machine
from tests.deploy.tools import Objects
from tests.deploy.values import Values
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("helm")

DUPLEX: Values = {"requestBodyMode": "FULL_DUPLEX_STREAMED", "responseBodyMode": "FULL_DUPLEX_STREAMED"}


def test_envoy_accepts_every_rendered_bootstrap(rendered: dict[str, Objects], tmp_path: Path) -> None:
    texts = {o["data"]["envoy.yaml"] for found in rendered.values() for o in found if "envoy.yaml" in o.get("data", {})}
    for mode in ("sidecar", "service"):
        for body in ("NONE", "STREAMED", "FULL_DUPLEX_STREAMED"):
            values = {"standalone": {"enabled": True, "mode": mode, "responseBodyMode": body}}
            texts.add(yaml.safe_dump(bootstrap(values)))
    for number, text in enumerate(sorted(texts)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        validate(path)


class Target(http.server.BaseHTTPRequestHandler):
    """A server that no client may reach by naming it."""

    reached: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.reached.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def target() -> Iterator[str]:
    """Its address."""
    Target.reached = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def post(port: int, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/completions", b'{"prompt":"x"}', headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("shape", [{}, DUPLEX], ids=["buffered", "duplex"])
def test_without_a_picker_a_client_that_names_an_address_gets_503(shape: Values, target: str) -> None:
    """The filter fails open (answers in progress survive a dying picker), so the header must be gone before it."""
    config = on_this_machine(bootstrap({"standalone": {"enabled": True, **shape}}), f"127.0.0.1:{free_ports(1)[0]}")
    with EnvoyProcess(config) as envoy:
        statuses = [post(envoy.port, {"X-Gateway-Destination-Endpoint": target}) for _ in range(3)]
    assert statuses == [503, 503, 503] if not shape else set(statuses) <= {500, 503}
    assert Target.reached == []


def test_the_target_could_have_been_reached(target: str) -> None:
    """The same Envoy without the early removal obeys the client: what the test above guards against."""
    config = on_this_machine(bootstrap({"standalone": {"enabled": True}}), f"127.0.0.1:{free_ports(1)[0]}")
    del manager(config, "requests")["early_header_mutation_extensions"]
    with EnvoyProcess(config) as envoy:
        assert post(envoy.port, {"X-Gateway-Destination-Endpoint": target}) == 200
    assert Target.reached == ["/v1/completions"]


@pytest.mark.parametrize(("mode", "status"), [("sidecar", 200), ("service", 503)])
def test_an_envoy_without_a_healthy_picker_is_ready_only_beside_one(mode: str, status: int) -> None:
    """In a pod of its own it must not get traffic that it can only refuse; as a sidecar, the pod's picker decides."""
    config = on_this_machine(
        bootstrap({"standalone": {"enabled": True, "mode": mode}}), f"127.0.0.1:{free_ports(1)[0]}"
    )
    with EnvoyProcess(config) as envoy:
        connection = http.client.HTTPConnection("127.0.0.1", listener_port(envoy, "ready"), timeout=10)
        connection.request("GET", "/ready")
        assert connection.getresponse().status == status
        connection.close()
