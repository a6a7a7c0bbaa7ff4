"""Paths and URLs of the configuration, read for what cannot work. Raises `ValueError` in words."""

import re
from typing import Final
from urllib.parse import urlsplit

GPU_URL_FIELDS: Final = ("node", "host", "name", "namespace")
"""What `engine_metrics.gpu_url` may ask of an endpoint."""


def check_text(what: str, text: str) -> None:
    """A request line is made of it: no space, no control character, ASCII."""
    if not text.isascii() or any(c <= " " or c == "\x7f" for c in text):
        raise ValueError(f"{what} {text!r}: write it percent-encoded, without spaces and control characters")


def check_gpu_url(template: str) -> None:
    """A template of DCGM exporters."""
    what = "engine_metrics.gpu_url"
    check_text(what, template)
    fields = re.findall(r"\{([^{}]*)\}", template)
    unknown = [name for name in fields if name not in GPU_URL_FIELDS]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in GPU_URL_FIELDS)
        raise ValueError(f"{what} {template!r}: {{{unknown[0]}}} is not known; known are {known}")
    plain = re.sub(r"\{[^{}]*\}", "x", template)
    if "{" in plain or "}" in plain:
        raise ValueError(f"{what} {template!r}: a brace is not closed")
    check_url(what, plain, ("http",), shown=template)


def check_url(what: str, url: str, schemes: tuple[str, ...], *, shown: str | None = None) -> None:
    """A scheme that is known, a host, and a port that is one."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port
        good = False
    if not good:
        scheme = " or ".join(schemes)
        raise ValueError(f"{what} {shown or url!r}: expected {scheme}://host:port/path with a port in 1..65535")
