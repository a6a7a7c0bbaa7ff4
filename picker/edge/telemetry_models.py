"""What is counted for each model, under the names of the Gateway API Inference Extension.

`target_model_name` is the model that was asked for: the picker rewrites none. Names of that set
for which the picker measures nothing (predictions of time per output token, SLO violations,
model rewrites, prefill/decode splits) are absent rather than 0.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from picker.decision import Finished
from picker.edge import telemetry_buckets as buckets
from picker.edge.telemetry_series import Histogram, Line, family, label_text
from picker.edge.telemetry_view import PoolView
from picker.outcomes import Outcome

PRIORITIES_MAX = 64
_COMPLETED: Final = Outcome.COMPLETED
_OURS = frozenset({Outcome.REJECTED, Outcome.SHED, Outcome.UNAVAILABLE, Outcome.FAILED})

_HISTOGRAMS: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (
    (
        "duration_seconds",
        "request_duration_seconds",
        "Time from the request's headers to the end of the response.",
        buckets.GENERAL_SECONDS,
    ),
    (
        "ttft_seconds",
        "request_ttft_seconds",
        "Time to the first byte of the response's body.",
        buckets.GENERAL_SECONDS,
    ),
    (
        "predicted_ttft_seconds",
        "request_predicted_ttft_seconds",
        "Predicted time to first token.",
        buckets.GENERAL_SECONDS,
    ),
    (
        "tpot_seconds",
        "request_tpot_seconds",
        "Time per output token after the first, of streamed responses.",
        buckets.TPOT_SECONDS,
    ),
    (
        "ntpot_seconds",
        "normalized_time_per_output_token_seconds",
        "Duration over output tokens.",
        buckets.NTPOT_SECONDS,
    ),
    ("request_bytes", "request_sizes", "Bytes of the request's body.", buckets.REQUEST_BYTES),
    ("response_bytes", "response_sizes", "Bytes of the response's body.", buckets.RESPONSE_BYTES),
    ("input_tokens", "input_tokens", "Prompt tokens that the response reported.", buckets.INPUT_TOKENS),
    ("output_tokens", "output_tokens", "Output tokens that the response reported.", buckets.OUTPUT_TOKENS),
    (
        "cached_tokens",
        "prompt_cached_tokens",
        "Cached prompt tokens that the response reported.",
        buckets.INPUT_TOKENS,
    ),
)
"""Attribute of `ModelSeries`, name after `inference_objective_`, help, bounds."""


class ModelSeries:
    """All accumulators of one model. A histogram that saw nothing is not shown."""

    __slots__ = ("by_priority", "errors", *(row[0] for row in _HISTOGRAMS))

    duration_seconds: Histogram
    ttft_seconds: Histogram
    predicted_ttft_seconds: Histogram
    tpot_seconds: Histogram
    ntpot_seconds: Histogram
    request_bytes: Histogram
    response_bytes: Histogram
    input_tokens: Histogram
    output_tokens: Histogram
    cached_tokens: Histogram

    def __init__(self) -> None:
        self.by_priority: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        for attribute, _, _, bounds in _HISTOGRAMS:
            setattr(self, attribute, Histogram(bounds))

    def count(self, sample: Finished, count: int) -> None:
        """So many requests ended like `sample`."""
        priority = sample.priority
        if priority not in self.by_priority and len(self.by_priority) >= PRIORITIES_MAX:
            priority = 0
        self.by_priority[priority] = self.by_priority.get(priority, 0) + count
        error = _error_code(sample)
        if error is not None:
            self.errors[error] = self.errors.get(error, 0) + count

    def observe(self, finished: Finished) -> None:
        """What is different for each request."""
        self.request_bytes.observe(finished.request_bytes)
        if finished.outcome is not _COMPLETED:
            return
        duration_seconds = finished.duration_seconds
        self.duration_seconds.observe(duration_seconds)
        self.response_bytes.observe(finished.response_bytes)
        ttft_seconds = finished.ttft_seconds
        if ttft_seconds is not None:
            self.ttft_seconds.observe(ttft_seconds)
        if finished.predicted_ttft_seconds is not None:
            self.predicted_ttft_seconds.observe(finished.predicted_ttft_seconds)
        usage = finished.usage
        if usage is None:
            return
        if usage.input_tokens is not None:
            self.input_tokens.observe(usage.input_tokens)
        if usage.cached_tokens is not None:
            self.cached_tokens.observe(usage.cached_tokens)
        output = usage.output_tokens
        if output:
            self.output_tokens.observe(output)
            self.ntpot_seconds.observe(duration_seconds / output)
            if finished.streaming and ttft_seconds is not None and output > 1:
                self.tpot_seconds.observe(max(0.0, duration_seconds - ttft_seconds) / (output - 1))


def _error_code(finished: Finished) -> str | None:
    """Bounded by construction: an HTTP status, or our own word."""
    if finished.outcome is Outcome.ABORTED:
        return "ClientDisconnected"
    if finished.status is not None and 400 <= finished.status <= 599:
        return str(finished.status)
    return "Internal" if finished.outcome in _OURS else None


def model_parts(models: Mapping[str, ModelSeries], view: PoolView, openmetrics: bool) -> Iterator[str]:
    """The page's families by model."""
    rows = list(models.items())

    def lines_of(attribute: str) -> Iterable[Line]:
        for model, series in rows:
            histogram: Histogram = getattr(series, attribute)
            if not histogram.empty:
                yield from histogram.lines(label_text(("model_name", "target_model_name"), (model, model)))

    yield from family(
        "inference_objective_request_total",
        "Requests by model and priority.",
        "counter",
        (
            ("", label_text(("model_name", "target_model_name", "priority"), (model, model, str(priority))), count)
            for model, series in rows
            for priority, count in sorted(series.by_priority.items())
        ),
        openmetrics,
    )
    yield from family(
        "inference_objective_request_error_total",
        "Requests that ended in an error, by code.",
        "counter",
        (
            ("", label_text(("model_name", "target_model_name", "error_code"), (model, model, code)), count)
            for model, series in rows
            for code, count in sorted(series.errors.items())
        ),
        openmetrics,
    )
    for attribute, name, help_text, _ in _HISTOGRAMS:
        yield from family(f"inference_objective_{name}", help_text, "histogram", lines_of(attribute), openmetrics)
    yield from family(
        "inference_objective_running_requests",
        "Requests in flight by model.",
        "gauge",
        (("", label_text(("model_name",), (model,)), count) for model, count in view.running_by_model.items()),
        openmetrics,
    )
