"""OpenTelemetry spans: one a request, and in it one for the decision, with an event for each candidate.

The trace is the client's where its `traceparent` says so, and then its sampling holds; a request
without one starts a trace with probability `sample_ratio`. That is settled when the request is decided, and only
one that is sampled pays: its explanation is made right after its reply is on its way, one in each turn of the
loop, and kept until the request is over. Spans are handed to a bounded queue and exported by a thread of their
own: a collector that is slow or away loses spans, never requests. What a span says is what the record of the
request says: never a prompt.

OpenTelemetry comes with the extra `tracing`; it is imported when first needed. Names are those of its semantic
conventions where they have one (`gen_ai.*`, `server.*`, `error.type`), and `picker.*` else.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from picker.config import ConfigError, Tracing
from picker.decision import Finished, Picked
from picker.outcomes import EndpointView, Explanation, Metered, Outcome
from picker.pool.specs import split_address
from picker.version import __version__

QUEUE_SPANS_MAX = 4096
OPEN_MAX = 4096
"""Sampled requests that are decided and not over. One more has no span."""
CANDIDATES_MAX = 12
"""Events of a decision: the pick, and the cheapest of the others that are shown."""
EXPORT_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 3.0

_NANOSECONDS = 1_000_000_000
_OPERATIONS = {
    "chat_completions": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "completion": "text_completion",
    "embeddings": "embeddings",
    "generate_content": "generate_content",
}
"""`gen_ai.operation.name` of an API, where the conventions have a name for it."""


class _Sampled:
    """A sampled request that is decided. `decided_at`: nanoseconds since the epoch. `parent`: its context, if any."""

    __slots__ = ("_picked", "candidates", "decided_at", "explanation", "parent")

    def __init__(self, picked: Picked, decided_at: int, parent: Any) -> None:
        self._picked: Picked | None = picked
        self.decided_at = decided_at
        self.parent = parent
        self.explanation: Explanation | None = None
        self.candidates: tuple[EndpointView, ...] = ()

    def explain(self) -> None:
        """Turn what the decision holds (its columns) into what a span says. Twice is fine."""
        picked, self._picked = self._picked, None
        if picked is None:
            return
        explanation = picked.explain()
        pick, *others = explanation.endpoints
        others.sort(key=lambda view: view.cost_seconds)
        self.candidates = (pick, *others[: CANDIDATES_MAX - 1])
        self.explanation = Explanation(
            explanation.reason, explanation.summary, explanation.prompt_tokens, explanation.prompt_blocks, ()
        )


class Tracer:
    """Owns the exporter. `decided` and `finished` are cheap; `close` gives what is queued a moment to leave."""

    def __init__(
        self,
        settings: Tracing,
        *,
        pool_name: str,
        clock: Callable[[], int] = time.time_ns,
        rng: Random | None = None,
    ) -> None:
        """`clock`: the wall's, in nanoseconds. Raises `ConfigError` where the extra is missing."""
        assert settings.otlp_endpoint is not None
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigError(
                "tracing.otlp_endpoint is set, but OpenTelemetry is not installed: "
                "pip install 'inference-picker[tracing]', or leave tracing out of the configuration"
            ) from None
        self._clock = clock
        self._rng = rng if rng is not None else Random()
        self._sample_ratio = settings.sample_ratio
        self._open: dict[Finished, _Sampled] = {}
        self._unexplained: deque[_Sampled] = deque()
        self._trace = trace
        self._error = trace.Status(trace.StatusCode.ERROR)
        self._extract = TraceContextTextMapPropagator().extract
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # a span is begun only for what is sampled
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

    def decided(self, picked: Picked, record: Finished) -> None:
        """A request was routed: here it is sampled or not. Belongs to the event loop."""
        if len(self._open) >= OPEN_MAX:
            return
        sampled, parent = self._samples(record)
        if not sampled:
            return
        request = self._open[record] = _Sampled(picked, self._clock(), parent)
        self._unexplained.append(request)
        if len(self._unexplained) == 1:
            asyncio.get_running_loop().call_soon(self._explain_next)

    def finished(self, record: Finished) -> None:
        """The spans of one exchange that is over."""
        request = self._open.pop(record, None)
        if record.outcome is Outcome.UNSEEN:
            return
        if request is not None:
            self._send(record, request.parent, request)
        elif record.reason is None:  # never routed, so that `decided` did not see it
            sampled, parent = self._samples(record)
            if sampled:
                self._send(record, parent, None)

    def _samples(self, record: Finished) -> tuple[bool, Any]:
        """Whether it is sampled, and the client's context, where it sent one."""
        if record.trace_parent is not None:
            context = self._extract({"traceparent": record.trace_parent})
            told = self._trace.get_current_span(context).get_span_context()
            if told.is_valid:
                return bool(told.trace_flags.sampled), context
        return self._rng.random() < self._sample_ratio, None

    def _explain_next(self) -> None:
        """One in a turn of the loop: among a thousand endpoints it takes most of a millisecond."""
        try:
            self._unexplained[0].explain()
        finally:
            self._unexplained.popleft()
            if self._unexplained:
                asyncio.get_running_loop().call_soon(self._explain_next)

    def _send(self, record: Finished, parent: Any, request: _Sampled | None) -> None:
        ended_at = self._clock()
        began_at = ended_at - int(record.duration_seconds * _NANOSECONDS)
        span = self._tracer.start_span(
            f"route {record.path}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes(record),
            start_time=began_at,
        )
        if request is not None:
            self._send_decision(record, request, self._trace.set_span_in_context(span), began_at, ended_at)
        if _failed(record):
            span.set_status(self._error)
        span.end(ended_at)

    def _send_decision(self, record: Finished, request: _Sampled, context: Any, began_at: int, ended_at: int) -> None:
        """Within its request's time, also where the wall clock was set in between."""
        request.explain()
        decided_at = min(max(request.decided_at, began_at), ended_at)
        took = int((record.decision_seconds or 0.0) * _NANOSECONDS)
        span = self._tracer.start_span(
            "picker.decision",
            context=context,
            attributes=decision_attributes(record, request.explanation, request.candidates),
            start_time=max(began_at, decided_at - took),
        )
        for view in request.candidates:
            span.add_event("picker.candidate", candidate_attributes(view), decided_at)
        span.end(decided_at)

    async def close(self) -> None:
        """Flush. A collector that does not answer is given up after a bounded time."""
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


def _failed(record: Finished) -> bool:
    return record.outcome is Outcome.FAILED or (record.status is not None and record.status >= 500)


def attributes(record: Finished) -> dict[str, Any]:
    """What a span says of a request; what is unknown is left out."""
    usage = record.usage
    error = (record.reject_word or str(record.status or record.outcome)) if _failed(record) else None
    return _known(
        {
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
            "picker.tenant": record.tenant,
            "picker.usage": str(record.metered) if record.metered is not Metered.NONE else None,
            "picker.engine_seconds": record.engine_seconds,
            "http.response.status_code": record.status,
            "error.type": error,
            "gen_ai.operation.name": _OPERATIONS.get(record.path),
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": usage.input_tokens if usage is not None else None,
            "gen_ai.usage.output_tokens": usage.output_tokens if usage is not None else None,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage is not None else None,
        }
    )


def decision_attributes(
    record: Finished, explanation: Explanation | None, candidates: tuple[EndpointView, ...]
) -> dict[str, Any]:
    """Of the pick, also where another endpoint served in the end."""
    pick = candidates[0] if candidates else None
    return _known(
        {
            "picker.reason": record.reason and str(record.reason),
            "picker.summary": explanation.summary if explanation is not None else None,
            "picker.prompt_tokens": explanation.prompt_tokens if explanation is not None else None,
            "picker.matched_share": record.matched_share,
            "picker.predicted_ttft_seconds": record.predicted_ttft_seconds,
            "picker.tenant": record.tenant,
            "gen_ai.operation.name": _OPERATIONS.get(record.path),
            "gen_ai.request.model": record.model,
            **(_place(pick) if pick is not None else {}),
        }
    )


def candidate_attributes(view: EndpointView) -> dict[str, Any]:
    """Seconds as estimated at the decision, all of them and by what they are for."""
    return {
        **_place(view),
        "picker.picked": view.picked,
        "picker.matched_share": view.matched_share,
        "picker.cost_seconds": view.cost_seconds,
        **{f"picker.seconds.{name}": seconds for name, seconds in view.seconds.items()},
        "picker.why": view.why,
    }


def _place(view: EndpointView) -> dict[str, Any]:
    place: dict[str, Any] = {"picker.endpoint": view.address, "picker.endpoint_name": view.name}
    try:
        place["server.address"], place["server.port"] = split_address(view.address)
    except ValueError:
        pass
    return place


def _known(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
