"""What can go wrong with a request to the Kubernetes API, as values, and how long to wait after it.

| the fault | the next attempt |
| --- | --- |
| 401 | at once, with credentials read anew; after that like any other fault |
| 403, 404 | from `denied_first_seconds` rising to `denied_most_seconds`: a role or a CRD may come at any time |
| 429, 503 with Retry-After | not before it (bounded by `retry_after_seconds_max`) |
| anything else | exponential, full jitter: uniform below a bound that doubles up to `most_seconds` |

Full jitter spreads a fleet of pickers that lost the same API server at the same moment. A denial
is jittered by half, so that it stays slow. Every delay is finite and its bound grows with
the failures in a row: no answer of a server, however odd, makes a hot loop.
"""

from enum import StrEnum

import msgspec

from picker.rng import Rng


class Health(StrEnum):
    """How a conversation with the API server goes: the words that logs and telemetry use."""

    STARTING = "starting"
    OK = "ok"
    EXPIRED = "expired"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    MISSING = "missing"
    BUSY = "busy"
    REFUSED = "refused"


class Fault(msgspec.Struct, frozen=True):
    """One failed request. `status` is the HTTP status, or None when no HTTP answer came."""

    detail: str
    status: int | None = None
    retry_after_seconds: float | None = None

    @property
    def health(self) -> Health:
        """The one word for it."""
        if self.status is None:
            return Health.UNREACHABLE
        return _HEALTH_BY_STATUS.get(self.status, Health.REFUSED)

    @property
    def denied(self) -> bool:
        """The server works and says no: waiting a moment will not help."""
        return self.status in (403, 404)


_HEALTH_BY_STATUS = {
    401: Health.UNAUTHORIZED,
    403: Health.FORBIDDEN,
    404: Health.MISSING,
    410: Health.EXPIRED,
    429: Health.BUSY,
    503: Health.BUSY,
}


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the waits, in seconds. client-go's reflector waits up to 30 s; pickers are few, and one that does not
    follow yet sends requests to pods that are gone."""

    first_seconds: float = 0.5
    most_seconds: float = 10.0
    denied_first_seconds: float = 2.0
    denied_most_seconds: float = 30.0
    retry_after_seconds_max: float = 60.0

    def delay_seconds(self, fault: Fault, failures: int, rng: Rng) -> float:
        """The wait after `failures` (>= 1) failures in a row, the last of which is `fault`."""
        if fault.status == 401 and failures == 1:
            return 0.0
        if fault.denied:
            bound = _doubled(self.denied_first_seconds, failures, self.denied_most_seconds)
            return bound * (0.5 + 0.5 * rng.random())
        delay = rng.random() * _doubled(self.first_seconds, failures, self.most_seconds)
        if fault.retry_after_seconds is not None:
            delay += min(max(fault.retry_after_seconds, 0.0), self.retry_after_seconds_max)
        return delay


def _doubled(first: float, failures: int, most: float) -> float:
    return float(min(most, first * 2 ** min(failures - 1, 30)))


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header; None when absent or a date (API servers send seconds)."""
    if value is None or not (value.isascii() and value.strip().isdigit()):
        return None
    return float(min(int(value[:12]), 10**9))
