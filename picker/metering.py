"""Who used what: the tenant of a request, the tokens that are charged to it, and what the proxy is told of them.

A count is what the engine reported. Where it reported none, the request is marked as unknown; only
configuration (`tenants.estimates`) makes an estimate of it, and that is marked too.
"""

import math
from collections.abc import Mapping
from typing import Final

from picker.config import Config
from picker.decision import Finished
from picker.outcomes import Metered, Outcome, Reason, Usage

FAIRNESS_HEADERS: Final = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
"""The Endpoint Picker Protocol's name of a tenant, today's and llm-d's."""
TENANT_CHARS_MAX: Final = 256
"""Of a tenant's name in the record, which outlives the request."""

Told = tuple[str, tuple[tuple[str, str | float], ...]]
"""Dynamic metadata for the proxy: a namespace, and keys with their values."""

_COMPLETED: Final = Outcome.COMPLETED


class Metering:
    """The rules of one configuration. No state."""

    __slots__ = ("_keys", "_namespace", "_whys", "estimates", "headers", "names", "tells", "tenant_headers")

    def __init__(self, config: Config) -> None:
        own = config.tenants.header
        self.tenant_headers = FAIRNESS_HEADERS if own is None else (own.lower(),)
        self.headers: frozenset[str] = frozenset() if own is None else frozenset((own.lower(),))
        """Those of them that configuration names."""
        self.names = frozenset(config.tenants.names)
        """Tenants that have a label of their own."""
        self.estimates = config.tenants.estimates
        """Whether what is not reported is estimated: of streams that were to report too, for they may be cut off."""
        self._namespace = config.proxy_metadata.namespace or ""
        self._keys = dict(config.proxy_metadata.keys)
        self.tells = bool(self._namespace and self._keys)
        """Whether the proxy is told anything."""
        key = self._keys.get("reason") if self.tells else None
        self._whys: dict[Reason, Told] = {}
        if key is not None:
            self._whys = {reason: (self._namespace, ((key, reason.value),)) for reason in Reason}

    def tenant(self, headers: Mapping[str, str]) -> str | None:
        """Whose request it is; `None`: nobody says."""
        for name in self.tenant_headers:
            if headers.get(name):
                return headers[name][:TENANT_CHARS_MAX]
        return None

    def meter(self, record: Finished, usage: Usage | None, *, prefills: bool, content_events: int | None) -> None:
        """At the end of a routed request: what it is charged, and how well that is known.

        `prefills`: an engine computes something for requests of this path. `content_events`: of a streamed answer;
        `None`: they were not counted.
        """
        if not prefills or (record.status is not None and record.status >= 400):
            return
        if usage is not None and (usage.input_tokens is not None or usage.output_tokens is not None):
            record.charged = usage
            whole = record.outcome is _COMPLETED and usage.input_tokens is not None
            record.metered = Metered.REPORTED if whole else Metered.PARTIAL
        elif self.estimates and record.prompt_tokens_estimate is not None:
            record.charged = Usage(record.prompt_tokens_estimate, content_events)
            record.metered = Metered.ESTIMATED
        else:
            record.metered = Metered.UNKNOWN

    def why(self, reason: Reason) -> Told | None:
        """What the proxy is told with the route."""
        return self._whys.get(reason)

    def told(self, record: Finished) -> Told | None:
        """What the proxy is told with the end of the answer; what is unknown is left out."""
        if not self.tells:
            return None
        share, charged = record.matched_share, record.charged
        known: dict[str, str | float | None] = {
            "reason": None if record.reason is None else record.reason.value,
            "matched_percent": None if share is None else float(round(100 * share)),
            "predicted_ttft_ms": _milliseconds(record.predicted_ttft_seconds),
            "ttft_ms": _milliseconds(record.ttft_seconds),
            "tenant": record.tenant,
            "usage": None if record.metered is Metered.NONE else record.metered.value,
            "engine_ms": _milliseconds(record.engine_seconds),
        }
        if charged is not None:
            known["input_tokens"] = charged.input_tokens
            known["cached_tokens"] = charged.cached_tokens
            known["output_tokens"] = charged.output_tokens
            known["total_tokens"] = (charged.input_tokens or 0) + (charged.output_tokens or 0)
        pairs = [(key, known.get(word)) for word, key in self._keys.items()]
        return self._namespace, tuple([(key, value) for key, value in pairs if value is not None])


def _milliseconds(seconds: float | None) -> float | None:
    """Whole ones, rounded up: what rate limits can add."""
    return None if seconds is None else float(math.ceil(1000 * seconds))
