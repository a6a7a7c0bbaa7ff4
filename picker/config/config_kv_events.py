"""KV events of engines, as a table of the configuration."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class KvEvents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """KV events: engines that publish what they store and evict tell the prefix index what they really hold.

    `auto` suits everybody: engines are asked by GET /kv_event_sources (vLLM 0.32 answers, with
    `--kv-events-config`), and those that do not answer are asked ever more rarely. It needs pyzmq
    (`pip install 'inference-picker[kv-events]'`; the image has it); `false` asks none.
    """

    enabled: Annotated[
        bool | Literal["auto"],
        Meta(
            description=(
                "`auto`: of engines that tell by GET /kv_event_sources; `true`: of all, at `port` if they do not; "
                "`false`: of none."
            )
        ),
    ] = "auto"
    port: Annotated[
        int,
        Meta(
            ge=1,
            le=65472,
            description="Port of the publisher of engines that do not tell theirs. Rank n publishes at port + n.",
        ),
    ] = 5557
    ranks: Annotated[int, Meta(ge=1, le=64, description="Data-parallel ranks of such an engine.")] = 1
    replay_port: Annotated[
        Annotated[int, Meta(ge=1, le=65472)] | None,
        Meta(description="Port at which such engines are asked for lost events; null: none."),
    ] = None
    listen: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^tcp://[^@\s]{1,253}:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-3][0-9]{2}|654[0-6][0-9]|6547[0-2])$"
            ),
        ]
        | None,
        Meta(
            description=(
                "Where engines connect to publish, such as `tcp://*:5557`: those whose endpoint names the picker. "
                "Their topic must be `kv@ADDRESS@MODEL`. null: nowhere."
            )
        ),
    ] = None
    topic: Annotated[str, Meta(max_length=256, description="Only messages whose topic begins so; empty: all.")] = ""
    stamp_header: Annotated[
        Annotated[str, Meta(pattern="^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$")] | None,
        Meta(description="Request header that tells engines which request is which; null: none is set."),
    ] = "x-session-id"


KV_EVENTS_RESTART_ONLY = tuple(f"kv_events.{name}" for name in KvEvents.__struct_fields__)
"""A change of any of them waits for the next start."""
