"""Requests that belong where an earlier one went: sessions, stored responses, conversations.

Configuration names the header or cookie of a session; the Responses API names what it continues
(`previous_response_id`, `conversation`, an id in the path), and so do files and batches. Only the server
that made a response, or was given a file, has it. Both are remembered by digest, bounded in number and age;
where the server is gone, ejected or filtered out, the rule chooses, and the session stays with its choice.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from picker.api.hints import Hints, digest
from picker.api.request import InferenceRequest
from picker.config import Config
from picker.pool.endpoint import Endpoint

KEPT_SHARE: Final = 0.8
"""Of a table, for keys that came back."""


class Holders:
    """Key -> the endpoint that holds it, bounded in number and age; what left the pool holds nothing.

    Keys that came back after they were told are *kept*, up to `KEPT_SHARE` of all; whoever needs room takes the least
    recently used of the others. So a flood of names that are used once pushes out none that is in use.
    """

    def __init__(self) -> None:
        self.entries_max = 0
        self.seconds = 0.0
        self.news: list[tuple[bytes, Endpoint, float]] | None = None
        """What other pickers shall hear: key, endpoint, when."""
        self._new: OrderedDict[bytes, tuple[Endpoint, float]] = OrderedDict()
        self._kept: OrderedDict[bytes, tuple[Endpoint, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._new) + len(self._kept)

    def bound(self, entries_max: int, seconds: float) -> None:
        """How many at once, and for how long after their last use."""
        self.entries_max, self.seconds = entries_max, seconds
        self._trim()

    def hold(self, key: bytes, endpoint: Endpoint, now: float) -> None:
        """From now on it is stored at this endpoint."""
        self._put(key, endpoint, now)
        if self.news is not None:
            self.news.append((key, endpoint, now))

    def told(self, key: bytes, endpoint: Endpoint, then: float) -> None:
        """Another picker sent it there at `then`. What is known of later stays."""
        known = self._kept.get(key) or self._new.get(key)
        if known is not None and known[0].slot >= 0 and known[1] >= then:
            return
        self._put(key, endpoint, then)

    def all(self) -> Iterator[tuple[bytes, Endpoint, float]]:
        """Key, endpoint and last use of each whose endpoint is there, as of this call."""
        for key, (endpoint, used_at) in [*self._new.items(), *self._kept.items()]:
            if endpoint.slot >= 0:
                yield key, endpoint, used_at

    def find(self, key: bytes, now: float) -> Endpoint | None:
        """The live endpoint that holds it: whoever asks uses it. `None`: none is known to."""
        found = self._kept.get(key)
        if found is None:
            found = self._new.get(key)
            if found is None:
                return None
            if not self._lives(found, now):
                del self._new[key]
                return None
            del self._new[key]
            self._kept[key] = found
            self._trim()
            return found[0]
        if not self._lives(found, now):
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return found[0]

    def look(self, key: bytes, now: float) -> Endpoint | None:
        """As `find`, for who only wants to know: it counts as no use."""
        found = self._kept.get(key) or self._new.get(key)
        return found[0] if found is not None and self._lives(found, now) else None

    def _lives(self, found: tuple[Endpoint, float], now: float) -> bool:
        return found[0].slot >= 0 and now - found[1] <= self.seconds

    def _put(self, key: bytes, endpoint: Endpoint, then: float) -> None:
        table = self._kept if key in self._kept else self._new
        table[key] = (endpoint, then)
        table.move_to_end(key)
        self._trim()

    def _trim(self) -> None:
        kept_max = int(KEPT_SHARE * self.entries_max)
        while len(self._kept) > kept_max:
            key, found = self._kept.popitem(last=False)
            self._new[key] = found
        while len(self._new) + len(self._kept) > self.entries_max:
            self._new.popitem(last=False)


class Stickiness:
    """Both kinds. One event loop owns it."""

    def __init__(self, config: Config) -> None:
        self.sessions = Holders()
        self.stored = Holders()
        """Of ids that engines told."""
        self.conversations = Holders()
        """Of names that clients made up: they push out nobody's stored response."""
        self._thought: dict[bytes, Endpoint] = {}
        """Where requests in flight go, by session and conversation."""
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Other bounds from now on."""
        self.sessions.bound(config.session_affinity.sessions_max, config.session_affinity.seconds)
        for table in (self.stored, self.conversations):
            table.bound(config.limits.response_ids_max, config.limits.response_ids_seconds)

    def holder(self, request: InferenceRequest, hints: Hints, now: float) -> Endpoint | None:
        """Where the request belongs; what it continues goes before the session."""
        for name in (hints.held_id, request.previous_response_id, request.conversation_id):
            if name is None:
                continue
            found = self.stored.find(_key(name), now) or self._find(self.conversations, _key(name), now)
            if found is not None:
                return found
        return self._find(self.sessions, hints.session, now) if hints.session is not None else None

    def known(self, name: str, now: float) -> list[tuple[str, Endpoint]]:
        """For who asks where it is: what goes by this name (`session`, `response`, `conversation`), and where."""
        found: list[tuple[str, Endpoint]] = []
        for source in ("header", "cookie"):
            endpoint = self._look(self.sessions, digest(source, name), now)
            if endpoint is not None:
                found.append(("session", endpoint))
        endpoint = self.stored.look(_key(name), now)
        if endpoint is not None:
            found.append(("response", endpoint))
        endpoint = self._look(self.conversations, _key(name), now)
        if endpoint is not None:
            found.append(("conversation", endpoint))
        return found

    def went(self, request: InferenceRequest, hints: Hints, endpoint: Endpoint, now: float) -> "Stuck | None":
        """The request goes to `endpoint`, and what follows it shall too. `None`: nothing will.

        Until it is answered that is only thought: it pushes out nobody who was answered, and ends with the request.
        """
        if hints.session is None and request.conversation_id is None:
            return None
        stuck = Stuck(hints.session, None if request.conversation_id is None else _key(request.conversation_id))
        self.moved(stuck, endpoint)
        return stuck

    def moved(self, stuck: "Stuck", endpoint: Endpoint) -> None:
        """It is thought to go there."""
        for key in (stuck.session, stuck.conversation):
            if key is not None:
                self._thought[key] = endpoint

    def answered(self, stuck: "Stuck", endpoint: Endpoint, now: float) -> None:
        """It was served there: what follows it belongs there."""
        if stuck.session is not None:
            self.sessions.hold(stuck.session, endpoint, now)
        if stuck.conversation is not None:
            self.conversations.hold(stuck.conversation, endpoint, now)

    def over(self, stuck: "Stuck", endpoint: Endpoint) -> None:
        """The request ended: what was only thought is forgotten."""
        for key in (stuck.session, stuck.conversation):
            if key is not None and self._thought.get(key) is endpoint:
                del self._thought[key]

    def _find(self, table: Holders, key: bytes, now: float) -> Endpoint | None:
        thought = self._thought.get(key)
        return thought if thought is not None and thought.slot >= 0 else table.find(key, now)

    def _look(self, table: Holders, key: bytes, now: float) -> Endpoint | None:
        thought = self._thought.get(key)
        return thought if thought is not None and thought.slot >= 0 else table.look(key, now)

    def created(self, name: str, endpoint: Endpoint, now: float) -> None:
        """`endpoint` answered with a response, conversation, file or batch of this id."""
        self.stored.hold(_key(name), endpoint, now)


class Stuck:
    """What of one request others will follow."""

    __slots__ = ("conversation", "session")

    def __init__(self, session: bytes | None, conversation: bytes | None) -> None:
        self.session = session
        self.conversation = conversation


def _key(name: str) -> bytes:
    return digest("id", name)
