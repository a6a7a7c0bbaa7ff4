"""A JSON body as parsers read it, and the prompt that they put together from its parts.

Nearly all of a large body is a few long strings, of which a parser needs to know where they lie: `json`
is the body without them, where the compiled build can make it (`_document.c`), and `view` finds what a part of `json`
stands for in the body. So nothing of a prompt is copied: it stays a list of views of the body.

Which of the two a parser got makes no difference to what it answers; where it would, it fails on a
stand-in, and `read_body` lets it read the body itself.
"""

from collections.abc import Callable
from typing import Any, Final

from picker.api.shapes import Raw
from picker.kernels import kernel

Text = bytes | memoryview

_KERNEL: Final = kernel("picker.api._document")
_shorten: Callable[[Text], tuple[bytes, bytes] | None] | None = getattr(_KERNEL, "shorten", None)
"""Not `Final`: tests take it away, to read the same body both ways."""
_whole: Final[Callable[[Raw, Text, bytes, memoryview], memoryview] | None] = getattr(_KERNEL, "whole", None)

SHORTENED_BYTES_MIN: Final = 16_384
"""Bodies below are read as they are: the saving would be a microsecond or two."""


class Document:
    """A body: as it is, or less its long strings."""

    __slots__ = ("_body", "_cuts", "json")

    json: Any
    """To decode: `Text`, though msgspec's annotations do not say that it reads every buffer."""

    def __init__(self, json: Text, *, body: memoryview | None = None, cuts: bytes = b"") -> None:
        """`body`: what `json` was made of; `None`: nothing was cut out. `cuts`: where, as the kernel tells it."""
        self.json = json
        self._body = body
        self._cuts = cuts

    def view(self, raw: Raw) -> memoryview:
        """What stands in the body where `raw` stands in `json`."""
        if self._body is None or _whole is None:
            return memoryview(raw)
        return _whole(raw, self.json, self._cuts, self._body)


def shortened(body: Text) -> Document | None:
    """The body without its long strings; `None`: read it as it is."""
    found = _shorten(body) if _shorten is not None and len(body) >= SHORTENED_BYTES_MIN else None
    return None if found is None else Document(found[0], body=memoryview(body), cuts=found[1])


class Pieces:
    """A flattened prompt in the making: its text in order, in pieces."""

    __slots__ = ("bytes", "document", "found")

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[Text] = []
        self.bytes = 0

    def append(self, piece: Text) -> None:
        size = len(piece)
        if size:
            self.found.append(piece)
            self.bytes += size
