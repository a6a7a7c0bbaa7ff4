"""One batch of KV events: msgpack bytes -> events. Token ids are skipped where they lie, never kept.

vLLM 0.32 (vllm/distributed/kv_events.py; recorded in tests/fixtures/kv_events) publishes
`[ts, events, data_parallel_rank]`, an event a map with a `type`; older versions and SGLang arrays of
the same fields in their order, the type first. Fields that we do not know are passed over, and so are
events of a type that we do not know. Block hashes are 64-bit integers or bytes, opaque either way.
"""

from typing import Any, Final

import msgspec

BATCH_BYTES_MAX: Final = 16 << 20
HASHES_MAX: Final = 65_536
"""Of one event: a prompt of a million tokens in blocks of 16."""

BlockHash = int | bytes

GPU: Final = (None, "GPU")
"""Media of the first tier; the others (CPU, STORAGE) hold what is yet to be loaded."""
FULL_ATTENTION: Final = (None, "full_attention", "mla_attention")
"""Groups whose blocks make a prefix; sliding windows and states of others let go of theirs early."""


class Stored(msgspec.Struct, gc=False):
    """Blocks in a row, the first below `parent` (`None`: the prompt's first). `session_id`: of whose request."""

    block_hashes: list[BlockHash]
    parent: BlockHash | None
    block_tokens: int
    session_id: str | None
    counts: bool
    """In the first tier and of a full-attention group."""
    group: int


class Removed(msgspec.Struct, gc=False):
    """Blocks that are gone."""

    block_hashes: list[BlockHash]
    counts: bool
    group: int


class Cleared(msgspec.Struct, gc=False):
    """All of them."""


Event = Stored | Removed | Cleared


class EventBatch(msgspec.Struct):
    """What one message says."""

    published_at_seconds: float
    """The engine's wall clock."""
    events: list[Event]
    rank: int
    """Of data parallelism."""
    skipped: int
    """Events that are none of ours to know, or malformed."""


class MalformedBatch(ValueError):
    """The bytes are no batch; the text says why."""


class _Map(msgspec.Struct, gc=False):
    type: str
    block_hashes: list[BlockHash] = []
    parent_block_hash: BlockHash | None = None
    block_size: int = 0
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: Any = None
    lora_name: msgspec.Raw = msgspec.Raw()
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    session_id: Any = None


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[BlockHash]
    medium: Any = None
    group_idx: Any = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class _MapBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Map]
    data_parallel_rank: int | None = None


class _AnyBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_maps: Final = msgspec.msgpack.Decoder(_MapBatch)
_any: Final = msgspec.msgpack.Decoder(_AnyBatch)
_map: Final = msgspec.msgpack.Decoder(_Map)
_array: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode_batch(payload: bytes | memoryview) -> EventBatch:
    """Raises `MalformedBatch`. A malformed event in a sound batch is skipped and counted."""
    if len(payload) > BATCH_BYTES_MAX:
        raise MalformedBatch(f"a batch of {len(payload)} bytes exceeds {BATCH_BYTES_MAX}")
    try:
        maps = _maps.decode(payload)
        return _batch(maps.ts, [_of_map(each) for each in maps.events], maps.data_parallel_rank)
    except msgspec.MsgspecError:
        pass  # arrays, or something odd among the maps: one by one
    except RecursionError:
        raise MalformedBatch("nested too deeply") from None
    try:
        loose = _any.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedBatch(str(error)) from None
    return _batch(loose.ts, [_one(raw) for raw in loose.events], loose.data_parallel_rank)


def _batch(ts: float, events: list[Event | None], rank: int | None) -> EventBatch:
    known = [event for event in events if event is not None]
    return EventBatch(ts, known, rank or 0, len(events) - len(known))


def _one(raw: msgspec.Raw) -> Event | None:
    try:
        first = memoryview(raw)[0]
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            return _of_map(_map.decode(raw))
        return _of_array(_array.decode(raw))
    except (msgspec.MsgspecError, RecursionError, IndexError):
        return None


def _of_map(event: _Map) -> Event | None:
    kind = event.type
    if kind == "BlockStored":
        return _stored(event)
    if kind == "BlockRemoved":
        return Removed(event.block_hashes, event.medium in GPU, event.group_idx or 0)
    return Cleared() if kind == "AllBlocksCleared" else None


def _of_array(event: _StoredArray | _RemovedArray | _ClearedArray) -> Event | None:
    if isinstance(event, _StoredArray):
        return _stored(event)
    if isinstance(event, _RemovedArray):
        return Removed(event.block_hashes, event.medium in GPU, _group(event.group_idx))
    return Cleared()


def _stored(event: _Map | _StoredArray) -> Stored | None:
    size = event.block_size
    if size <= 0 or len(event.block_hashes) > HASHES_MAX:
        return None
    session = event.session_id
    return Stored(
        event.block_hashes,
        event.parent_block_hash,
        size,
        session if isinstance(session, str) else None,
        event.medium in GPU and event.kv_cache_spec_kind in FULL_ATTENTION,
        _group(event.group_idx),
    )


def _group(value: object) -> int:
    return value if isinstance(value, int) else 0
