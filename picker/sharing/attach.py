"""A director among others: who gathers its news, and who applies theirs.

The director itself knows an outbox, or none; what is gathered are lists in its books.
"""

from typing import Protocol

from picker.config import Config
from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.prefix.index import PrefixIndex
from picker.scheduling.ejection import EjectionBook, aside_max
from picker.scheduling.rates import Rates
from picker.scheduling.stickiness import Stickiness
from picker.sharing.books import Books
from picker.sharing.outbox import Outbox
from picker.sharing.shared import Shared


class Attachable(Protocol):
    """A director, as far as this goes."""

    config: Config
    datastore: Datastore
    ledger: InflightLedger
    index: PrefixIndex
    rates: Rates
    ejection: EjectionBook
    stickiness: Stickiness
    outbox: Outbox | None


def attach(director: Attachable, *, name: int, started_ms: int) -> Shared:
    """From now on what is decided there is told, and what others tell is applied there.

    `name`: of this run of this picker, 1..2**64-1, drawn at random. `started_ms`: since 1970.
    """
    books = Books(
        datastore=director.datastore,
        ledger=director.ledger,
        index=director.index,
        rates=director.rates,
        ejection=director.ejection,
        stickiness=director.stickiness,
        aside_max=lambda: aside_max(director.config.ejection, len(director.datastore.endpoints)),
    )
    shared = Shared(books, name=name, started_ms=started_ms)
    director.outbox = shared.outbox
    return shared


def detach(director: Attachable) -> None:
    """Nobody is told any more. What a `Shared` knows can still be written and read."""
    director.outbox = None
    director.index.news = director.index.withdrawn = None
    director.index.exact = False
    director.ejection.news = None
    for holders in (director.stickiness.sessions, director.stickiness.stored, director.stickiness.conversations):
        holders.news = None
