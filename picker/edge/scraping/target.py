"""Where an endpoint's metrics page may be, best guess first.

A stated place is the only one: the endpoint's own `metrics_url`, or a port or path in the
configuration. A known engine has its own place. Otherwise the page is looked for where engines
keep it (the endpoint's port at /metrics, trtllm-serve's path, Triton's port) until one shows
an engine's series.
"""

from urllib.parse import urlsplit

import msgspec

from picker.config import EngineMetrics
from picker.engines import ENGINES, Engine
from picker.pool.specs import EndpointSpec, join_address, split_address

DEFAULT_PATH = "/metrics"


class Target(msgspec.Struct, frozen=True):
    """One page."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{join_address(self.host, self.port)}{self.path}"


def targets(spec: EndpointSpec, settings: EngineMetrics, engine: Engine | None) -> tuple[Target, ...]:
    """At least one. Raises `ValueError` that names a bad `metrics_url`."""
    if spec.metrics_url is not None:
        return (_parse(spec.metrics_url),)
    host, own_port = split_address(spec.address)
    stated_path = settings.path if settings.path != DEFAULT_PATH else None

    def place(port: int | None, path: str) -> Target:
        return Target(settings.scheme, host, settings.port or port or own_port, stated_path or path)

    if engine is not None:
        return (place(engine.port, engine.path),)
    if settings.port is not None or stated_path is not None:
        return (place(None, DEFAULT_PATH),)
    found = [place(None, DEFAULT_PATH)]
    found += [place(other.port, other.path) for other in ENGINES.values()]
    return tuple(dict.fromkeys(found))


def _parse(url: str) -> Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"metrics_url {url!r}: expected http://host:port/path")
    path = (parts.path or DEFAULT_PATH) + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(c <= " " for c in path):
        raise ValueError(f"metrics_url {url!r}: write its path percent-encoded")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Target(parts.scheme, parts.hostname, port, path)
