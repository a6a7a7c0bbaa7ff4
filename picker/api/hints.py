"""What a request's headers and path say about where it should go, as configuration reads them.

    labels    only endpoints with these labels (`endpoint_labels.header`)
    session   the server that took this session before (`session_affinity`)
    held_id   the server that holds what the path names: a stored response, conversation, file, batch or video

A session's token is kept as a digest only: it may be a secret.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from xxhash import xxh3_128_digest

from picker.config import Config
from picker.pool.labels import InvalidSelector, Selector, parse_selector

_HELD = re.compile(r"/(?:responses|conversations|files|batches|uploads|videos)/([^/?]+)")


class Hints(NamedTuple):
    """What one request says. All `None`: it says nothing."""

    labels: Selector | None = None
    session: bytes | None = None
    held_id: str | None = None


NO_HINTS = Hints()


class InvalidHint(ValueError):
    """A header that cannot be read. The text names it and says what is wrong, never its value."""


class HintRules(NamedTuple):
    """Which headers configuration names, in lower case."""

    labels_header: str | None
    session_header: str | None
    session_cookie: str | None

    @property
    def headers(self) -> frozenset[str]:
        """What must be read of a request besides the usual."""
        cookie = "cookie" if self.session_cookie is not None else None
        return frozenset(each for each in (self.labels_header, self.session_header, cookie) if each is not None)

    def read(self, headers: Mapping[str, str]) -> Hints:
        """What a request's headers say. Raises `InvalidHint`."""
        labels = None
        if self.labels_header is not None and self.labels_header in headers:
            try:
                labels = parse_selector(headers[self.labels_header])
            except InvalidSelector as error:
                raise InvalidHint(f"the header {self.labels_header} cannot be read: {error}") from None
        return Hints(labels, self._session(headers))

    def _session(self, headers: Mapping[str, str]) -> bytes | None:
        if self.session_header is not None and headers.get(self.session_header):
            return digest("header", headers[self.session_header])
        if self.session_cookie is not None and "cookie" in headers:
            for pair in headers["cookie"].split(";"):
                name, _, value = pair.strip().partition("=")
                if name == self.session_cookie and value:
                    return digest("cookie", value)
        return None


def hint_rules(config: Config) -> HintRules | None:
    """The rules of a configuration; `None` where it names no header."""
    labels, session, cookie = (
        config.endpoint_labels.header,
        config.session_affinity.header,
        config.session_affinity.cookie,
    )
    if labels is None and session is None and cookie is None:
        return None
    return HintRules(labels and labels.lower(), session and session.lower(), cookie)


def held_id(path: str) -> str | None:
    """The stored response, conversation, file, upload, batch or video that a path names: `/v1/responses/ID/cancel`."""
    found = _HELD.search(path.partition("?")[0])
    return found[1] if found else None


def digest(kind: str, text: str) -> bytes:
    """A key of 16 bytes for what a client named; kinds do not collide."""
    return xxh3_128_digest(b"%b\x00%b" % (kind.encode(), text.encode("utf-8", "surrogatepass")))
