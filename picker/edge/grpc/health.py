"""grpc.health.v1: Check, Watch and List, as handlers for either transport.

Envoy's active health check of the picker, a kubelet's gRPC probe and the drain order all rest on
it. Semantics: github.com/grpc/grpc doc/health-checking.md. An unknown service is NOT_FOUND to
Check, and SERVICE_UNKNOWN (then the truth, once it is known) to Watch.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from picker.edge.grpc.transport import Call, GrpcStatus, Handler, MethodTable
from picker.generated import health_pb2

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

SERVICES_LISTED_MAX = 100
"""List beyond it is RESOURCE_EXHAUSTED, as the specification says."""

WATCHES_MAX = 1000
"""Watches at once; one more is RESOURCE_EXHAUSTED. Probes and proxies need a handful."""


class HealthService:
    """Whether each named service serves, and who wants to be told."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {}
        self._watches: dict[str, set[_Watch]] = {}
        self._watches_open = 0

    def set(self, service: str, serving: bool) -> None:
        """Say whether `service` serves. Every Watch of it is told, when that is news."""
        if self._serving.get(service) is serving:
            return
        self._serving[service] = serving
        for watch in tuple(self._watches.get(service, ())):
            watch.tell()

    def status(self, service: str) -> int:
        """SERVING, NOT_SERVING or SERVICE_UNKNOWN."""
        serving = self._serving.get(service)
        if serving is None:
            return SERVICE_UNKNOWN
        return SERVING if serving else NOT_SERVING

    @property
    def methods(self) -> MethodTable:
        """What a transport serves."""
        return {
            "/grpc.health.v1.Health/Check": lambda call: _Unary(call, self._check),
            "/grpc.health.v1.Health/List": lambda call: _Unary(call, self._list),
            "/grpc.health.v1.Health/Watch": lambda call: _Watch(call, self),
        }

    def _check(self, call: Call, message: bytes) -> None:
        service = _requested_service(message)
        status = self.status(service)
        if status == SERVICE_UNKNOWN:
            call.finish(GrpcStatus.NOT_FOUND, f"unknown service {service[:100]!r}")
        else:
            call.send(_response(status))
            call.finish()

    def _list(self, call: Call, message: bytes) -> None:
        health_pb2.HealthListRequest.FromString(message)
        if len(self._serving) > SERVICES_LISTED_MAX:
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, f"more than {SERVICES_LISTED_MAX} services to list")
            return
        listed = health_pb2.HealthListResponse()
        for service in self._serving:
            listed.statuses[service].status = self.status(service)
        call.send(listed.SerializeToString())
        call.finish()

    def add_watch(self, watch: "_Watch") -> bool:
        """False when there are too many."""
        if self._watches_open >= WATCHES_MAX:
            return False
        self._watches_open += 1
        self._watches.setdefault(watch.service, set()).add(watch)
        return True

    def drop_watch(self, watch: "_Watch") -> None:
        """The call ended. A service that nobody watches leaves no trace."""
        watches = self._watches.get(watch.service)
        if watches is None or watch not in watches:
            return
        watches.discard(watch)
        self._watches_open -= 1
        if not watches:
            del self._watches[watch.service]


class _Unary(Handler):
    """One message in, one out. It answers at the half-close, so no call ends while its peer still sends."""

    __slots__ = ("_answer", "_call", "_message")

    def __init__(self, call: Call, answer: Callable[[Call, bytes], None]) -> None:
        self._call = call
        self._answer = answer
        self._message: bytes | None = None

    def receive(self, message: bytes) -> None:
        if self._message is not None:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "one message expected, a second one came")
            return
        self._message = message

    def half_closed(self) -> None:
        if self._message is None:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "one message expected, none came")
            return
        try:
            self._answer(self._call, self._message)
        except DecodeError:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "not a grpc.health.v1 message")

    def closed(self) -> None:
        self._message = None


class _Watch(Handler):
    """One Watch call: the status at once, then every change of it, until the peer leaves."""

    __slots__ = ("_call", "_health", "_told", "service")

    def __init__(self, call: Call, health: HealthService) -> None:
        self._call = call
        self._health = health
        self._told: int | None = None
        self.service = ""

    def receive(self, message: bytes) -> None:
        if self._told is not None:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "one message expected, a second one came")
            return
        try:
            self.service = _requested_service(message)
        except DecodeError:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "not a grpc.health.v1 message")
            return
        if self._health.add_watch(self):
            self.tell()
        else:
            self._call.finish(GrpcStatus.RESOURCE_EXHAUSTED, f"more than {WATCHES_MAX} watches")

    def half_closed(self) -> None:
        if self._told is None:
            self._call.finish(GrpcStatus.INVALID_ARGUMENT, "one message expected, none came")

    def closed(self) -> None:
        self._health.drop_watch(self)

    def tell(self) -> None:
        status = self._health.status(self.service)
        if status != self._told:
            self._told = status
            self._call.send(_response(status))


def _requested_service(message: bytes) -> str:
    return health_pb2.HealthCheckRequest.FromString(message).service


def _response(status: int) -> bytes:
    return health_pb2.HealthCheckResponse(status=status).SerializeToString()
