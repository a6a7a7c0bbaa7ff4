"""Reads DCGM exporters, one page for each URL that the endpoints' template comes to.

The template may hold `{node}` (the machine's address), `{host}` (the endpoint's), `{name}` and
`{namespace}`: `http://{node}:9400/metrics` reads each node's exporter once, however many
endpoints run there. Everything here is optional: a page that cannot be read, or is old, leaves
the utilization unknown and says so once.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from picker.config.urls import check_gpu_url
from picker.edge.scraping.answer import plain_body
from picker.edge.scraping.http_get import Fetched, HttpError, HttpGetter
from picker.engines.dcgm import PodKey, gpu_utilization
from picker.pool.specs import EndpointSpec, split_address

PAGE_BYTES_MAX = 8 * 1024 * 1024
STALE_INTERVALS = 5
_RANK = re.compile(r"-rank-[0-9]+\Z")


def url_for(template: str, spec: EndpointSpec) -> str | None:
    """The template filled in for one endpoint; `None` where it asks for what is not known."""
    values = {"node": spec.node, "host": split_address(spec.address)[0], "name": spec.name, "namespace": spec.namespace}
    for name, value in values.items():
        placeholder = f"{{{name}}}"
        if placeholder in template:
            if not value:
                return None
            template = template.replace(placeholder, f"[{value}]" if ":" in value else value)
    return template


class GpuSource:
    """`run()` until cancelled; `utilization(spec)` at any time."""

    def __init__(
        self,
        *,
        url_template: str,
        endpoints: Callable[[], Sequence[EndpointSpec]],
        clock: Callable[[], float],
        log: logging.Logger,
        interval_seconds: float = 2.0,
        timeout_seconds: float = 2.0,
    ) -> None:
        """Raises `ValueError` for a template that cannot work."""
        check_gpu_url(url_template)
        self._template = url_template
        self._endpoints = endpoints
        self._clock = clock
        self._log = log
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._pages: dict[str, tuple[float, Mapping[PodKey, float]]] = {}
        self._getters: dict[str, HttpGetter] = {}
        self._failing: set[str] = set()

    def utilization(self, spec: EndpointSpec) -> float | None:
        """Share 0..1 of the endpoint's busiest GPU, or `None`: not known, or not known any more."""
        page = self._pages.get(url_for(self._template, spec) or "")
        if page is None or self._clock() - page[0] > STALE_INTERVALS * self._interval_seconds:
            return None
        pod = _RANK.sub("", spec.name)
        return page[1].get((spec.namespace, pod))

    async def run(self) -> None:
        """Read every page once an interval, one after the other."""
        try:
            while True:
                urls = {url for spec in self._endpoints() if (url := url_for(self._template, spec)) is not None}
                self._forget(urls)
                for url in sorted(urls):
                    await self._read(url)
                    await asyncio.sleep(self._interval_seconds / (len(urls) + 1))
                await asyncio.sleep(self._interval_seconds / (len(urls) + 1))
        finally:
            self._forget(set())

    def _forget(self, wanted: set[str]) -> None:
        for url in [url for url in self._getters if url not in wanted]:
            self._getters.pop(url).close()
        for url in [url for url in self._pages if url not in wanted]:
            del self._pages[url]
        self._failing &= wanted

    async def _read(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            getter = self._getters.get(url)
            if getter is None:
                getter = HttpGetter(parts.hostname or "", parts.port or 80, body_bytes_max=PAGE_BYTES_MAX)
                self._getters[url] = getter
            async with asyncio.timeout(self._timeout_seconds):
                page = await getter.get(parts.path or "/metrics")
            if page.status != 200:
                raise HttpError(_refusal(page))
            self._pages[url] = (self._clock(), gpu_utilization(plain_body(page, bytes_max=PAGE_BYTES_MAX)))
            self._failing.discard(url)
        except (HttpError, TimeoutError, ValueError) as error:
            if url not in self._failing:
                self._failing.add(url)
                self._log.warning(
                    "GPU metrics at %s: %s; utilization counts as unknown", url, str(error) or "no answer in time"
                )


def _refusal(page: Fetched) -> str:
    if page.status in (401, 403):
        return f"status {page.status}: it asks for credentials, and exporters are sent none; let the picker in"
    if 300 <= page.status < 400:
        location = page.headers.get(b"location", b"").decode("latin-1")[:200]
        return f"status {page.status}: it redirects to {location!r}; say the page itself in engine_metrics.gpu_url"
    return f"status {page.status}"
