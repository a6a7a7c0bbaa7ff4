"""Who is in the pool, as a source tells it: told to the director in steps, so that the event loop has its turns.

An endpoint that leaves takes its entries in the prefix index with it, one by one. A thousand that leave at once have a
million; so they leave some at a time, with turns of the loop between, and newcomers all at the first step. Whoever
is still to leave may be picked for these milliseconds, as until the source told.
"""

from collections.abc import Callable, Sequence

from picker.director import Director
from picker.pool.specs import EndpointSpec

ENTRIES_A_STEP = 2_000
"""Of the index, that go in one step: some two milliseconds. One endpoint's go together, however many."""
NAMED_MAX = 50
"""In the log, of those that join or leave at once: a line takes longer to write than the change to make."""


class Membership:
    """`replace` with every list of the source. `changed()` is called when one is told in full."""

    def __init__(
        self,
        director: Director,
        *,
        log: Callable[..., None],
        changed: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`call_soon`: of the event loop."""
        self._director = director
        self._log = log
        self._changed = changed
        self._call_soon = call_soon
        self._wanted: list[EndpointSpec] = []
        self._stepping = False
        self._named = {"joined": 0, "left": 0}

    def replace(self, specs: Sequence[EndpointSpec]) -> None:
        """The whole set. A newer one takes the place of one that is still on its way."""
        self._wanted = list(specs)
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        leaving = self._to_leave_later()
        self._stepping = bool(leaving)
        change = self._director.replace_endpoints([*self._wanted, *leaving])
        for word, endpoints in (("joined", change.joined), ("left", change.left)):
            named = endpoints[: max(0, NAMED_MAX - self._named[word])]
            self._named[word] += len(endpoints)
            for endpoint in named:
                self._log("info", f"endpoint {word}", endpoint=endpoint.spec.name, address=endpoint.spec.address)
        if leaving:
            self._call_soon(self._step)
            return
        for word, count in self._named.items():
            if count > NAMED_MAX:
                self._log("info", f"more endpoints {word}", count=count - NAMED_MAX)
            self._named[word] = 0
        self._changed()

    def _to_leave_later(self) -> list[EndpointSpec]:
        """Those that are gone and stay for this step; at least one goes."""
        wanted = {spec.uid for spec in self._wanted}
        index = self._director.index
        entries = 0
        later: list[EndpointSpec] = []
        for endpoint in self._director.datastore.endpoints:
            if endpoint.spec.uid not in wanted:
                if entries < ENTRIES_A_STEP:
                    entries += index.entries_of(endpoint.slot)
                else:
                    later.append(endpoint.spec)
        return later
