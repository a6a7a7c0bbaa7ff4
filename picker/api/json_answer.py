"""The members at the top of a long JSON object, found as its bytes pass: in bounded memory, whatever stands around.

Engines put kilobytes behind `usage` (token ids, log probabilities, the prompt's text), and megabytes before
it (embeddings). So the brackets are followed, strings are stepped over, and only the wanted members are kept.
"""

import re
from typing import Final

import numpy as np

VALUE_BYTES_MAX: Final = 16 * 1024
"""Of one wanted member: a longer one is not what we look for."""
STEPS_MAX: Final = 30_000
"""Brackets of one chunk that are followed: some 10 ms. Beyond, the answer is not looked at any further."""
ESCAPES_MAX: Final = 400_000
"""Backslashes of one chunk: some 10 ms. Beyond, too."""
_COUNTED_BYTES_MIN: Final = 1024 * 1024
"""Shorter chunks are not worth counting, and proxies make no longer ones of an answer that streams."""

_RUN: Final = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""Inside a nested value, up to the next bracket."""
_REST_OF_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TOP: Final = re.compile(rb'["{}\[\],:]')

_QUOTE, _BACKSLASH, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPENING: Final = frozenset(b"[{")


def _backslashes(chunk: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == _BACKSLASH))


class TopMembers:
    """Feed it the bytes of one JSON object; `found` has the raw values of the wanted members, of two the last."""

    __slots__ = (
        "_capture",
        "_depth",
        "_descends",
        "_escaped",
        "_in_string",
        "_key",
        "_name",
        "_top_depth",
        "_wanted",
        "_within",
        "done",
        "found",
    )

    def __init__(self, wanted: frozenset[bytes], within: frozenset[bytes] = frozenset()) -> None:
        """`within`: members whose own members are looked at too, as if they stood at the top."""
        self._wanted = wanted
        self._within = within
        self._top_depth = 1
        """Where wanted members stand: 2 inside one of `within`."""
        self._descends = False
        self.found: dict[bytes, bytes] = {}
        self.done = False
        """The object ended, or it is not looked at any further."""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: bytearray | None = None
        """A string at the top in the making, where a name may stand."""
        self._name: bytes | None = None
        """The last one that is whole."""
        self._capture: bytearray | None = None

    def document(self) -> bytes:
        """The members that were found, as a JSON object of their own."""
        return b"{%b}" % b",".join(b'"%b":%b' % each for each in self.found.items())

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        at, size, steps = 0, len(chunk), 0
        kept_from = 0
        if size > _COUNTED_BYTES_MIN and _backslashes(chunk) > ESCAPES_MAX:
            self.done = True
        while at < size and not self.done:
            steps += 1
            if steps > STEPS_MAX:
                self.done = True
                return
            if self._in_string:
                at = self._pass_string(chunk, at)
            elif self._depth > self._top_depth:
                found = _RUN.match(chunk, at)
                at = found.end() if found is not None else at
                if at < size:
                    byte = chunk[at]
                    at += 1
                    if byte == _QUOTE:
                        self._in_string = True
                        at = self._pass_string(chunk, at)
                    else:
                        self._depth += 1 if byte in _OPENING else -1
            else:
                at, kept_from = self._top(chunk, at, kept_from)
        if self._capture is not None:
            self._keep(chunk[kept_from:])

    def _top(self, chunk: bytes, at: int, kept_from: int) -> tuple[int, int]:
        """One step outside or directly inside the object."""
        token = _TOP.search(chunk, at)
        if token is None:
            return len(chunk), kept_from
        at = token.end()
        byte = chunk[at - 1]
        descends, self._descends = self._descends, False
        if byte == _QUOTE:
            self._in_string = True
            self._key = bytearray() if self._depth == self._top_depth and self._capture is None else None
            return self._pass_string(chunk, at), kept_from
        if byte in _OPENING:
            if self._depth == 0 and byte != ord("{"):
                self.done = True  # a list of answers: none speaks for all
            self._depth += 1
            if descends and byte == ord("{"):
                self._top_depth = self._depth
        elif byte == _COLON:
            self._descends = self._depth == 1 and self._name in self._within
            if self._name in self._wanted and self._capture is None:
                self._capture = bytearray()
                kept_from = at
        else:  # a comma, or an end
            if self._capture is not None:
                self._keep(chunk[kept_from : at - 1])
                self._close()
            self._name = None
            if byte != _COMMA:
                self._depth -= 1
                self._top_depth = 1
                self.done = self._depth <= 0
        return at, kept_from

    def _pass_string(self, chunk: bytes, at: int) -> int:
        """From inside a string to behind its end, or to the chunk's."""
        begin = at
        if self._escaped:
            self._escaped = False
            at += 1
        found = _REST_OF_STRING.match(chunk, at)
        at = found.end() if found is not None else at
        if self._key is not None and len(self._key) < 64:
            self._key += chunk[begin:at]
        if at >= len(chunk):
            return at
        if chunk[at] == _BACKSLASH:  # the chunk's last byte
            self._escaped = True
            return at + 1
        self._in_string = False
        if self._key is not None:
            self._name = bytes(self._key)
            self._key = None
        return at + 1

    def _keep(self, part: bytes) -> None:
        if self._capture is not None and len(self._capture) <= VALUE_BYTES_MAX:
            self._capture += part[: VALUE_BYTES_MAX + 1]

    def _close(self) -> None:
        if self._capture is not None and self._name is not None and len(self._capture) <= VALUE_BYTES_MAX:
            self.found[self._name] = bytes(self._capture)
        self._capture = None
