"""Our own metrics: one call a request, one page a scrape.

`finished()` is the hot path: one look-up for all the counters that requests of the same kind raise
together (`_Tally`, spread over the families when the page is read), and an append for each
histogram. Everything that is a state rather than an event (pool, index, in flight) is asked for when the page is read.

Two sets of names stand side by side: ours (`picker_*`), and those that dashboards and
autoscalers know from the Gateway API Inference Extension (`inference_objective_*`,
`inference_pool_*`, `inference_extension_*`), with the same meaning, labels and buckets.

Invariants: label values that clients choose are capped and admitted only by a server's success
(`CappedLabel`); counters of an endpoint that left go with it; nothing here holds a prompt.
"""

from collections.abc import Callable, Iterator
from typing import Final

from picker.decision import Finished
from picker.edge import telemetry_buckets as buckets
from picker.edge.telemetry_models import ModelSeries, model_parts
from picker.edge.telemetry_pool import pool_parts
from picker.edge.telemetry_series import CappedLabel, Counters, Histogram, family
from picker.edge.telemetry_view import PoolView
from picker.outcomes import Outcome
from picker.scheduling.fused import COMPILED
from picker.version import __version__

MODELS_MAX: Final = 100
ATTEMPTS_MAX: Final = 10_000
TALLIES_MAX: Final = 1_024
"""Kinds of requests that are counted apart before they are spread: 3 us each, once."""
WORDS_MAX: Final = 100


class _Tally:
    """How many requests ended that agree in everything that counters tell apart. `series` is `None` for the unseen."""

    __slots__ = ("count", "model", "sample", "series")

    def __init__(self, sample: Finished, model: str, series: ModelSeries | None) -> None:
        self.count = 0
        self.sample = sample
        self.model = model
        self.series = series


class Telemetry:
    """All accumulators of a process. Not thread-safe: it belongs to the event loop."""

    def __init__(self, pool_view: Callable[[], PoolView], *, models_max: int = MODELS_MAX) -> None:
        self._pool_view = pool_view
        self._requests = Counters("picker_requests_total", "Requests by how they ended.", ("outcome", "path"))
        self._refusals = Counters(
            "picker_refusals_total", "Requests that the picker itself answered, by its reason.", ("reason",)
        )
        self._decisions = Counters("picker_decisions_total", "Picks by why that endpoint.", ("reason",))
        self._attempts: dict[tuple[str, str, str], list[float]] = {}
        self._reloads = Counters("picker_config_reloads_total", "Configuration reloads by result.", ("result",))
        self._scrapes_failed = Counters("picker_engine_scrape_failures_total", "Engine metrics reads that failed.")
        self._predicted_hit = Counters(
            "picker_predicted_hit_tokens_total", "Prompt tokens expected in the cache, where usage told the truth."
        )
        self._observed_hit = Counters(
            "picker_observed_hit_tokens_total", "Prompt tokens that engines reported as cached."
        )
        self._hit_base = Counters(
            "picker_hit_prompt_tokens_total", "All prompt tokens of the requests in the two counters of hits."
        )
        self._matched_share = Histogram(buckets.SHARES)
        self._decision_seconds = Histogram(buckets.DECISION_SECONDS)
        self._ttft_ratio = Histogram(buckets.RATIOS)
        self._hit_bytes = Histogram(buckets.HIT_BYTES)
        self._models_label = CappedLabel(models_max)
        self._words_label = CappedLabel(WORDS_MAX)
        self._models: dict[str, ModelSeries] = {}
        self._tallies: dict[tuple[object, ...], _Tally] = {}
        self._reload_ok: bool | None = None

    def finished(self, finished: Finished) -> None:
        """Count one exchange. Called exactly once for each, however it ended."""
        key = (
            finished.outcome,
            finished.path,
            finished.model,
            finished.priority,
            finished.status,
            finished.reason,
            finished.address,
            finished.reject_word,
        )
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = self._tally(finished)
        tally.count += 1
        series = tally.series
        if series is None:
            return
        series.observe(finished)
        if finished.decision_seconds is not None:
            self._decision_seconds.observe(finished.decision_seconds)
        share = finished.matched_share
        if share is not None and finished.reason is not None:
            self._picked(finished, share)

    def _tally(self, finished: Finished) -> _Tally:
        """For requests of a kind not seen since the last spreading."""
        if len(self._tallies) >= TALLIES_MAX:
            self._spread()
        sample = Finished(
            outcome=finished.outcome,
            path=finished.path,
            model=finished.model,
            priority=finished.priority,
            status=finished.status,
            reason=finished.reason,
            address=finished.address,
            reject_word=finished.reject_word,
        )
        if finished.outcome is Outcome.UNSEEN:
            return _Tally(sample, "", None)
        served = finished.status is not None and finished.status < 400
        known = len(self._models_label)
        model = self._models_label.of(finished.model, admit=served)
        if len(self._models_label) != known:
            self._spread()  # what was `other` until now has a name: later failures count under it
        series = self._models.get(model)
        if series is None:
            series = self._models[model] = ModelSeries()
        return _Tally(sample, model, series)

    def _spread(self) -> None:
        """Give every counter what the tallies hold for it."""
        tallies, self._tallies = self._tallies, {}
        for tally in tallies.values():
            sample, count = tally.sample, tally.count
            self._requests.add(sample.outcome.value, sample.path, by=count)
            if tally.series is None:
                continue
            tally.series.count(sample, count)
            if sample.reason is not None:
                self._decisions.add(sample.reason.value, by=count)
                self._attempt("success", tally.model, sample.address or "", count)
                continue
            if sample.outcome is Outcome.UNAVAILABLE:
                self._attempt("failure", tally.model, "", count)
            if sample.reject_word is not None:
                self._refusals.add(self._words_label.of(sample.reject_word, admit=True), by=count)

    def _picked(self, finished: Finished, share: float) -> None:
        self._matched_share.observe(share)
        self._hit_bytes.observe(share * finished.request_bytes)
        predicted = finished.predicted_ttft_seconds
        if predicted and finished.ttft_seconds is not None:
            self._ttft_ratio.observe(finished.ttft_seconds / predicted)
        usage, cached_share = finished.usage, finished.cached_share
        if usage is not None and usage.cached_tokens is not None and usage.input_tokens and cached_share is not None:
            self._predicted_hit.children[()][0] += cached_share * usage.input_tokens
            self._observed_hit.children[()][0] += usage.cached_tokens
            self._hit_base.children[()][0] += usage.input_tokens

    def _attempt(self, status: str, model: str, address: str, count: int) -> None:
        key = (status, model, address)
        cell = self._attempts.get(key)
        if cell is None:
            if len(self._attempts) >= ATTEMPTS_MAX:
                key = (status, CappedLabel.OTHER, "")
            cell = self._attempts.setdefault(key, [0.0])
        cell[0] += count

    def config_reloaded(self, ok: bool) -> None:
        """A changed configuration file was taken (or refused, the last good one stays)."""
        self._reload_ok = ok
        self._reloads.add("success" if ok else "failure")

    def scrape_failed(self) -> None:
        """An engine's metrics page could not be read."""
        self._scrapes_failed.add()

    def parts(self, openmetrics: bool = False) -> Iterator[str]:
        """The page in parts, each a small step of work. Nothing is read before the first is asked for."""
        self._spread()
        view = self._pool_view()
        self._forget_absent(view)
        build = f'version="{__version__}",build="{"compiled" if COMPILED else "interpreted"}"'
        yield from family("picker_build_info", "The picker that runs.", "gauge", [("", build, 1)], openmetrics)
        for counters in (
            self._requests,
            self._refusals,
            self._decisions,
            self._reloads,
            self._scrapes_failed,
            self._predicted_hit,
            self._observed_hit,
            self._hit_base,
        ):
            yield from counters.parts(openmetrics)
        yield from self._histograms(openmetrics)
        if self._reload_ok is not None:
            yield from family(
                "picker_config_last_reload_successful",
                "1 if the last change of the configuration was taken, 0 if the one before still holds.",
                "gauge",
                [("", "", int(self._reload_ok))],
                openmetrics,
            )
        yield from pool_parts(view, self._attempts, openmetrics)
        yield from model_parts(self._models, view, openmetrics)
        if openmetrics:
            yield "# EOF\n"

    def _histograms(self, openmetrics: bool) -> Iterator[str]:
        share, seconds = self._matched_share, self._decision_seconds
        for name, help_text, lines in (
            ("picker_matched_share", "Share of the prompt that the picked endpoint holds.", share.lines("")),
            ("picker_decision_seconds", "The picker's own work for a decision.", seconds.lines("")),
            (
                "picker_ttft_prediction_ratio",
                "Observed over predicted time to first token.",
                self._ttft_ratio.lines(""),
            ),
            ("inference_extension_prefix_indexer_hit_ratio", "Matched share of the prompt.", share.lines("")),
            (
                "inference_extension_prefix_indexer_hit_bytes",
                "Matched share of the prompt in bytes of the request.",
                self._hit_bytes.lines(""),
            ),
            (
                "inference_extension_scheduler_e2e_duration_seconds",
                "Time to decide.",
                seconds.lines("", buckets.SCHEDULER_SECONDS),
            ),
        ):
            yield from family(name, help_text, "histogram", lines, openmetrics)

    def _forget_absent(self, view: PoolView) -> None:
        present = {row.address for row in view.endpoints}
        for key in [key for key in self._attempts if key[2] and key[2] not in present]:
            del self._attempts[key]
