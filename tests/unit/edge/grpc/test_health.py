"""grpc.health.v1 as doc/health-checking.md has it, read back with the real grpc_health messages."""

import pytest
from grpc_health.v1 import health_pb2

from picker.edge.grpc import health
from picker.edge.grpc.health import HealthService
from picker.edge.grpc.transport import GrpcStatus, Handler

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class FakeCall:
    """A call that keeps what it was told, and ends its handler as a transport does."""

    peer = "127.0.0.1:1"
    received_at_seconds = 0.0

    def __init__(self, service: HealthService, method: str) -> None:
        self.sent: list[bytes] = []
        self.end: GrpcStatus | None = None
        self.handler: Handler = service.methods[f"/grpc.health.v1.Health/{method}"](self)

    def hold(self, size: int) -> None:
        assert size >= 0

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        if self.end is None:
            self.sent.append(message + body)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        if self.end is None:
            self.end = status
            self.handler.closed()

    def statuses(self) -> list[int]:
        return [health_pb2.HealthCheckResponse.FromString(each).status for each in self.sent]


def request(service: str) -> bytes:
    return health_pb2.HealthCheckRequest(service=service).SerializeToString()


def check(service: HealthService, name: str) -> FakeCall:
    call = FakeCall(service, "Check")
    call.handler.receive(request(name))
    call.handler.half_closed()
    return call


def watch(service: HealthService, name: str) -> FakeCall:
    call = FakeCall(service, "Watch")
    call.handler.receive(request(name))
    call.handler.half_closed()
    return call


def test_check_says_whether_a_service_serves() -> None:
    service = HealthService()
    service.set("", True)
    service.set("readiness", False)
    assert check(service, "").statuses() == [SERVING]
    assert check(service, "readiness").statuses() == [NOT_SERVING]
    service.set("readiness", True)
    call = check(service, "readiness")
    assert (call.statuses(), call.end) == ([SERVING], GrpcStatus.OK)


def test_check_of_an_unknown_service_is_not_found() -> None:
    call = check(HealthService(), "nobody")
    assert (call.statuses(), call.end) == ([], GrpcStatus.NOT_FOUND)


def test_watch_tells_the_status_at_once_and_each_change() -> None:
    service = HealthService()
    service.set("readiness", False)
    call = watch(service, "readiness")
    other = watch(service, "liveness")
    for serving in (False, True, True, False):
        service.set("readiness", serving)
    assert call.statuses() == [NOT_SERVING, SERVING, NOT_SERVING]
    assert other.statuses() == [SERVICE_UNKNOWN]
    assert call.end is None


def test_watch_of_an_unknown_service_waits_for_it() -> None:
    service = HealthService()
    call = watch(service, "later")
    service.set("later", True)
    assert call.statuses() == [SERVICE_UNKNOWN, SERVING]


def test_a_watch_that_ended_is_forgotten() -> None:
    service = HealthService()
    for _ in range(3):
        call = watch(service, "readiness")
        call.handler.closed()
        call.handler.closed()
        service.set("readiness", True)
        service.set("readiness", False)
        assert len(call.sent) == 1
    assert service._watches == {}
    assert service._watches_open == 0


def test_watches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCHES_MAX", 2)
    service = HealthService()
    first = watch(service, "a")
    watch(service, "b")
    assert watch(service, "c").end is GrpcStatus.RESOURCE_EXHAUSTED
    first.handler.closed()
    assert watch(service, "d").end is None


def test_a_watch_may_leave_while_it_is_told() -> None:
    service = HealthService()
    calls = [watch(service, "x") for _ in range(3)]
    for call in calls:
        call.send = lambda _message, call=call: call.finish()  # type: ignore[assignment, method-assign, misc]
    service.set("x", True)
    assert service._watches == {}


def test_list_has_every_service() -> None:
    service = HealthService()
    service.set("", True)
    service.set("readiness", False)
    call = FakeCall(service, "List")
    call.handler.receive(b"")
    call.handler.half_closed()
    listed = health_pb2.HealthListResponse.FromString(call.sent[0])
    assert {name: each.status for name, each in listed.statuses.items()} == {"": SERVING, "readiness": NOT_SERVING}


def test_a_long_list_is_refused() -> None:
    service = HealthService()
    for number in range(101):
        service.set(f"service-{number}", True)
    call = FakeCall(service, "List")
    call.handler.receive(b"")
    call.handler.half_closed()
    assert call.end is GrpcStatus.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["Check", "Watch", "List"])
def test_bad_calls_are_invalid_arguments(method: str) -> None:
    garbled = FakeCall(HealthService(), method)
    garbled.handler.receive(b"\x0a\xff")
    if garbled.end is None:
        garbled.handler.half_closed()
    empty = FakeCall(HealthService(), method)
    empty.handler.half_closed()
    double = FakeCall(HealthService(), method)
    double.handler.receive(request(""))
    double.handler.receive(request(""))
    assert garbled.end is empty.end is double.end is GrpcStatus.INVALID_ARGUMENT
