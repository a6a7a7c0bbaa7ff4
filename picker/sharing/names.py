"""What endpoints are called between pickers: a digest over identity and address, never a slot."""

from array import array

from xxhash import xxh3_64_intdigest

from picker.pool.datastore import Datastore
from picker.pool.endpoint import Endpoint


class Names:
    """Both ways, for the live endpoints. Built anew when somebody joined or left."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._names: dict[Endpoint, int] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._slots: dict[int, Endpoint] = {}
        self._memberships = -1

    def of(self, endpoint: Endpoint) -> int | None:
        """Its name; `None` if it left."""
        self._renew()
        return self._names.get(endpoint)

    def find(self, name: int) -> Endpoint | None:
        """The live endpoint of this name."""
        self._renew()
        return self._endpoints.get(name)

    def find_all(self, names: "array[int]") -> list[Endpoint | None]:
        """The same for many, in their order."""
        self._renew()
        endpoints = self._endpoints
        return [endpoints.get(name) for name in names]

    def at(self, slot: int) -> Endpoint | None:
        """The live endpoint that has this slot."""
        self._renew()
        return self._slots.get(slot)

    def _renew(self) -> None:
        if self._memberships == self._datastore.memberships:
            return
        self._memberships = self._datastore.memberships
        self._names = {endpoint: name_of(endpoint) for endpoint in self._datastore.endpoints}
        self._endpoints = {name: endpoint for endpoint, name in self._names.items()}
        self._slots = {endpoint.slot: endpoint for endpoint in self._names}


def name_of(endpoint: Endpoint) -> int:
    """The digest of an endpoint."""
    spec = endpoint.spec
    return xxh3_64_intdigest(b"%b\0%b" % (spec.uid.encode("utf-8", "surrogatepass"), spec.address.encode()))


class Table:
    """The endpoints of one batch: each once, the rest by place."""

    __slots__ = ("_names", "_places", "_written")

    def __init__(self, names: Names) -> None:
        self._names = names
        self._places: dict[Endpoint, int] = {}
        self._written = bytearray()

    def place(self, endpoint: Endpoint) -> int | None:
        """Where it stands; `None` if it left the pool."""
        place = self._places.get(endpoint)
        if place is None:
            name = self._names.of(endpoint)
            if name is None:
                return None
            place = self._places[endpoint] = len(self._places)
            self._written += name.to_bytes(8, "little")
        return place

    def written(self) -> bytes:
        """As a batch has it."""
        return bytes(self._written)
