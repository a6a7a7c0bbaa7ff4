"""What an answer to a request for a metrics page means: the page, another place for it, or words with the next step."""

import zlib
from urllib.parse import urljoin, urlsplit

from picker.edge.scraping.http_get import Fetched, HttpError
from picker.edge.scraping.target import Target

LOCATION_SHOWN_CHARS = 200
_MOVED = (301, 302, 303, 307, 308)
_ENCODINGS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


def moved_to(page: Fetched, asked: Target) -> Target | None:
    """Where a redirect leads on the same server: a mounted `/metrics` answers with `/metrics/`.

    `None`: it is no redirect. Raises `HttpError` for one that leads elsewhere: to follow it could read another
    server's figures as this one's.
    """
    location = page.headers.get(b"location") if page.status in _MOVED else None
    if location is None:
        return None
    text = location.decode("latin-1")
    shown = repr(text[:LOCATION_SHOWN_CHARS])
    try:
        parts = urlsplit(urljoin(asked.url, text))
        port = parts.port or (443 if parts.scheme == "https" else 80)
        elsewhere = (parts.hostname, port) != (asked.host.lower(), asked.port)
    except ValueError:
        raise HttpError(f"status {page.status} from {asked.url}: its Location {shown} is no URL") from None
    if parts.scheme != asked.scheme and not elsewhere:
        raise HttpError(
            f"status {page.status} from {asked.url}: it redirects to {shown}; set engine_metrics.scheme: {parts.scheme}"
        )
    if elsewhere or parts.scheme != asked.scheme:
        raise HttpError(
            f"status {page.status} from {asked.url}: it redirects to {shown}, another server, which is not followed; "
            "say where the page is with engine_metrics.scheme, .port and .path"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(c <= " " or c == "\x7f" for c in path):
        raise HttpError(f"status {page.status} from {asked.url}: its Location {shown} is no URL")
    return Target(asked.scheme, asked.host, asked.port, path)


def refusal(page: Fetched, asked: Target, *, has_token: bool, token_problem: str | None) -> str:
    """Words for an answer that is not 200."""
    start = f"status {page.status} from {asked.url}: "
    if page.status in (401, 403):
        if token_problem is not None:
            return start + token_problem
        if has_token:
            return f"{start}it refuses the token in engine_metrics.bearer_token_file"
        return f"{start}it asks for credentials; give a token with engine_metrics.bearer_token_file"
    if page.status in _MOVED:
        return f"{start}it redirects again and again; set engine_metrics.path"
    if page.status == 404:
        return f"{start}is the metrics page switched on there? If it is elsewhere, set engine_metrics.path or .port"
    if page.status >= 500:
        return f"{start}the server itself fails"
    return f"{start}no metrics page; check engine_metrics.scheme, .port and .path"


def plain_body(page: Fetched, *, bytes_max: int) -> bytes:
    """The body, unpacked where a server compresses though it was asked not to. Raises `HttpError`."""
    encoding = page.headers.get(b"content-encoding", b"identity").lower()
    if encoding in (b"identity", b""):
        return page.body
    bits = _ENCODINGS.get(encoding)
    if bits is None:
        shown = encoding.decode("latin-1")[:40]
        raise HttpError(f"the page comes encoded as {shown!r}, which is not read; let the server send it plain")
    unpacker = zlib.decompressobj(bits)
    try:
        body = unpacker.decompress(page.body, bytes_max)
    except zlib.error:
        raise HttpError("the page is compressed, and damaged") from None
    if not unpacker.eof:
        raise HttpError(f"the unpacked page exceeds {bytes_max} bytes, or is cut")
    return body
