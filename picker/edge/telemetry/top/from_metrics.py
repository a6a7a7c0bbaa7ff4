"""Readings from /metrics and /debug/decisions: differences of counters over the last minute."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_page

from picker.edge.telemetry.explain import AskError, ask, get
from picker.edge.telemetry.top.reading import DecisionReading, EndpointReading, PoolReading, TopReading

WINDOW_SECONDS = 60.0
DECISIONS = 20
_TTFT = "inference_objective_request_ttft_seconds_bucket"
_LINES = (
    "picker_build_info",
    "picker_requests_total",
    "picker_requests_in_flight",
    "picker_ejected_endpoints",
    "picker_endpoint_",
    "picker_observed_hit_tokens_total",
    "picker_predicted_hit_tokens_total",
    "picker_hit_prompt_tokens_total",
    "inference_pool_per_pod_queue_size",
    "inference_extension_flow_control_pool_saturation",
    _TTFT,
)
"""What is read of a page; a page of a thousand endpoints has tens of thousands of other lines."""


class MetricsPage:
    """The samples of one page, by name: labels and value."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` where it is no page of metrics."""
        wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_LINES))
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in parse_page(wanted):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def each(self, name: str) -> list[tuple[dict[str, str], float]]:
        """All series of a name."""
        return self._samples.get(name, [])

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of the series with these labels; `None`: there is none."""
        found = [value for own, value in self.each(name) if labels.items() <= own.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by a label."""
        sums: dict[str, float] = {}
        for own, value in self.each(name):
            key = own.get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Of cumulative counts by upper bound, as PromQL's `histogram_quantile` has it; `None`: nothing was counted."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]] > 0:
        return None
    rank = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below) if count > below else bound
        low, below = bound, count
    return None


class MetricsReader:
    """Asks again and again. Not for more than one loop."""

    def __init__(self, address: str, token: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._token = token
        self._clock = clock
        self._pages: deque[tuple[float, MetricsPage]] = deque()

    def read(self) -> TopReading:
        """The next frame; rates from the second one on. Raises `AskError`."""
        body = get(self._address, "/metrics", self._token)
        try:
            page = MetricsPage(body.decode())
        except ValueError:
            raise AskError(f"{self._address} shows no metrics. Is this the picker's metrics port?") from None
        info = page.each("picker_build_info")
        if not info:
            raise AskError(f"{self._address} is no picker's metrics port: picker_build_info is missing")
        now = self._clock()
        answer = ask(self._address, {"count": str(DECISIONS)}, self._token)
        if self._pages and _fell(page, self._pages[-1][1]):
            self._pages.clear()  # the picker began anew
        self._pages.append((now, page))
        while len(self._pages) > 2 and now - self._pages[1][0] >= WINDOW_SECONDS:
            self._pages.popleft()
        return TopReading(
            source="/metrics",
            version=f"{info[0][0].get('version', '?')} {info[0][0].get('build', '')}".strip(),
            pool=self._pool(now, page),
            endpoints=list(_endpoints(page)),
            decisions=[_decision(each) for each in answer["decisions"]],
        )

    def _pool(self, now: float, page: MetricsPage) -> PoolReading:
        since, before = self._pages[0]
        seconds = now - since
        ends = _difference(page, before, "picker_requests_total")
        shed = _difference(page, before, "picker_requests_total", outcome="shed")
        prompt = _difference(page, before, "picker_hit_prompt_tokens_total")
        ttft_before = before.by(_TTFT, "le")
        ttft = {float(le): count - ttft_before.get(le, 0.0) for le, count in page.by(_TTFT, "le").items()}
        return PoolReading(
            requests_per_second=ends / seconds if ends is not None and seconds > 0 else None,
            shed_per_second=(shed or 0.0) / seconds if seconds > 0 else None,
            hit_share=_share(_difference(page, before, "picker_observed_hit_tokens_total"), prompt),
            expected_hit_share=_share(_difference(page, before, "picker_predicted_hit_tokens_total"), prompt),
            ttft_p50_seconds=quantile(0.5, ttft),
            ttft_p95_seconds=quantile(0.95, ttft),
            in_flight=_whole(page.total("picker_requests_in_flight")),
            saturation=page.total("inference_extension_flow_control_pool_saturation"),
            ejected=_whole(page.total("picker_ejected_endpoints")),
        )


def _endpoints(page: MetricsPage) -> Iterator[EndpointReading]:
    ages = page.by("picker_endpoint_scrape_age_seconds", "address")
    waiting = {
        labels.get("model_server_pod"): value for labels, value in page.each("inference_pool_per_pod_queue_size")
    }
    for labels, value in page.each("picker_endpoint_in_flight_requests"):
        name, address = labels.get("endpoint", ""), labels.get("address", "")
        yield EndpointReading(
            name=name,
            address=address,
            in_flight=int(value),
            waiting=_whole(waiting.get(name)),
            age_seconds=ages.get(address),
        )


def _decision(shown: Mapping[str, Any]) -> DecisionReading:
    pick = shown["endpoints"][0]
    return DecisionReading(
        at=shown.get("decided_at", ""),
        request_id=shown.get("request_id"),
        model=shown.get("model"),
        endpoint=pick["name"],
        reason=shown["reason"],
        matched_share=pick["matched_share"],
        predicted_ttft_seconds=shown.get("predicted_ttft_seconds"),
    )


def _fell(page: MetricsPage, before: MetricsPage) -> bool:
    ends = _difference(page, before, "picker_requests_total")
    return ends is not None and ends < 0


def _difference(page: MetricsPage, before: MetricsPage, name: str, **labels: str) -> float | None:
    total = page.total(name, **labels)
    return None if total is None else total - (before.total(name, **labels) or 0.0)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
