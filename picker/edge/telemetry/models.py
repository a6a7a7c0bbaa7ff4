"""What is counted for each model and priority, under the names that dashboards know.

The older names are the Gateway API Inference Extension's (`inference_objective_*`), the newer ones the llm-d
router's (`llm_d_epp_*`), which tells priorities apart where the older do not. Both show the same accumulators.
`target_model_name` is the model that was asked for: the picker rewrites none. Names of these sets
for which the picker measures nothing (predictions of time per output token, SLO violations,
model rewrites, prefill/decode splits) are absent rather than 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from picker.decision import Finished
from picker.edge.telemetry import buckets
from picker.edge.telemetry.series import Histogram, Line, family, label_text, lines_of
from picker.outcomes import Outcome

CLASSES_MAX: Final = 512
"""Pairs of a model and a priority that have series of their own; of those beyond, each model has one, under 0."""
FAIRNESS_ID: Final = "default-flow"
"""What the llm-d router calls the flow of a request that names none. The picker has no flows."""
PREDICTOR: Final = "predicted-latency-producer"
"""The plug-in of the llm-d router that predicts, by its default name."""
_COMPLETED: Final = Outcome.COMPLETED
_OURS = frozenset({Outcome.REJECTED, Outcome.SHED, Outcome.UNAVAILABLE, Outcome.FAILED})

_MODEL: Final = ("model_name", "target_model_name")
_CLASS: Final = (*_MODEL, "fairness_id", "priority")
_PREDICTION: Final = ("plugin_name", "plugin_type", *_MODEL)

_HISTOGRAMS: tuple[tuple[tuple[str, ...], str, str, str, tuple[float, ...], tuple[float, ...] | None], ...] = (
    (
        ("whole_duration_seconds", "streamed_duration_seconds"),
        "request_duration_seconds",
        "request_duration_seconds",
        "Time from the request's headers to the end of the response.",
        buckets.GENERAL_SECONDS,
        None,
    ),
    (
        ("tpot_seconds",),
        "request_tpot_seconds",
        "request_streaming_tpot_seconds",
        "Time per output token after the first, of streamed responses.",
        buckets.TPOT_SECONDS,
        buckets.EPP_TPOT_SECONDS,
    ),
    (
        ("ntpot_seconds",),
        "normalized_time_per_output_token_seconds",
        "request_ntpot_seconds",
        "Duration over output tokens.",
        buckets.NTPOT_SECONDS,
        None,
    ),
    (
        ("request_bytes",),
        "request_sizes",
        "request_size_bytes",
        "Bytes of the request's body.",
        buckets.REQUEST_BYTES,
        None,
    ),
    (
        ("response_bytes",),
        "response_sizes",
        "response_size_bytes",
        "Bytes of the response's body.",
        buckets.RESPONSE_BYTES,
        None,
    ),
    (
        ("input_tokens",),
        "input_tokens",
        "request_input_tokens",
        "Prompt tokens that the response reported.",
        buckets.INPUT_TOKENS,
        None,
    ),
    (
        ("output_tokens",),
        "output_tokens",
        "request_output_tokens",
        "Output tokens that the response reported.",
        buckets.OUTPUT_TOKENS,
        None,
    ),
    (
        ("cached_tokens",),
        "prompt_cached_tokens",
        "request_cached_tokens",
        "Cached prompt tokens that the response reported.",
        buckets.INPUT_TOKENS,
        None,
    ),
)
"""Attributes of `ModelSeries`, name after `inference_objective_`, name after `llm_d_epp_`, help, bounds, and what
the newer name shows of them where that is less."""

_TTFT_HELP: Final = "Time to the first byte of the response's body, of streamed responses."
_EPP_TTFT_HELP: Final = "Time to the first event of a streamed response, and to the end of any other."
_PREDICTED_HELP: Final = "Predicted time to first token."


class ModelSeries:
    """All accumulators of one model at one priority. A histogram that saw nothing is not shown."""

    __slots__ = (
        "errors",
        "model",
        "predicted_ttft_seconds",
        "priority",
        "requests",
        "ttft_seconds",
        *(attribute for row in _HISTOGRAMS for attribute in row[0]),
    )

    whole_duration_seconds: Histogram
    streamed_duration_seconds: Histogram
    """Of requests that asked for a stream; `whole`: of the others."""
    tpot_seconds: Histogram
    ntpot_seconds: Histogram
    request_bytes: Histogram
    response_bytes: Histogram
    input_tokens: Histogram
    output_tokens: Histogram
    cached_tokens: Histogram

    def __init__(self, model: str, priority: int) -> None:
        self.model = model
        self.priority = priority
        self.requests = 0
        self.errors: dict[str, int] = {}
        self.ttft_seconds = Histogram(buckets.GENERAL_SECONDS)
        self.predicted_ttft_seconds = Histogram(buckets.GENERAL_SECONDS)
        for attributes, _, _, _, bounds, _ in _HISTOGRAMS:
            for attribute in attributes:
                setattr(self, attribute, Histogram(bounds))

    def count(self, sample: Finished, count: int) -> None:
        """So many requests ended like `sample`."""
        self.requests += count
        error = _error_code(sample)
        if error is not None:
            self.errors[error] = self.errors.get(error, 0) + count

    def observe(self, finished: Finished) -> None:
        """What is different for each request."""
        self.request_bytes.observe(finished.request_bytes)
        if finished.outcome is not _COMPLETED:
            return
        duration_seconds = finished.duration_seconds
        if finished.streaming:
            self.streamed_duration_seconds.observe(duration_seconds)
        else:
            self.whole_duration_seconds.observe(duration_seconds)
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


def model_parts(
    series: Iterable[ModelSeries], running: Mapping[tuple[str, int], int], openmetrics: bool
) -> Iterator[str]:
    """The page's families by model. `running`: requests in flight by the model's label and the priority."""
    classes = sorted(series, key=lambda each: each.priority)
    models: dict[str, list[ModelSeries]] = {}
    for each in classes:
        models.setdefault(each.model, []).append(each)
    yield from _older(models, running, openmetrics)
    yield from _newer(classes, models, running, openmetrics)


def _older(
    models: Mapping[str, Sequence[ModelSeries]], running: Mapping[tuple[str, int], int], openmetrics: bool
) -> Iterator[str]:
    yield from family(
        "inference_objective_request_total",
        "Requests by model and priority.",
        "counter",
        (
            ("", label_text((*_MODEL, "priority"), (model, model, str(each.priority))), each.requests)
            for model, classes in models.items()
            for each in classes
        ),
        openmetrics,
    )
    yield from family(
        "inference_objective_request_error_total",
        "Requests that ended in an error, by code.",
        "counter",
        (
            ("", label_text((*_MODEL, "error_code"), (model, model, code)), count)
            for model, classes in models.items()
            for code, count in _summed((code, count) for each in classes for code, count in each.errors.items())
        ),
        openmetrics,
    )
    for attributes, name, _, help_text, _, _ in _HISTOGRAMS:
        lines = _by_model(models, attributes)
        yield from family(f"inference_objective_{name}", help_text, "histogram", lines, openmetrics)
    for attribute, help_text in (("ttft_seconds", _TTFT_HELP), ("predicted_ttft_seconds", _PREDICTED_HELP)):
        lines = _by_model(models, (attribute,))
        yield from family(f"inference_objective_request_{attribute}", help_text, "histogram", lines, openmetrics)
    yield from family(
        "inference_objective_running_requests",
        "Requests in flight by model.",
        "gauge",
        (
            ("", label_text(("model_name",), (model,)), count)
            for model, count in _summed((model, count) for (model, _), count in running.items())
        ),
        openmetrics,
    )


def _newer(
    classes: Sequence[ModelSeries],
    models: Mapping[str, Sequence[ModelSeries]],
    running: Mapping[tuple[str, int], int],
    openmetrics: bool,
) -> Iterator[str]:
    yield from family(
        "llm_d_epp_request_total",
        "Requests by model and priority.",
        "counter",
        (("", class_text(each.model, each.priority), each.requests) for each in classes),
        openmetrics,
    )
    yield from family(
        "llm_d_epp_request_error_total",
        "Requests that ended in an error, by code.",
        "counter",
        (
            ("", f"{class_text(each.model, each.priority)},{label_text(('error_code',), (code,))}", count)
            for each in classes
            for code, count in sorted(each.errors.items())
        ),
        openmetrics,
    )
    for attributes, _, name, help_text, _, shown in _HISTOGRAMS:
        lines = _by_class(classes, attributes, shown)
        yield from family(f"llm_d_epp_{name}", help_text, "histogram", lines, openmetrics)
    yield from family(
        "llm_d_epp_request_ttft_seconds", _EPP_TTFT_HELP, "histogram", _ttft_by_class(classes), openmetrics
    )
    yield from family(
        "llm_d_epp_request_predicted_ttft_seconds",
        _PREDICTED_HELP,
        "histogram",
        _by_model(models, ("predicted_ttft_seconds",), predicted=True),
        openmetrics,
    )
    yield from family(
        "llm_d_epp_request_running",
        "Requests in flight by model and priority.",
        "gauge",
        (("", class_text(model, priority), count) for (model, priority), count in running.items()),
        openmetrics,
    )


def class_text(model: str, priority: int) -> str:
    """The labels that the newer names have for a request."""
    return label_text(_CLASS, (model, model, FAIRNESS_ID, str(priority)))


def _summed(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for key, count in counts:
        sums[key] = sums.get(key, 0) + count
    return sorted(sums.items())


def _filled(classes: Iterable[ModelSeries], attributes: tuple[str, ...]) -> list[Histogram]:
    """Of these, the histograms that saw something."""
    found: list[Histogram] = [getattr(each, attribute) for attribute in attributes for each in classes]
    return [histogram for histogram in found if not histogram.empty]


def _by_model(
    models: Mapping[str, Sequence[ModelSeries]], attributes: tuple[str, ...], *, predicted: bool = False
) -> Iterator[Line]:
    """`predicted`: with the labels that the newer name of a prediction has."""
    for model, classes in models.items():
        filled = _filled(classes, attributes)
        if filled and predicted:
            yield from lines_of(filled, label_text(_PREDICTION, (PREDICTOR, PREDICTOR, model, model)))
        elif filled:
            yield from lines_of(filled, label_text(_MODEL, (model, model)))


def _by_class(
    classes: Sequence[ModelSeries], attributes: tuple[str, ...], bounds: tuple[float, ...] | None
) -> Iterator[Line]:
    for each in classes:
        filled = _filled((each,), attributes)
        if filled:
            yield from lines_of(filled, class_text(each.model, each.priority), bounds)


def _ttft_by_class(classes: Sequence[ModelSeries]) -> Iterator[Line]:
    """Where nothing is streamed, the answer is there at once: its first token comes when it is whole."""
    for each in classes:
        labels = class_text(each.model, each.priority)
        for streaming, histogram in (("false", each.whole_duration_seconds), ("true", each.ttft_seconds)):
            if not histogram.empty:
                yield from histogram.lines(f'{labels},streaming="{streaming}"', buckets.EPP_TTFT_SECONDS)
