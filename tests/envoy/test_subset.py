"""The subset hint of the Endpoint Picker Protocol, put into Envoy's metadata by `header_to_metadata`.

Three model servers: two ports of 127.0.0.1 and one of 127.0.0.2, so that a bare ip means something.
"""

import base64
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest
from google.protobuf import struct_pb2

from picker.lab.envoy import BodySendMode, EnvoyProcess
from tests.envoy.clients import Response, post, request
from tests.envoy.lab import BODY, CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess
from tests.envoy.upstream import Upstream

Headers = list[tuple[str, str]]
Ask = Callable[[Headers], Response]
Form = Callable[..., Headers]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Upstream]]:
    """a and b share an ip, c has its own, d is on IPv6 where the machine has it."""
    hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.2", *(["::1"] if has_ipv6() else [])]
    opened = [Upstream(host) for host in hosts]
    try:
        yield opened
    finally:
        for server in opened:
            server.__exit__()


@pytest.fixture(scope="module")
def small_picker(servers: list[Upstream]) -> Iterator[PickerProcess]:
    with PickerProcess([server.address for server in servers], "epsilon: 0\n") as picker:
        yield picker


@pytest.fixture(
    scope="module", params=[(FD, FD), (BodySendMode.BUFFERED, BodySendMode.NONE)], ids=["duplex", "buffered"]
)
def envoy(request: pytest.FixtureRequest, lab: Lab, small_picker: PickerProcess) -> Iterator[EnvoyProcess]:
    asked, answered = request.param
    config = lab.config(request_body=asked, response_body=answered, picker_address=small_picker.grpc_address)
    with EnvoyProcess(config) as opened:
        yield opened


@pytest.fixture(params=["POST", "GET"])
def ask(request: pytest.FixtureRequest, envoy: EnvoyProcess) -> Ask:
    """One request with these headers; with a body and without one."""
    return lambda headers: send(envoy, request.param, headers)


def send(envoy: EnvoyProcess, method: str, headers: Headers) -> Response:
    if method == "GET":
        return request(envoy.port, "GET", "/v1/models?do=json", headers)
    return post(envoy.port, f"{CHAT}?do=json", BODY, headers)


def as_text(*entries: str) -> Headers:
    return [("x-subset", ",".join(entries))]


def as_list(*entries: str) -> Headers:
    value = struct_pb2.Value()
    value.list_value.values.extend(struct_pb2.Value(string_value=entry) for entry in entries)
    return [("x-subset-list", base64.b64encode(value.SerializeToString()).decode())]


def served(servers: Sequence[Upstream], ask: Ask, headers: Headers) -> set[int]:
    """Which servers get a dozen such requests."""
    before = [len(server.requests) for server in servers]
    for _ in range(12):
        assert ask(headers).status == 200
    found = {number for number, server in enumerate(servers) if len(server.requests) > before[number]}
    assert found
    return found


EACH_FORM = pytest.mark.parametrize("form", [as_text, as_list], ids=["text", "list"])


def test_absent(servers: list[Upstream], ask: Ask) -> None:
    """Without a hint, the whole pool."""
    assert len(served(servers, ask, [])) > 1


@EACH_FORM
def test_one(servers: list[Upstream], ask: Ask, form: Form) -> None:
    assert served(servers, ask, form(servers[1].address)) == {1}


@EACH_FORM
def test_two(servers: list[Upstream], ask: Ask, form: Form) -> None:
    assert served(servers, ask, form(servers[0].address, servers[2].address)) <= {0, 2}


def test_text_with_spaces(servers: list[Upstream], ask: Ask) -> None:
    assert served(servers, ask, [("x-subset", f" {servers[0].address} ,  {servers[2].address}")]) <= {0, 2}


@EACH_FORM
def test_unknown_beside_known(servers: list[Upstream], ask: Ask, form: Form) -> None:
    assert served(servers, ask, form("10.9.9.9:80", servers[1].address, "nonsense")) == {1}


@EACH_FORM
def test_bare_ip_means_all_its_ports(servers: list[Upstream], ask: Ask, form: Form) -> None:
    assert served(servers, ask, form("127.0.0.1")) <= {0, 1}
    assert served(servers, ask, form("127.0.0.2")) == {2}


@EACH_FORM
def test_ports_match_exactly(servers: list[Upstream], ask: Ask, form: Form) -> None:
    """127.0.0.2 with another server's port is nobody."""
    assert ask(form(f"127.0.0.2:{servers[0].port}")).status == 503


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback on this machine")
@EACH_FORM
@pytest.mark.parametrize("entry", ["[::1]:{port}", "::1", "[::1]"])
def test_ipv6(servers: list[Upstream], ask: Ask, form: Form, entry: str) -> None:
    assert served(servers, ask, form(entry.format(port=servers[3].port))) == {3}


@pytest.mark.parametrize(
    "headers",
    [as_list(), as_text("10.9.9.9:80"), as_list("10.9.9.9:80", "10.9.9.8"), as_text(",, ,"), as_list("")],
    ids=["empty-list", "unknown", "all-unknown", "only-commas", "empty-entry"],
)
def test_nobody_is_left(ask: Ask, headers: Headers) -> None:
    answer = ask(headers)
    assert answer.status == 503
    assert answer.value("x-picker-reason")
    assert int(answer.value("retry-after") or "") >= 1
