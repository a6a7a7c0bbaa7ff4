"""Why this endpoint? A decision keeps its columns; the words are made when somebody reads.

What one decision keeps is some hundred bytes an endpoint (a copy of the rows of load, its costs, its
snapshot), so only a bounded number of recent ones is kept (edge/decisions.py), never one a stream.
"""

import math

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


class Later:
    """Call it for the `Explanation`."""

    __slots__ = ("_choice", "_columns", "_config", "_reason", "_snapshot")

    def __init__(self, snapshot: Snapshot, choice: Choice, columns: Columns, reason: Reason, config: Config) -> None:
        self._snapshot = snapshot
        self._choice = choice
        self._columns = columns
        self._reason = reason
        self._config = config

    def __call__(self) -> Explanation:
        cost = self._choice.cost
        standing = [slot for slot in cost.argsort(kind="stable").tolist() if math.isfinite(cost[slot])]
        share = self._columns.matched_share
        holders = [slot for slot in standing if share[slot] > 0][:_HOLDERS_MAX]
        others = [slot for slot in standing if slot != self._choice.slot and slot not in holders][:_OTHERS]
        seconds = scheduler.seconds(self._columns, self._config)
        shown = dict.fromkeys((self._choice.slot, *holders, *others))
        return Explanation(
            reason=str(self._reason),
            summary=_SUMMARIES[self._reason],
            prompt_tokens=round(self._columns.prompt_tokens),
            prompt_blocks=self._columns.matchable_blocks,
            endpoints=tuple(self._view(slot, share, seconds) for slot in shown),
        )

    def _view(self, slot: int, share: Column, seconds: dict[str, Column]) -> EndpointView:
        endpoint = self._snapshot.endpoints[slot]
        assert endpoint is not None
        picked = slot == self._choice.slot
        cost = float(self._choice.cost[slot])
        more = cost - float(self._choice.cost[self._choice.slot])
        if picked:
            why = f"picked: {_SUMMARIES[self._reason]}"
        elif more >= 0:
            why = f"{more:.3f} s dearer than the pick"
        else:
            why = f"{-more:.3f} s cheaper{_KEPT.get(self._reason, ': not taken')}"
        return EndpointView(
            address=endpoint.spec.address,
            name=endpoint.spec.name,
            matched_share=float(share[slot]),
            seconds={name: float(column[slot]) for name, column in seconds.items()},
            cost_seconds=cost,
            picked=picked,
            why=why,
        )


def header_text(explanation: Explanation) -> str:
    """One line of printable ASCII about the pick: for a response header, never a client's words."""
    pick = explanation.endpoints[0]
    seconds = "".join(f"; {name}={value:.4f}" for name, value in pick.seconds.items())
    text = (
        f"endpoint={pick.name}; address={pick.address}; reason={explanation.reason};"
        f" matched={pick.matched_share:.2f}; cost={pick.cost_seconds:.4f}{seconds}"
    )
    return "".join(each if " " <= each <= "~" else "?" for each in text)
