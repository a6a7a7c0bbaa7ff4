"""Why this endpoint? A decision keeps its columns; the words are made when somebody reads them.

What one decision keeps is some hundred bytes an endpoint (a copy of the rows of load, its costs, its
snapshot), so only a bounded number of recent ones is kept (edge/telemetry/decisions.py), never one a stream.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from picker.config import Config
from picker.outcomes import EndpointView, Explanation, Reason
from picker.pool.snapshot import Column, Snapshot
from picker.scheduling import scheduler
from picker.scheduling.columns import Columns
from picker.scheduling.scheduler import Choice

_OTHERS = 3
_HOLDERS_MAX = 32

_SUMMARIES = {
    Reason.AFFINITY: "it is the cheapest of those that hold the prompt's prefix",
    Reason.BREAK: "the holders of the prefix cost more than the work they would save",
    Reason.LOAD: "no endpoint holds enough of the prompt; it is the cheapest",
    Reason.EXPLORE: "the exploration draw gives the prompt a second home at little cost",
    Reason.HEADERS: "there is no prompt to match; it is the cheapest",
    Reason.STICKY: "it holds the session, or what the request continues",
}

_KEPT = {
    Reason.AFFINITY: ", but the pick holds the prefix",
    Reason.STICKY: ", but the pick holds the session",
}
"""Why a cheaper endpoint was passed over."""


class LazyExplanation:
    """Call it for the `Explanation`; what it is made of is there for who decides again (telemetry's `live`)."""

    __slots__ = ("choice", "columns", "config", "confirmed", "reason", "snapshot")

    def __init__(self, snapshot: Snapshot, choice: Choice, columns: Columns, reason: Reason, config: Config) -> None:
        self.snapshot = snapshot
        self.choice = choice
        self.columns = columns
        self.reason = reason
        self.config = config
        self.confirmed: Callable[[int, int], int | None] | None = None
        """How many blocks of the prompt a slot's engine confirmed, of so many that are thought to be held there."""

    def __call__(self) -> Explanation:
        standing = self.standing()
        share = self.columns.matched_share
        holders = [slot for slot in standing if share[slot] > 0][:_HOLDERS_MAX]
        others = [slot for slot in standing if slot != self.choice.slot and slot not in holders][:_OTHERS]
        shown = dict.fromkeys((self.choice.slot, *holders, *others))
        return Explanation(
            reason=str(self.reason),
            summary=_SUMMARIES[self.reason],
            prompt_tokens=round(self.columns.prompt_tokens),
            prompt_blocks=self.columns.matchable_blocks,
            endpoints=tuple(self.views(shown)),
        )

    def standing(self) -> list[int]:
        """The slots that stood for the choice, the cheapest first."""
        cost = self.choice.cost
        return [slot for slot in cost.argsort(kind="stable").tolist() if math.isfinite(cost[slot])]

    def weights(self, names: Iterable[str]) -> dict[str, float]:
        """What the seconds of each objective count in the cost: the cost is their sum, each times this."""
        weights = self.config.weights
        return {name: getattr(weights, name) / weights.prefix for name in names}

    def views(self, slots: Iterable[int]) -> Iterator[EndpointView]:
        """What is shown of each of these."""
        share, seconds = self.columns.matched_share, scheduler.seconds(self.columns, self.config)
        for slot in slots:
            yield self._view(slot, share, seconds)

    def _view(self, slot: int, share: Column, seconds: dict[str, Column]) -> EndpointView:
        endpoint = self.snapshot.endpoints[slot]
        assert endpoint is not None
        picked = slot == self.choice.slot
        cost = float(self.choice.cost[slot])
        more = cost - float(self.choice.cost[self.choice.slot])
        if picked:
            why = f"picked: {_SUMMARIES[self.reason]}"
        elif more >= 0:
            why = f"{more:.3f} s more than the pick"
        else:
            why = f"{-more:.3f} s cheaper{_KEPT.get(self.reason, ': not taken')}"
        return EndpointView(
            address=endpoint.spec.address,
            name=endpoint.spec.name,
            matched_share=float(share[slot]),
            seconds={name: float(column[slot]) for name, column in seconds.items()},
            cost_seconds=cost,
            picked=picked,
            why=why,
            confirmed_share=self._confirmed_share(slot),
        )

    def _confirmed_share(self, slot: int) -> float | None:
        if self.confirmed is None:
            return None
        columns = self.columns
        blocks = self.confirmed(slot, columns.holding(slot).blocks)
        return None if blocks is None else blocks / max(1, columns.matchable_blocks)


class PlainExplanation:
    """The same for a decision that a fault of ours left without costs."""

    __slots__ = ("_address", "_name")

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name

    def __call__(self) -> Explanation:
        why = "a fault of the picker kept it from choosing; the fewest requests in flight are here"
        view = EndpointView(self._address, self._name, 0.0, {}, 0.0, True, why)
        return Explanation(str(Reason.HEADERS), why, 0, 0, (view,))


def header_text(explanation: Explanation, served: str | None = None) -> str:
    """One line of printable ASCII about the pick: for a response header, never a client's words.

    `served`: the address that served in its place, where the proxy tells of another.
    """
    pick = explanation.endpoints[0]
    seconds = "".join(f"; {name}={value:.4f}" for name, value in pick.seconds.items())
    where = f"endpoint={pick.name}; address={pick.address}"
    if served is not None and served != pick.address:
        where = f"address={served}; picked={pick.address}"
    text = (
        f"{where}; reason={explanation.reason}; matched={pick.matched_share:.2f}; cost={pick.cost_seconds:.4f}{seconds}"
    )
    return "".join(each if " " <= each <= "~" else "?" for each in text)
