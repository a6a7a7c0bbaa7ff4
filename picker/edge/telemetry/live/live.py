"""What a viewer is told: once a second while somebody looks, one rendering for all who look.

    hello     to each viewer, first: what does not change by the second, the history, the newest decisions
    members   the list of endpoints, whenever it changed: the columns of `tick` follow its order
    tick      the pool, the endpoints' columns, new decisions, a new bucket of the history

Nobody looking costs nothing: the task waits. A viewer that does not take what it is told within `QUEUE_MAX`
seconds is dropped; it may come again and gets a new `hello`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from picker.director import Director
from picker.edge.telemetry.decisions import DecisionRing, KeptDecision
from picker.edge.telemetry.live.columns import endpoint_columns
from picker.edge.telemetry.live.history import BUCKET_SECONDS, BUCKETS_MAX, History, rounded
from picker.kernels import build
from picker.pool.endpoint import Endpoint
from picker.version import __version__

PERIOD_SECONDS: Final = 1.0
VIEWERS_MAX: Final = 16
QUEUE_MAX: Final = 5
DECISIONS_HELLO: Final = 40
DECISIONS_TICK: Final = 20
"""At most so many new ones a second; how many there were in all is told."""
NAME_CHARS_MAX: Final = 256

_encode: Final = msgspec.json.Encoder().encode

Viewer = asyncio.Queue[bytes | None]
"""What is to be sent; `None`: the viewer is dropped."""


class Live:
    """The stream's one source. `run` for ever; `join` and `leave` by who serves a viewer."""

    def __init__(
        self,
        director: Director,
        decisions: DecisionRing,
        history: History,
        *,
        pool_name: str,
        instance: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        enabled: Callable[[], bool],
        faulted: Callable[[str, BaseException], None],
    ) -> None:
        """`instance`: of this process, another after a restart. `faulted` is told where, and which fault of ours."""
        self._director = director
        self._decisions = decisions
        self._history = history
        self._pool_name = pool_name
        self._instance = instance
        self._clock = clock
        self._wall = wall
        self._enabled = enabled
        self._faulted = faulted
        self._viewers: set[Viewer] = set()
        self._somebody = asyncio.Event()
        self._members: list[Endpoint] = []
        self._generation = 0
        self._told_decision = 0
        self._told_bucket = 0
        self._config: Any = None

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    def join(self) -> Viewer | None:
        """A viewer, its `hello` waiting for it. `None`: as many look as may, or the page is off."""
        if len(self._viewers) >= VIEWERS_MAX or not self._enabled():
            return None
        if not self._viewers:
            self._told_decision = self._decisions.added_total
            self._told_bucket = self._history.sampled_total
            self._config = self._director.config
            self._look_for_members()
        viewer: Viewer = asyncio.Queue(QUEUE_MAX)
        viewer.put_nowait(self._hello())
        self._viewers.add(viewer)
        self._somebody.set()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """It does not look any more."""
        self._viewers.discard(viewer)
        if not self._viewers:
            self._somebody.clear()

    async def run(self) -> None:
        """For ever: a rendering a second, while somebody looks."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._somebody.wait()
                began = loop.time()
                try:
                    if self._enabled():
                        self._tell(await self._tick())
                    else:
                        self._drop_all()
                except Exception as error:  # a fault here costs a viewer, never a request
                    self._faulted("telemetry", error)
                    self._drop_all()
                await asyncio.sleep(max(0.0, PERIOD_SECONDS - (loop.time() - began)))
        finally:
            self._drop_all()

    def _tell(self, message: bytes) -> None:
        if not message:
            return
        for viewer in list(self._viewers):
            if viewer.full():
                self._drop(viewer)
            else:
                viewer.put_nowait(message)

    def _drop(self, viewer: Viewer) -> None:
        while not viewer.empty():
            viewer.get_nowait()
        viewer.put_nowait(None)
        self.leave(viewer)

    def _drop_all(self) -> None:
        for viewer in list(self._viewers):
            self._drop(viewer)

    # What is told --------------------------------------------------------------------------

    def _look_for_members(self) -> bool:
        """Whether the list of endpoints is another than the one that was told."""
        members = self._director.datastore.endpoints
        if members == self._members:
            return False
        self._members = members
        self._generation += 1
        return True

    def _hello(self) -> bytes:
        """As of the last rendering, so that the next one goes on from it."""
        running = build()
        skipped = self._decisions.added_total - self._told_decision
        newest = self._decisions.newest(DECISIONS_HELLO + skipped)[skipped:]
        buckets = list(self._history.buckets)
        unseen = self._history.sampled_total - self._told_bucket
        hello = {
            "instance": self._instance,
            "version": __version__,
            "build": running.kind,
            "pool": self._pool_name,
            "now": round(self._wall(), 2),
            "config": self._shown_config(),
            "bucket_seconds": BUCKET_SECONDS,
            "buckets_max": BUCKETS_MAX,
            "history": buckets[: len(buckets) - unseen],
            "decisions": self._summaries(newest),
        }
        return _event(b"hello", hello) + self._members_event()

    def _shown_config(self) -> dict[str, Any]:
        config = self._director.config
        return {
            "weights": msgspec.to_builtins(config.weights),
            "threshold": config.threshold,
            "affinity_break": config.routing.affinity_break,
            "scoring": config.scoring,
            "epsilon": config.epsilon,
            "stale_seconds": config.engine_metrics.stale_seconds,
        }

    def _members_event(self) -> bytes:
        members = [[_cut(each.spec.name), each.spec.address] for each in self._members]
        return _event(b"members", {"generation": self._generation, "endpoints": members})

    async def _tick(self) -> bytes:
        """In steps; what is told of the list of endpoints is of the moment when it begins."""
        director, decisions, history = self._director, self._decisions, self._history
        head = self._members_event() if self._look_for_members() else b""
        generation, members = self._generation, self._members
        columns = await endpoint_columns(director, history, members, self._clock)
        encoded: list[bytes] = []
        for name, column in columns.items():
            encoded.append(b"%b:%b" % (_encode(name), _encode(column)))
            if len(column) > 200:
                await asyncio.sleep(0)
        if generation != self._generation:
            return b""  # all who looked have left, and whoever came since was told of other endpoints
        # From here on without a pause: who joins between two renderings misses nothing and sees nothing twice.
        now = self._clock()
        came = decisions.added_total - self._told_decision
        news = decisions.newest(DECISIONS_TICK, since=self._told_decision)
        self._told_decision = decisions.added_total
        fresh = history.sampled_total - self._told_bucket
        self._told_bucket = history.sampled_total
        tick: dict[str, Any] = {
            "now": round(self._wall(), 2),
            "generation": generation,
            "in_flight": director.ledger.open_charges,
            "saturation": rounded(director.saturation(now)),
            "synced": director.datastore.synced,
            "index_blocks": director.index.blocks,
            "index_bytes": director.index.bytes_estimate,
            "index_bytes_max": director.index.bytes_max,
            "decided": came,
            "kept": len(decisions),
            "decisions": self._summaries(news),
            "columns": msgspec.Raw(b"{%b}" % b",".join(encoded)),
        }
        if fresh:
            tick["buckets"] = list(history.buckets)[-fresh:]
        if self._config is not director.config:
            self._config = director.config
            tick["config"] = self._shown_config()
        return head + _event(b"tick", tick)

    def _summaries(self, found: Sequence[KeptDecision]) -> list[dict[str, Any]]:
        """The newest first."""
        return [
            {
                "number": kept.number,
                "at": round(kept.decided_at, 2),
                "request_id": kept.record.request_id and _cut(kept.record.request_id),
                "model": kept.record.model and _cut(kept.record.model),
                "reason": kept.picked.reason.value,
                "endpoint": _cut(kept.picked.endpoint_name or ""),
                "matched_share": rounded(kept.picked.matched_share),
                "prompt_tokens": None if kept.picked.prompt_tokens is None else round(kept.picked.prompt_tokens),
                "predicted_ttft_seconds": rounded(kept.picked.predicted_ttft_seconds),
            }
            for kept in found
        ]


def _cut(name: str) -> str:
    """Bounded, and without lone surrogates: JSON takes none."""
    name = name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…"
    return name.encode("utf-8", "replace").decode()


def _event(name: bytes, data: dict[str, Any]) -> bytes:
    """JSON has no line end of its own, so one `data` line holds it."""
    return b"event: %b\ndata: %b\n\n" % (name, _encode(data))
