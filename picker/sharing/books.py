"""The director's books as far as pickers tell each other of them, and what stands beside them.

One object for both directions, so that neither the outbox nor the inbox has to know the director.
"""

from collections.abc import Callable

from picker.pool.datastore import Datastore
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import InflightLedger
from picker.prefix.index import PrefixIndex
from picker.scheduling.ejection import EjectionBook
from picker.scheduling.rates import Rates
from picker.scheduling.stickiness import Stickiness
from picker.sharing.names import Names
from picker.sharing.peers import Peers
from picker.sharing.records import KINDS
from picker.sharing.trails import Trails


class RecordCounts:
    """What went through, for telemetry. By kind: records."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.received: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.dropped: dict[str, int] = dict.fromkeys(("outbox", "inbox", "unresolved", "refused"), 0)
        """`outbox`: batches that found no room, `inbox`: likewise; `unresolved`: chains on top of what we do not
        have, or of endpoints we do not know; `refused`: batches that are none, or another version's."""


class Books:
    """References, no copies."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        ledger: InflightLedger,
        index: PrefixIndex,
        rates: Rates,
        ejection: EjectionBook,
        stickiness: Stickiness,
        aside_max: Callable[[], int],
    ) -> None:
        """`aside_max`: endpoints that may be put aside at a time."""
        self.datastore = datastore
        self.ledger = ledger
        self.index = index
        self.rates = rates
        self.ejection = ejection
        self.stickiness = stickiness
        self.aside_max = aside_max
        self.sticky = (stickiness.sessions, stickiness.stored, stickiness.conversations)
        """In the order of their kinds (records.Sticky)."""
        self.names = Names(datastore)
        self.trails = Trails()
        self.peers = Peers(ledger)
        self.counts = RecordCounts()
        self.purged: dict[Endpoint, int] = {}
        """When (a tick of the index) each engine is known to have lost its cache: older uses count no more."""

    def purge(self, endpoint: Endpoint, tick: int) -> None:
        """Remember that its engine lost its cache at `tick`."""
        for left in [each for each in self.purged if each.slot < 0]:
            del self.purged[left]
        self.purged[endpoint] = max(tick, self.purged.get(endpoint, tick))
