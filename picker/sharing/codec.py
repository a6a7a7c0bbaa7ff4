"""Batch <-> bytes.

A head of fixed size, then MessagePack. The head names the format's version, the hash, the block's
size and what the hash makes of a known prompt (model and salt included): a picker that hashes
otherwise would be understood wrongly, so its batches are refused, and the refusal names both sides.
Decoding is total: any bytes give a batch or `Refused`.
"""

import struct
from functools import reduce
from itertools import chain
from operator import itemgetter, or_
from typing import Final, NamedTuple

import msgspec

from picker.prefix.blocks import BLOCK_BYTES, block_hashes, chain_seed
from picker.sharing.records import Batch

VERSION: Final = 1
HASH: Final = b"xxh3-64\0"
SEED: Final = block_hashes(chain_seed("model", "salt"), [b"\0" * BLOCK_BYTES])[0]
"""What our hash makes of a known block: the seed, the chain and the hash in one number."""
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024

_MAGIC: Final = b"pks"
_HEAD: Final = struct.Struct("<3sB8sIQQQQQB")
_WHOLE: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Batch)
_OUTSIDE: Final = "a batch that names an endpoint outside its list"
# Whole records would be taken apart for one of their fields.
_FIRST: Final = itemgetter(0)
_THIRD: Final = itemgetter(2)
_FOURTH: Final = itemgetter(3)
_SIXTH: Final = itemgetter(5)


class Refused(ValueError):
    """Not a batch that can be taken. The text says why, and for another version names both."""


class BatchHead(NamedTuple):
    """Who tells it, and when."""

    sender: int
    sequence: int
    """Rises by one with each batch; 0 is a chunk of a snapshot."""
    sent_us: int
    """On the sender's clock."""
    started_ms: int
    """When the sender started, since 1970: the oldest writes snapshots."""
    whole: bool
    """The sender knows what others know."""


def encode(head: BatchHead, batch: Batch) -> bytes:
    """The bytes of a batch."""
    first = _HEAD.pack(
        _MAGIC,
        VERSION,
        HASH,
        BLOCK_BYTES,
        SEED,
        head.sender,
        head.sequence,
        head.sent_us,
        head.started_ms,
        _WHOLE if head.whole else 0,
    )
    return first + _ENCODER.encode(batch)


def decode(data: bytes) -> tuple[BatchHead, Batch]:
    """The inverse. Raises `Refused`."""
    if len(data) > BATCH_BYTES_MAX:
        raise Refused(f"a batch of {len(data)} bytes; {BATCH_BYTES_MAX} are read")
    if data[:3] != _MAGIC or len(data) < 4:
        raise Refused("not a batch of a picker")
    if data[3] != VERSION:
        raise Refused(f"format version {data[3]}, and this picker speaks {VERSION}: let all pickers run one version")
    if len(data) < _HEAD.size:
        raise Refused("a batch that ends within its head")
    _, _, name, block_bytes, seed, sender, sequence, sent_us, started_ms, flags = _HEAD.unpack_from(data)
    if (name, block_bytes, seed) != (HASH, BLOCK_BYTES, SEED):
        theirs, ours = _hashing(name, block_bytes, seed), _hashing(HASH, BLOCK_BYTES, SEED)
        raise Refused(f"{theirs}, and this picker has {ours}: let all pickers run one version")
    try:
        batch = _DECODER.decode(memoryview(data)[_HEAD.size :])
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise Refused(f"a batch that cannot be read: {' '.join(str(error).split())[:200]}") from None
    _check(batch)
    return BatchHead(sender, sequence, sent_us, started_ms, bool(flags & _WHOLE)), batch


def _hashing(name: bytes, block_bytes: int, seed: int) -> str:
    return f"hash {name.rstrip(bytes(1)).decode('ascii', 'replace')}, blocks of {block_bytes} bytes, seed {seed:016x}"


def _check(batch: Batch) -> None:
    """What types do not say: places name endpoints of the list, hashes are whole."""
    count, rest = divmod(len(batch.endpoints), 8)
    if rest:
        raise Refused("a batch whose list of endpoints is not whole")
    for records in (batch.chains, batch.withdrawn, batch.purged, batch.load, batch.slowness, batch.aside):
        if records and max(map(_FIRST, records)) >= count:
            raise Refused(_OUTSIDE)
    if batch.sticky and max(map(_THIRD, batch.sticky)) >= count:
        raise Refused(_OUTSIDE)
    for uses in map(_FOURTH, batch.runs):
        if uses and max(map(_FIRST, uses)) >= count:
            raise Refused(_OUTSIDE)
    lengths = reduce(or_, map(len, chain(map(_SIXTH, batch.chains), map(_THIRD, batch.runs))), 0)
    if lengths & 7 or not all(map(_THIRD, batch.runs)):
        raise Refused("a batch whose hashes are not whole")
    if any(len(each[1]) != 16 for each in batch.sticky):
        raise Refused("a batch whose digests are not whole")
    if any(each[1] != each[1] for each in batch.slowness or ()) or any(each[2] < 0 for each in batch.slowness or ()):
        raise Refused("a batch with numbers that are none")
