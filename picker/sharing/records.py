"""What pickers tell each other, as it stands on the wire.

Endpoints are named by eight bytes of digest over identity and address, each once a batch, and then
by their place in that list: slots are each picker's own. Times are ages in microseconds before the
moment that the head names, on the sender's clock.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Place = Annotated[int, Meta(ge=0, le=1_000_000)]
"""Of an endpoint, in the batch's list."""
Age = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Hash = int
"""Of 64 bits; MessagePack has no longer ones, and what is negative is refused where it is read."""
Depth = Annotated[int, Meta(ge=0, le=2**24 - 1)]
"""Blocks from the root."""
Tokens = Annotated[int, Meta(ge=0, le=2**40)]
Requests = Annotated[int, Meta(ge=0, le=2**24)]

Chain = tuple[Place, Age, Hash, Depth, Depth, bytes]
"""A pick: endpoint, age; the anchor (hash and depth, 0 and 0 for none); a depth at which prompts are known to part
(0: none); the hashes after the anchor, eight bytes each, little-endian."""
Withdrawn = tuple[Place, Age, Hash, Depth, Depth]
"""A pick that never got there: endpoint, age of the pick, last hash, depth, what was held before."""
Load = tuple[Place, Requests, Requests, Requests, Tokens, Tokens, Tokens]
"""In flight on an endpoint: requests, their sequences, those that prefill; tokens to prefill, of context, of memory."""
Slowness = tuple[Place, float, float]
"""What was measured: a logarithm over the pool's, and the samples that taught it."""
Aside = tuple[Place, Age | None, Annotated[int, Meta(ge=0, le=1000)]]
"""An ejection: its end (an age below 0 lies ahead; `None`: the endpoint answers again), ejections in a row."""
Sticky = tuple[Annotated[int, Meta(ge=0, le=2)], bytes, Place, Age]
"""A session, a stored response or a conversation (0, 1, 2): its digest, where it is, age of its last use."""
Ask = tuple[Hash, Age]
"""A snapshot is wanted, of this picker (0: of the oldest), of all that was used since that age."""
Run = tuple[Hash, Depth, bytes, list[tuple[Place, Age]]]
"""Of a snapshot: the block before (as an anchor), hashes, who holds them since when."""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot lies in the store: its name, its chunks, of what was used since that age; when it was begun."""

    name: Annotated[str, Meta(max_length=64)]
    chunks: Annotated[int, Meta(ge=0, le=100_000)]
    since: Age
    begun: Age
    whole: bool
    """Of all that is known, not only since."""


class Batch(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """What one picker has to tell, or one chunk of a snapshot. `load` and `slowness` are whole; `None`: as before."""

    endpoints: bytes = b""
    chains: list[Chain] = []
    withdrawn: list[Withdrawn] = []
    purged: list[tuple[Place, Age]] = []
    load: list[Load] | None = None
    slowness: list[Slowness] | None = None
    aside: list[Aside] = []
    sticky: list[Sticky] = []
    asks: list[Ask] = []
    answers: list[Answer] = []
    runs: list[Run] = []


KINDS = ("chains", "withdrawn", "purged", "load", "slowness", "aside", "sticky", "asks", "answers", "runs")
"""What is counted apart."""
