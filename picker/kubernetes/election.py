"""Leader election by a Kubernetes Lease, as a machine without I/O or clock.

    next_action(now, wall) -> Read | Write | LeaseWait      what the edge does next
    seen / absent / written / conflict / failed         how that went

Why not a client library's: theirs gives up leadership when the API server is away. Here two leaders
for a moment are harmless (each picks well, each counts its own load) and none at all is an outage, so a
leader steps down only when it *sees another holder*.

    FOLLOWER ──took the lease──▶ LEADER ──sees another holder──▶ FOLLOWER
        └────────── release() ──▶ RELEASED ◀── release() ───┘

* Time is measured here, on a monotonic clock: a lease is expired when its record did not change for the
  duration the holder wrote in it. Clocks of two machines are never compared (as client-go does it).
* A follower that could not read the lease for longer than that starts measuring anew: after an
  outage of the API server the old leader gets its chance to renew, and nothing flaps.
* Every write carries the resourceVersion that was read: of two that try to take over, one gets a conflict.
* With the default durations a killed leader is followed within
  `lease_seconds + 2 * poll_seconds` (4 s), a released lease is taken within `poll_seconds`.
"""

from datetime import UTC, datetime
from enum import Enum

import msgspec

from picker.rng import Rng

RELEASE_WRITES_MAX = 2


class LeaseTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `lease_seconds` is whole: the API's field is an integer."""

    lease_seconds: int = 3
    renew_seconds: float = 1.0
    poll_seconds: float = 0.5
    lease_seconds_max: int = 60
    """The longest duration that another holder's record is believed to ask for."""


class LeaseRecord(msgspec.Struct, frozen=True):
    """A Lease as read. `holder` is None when released."""

    resource_version: str
    holder: str | None
    duration_seconds: int | None
    acquire_time: str | None
    renew_time: str | None
    transitions: int


class Read(msgspec.Struct, frozen=True):
    """GET the lease."""


class Write(msgspec.Struct, frozen=True):
    """PUT the lease (POST when `resource_version` is None) with this spec."""

    resource_version: str | None
    spec: dict[str, str | int]


class LeaseWait(msgspec.Struct, frozen=True):
    """Ask again at this time."""

    until_seconds: float


class LeaseRole(Enum):
    """What we are."""

    FOLLOWER = "follower"
    LEADER = "leader"
    RELEASED = "released"


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_LEASE = msgspec.json.Decoder(_Lease)


def read_lease(body: bytes) -> LeaseRecord | None:
    """A coordination.k8s.io/v1 Lease; None when the bytes are none."""
    try:
        lease = _LEASE.decode(body)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    spec = lease.spec
    return LeaseRecord(
        resource_version=lease.metadata.resource_version,
        holder=spec.holder_identity or None,
        duration_seconds=spec.lease_duration_seconds,
        acquire_time=spec.acquire_time,
        renew_time=spec.renew_time,
        transitions=spec.lease_transitions or 0,
    )


def micro_time(wall_seconds: float) -> str:
    """Unix seconds as the API's MicroTime, which must have six digits after the point."""
    return datetime.fromtimestamp(wall_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """One candidate for one lease."""

    def __init__(self, identity: str, rng: Rng, *, timing: LeaseTiming | None = None) -> None:
        """`identity` is unique to this process, also across restarts of one pod."""
        self.identity = identity
        self._rng = rng
        self._timing = timing or LeaseTiming()
        self.role = LeaseRole.FOLLOWER
        self._record: LeaseRecord | None = None
        self._changed_at_seconds = 0.0
        """When the record was first seen as it is now."""
        self._read_at_seconds: float | None = None
        """When the lease was last read or written with success."""
        self._fresh = False
        """The record was read in this round: a write may be based on it."""
        self._not_before_seconds = float("-inf")
        self._conflicts = 0
        self._releasing = False
        self._release_writes = 0
        self.transitions_total = 0
        self.failures = 0
        """Failures in a row."""
        self.failures_total = 0

    @property
    def is_leader(self) -> bool:
        """We serve."""
        return self.role is LeaseRole.LEADER

    @property
    def holder(self) -> str | None:
        """The holder of the lease when it was last read."""
        return self._record.holder if self._record is not None else None

    # What to do next

    def next_action(self, now: float, wall_seconds: float) -> Read | Write | LeaseWait | None:
        """The next step; None when released, the end. `wall_seconds` (Unix time) is only written, never compared."""
        if self.role is LeaseRole.RELEASED:
            return None
        if self._releasing:
            return self._release_step(now, wall_seconds)
        if now < self._not_before_seconds:
            return LeaseWait(self._not_before_seconds)
        if not self._fresh:
            return Read()
        return Write(self._record.resource_version if self._record is not None else None, self._held_spec(wall_seconds))

    def _release_step(self, now: float, wall_seconds: float) -> Read | Write | None:
        record = self._record
        held = record is not None and record.holder == self.identity
        if self._release_writes > 0 and not self._fresh and held and self._release_writes < RELEASE_WRITES_MAX:
            return Read()
        if record is None or not held or self._release_writes >= RELEASE_WRITES_MAX:
            self.role = LeaseRole.RELEASED
            return None
        self._release_writes += 1
        spec: dict[str, str | int] = {
            "leaseDurationSeconds": 1,
            "renewTime": micro_time(wall_seconds),
            "leaseTransitions": record.transitions,
        }
        return Write(record.resource_version, spec)

    def _held_spec(self, wall_seconds: float) -> dict[str, str | int]:
        record, now_text = self._record, micro_time(wall_seconds)
        ours = record is not None and record.holder == self.identity
        transitions = 0 if record is None else record.transitions + (0 if ours else 1)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.lease_seconds,
            "acquireTime": (record.acquire_time or now_text) if record is not None and ours else now_text,
            "renewTime": now_text,
            "leaseTransitions": transitions,
        }

    # How it went

    def seen(self, record: LeaseRecord, now: float) -> None:
        """The lease was read."""
        patience = self._patience_seconds()
        silent = self._read_at_seconds is not None and now - self._read_at_seconds > patience
        if self._record is None or silent or _differs(record, self._record):
            self._changed_at_seconds = now
        self._record = record
        self._contacted(now)
        if record.holder == self.identity:
            self._become(LeaseRole.LEADER)
            self._fresh = True
        elif record.holder is None:
            self._fresh = True
        else:
            self._become(LeaseRole.FOLLOWER)
            self._fresh = now - self._changed_at_seconds >= self._patience_seconds()
            if not self._fresh:
                self._poll_again(now)

    def absent(self, now: float) -> None:
        """There is no such lease: it is ours to create."""
        self._record = None
        self._contacted(now)
        self._fresh = True

    def written(self, record: LeaseRecord, now: float) -> None:
        """Our write was accepted: `record` is the lease as it is now."""
        self._record = record
        self._changed_at_seconds = now
        self._contacted(now)
        self._conflicts = 0
        if self._release_writes > 0:
            self.role = LeaseRole.RELEASED
            return
        self._become(LeaseRole.LEADER)
        # Nobody else can have written since, so the next renewal needs no read before it.
        self._fresh = True
        self._not_before_seconds = now + self._timing.renew_seconds * (0.9 + 0.1 * self._rng.random())

    def conflict(self, now: float) -> None:
        """Another replica wrote first: read again, and see which."""
        self._fresh = False
        self._conflicts += 1
        # The first is a lost race; the second in a row would be the start of a loop.
        self._not_before_seconds = now + (self._timing.poll_seconds if self._conflicts > 1 else 0.0)

    def failed(self, now: float) -> None:
        """No answer, or one that is neither yes nor no. The role stays as it is."""
        self.failures += 1
        self.failures_total += 1
        self._fresh = False
        if self._release_writes > 0:
            self.role = LeaseRole.RELEASED
            return
        self._not_before_seconds = now + self._timing.poll_seconds * (1.0 + self._rng.random())

    def release(self) -> None:
        """Give the lease up, now: the next action writes it free, if we hold it. One retry after a conflict."""
        self._releasing = True

    def _contacted(self, now: float) -> None:
        self._read_at_seconds = now
        self.failures = 0

    def _become(self, role: LeaseRole) -> None:
        if self.role is not role:
            self.role = role
            self.transitions_total += 1

    def _poll_again(self, now: float) -> None:
        """At the next poll or the moment the lease runs out, whichever is first."""
        expiry = self._changed_at_seconds + self._patience_seconds()
        self._not_before_seconds = min(expiry, now + self._timing.poll_seconds * (0.8 + 0.2 * self._rng.random()))

    def _patience_seconds(self) -> float:
        asked = self._record.duration_seconds if self._record is not None else None
        return float(min(max(1, asked or self._timing.lease_seconds), self._timing.lease_seconds_max))

    def check(self) -> None:
        """Assert the invariants."""
        assert not (self.is_leader and self._record is not None and self.holder not in (self.identity, None))
        assert not (self.role is LeaseRole.RELEASED and not self._releasing)
        assert self._read_at_seconds is None or self._changed_at_seconds <= self._read_at_seconds


def _differs(one: LeaseRecord, other: LeaseRecord) -> bool:
    """Renewed or taken since. Metadata alone (a label) is no sign of life."""
    return (one.holder, one.renew_time, one.transitions) != (other.holder, other.renew_time, other.transitions)
