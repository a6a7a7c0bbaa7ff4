"""OpenTelemetry spans: one a request, sent when it is over. Off unless configuration names a collector.

The trace is the client's where its `traceparent` says so, and then its sampling holds; a request
without one starts a trace with probability `sample_ratio`. Spans are handed to a bounded queue and
exported by a thread of their own: a collector that is slow or away loses spans, never requests.
What a span says is what the record of the request says: never a prompt.

OpenTelemetry comes with the extra `tracing`; it is imported when first needed.
"""

import asyncio
import threading
import time
from typing import Any

from picker.config import ConfigError, Tracing
from picker.decision import Finished
from picker.outcomes import Outcome
from picker.version import __version__

QUEUE_SPANS_MAX = 4096
EXPORT_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 3.0

_NANOSECONDS = 1_000_000_000


class Tracer:
    """Owns the exporter. `finished` is cheap; `close` gives what is queued a moment to leave."""

    def __init__(self, settings: Tracing, *, pool_name: str) -> None:
        """Raises `ConfigError` where the extra is missing."""
        assert settings.otlp_endpoint is not None
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigError(
                "tracing.otlp_endpoint is set, but OpenTelemetry is not installed: "
                "pip install 'inference-picker[tracing]', or leave tracing out of the configuration"
            ) from None
        self._kind = trace.SpanKind.SERVER
        self._error = trace.Status(trace.StatusCode.ERROR)
        self._extract = TraceContextTextMapPropagator().extract
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create(
                {"service.name": "inference-picker", "service.version": __version__, "picker.pool": pool_name}
            ),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            endpoint=settings.otlp_endpoint,
            insecure=settings.otlp_endpoint.startswith("http://"),
            timeout=EXPORT_SECONDS_MAX,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS_MAX))
        self._tracer = self._provider.get_tracer("picker", __version__)

    def finished(self, record: Finished) -> None:
        """The span of one exchange that is over."""
        if record.outcome is Outcome.UNSEEN:
            return
        ended_at = time.time_ns()
        parent = self._extract({"traceparent": record.trace_parent}) if record.trace_parent is not None else None
        span = self._tracer.start_span(
            f"route {record.path}",
            context=parent,
            kind=self._kind,
            start_time=ended_at - int(record.duration_seconds * _NANOSECONDS),
        )
        if span.is_recording():
            span.set_attributes(attributes(record))
            if record.outcome is Outcome.FAILED or (record.status is not None and record.status >= 500):
                span.set_status(self._error)
            span.end(ended_at)

    async def close(self) -> None:
        """Flush for a bounded time. A collector that does not answer keeps nobody from ending."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(flushed.set)
            except RuntimeError:
                pass  # the wait was over before, and with it the loop

        threading.Thread(target=flush, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await flushed.wait()
        except TimeoutError:
            pass


def attributes(record: Finished) -> dict[str, Any]:
    """What a span says of a request; what is unknown is left out."""
    usage = record.usage
    said = {
        "picker.api": record.path,
        "picker.outcome": str(record.outcome),
        "picker.reason": record.reason and str(record.reason),
        "picker.refusal": record.reject_word,
        "picker.endpoint": record.address,
        "picker.matched_share": record.matched_share,
        "picker.decision_seconds": record.decision_seconds,
        "picker.ttft_seconds": record.ttft_seconds,
        "picker.predicted_ttft_seconds": record.predicted_ttft_seconds,
        "picker.priority": record.priority,
        "picker.request_id": record.request_id,
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage is not None else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}
