"""Kubernetes list/watch as a machine without I/O: it says what to request, and is told what came.

    next_action(now) -> List | Watch | Wait        what the edge does next
    list_page / watch_opened / watch_bytes         what the server sent
    closed / failed                                how the request ended

    ┌─────┐ last page ┌───────┐  bytes: events, bookmarks
    │LIST │──────────▶│ WATCH │──────────────────────────▶ changes
    └─────┘◀──────────└───────┘
       410, a refused or thrice failed watch, or a list older than `relist_seconds`

The picker's own because clients' watchers reconnect in a hot loop, swallow HTTP errors and stop
on 410. Each request ends in exactly one way, and every end that is not a good one waits
(backoff.py). A watch that the server closes within `clean_close_seconds_min` is a failure too:
else an API server that closes at once is asked thousands of times a second.

Invariants (`check()`):
* one request at a time; nothing is asked before `_not_before_seconds`;
* objects are keyed by uid, and no two share a name: a re-created object replaces its namesake;
* a list changes the set at its last page, atomically, or not at all;
* a resourceVersion is opaque: kept and returned, never compared;
* the changes emitted, applied in order to an empty set, give `objects`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Generic

import msgspec

from picker.kubernetes.backoff import Fault, Health
from picker.kubernetes.watch_messages import (
    Change,
    Deleted,
    List,
    Projection,
    Replaced,
    Sighting,
    T,
    Timing,
    Unreadable,
    Upserted,
    Wait,
    Watch,
)
from picker.rng import Rng


class _State(Enum):
    """What is in flight. LIST and WATCH name the request; the two others, what comes next."""

    LIST_NEXT = "list next"
    LISTING = "listing"
    WATCH_NEXT = "watch next"
    WATCHING = "watching"


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_STATUS = msgspec.json.Decoder(_Status)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)

EXPIRED_REASONS = ("Expired", "Gone")


class ListWatch(Generic[T]):
    """Follows the objects of one resource under one selector."""

    def __init__(
        self, projection: Projection[T], rng: Rng, *, selector: Mapping[str, str], timing: Timing | None = None
    ) -> None:
        """`selector`: the query parameters of every request (labelSelector, fieldSelector)."""
        self._project = projection
        self._rng = rng
        self._selector = dict(selector)
        self._timing = timing or Timing()
        self._state = _State.LIST_NEXT
        self._not_before_seconds = float("-inf")
        self._objects: dict[str, T] = {}
        self._uid_by_name: dict[str, str] = {}
        self._resource_version = ""
        self._staged: dict[str, T] = {}
        self._staged_malformed: dict[str, Unreadable] = {}
        self._continue: str | None = None
        self._pages = 0
        self._page_objects = self._timing.page_objects
        self._unpaged = False
        self._line = b""
        self._opened_at_seconds: float | None = None
        self._relist_at_seconds = float("inf")
        self.malformed: dict[str, Unreadable] = {}
        """Objects that are there and do not parse, by name."""
        self.malformed_total = 0
        self.failures = 0
        """Failures in a row."""
        self.failures_total = 0
        self._denials = 0
        """Denials in a row. An API server that just started denies before it has read the roles; after an
        outage that is the first denial, however many failures went before."""
        self.lists_total = 0
        self.watches_total = 0
        self.synced = False
        """A list was completed once."""
        self.health = Health.STARTING
        self.detail = ""
        """What the last fault said; empty while healthy."""
        self.last_contact_seconds: float | None = None
        """When the server last sent what it should."""

    @property
    def objects(self) -> Mapping[str, T]:
        """uid -> object, as last known. Not to be kept across calls: it changes in place."""
        return self._objects

    @property
    def busy(self) -> bool:
        """A request is in flight. False after an ERROR event: drop the stream that still runs."""
        return self._state in (_State.LISTING, _State.WATCHING)

    # What to do next

    def next_action(self, now: float) -> List | Watch | Wait:
        """What the edge does now. A `List` or `Watch` returned is in flight until it ended."""
        assert not self.busy, "the request before has not ended"
        if now < self._not_before_seconds:
            return Wait(self._not_before_seconds)
        fresh_credentials = self.health is Health.UNAUTHORIZED
        if self._state is _State.WATCH_NEXT and now >= self._relist_at_seconds:
            self._state = _State.LIST_NEXT
        if self._state is _State.LIST_NEXT:
            self._state = _State.LISTING
            return List(self._list_params(), fresh_credentials)
        return self._open_watch(fresh_credentials)

    def _list_params(self) -> dict[str, str]:
        params = dict(self._selector)
        if not self._unpaged:
            params["limit"] = str(self._page_objects)
        if self._continue is not None:
            params["continue"] = self._continue
        return params

    def _open_watch(self, fresh_credentials: bool) -> Watch:
        timing = self._timing
        span = timing.watch_seconds_max - timing.watch_seconds_min
        seconds = int(timing.watch_seconds_min + span * self._rng.random())
        self._state = _State.WATCHING
        self._line = b""
        self._opened_at_seconds = None
        self.watches_total += 1
        params = self._selector | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(seconds),
        }
        return Watch(params, fresh_credentials, timing.idle_seconds, seconds + timing.watch_grace_seconds)

    # A list

    def list_page(self, body: bytes, now: float) -> list[Change[T]]:
        """A page arrived whole, with status 200. The last one replaces the set."""
        assert self._state is _State.LISTING
        try:
            page = _PAGE.decode(body)
        except msgspec.MsgspecError as error:
            self.failed(Fault(f"the list does not parse: {error}"), now)
            return []
        if not page.metadata.resource_version:
            self.failed(Fault("the list has no resourceVersion"), now)
            return []
        if self._pages >= self._timing.pages_max:
            self.failed(Fault(f"the list did not end within {self._pages} pages"), now)
            return []
        for raw in page.items or ():
            self._stage(self._project(raw))
        self.last_contact_seconds = now
        if page.metadata.continue_:
            self._continue = page.metadata.continue_
            self._pages += 1
            self._state = _State.LIST_NEXT
            return []
        self._resource_version = page.metadata.resource_version
        return self._replace(now)

    def _stage(self, seen: Sighting[T] | Unreadable) -> None:
        if isinstance(seen, Unreadable):
            self.malformed_total += 1
            self._staged_malformed[seen.name] = seen
        else:
            self._staged[seen.object.name] = seen.object

    def _replace(self, now: float) -> list[Change[T]]:
        malformed = {name: item for name, item in self._staged_malformed.items() if name not in self._staged}
        objects = {thing.uid: thing for thing in self._staged.values()}
        self._forget_pages()
        self._unpaged = False
        self._page_objects = self._timing.page_objects
        self.malformed = malformed
        changed = not self.synced or objects != self._objects
        self._objects = objects
        self._uid_by_name = {thing.name: uid for uid, thing in objects.items()}
        self._state = _State.WATCH_NEXT
        self._relist_at_seconds = now + self._timing.relist_seconds * (1.0 + self._rng.random())
        self.lists_total += 1
        self.synced = True
        self.health, self.detail = Health.OK, ""
        return [Replaced(dict(objects))] if changed else []

    def _forget_pages(self) -> None:
        self._staged, self._staged_malformed = {}, {}
        self._continue = None
        self._pages = 0

    # A watch

    def watch_opened(self, now: float) -> None:
        """The watch was answered with status 200."""
        assert self._state is _State.WATCHING
        self._opened_at_seconds = now
        self.last_contact_seconds = now
        self.health, self.detail = Health.OK, ""

    def watch_bytes(self, data: bytes, now: float) -> list[Change[T]]:
        """Bytes of the watch stream, cut anywhere."""
        changes: list[Change[T]] = []
        self.last_contact_seconds = now
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if self._state is not _State.WATCHING:
                return changes
            if line.strip():
                self._event(line, now, changes)
        if self._state is _State.WATCHING and len(self._line) > self._timing.line_bytes_max:
            self.failed(Fault(f"an event is longer than {self._timing.line_bytes_max} bytes"), now)
        return changes

    def _event(self, line: bytes, now: float, changes: list[Change[T]]) -> None:
        try:
            event = _EVENT.decode(line)
            if event.type == "BOOKMARK":
                self._advance(_BOOKMARK.decode(event.object).metadata.resource_version)
                return
            if event.type == "ERROR":
                status = _STATUS.decode(event.object)
                code = 410 if status.reason in EXPIRED_REASONS else status.code or 500
                self.failed(Fault(f"the watch ended: {status.message or status.reason}", code), now)
                return
        except msgspec.MsgspecError as error:
            self.failed(Fault(f"an event does not parse: {error}"), now)
            return
        seen = self._project(event.object)
        if event.type in ("ADDED", "MODIFIED"):
            self._see(seen, changes)
        elif event.type == "DELETED":
            self._delete(seen, changes)
        self._advance(seen.resource_version)

    def _forget(self, seen: Unreadable, changes: list[Change[T]]) -> None:
        """What cannot be read cannot be served: the set becomes what a list would make it."""
        self._remove(seen.uid, changes)
        self._remove(self._uid_by_name.get(seen.name, ""), changes)

    def _see(self, seen: Sighting[T] | Unreadable, changes: list[Change[T]]) -> None:
        if isinstance(seen, Unreadable):
            self.malformed_total += 1
            self.malformed[seen.name] = seen
            self._forget(seen, changes)
            return
        thing = seen.object
        self.malformed.pop(thing.name, None)
        if self._objects.get(thing.uid) == thing:
            return
        namesake = self._uid_by_name.get(thing.name)
        if namesake is not None and namesake != thing.uid:
            self._remove(namesake, changes)
        self._objects[thing.uid] = thing
        self._uid_by_name[thing.name] = thing.uid
        changes.append(Upserted(thing))

    def _delete(self, seen: Sighting[T] | Unreadable, changes: list[Change[T]]) -> None:
        uid, name = (seen.uid, seen.name) if isinstance(seen, Unreadable) else (seen.object.uid, seen.object.name)
        unread = self.malformed.get(name)
        if unread is not None and unread.uid == uid:
            del self.malformed[name]
        self._remove(uid, changes)

    def _remove(self, uid: str, changes: list[Change[T]]) -> None:
        gone = self._objects.pop(uid, None)
        if gone is None:
            return
        if self._uid_by_name.get(gone.name) == uid:
            del self._uid_by_name[gone.name]
        changes.append(Deleted(gone))

    def _advance(self, resource_version: str) -> None:
        if resource_version:
            self._resource_version = resource_version

    # Ends

    def closed(self, now: float) -> None:
        """The server ended the watch stream in good order. Right after the opening, that is a failure."""
        if self._state is not _State.WATCHING:
            return
        lived_seconds = self._lived_seconds(now)
        if self._line.strip():
            self.failed(Fault("the watch ended within an event"), now)
        elif lived_seconds < self._timing.clean_close_seconds_min:
            self.failed(Fault(f"the server closed the watch after {lived_seconds:.2f} s"), now)
        else:
            self._forgive(lived_seconds)
            self._state = _State.WATCH_NEXT

    def failed(self, fault: Fault, now: float) -> None:
        """The request in flight failed, whatever kind it was. The set stays as it is."""
        if not self.busy:
            return
        watching = self._state is _State.WATCHING
        if watching:
            self._forgive(self._lived_seconds(now))
        self.failures += 1
        self.failures_total += 1
        self._state = self._after_watch(fault) if watching else self._after_list(fault)
        self.health, self.detail = fault.health, fault.detail
        self._denials = self._denials + 1 if fault.denied else 0
        in_a_row = self._denials if fault.denied else self.failures
        self._not_before_seconds = now + self._timing.backoff.delay_seconds(fault, in_a_row, self._rng)

    def page_too_large(self, now: float) -> None:
        """A page exceeded what the edge reads into memory: smaller pages."""
        self._page_objects = max(1, self._page_objects // 4)
        self.failed(Fault("a page of the list is too large; asking for smaller ones"), now)
        self._unpaged = False

    def _after_watch(self, fault: Fault) -> _State:
        """Resume where the stream broke, unless the server refused that or it keeps failing."""
        refused = fault.status is not None and fault.status not in (401, 429, 503)
        return _State.LIST_NEXT if refused or self.failures > self._timing.resume_failures_max else _State.WATCH_NEXT

    def _after_list(self, fault: Fault) -> _State:
        if fault.status == 410:
            # The continue token expired between pages: a list in one piece cannot meet that.
            self._unpaged = self._continue is not None
        if fault.status not in (401, 429, 503):
            self._forget_pages()
        return _State.LIST_NEXT

    def _lived_seconds(self, now: float) -> float:
        return 0.0 if self._opened_at_seconds is None else now - self._opened_at_seconds

    def _forgive(self, lived_seconds: float) -> None:
        if lived_seconds >= self._timing.healthy_seconds:
            self.failures = 0

    def check(self) -> None:
        """Assert the invariants."""
        assert all(uid == thing.uid for uid, thing in self._objects.items())
        assert self._uid_by_name == {thing.name: uid for uid, thing in self._objects.items()}
        assert self.synced or not self._objects
        assert self._state not in (_State.WATCH_NEXT, _State.WATCHING) or self.synced
        assert self._state in (_State.LIST_NEXT, _State.LISTING) or not (self._staged or self._continue)
        assert (self._continue is not None) == (self._pages > 0)
        assert len(self._line) <= self._timing.line_bytes_max or self._state is not _State.WATCHING
        assert not any(item.name in self._uid_by_name for item in self.malformed.values())
