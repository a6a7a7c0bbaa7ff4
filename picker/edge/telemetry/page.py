"""Our own metrics: one call a request, one page a scrape.

`finished()` is the hot path: one look-up for all the counters that requests of the same kind raise
together (`_Tally`, spread over the families when the page is read), and an append for each
histogram. Everything that is a state rather than an event (pool, index, in flight) is asked for when the page is read.

Three sets of names stand side by side: ours (`picker_*`), and those that dashboards and autoscalers know,
with the same meaning, labels and buckets: from the Gateway API Inference Extension (`inference_objective_*`,
`inference_pool_*`, `inference_extension_*`), and from the llm-d router, which renamed these (`llm_d_epp_*`).
All of them show the same accumulators.

Invariants: label values that clients choose are capped and admitted only by a server's success
(`CappedLabel`); counters of an endpoint that left go with it; nothing here holds a prompt.
"""

from collections.abc import Callable, Iterator
from typing import Final

from picker.decision import Finished
from picker.edge.telemetry import buckets
from picker.edge.telemetry.epp_names import APPROXIMATE, epp_parts
from picker.edge.telemetry.faults import PLACES
from picker.edge.telemetry.models import CLASSES_MAX, ModelSeries, model_parts
from picker.edge.telemetry.objectives import ObjectiveCounts
from picker.edge.telemetry.pool import pool_parts
from picker.edge.telemetry.series import CappedLabel, Counters, Histogram, family, nothing_listed
from picker.edge.telemetry.tenants import TenantBook
from picker.edge.telemetry.view import PoolView
from picker.kernels import Build, build
from picker.outcomes import Outcome
from picker.version import __version__

MODELS_MAX: Final = 100
TENANTS_MAX: Final = 100
ATTEMPTS_MAX: Final = 10_000
TALLIES_MAX: Final = 1_024
"""Kinds of requests that are counted apart before they are spread: 3 us each, once."""
WORDS_MAX: Final = 100
_NOT_ADMITTED: Final = {Outcome.SHED: "RejectedCapacity", Outcome.UNAVAILABLE: "RejectedNoEndpoints"}
"""In the words of the llm-d router's flow control."""


class Hits:
    """Prompt tokens of routed requests that ended, and what of them was cached: as expected, and as answers told."""

    __slots__ = ("cached_tokens", "expected_tokens", "input_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0.0
        """As estimated."""
        self.expected_tokens = 0.0
        """Of these, expected in the cache of the endpoint that was picked."""
        self.input_tokens = 0.0
        """Of the requests whose answers told how much was cached."""
        self.cached_tokens = 0.0

    def add(self, other: "Hits", count: int) -> None:
        """And those of so many requests more."""
        self.requests += count
        self.prompt_tokens += other.prompt_tokens
        self.expected_tokens += other.expected_tokens
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens


class Totals:
    """Counts since the start, for who takes differences."""

    __slots__ = ("outcomes", "reasons", "server_errors", "ttft_cells")

    def __init__(
        self, outcomes: dict[str, float], reasons: dict[str, float], server_errors: int, ttft_cells: list[float]
    ) -> None:
        self.outcomes = outcomes
        self.reasons = reasons
        self.server_errors = server_errors
        """Answers with a status of 500 or more, ours and theirs."""
        self.ttft_cells = ttft_cells
        """By `buckets.TTFT_SECONDS`, then beyond, then the sum of seconds."""


class _Tally:
    """How many requests ended that agree in everything that counters tell apart. `series` is `None` for the unseen."""

    __slots__ = ("count", "hits", "model", "sample", "series")

    def __init__(self, sample: Finished, model: str, series: ModelSeries | None) -> None:
        self.count = 0
        self.hits = Hits()
        self.sample = sample
        self.model = model
        self.series = series


class Telemetry:
    """All accumulators of a process. Not thread-safe: it belongs to the event loop."""

    def __init__(
        self,
        pool_view: Callable[[], PoolView],
        *,
        models_max: int = MODELS_MAX,
        listed: Callable[[str], bool] = nothing_listed,
        tenants_max: int = TENANTS_MAX,
        tenant_named: Callable[[str], bool] = nothing_listed,
    ) -> None:
        """`listed`: whether an engine lists a model of that name; `tenant_named`: configuration, a tenant."""
        self._pool_view = pool_view
        self._requests = Counters("picker_requests_total", "Requests by how they ended.", ("outcome", "path"))
        self._refusals = Counters(
            "picker_refusals_total", "Requests that the picker itself answered, by its reason.", ("reason",)
        )
        self._decisions = Counters("picker_decisions_total", "Picks by why that endpoint.", ("reason",))
        self._attempts: dict[tuple[str, str, str], list[float]] = {}
        self._admissions: dict[tuple[str, int], int] = {}
        """By (how the request fared, its priority)."""
        self._reloads = Counters("picker_config_reloads_total", "Configuration reloads by result.", ("result",))
        self._scrapes_failed = Counters("picker_engine_scrape_failures_total", "Engine metrics reads that failed.")
        self._faults = Counters(
            "picker_faults_total", "Faults of the picker itself, by where they were met.", ("where",)
        )
        for place in PLACES:
            self._faults.child(place)
        self._predicted_hit = Counters(
            "picker_predicted_hit_tokens_total", "Prompt tokens expected in the cache, where usage told the truth."
        )
        self._observed_hit = Counters(
            "picker_observed_hit_tokens_total", "Prompt tokens that engines reported as cached."
        )
        self._hit_base = Counters(
            "picker_hit_prompt_tokens_total", "All prompt tokens of the requests in the two counters of hits."
        )
        self.objectives = ObjectiveCounts()
        self._matched_share = Histogram(buckets.SHARES)
        self._decision_seconds = Histogram(buckets.DECISION_SECONDS)
        self._ttft_ratio = Histogram(buckets.RATIOS)
        self._hit_bytes = Histogram(buckets.HIT_BYTES)
        self._loop_lag = Histogram(buckets.LAG_SECONDS)
        self._ttft = Histogram(buckets.TTFT_SECONDS)
        self._hits_by_address: dict[str, Hits] | None = None
        self._models_label = CappedLabel(models_max, listed=listed)
        self._words_label = CappedLabel(WORDS_MAX)
        self._models: dict[tuple[str, int], ModelSeries] = {}
        self._tenants = TenantBook(tenants_max, tenant_named)
        self._tallies: dict[tuple[object, ...], _Tally] = {}
        self._reload_ok: bool | None = None
        self._build = _build_labels(build())

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
        if self.objectives.targets:
            self.objectives.judge(finished)
        self._tenants.count(finished, tally.model)
        if finished.decision_seconds is not None:
            self._decision_seconds.observe(finished.decision_seconds)
        share = finished.matched_share
        if share is not None and finished.reason is not None:
            self._picked(finished, share, tally.hits)

    def _tally(self, finished: Finished) -> _Tally:
        """The counters for a kind of request that was not seen since the page was last read."""
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
        return _Tally(sample, model, self._series(model, finished.priority))

    def _series(self, model: str, priority: int) -> ModelSeries:
        series = self._models.get((model, priority))
        if series is None:
            if priority and len(self._models) >= CLASSES_MAX:
                return self._series(model, 0)
            series = self._models[model, priority] = ModelSeries(model, priority)
        return series

    def _spread(self) -> None:
        """Give every counter what the tallies hold for it."""
        tallies, self._tallies = self._tallies, {}
        for tally in tallies.values():
            sample, count = tally.sample, tally.count
            self._requests.add(sample.outcome.value, sample.path, by=count)
            if tally.series is None:
                continue
            tally.series.count(sample, count)
            self._admitted(sample, tally.series.priority, count)
            if sample.reason is not None:
                self._decisions.add(sample.reason.value, by=count)
                self._attempt("success", tally.model, sample.address or "", count)
                if self._hits_by_address is not None:
                    self._hit_at(sample.address or "", tally.hits, count)
                continue
            if sample.outcome is Outcome.UNAVAILABLE:
                self._attempt("failure", tally.model, "", count)
            if sample.reject_word is not None:
                self._refusals.add(self._words_label.of(sample.reject_word, admit=True), by=count)

    def _picked(self, finished: Finished, share: float, hits: Hits) -> None:
        self._matched_share.observe(share)
        self._hit_bytes.observe(share * finished.request_bytes)
        predicted = finished.predicted_ttft_seconds
        if finished.ttft_seconds is not None:
            self._ttft.observe(finished.ttft_seconds)
            if predicted:
                self._ttft_ratio.observe(finished.ttft_seconds / predicted)
        usage, cached_share = finished.usage, finished.cached_share
        tokens = finished.prompt_tokens_estimate
        if tokens is not None and cached_share is not None:
            hits.prompt_tokens += tokens
            hits.expected_tokens += cached_share * tokens
        if usage is not None and usage.cached_tokens is not None and usage.input_tokens:
            hits.input_tokens += usage.input_tokens
            hits.cached_tokens += usage.cached_tokens
        if usage is not None and usage.cached_tokens is not None and usage.input_tokens and cached_share is not None:
            self._predicted_hit.children[()][0] += cached_share * usage.input_tokens
            self._observed_hit.children[()][0] += usage.cached_tokens
            self._hit_base.children[()][0] += usage.input_tokens

    def _admitted(self, sample: Finished, priority: int, count: int) -> None:
        fared = "Dispatched" if sample.reason is not None else _NOT_ADMITTED.get(sample.outcome)
        if fared is not None:
            self._admissions[fared, priority] = self._admissions.get((fared, priority), 0) + count

    def _attempt(self, status: str, model: str, address: str, count: int) -> None:
        key = (status, model, address)
        cell = self._attempts.get(key)
        if cell is None:
            if len(self._attempts) >= ATTEMPTS_MAX:
                key = (status, CappedLabel.OTHER, "")
            cell = self._attempts.setdefault(key, [0.0])
        cell[0] += count

    def _hit_at(self, address: str, hits: Hits, count: int) -> None:
        assert self._hits_by_address is not None
        found = self._hits_by_address.get(address)
        if found is None:
            if len(self._hits_by_address) >= ATTEMPTS_MAX:
                address = ""
            found = self._hits_by_address.setdefault(address, Hits())
        found.add(hits, count)

    def totals(self) -> Totals:
        """What was counted until now."""
        self._spread()
        outcomes: dict[str, float] = {}
        for key, cell in self._requests.children.items():
            outcomes[key[0]] = outcomes.get(key[0], 0.0) + cell[0]
        reasons = {key[0]: cell[0] for key, cell in self._decisions.children.items()}
        errors = 0
        for series in self._models.values():
            for code, count in series.errors.items():
                errors += count if code.startswith("5") else 0
        return Totals(outcomes, reasons, errors, self._ttft.cells.copy())

    def take_hits(self) -> dict[str, Hits]:
        """By address, since it was last asked; from the first time on."""
        self._spread()
        taken, self._hits_by_address = self._hits_by_address, {}
        return taken or {}

    def leave_hits(self) -> None:
        """Nobody asks any more."""
        self._hits_by_address = None

    def config_reloaded(self, ok: bool) -> None:
        """A changed configuration file was taken (or refused, the last good one stays)."""
        self._reload_ok = ok
        self._reloads.add("success" if ok else "failure")

    def loop_lagged(self, seconds: float) -> None:
        """The event loop was woken so late."""
        self._loop_lag.observe(seconds)

    def faulted(self, where: str) -> None:
        """A fault of ours was met, in one of `PLACES`."""
        self._faults.add(where)

    def scrape_failed(self) -> None:
        """An engine's metrics page could not be read."""
        self._scrapes_failed.add()

    def parts(self, openmetrics: bool = False) -> Iterator[str]:
        """The page in parts, each a small step of work. Nothing is read before the first is asked for."""
        self._spread()
        view = self._pool_view()
        self._forget_absent(view)
        yield from family("picker_build_info", "The picker that runs.", "gauge", [("", self._build, 1)], openmetrics)
        for counters in (
            self._requests,
            self._refusals,
            self._decisions,
            self._reloads,
            self._scrapes_failed,
            self._faults,
            self._predicted_hit,
            self._observed_hit,
            self._hit_base,
            self.objectives.counters,
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
        failures = self._scrapes_failed.children[()][0]
        yield from epp_parts(view, self._attempts, self._admissions, failures, openmetrics)
        yield from self._tenants.parts(openmetrics)
        yield from model_parts(list(self._models.values()), self._running(view), openmetrics)
        if openmetrics:
            yield "# EOF\n"

    def _running(self, view: PoolView) -> dict[tuple[str, int], int]:
        """Requests in flight by label and priority: 0 where there were some before. Running alone admits no name."""
        running = dict.fromkeys(self._models, 0)
        others = dict(view.running_by_model)
        for (model, priority), count in view.running_by_priority.items():
            others[model] = others.get(model, 0) - count
            self._runs(running, model, priority, count)
        for model, count in others.items():
            self._runs(running, model, 0, count)
        return running

    def _runs(self, running: dict[tuple[str, int], int], model: str, priority: int, count: int) -> None:
        key = self._models_label.of(model, admit=False), priority
        if key not in running and len(running) >= CLASSES_MAX:
            key = key[0], 0
        running[key] = running.get(key, 0) + count

    def _histograms(self, openmetrics: bool) -> Iterator[str]:
        share, seconds = self._matched_share, self._decision_seconds
        for name, help_text, lines in (
            ("picker_matched_share", "Share of the prompt that the picked endpoint holds.", share.lines("")),
            ("picker_decision_seconds", "The picker's own work for a decision.", seconds.lines("")),
            ("picker_loop_lag_seconds", "How late the event loop is, 50 times a second.", self._loop_lag.lines("")),
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
            ("llm_d_epp_prefix_indexer_hit_ratio", "Matched share of the prompt.", share.lines(APPROXIMATE)),
            (
                "llm_d_epp_prefix_indexer_hit_bytes",
                "Matched share of the prompt in bytes of the request.",
                self._hit_bytes.lines(APPROXIMATE),
            ),
            (
                "llm_d_epp_scheduler_e2e_duration_seconds",
                "Time to decide.",
                seconds.lines("", buckets.SCHEDULER_SECONDS),
            ),
        ):
            yield from family(name, help_text, "histogram", lines, openmetrics)

    def _forget_absent(self, view: PoolView) -> None:
        present = {row.address for row in view.endpoints}
        for key in [key for key in self._attempts if key[2] and key[2] not in present]:
            del self._attempts[key]


def _build_labels(running: Build) -> str:
    return f'version="{__version__}",build="{running.kind}",kernels="{",".join(running.kernels)}"'
