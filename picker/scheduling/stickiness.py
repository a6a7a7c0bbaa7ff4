"""Requests that belong where an earlier one went: sessions, stored responses, conversations.

Configuration names the header or cookie of a session; the Responses API names what it continues
(`previous_response_id`, `conversation`, an id in the path). Only the server that made a response
has it stored. Both are remembered by digest, bounded in number and age; where the server is gone,
ejected or filtered out, the rule chooses, and the session stays with its choice.
"""

from collections import OrderedDict

from picker.api.hints import Hints, digest
from picker.api.request import InferenceRequest
from picker.config import Config
from picker.pool.endpoint import Endpoint


class Holders:
    """Key -> the endpoint that holds it. The least recently used go; what left the pool holds nothing."""

    def __init__(self) -> None:
        self.entries_max = 0
        self.seconds = 0.0
        self._held: OrderedDict[bytes, tuple[Endpoint, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def bound(self, entries_max: int, seconds: float) -> None:
        """How many at once, and for how long after their last use."""
        self.entries_max, self.seconds = entries_max, seconds
        self._trim()

    def hold(self, key: bytes, endpoint: Endpoint, now: float) -> None:
        """From now on it is there."""
        self._held[key] = (endpoint, now)
        self._held.move_to_end(key)
        self._trim()

    def find(self, key: bytes, now: float) -> Endpoint | None:
        """The live endpoint that holds it; `None`: nobody, as far as is known."""
        found = self._held.get(key)
        if found is None:
            return None
        endpoint, used_at = found
        if endpoint.slot < 0 or now - used_at > self.seconds:
            del self._held[key]
            return None
        return endpoint

    def _trim(self) -> None:
        while len(self._held) > self.entries_max:
            self._held.popitem(last=False)


class Stickiness:
    """Both kinds. One event loop owns it."""

    def __init__(self, config: Config) -> None:
        self.sessions = Holders()
        self.stored = Holders()
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Other bounds from now on."""
        self.sessions.bound(config.session_affinity.sessions_max, config.session_affinity.seconds)
        self.stored.bound(config.limits.response_ids_max, config.limits.response_ids_seconds)

    def holder(self, request: InferenceRequest, hints: Hints, now: float) -> Endpoint | None:
        """Where the request belongs; what it continues goes before the session."""
        for name in (hints.held_id, request.previous_response_id, request.conversation_id):
            found = self.stored.find(_key(name), now) if name is not None else None
            if found is not None:
                return found
        return self.sessions.find(hints.session, now) if hints.session is not None else None

    def went(self, request: InferenceRequest, hints: Hints, endpoint: Endpoint, now: float) -> "Stuck | None":
        """The request goes to `endpoint`, and what follows it shall too. `None`: nothing will."""
        if hints.session is None and request.conversation_id is None:
            return None
        stuck = Stuck(hints.session, None if request.conversation_id is None else _key(request.conversation_id))
        self.moved(stuck, endpoint, now)
        return stuck

    def moved(self, stuck: "Stuck", endpoint: Endpoint, now: float) -> None:
        """Another endpoint served it."""
        if stuck.session is not None:
            self.sessions.hold(stuck.session, endpoint, now)
        if stuck.conversation is not None:
            self.stored.hold(stuck.conversation, endpoint, now)

    def created(self, name: str, endpoint: Endpoint, now: float) -> None:
        """`endpoint` answered with a response or conversation of this id."""
        self.stored.hold(_key(name), endpoint, now)


class Stuck:
    """What of one request others will follow."""

    __slots__ = ("conversation", "session")

    def __init__(self, session: bytes | None, conversation: bytes | None) -> None:
        self.session = session
        self.conversation = conversation


def _key(name: str) -> bytes:
    return digest("id", name)
