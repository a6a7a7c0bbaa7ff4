"""What the list/watch machine (listwatch.py) and its edge tell each other, as values.

Objects come in as `Sighting` or `Unreadable`, go out as `Change`; actions are what the edge does next.
"""

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from picker.kubernetes.backoff import Backoff


class Tracked(Protocol):
    """What the machine needs of an object. Equal objects are the same news."""

    @property
    def uid(self) -> str:
        """metadata.uid: a re-created object has another."""

    @property
    def name(self) -> str:
        """metadata.name: unique among the living objects of one namespaced resource."""


T = TypeVar("T", bound=Tracked)


class Sighting(msgspec.Struct, Generic[T], frozen=True):
    """One object as the server sent it, reduced to what is needed."""

    resource_version: str
    object: T


class Unreadable(msgspec.Struct, frozen=True):
    """An object that does not parse. `uid`, `name` and `resource_version` where they could be read."""

    uid: str
    name: str
    resource_version: str
    why: str


Projection = Callable[[msgspec.Raw], Sighting[T] | Unreadable]
"""Reads one object of the API. Total: a bad object is an `Unreadable`, never an exception."""


class Replaced(msgspec.Struct, Generic[T], frozen=True):
    """A list: these are all the objects there are."""

    objects: Mapping[str, T]


class Upserted(msgspec.Struct, Generic[T], frozen=True):
    """A new object, or one that changed in what we look at."""

    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True):
    """An object that is gone, as it was last known."""

    object: T


Change = Replaced[T] | Upserted[T] | Deleted[T]


class List(msgspec.Struct, frozen=True):
    """GET one page of the list."""

    params: Mapping[str, str]
    fresh_credentials: bool
    """Read token and certificates anew first: the last attempt was a 401."""


class Watch(msgspec.Struct, frozen=True):
    """GET the watch stream. No byte for `idle_seconds`, or no end after `total_seconds`: drop it (`failed`)."""

    params: Mapping[str, str]
    fresh_credentials: bool
    idle_seconds: float
    total_seconds: float


class Wait(msgspec.Struct, frozen=True):
    """Ask again at this time."""

    until_seconds: float


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When, and how much at a time. Seconds of the caller's monotonic clock."""

    page_objects: int = 500
    pages_max: int = 10_000
    watch_seconds_min: float = 240.0
    watch_seconds_max: float = 480.0
    watch_grace_seconds: float = 30.0
    """How long past its own end a watch may go on before the client ends it."""
    idle_seconds: float = 90.0
    """API servers send a bookmark about once a minute (k8s.io/apiserver cacher, bookmarkFrequency)."""
    clean_close_seconds_min: float = 1.0
    healthy_seconds: float = 10.0
    """A watch that lived this long forgives all failures before it."""
    relist_seconds: float = 3600.0
    """A watch is not re-opened on a list older than this (jittered up to twice): insurance against lost events."""
    resume_failures_max: int = 2
    """Failures in a row after which a watch is not resumed, but the list taken anew and compared."""
    line_bytes_max: int = 16 * 1024 * 1024
    backoff: Backoff = Backoff()
