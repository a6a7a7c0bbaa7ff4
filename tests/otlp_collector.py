"""A collector: OTLP's own gRPC service on loopback, which keeps the spans that it gets."""

import threading
from concurrent import futures
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A context manager; `url` is what an exporter is told. `hang` makes it take requests and not answer."""

    def __init__(self, *, hang: bool = False) -> None:
        self.requests: list[Any] = []
        self._arrived = threading.Condition()
        self._let_go = threading.Event()
        self.hang = hang
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        if self.hang:
            self._let_go.wait(30)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait(self, count: int, seconds: float = 15.0) -> list[Any]:
        """At least `count` spans, once they are here."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.spans) >= count, seconds), f"only {len(self.spans)} spans"
        return self.spans

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._server.stop(None).wait()


def said(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
