"""Leader election: the machine alone, and several candidates around one model of the Lease API with faults."""

import json
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from picker.kubernetes.election import (
    Election,
    LeaseRecord,
    LeaseRole,
    LeaseTiming,
    LeaseWait,
    Read,
    Write,
    micro_time,
    read_lease,
)


class LeaseServer:
    """One Lease with optimistic locking, as coordination.k8s.io keeps it."""

    def __init__(self) -> None:
        self.lease: LeaseRecord | None = None
        self.version = 0

    def read(self) -> LeaseRecord | None:
        return self.lease

    def write(self, action: Write) -> LeaseRecord | None:
        """None is a conflict."""
        current = self.lease.resource_version if self.lease is not None else None
        if action.resource_version != current:
            return None
        self.version += 1
        body = {
            "metadata": {"name": "l", "resourceVersion": str(self.version)},
            "spec": action.spec,
        }
        self.lease = read_lease(json.dumps(body).encode())
        assert self.lease is not None
        return self.lease


def step(election: Election, server: LeaseServer | None, now: float) -> float | None:
    """One action against the server (None: unreachable). Returns when to come again; None at the end."""
    action = election.next_action(now, 1.7e9 + now)
    election.check()
    if action is None:
        return None
    if isinstance(action, LeaseWait):
        return action.until_seconds
    if server is None:
        election.failed(now)
    elif isinstance(action, Read):
        record = server.read()
        election.absent(now) if record is None else election.seen(record, now)
    else:
        written = server.write(action)
        election.conflict(now) if written is None else election.written(written, now)
    election.check()
    return now


def run(elections: list[Election], server: LeaseServer | None, start: float, end: float) -> None:
    """All candidates, each at its own times, until `end`."""
    due = dict.fromkeys(range(len(elections)), start)
    while due:
        index = min(due, key=lambda each: due[each])
        now = due[index]
        if now > end:
            return
        again = step(elections[index], server, now)
        if again is None:
            del due[index]
        else:
            due[index] = max(again, now + 0.001)


def candidate(name: str, seed: int = 1, **timing: Any) -> Election:
    return Election(name, random.Random(seed), timing=LeaseTiming(**timing))


def test_the_first_candidate_creates_the_lease_and_leads() -> None:
    one, server = candidate("one"), LeaseServer()
    run([one], server, 0.0, 0.1)
    assert one.is_leader
    assert server.lease is not None
    assert (server.lease.holder, server.lease.duration_seconds, server.lease.transitions) == ("one", 3, 0)


def test_of_two_that_start_together_one_leads() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one, two], server, 0.0, 30.0)
    assert [one.is_leader, two.is_leader].count(True) == 1
    assert server.lease is not None
    assert server.lease.transitions == 0


def test_a_killed_leader_is_followed_within_five_seconds() -> None:
    for killed_at in [10.0 + step_ / 20 for step_ in range(40)]:
        one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
        run([one], server, 0.0, 0.5)
        run([one, two], server, 0.5, killed_at)
        assert one.is_leader
        now = killed_at
        while not two.is_leader:
            now = max(step(two, server, now) or now, now + 0.001)
        assert now - killed_at <= 4.5
        assert server.lease is not None
        assert (server.lease.holder, server.lease.transitions) == ("two", 1)


def test_a_leader_is_not_robbed_while_it_renews() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([one, two], server, 0.5, 600.0)
    assert one.is_leader
    assert server.lease is not None
    assert server.lease.transitions == 0


def test_a_released_lease_is_taken_at_the_next_poll() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([one, two], server, 0.5, 10.0)
    one.release()
    run([one], server, 10.0, 10.0)
    assert one.role is LeaseRole.RELEASED
    assert server.lease is not None
    assert server.lease.holder is None
    run([two], server, 10.0, 10.6)
    assert two.is_leader
    assert server.lease.transitions == 1


def test_a_follower_that_is_released_writes_nothing() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([two], server, 0.5, 1.0)
    before = server.version
    two.release()
    run([two], server, 1.0, 1.1)
    assert two.role is LeaseRole.RELEASED
    assert server.version == before


def test_release_reads_again_after_a_conflict() -> None:
    one, server = candidate("one"), LeaseServer()
    run([one], server, 0.0, 0.5)
    assert server.lease is not None
    # Somebody put a label on it: another resourceVersion, the same holder.
    server.version += 1
    server.lease = LeaseRecord(str(server.version), "one", 3, None, server.lease.renew_time, 0)
    one.release()
    run([one], server, 0.6, 0.7)
    assert server.lease.holder is None
    assert one.role is LeaseRole.RELEASED


def test_release_during_a_renewal_in_flight_still_frees_the_lease() -> None:
    one, server = candidate("one"), LeaseServer()
    run([one], server, 0.0, 0.5)
    action = one.next_action(2.0, 0.0)
    assert isinstance(action, Write)
    one.release()
    written = server.write(action)
    assert written is not None
    one.written(written, 2.0)
    run([one], server, 2.0, 2.1)
    assert server.lease is not None
    assert server.lease.holder is None


def test_release_without_an_api_server_ends_after_one_attempt() -> None:
    one, server = candidate("one"), LeaseServer()
    run([one], server, 0.0, 0.5)
    one.release()
    run([one], None, 1.0, 1.1)
    assert one.role is LeaseRole.RELEASED


def test_a_leader_without_api_server_goes_on_leading() -> None:
    one, server = candidate("one"), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([one], None, 0.5, 3600.0)
    assert one.is_leader
    assert one.failures > 1000
    run([one], server, 3600.0, 3602.0)
    assert one.is_leader
    assert one.failures == 0


def test_a_cut_off_leader_steps_down_when_it_sees_another_holder() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([two], server, 0.5, 10.0)
    assert one.is_leader and two.is_leader  # for a moment, and harmless
    run([one], server, 10.0, 11.0)
    assert (one.is_leader, two.is_leader) == (False, True)


def test_after_an_outage_of_the_api_server_the_old_leader_is_given_its_time() -> None:
    one, two, server = candidate("one", 1), candidate("two", 2), LeaseServer()
    run([one], server, 0.0, 0.5)
    run([one, two], server, 0.5, 10.0)
    run([one, two], None, 10.0, 100.0)
    run([two], server, 100.0, 102.5)  # the follower is back first
    assert not two.is_leader
    run([one, two], server, 102.5, 130.0)
    assert (one.is_leader, two.is_leader) == (True, False)


def test_a_label_on_the_lease_is_no_sign_of_life() -> None:
    two, server, now = candidate("two", 2), LeaseServer(), 0.0
    server.lease = LeaseRecord("1", "dead", 3, None, "then", 0)
    while not two.is_leader:
        assert now < 5.0
        again = step(two, server, now)
        if again is not None and again > now:  # between two requests, that is
            now = again
            server.version += 1
            server.lease = LeaseRecord(str(server.version), "dead", 3, None, "then", 0)


def test_the_duration_in_the_record_is_waited_for_but_not_an_endless_one() -> None:
    for written, waited in [(10, 10.0), (10**9, 60.0), (0, 3.0), (None, 3.0)]:
        two, server = candidate("two", 2), LeaseServer()
        server.lease = LeaseRecord("1", "dead", written, None, "then", 0)
        now = 0.0
        while not two.is_leader and now < 100.0:
            now = max(step(two, server, now) or now, now + 0.001)
        assert waited <= now <= waited + 0.1


def test_who_lost_one_race_looks_at_once_who_won_it() -> None:
    one = candidate("one")
    assert isinstance(one.next_action(0.0, 0.0), Read)
    one.absent(0.0)
    assert isinstance(one.next_action(0.0, 0.0), Write)
    one.conflict(0.0)
    assert isinstance(one.next_action(0.0, 0.0), Read)


def test_conflict_after_conflict_is_no_hot_loop() -> None:
    one, now, requests = candidate("one"), 0.0, 0
    while now < 10.0:
        action = one.next_action(now, 0.0)
        if isinstance(action, LeaseWait):
            now = action.until_seconds
            continue
        requests += 1
        if isinstance(action, Read):
            one.seen(LeaseRecord("1", None, 1, None, None, 0), now)
        else:
            one.conflict(now)
    assert requests < 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1767225600.0, "2026-01-01T00:00:00.000000Z"), (1767225600.25, "2026-01-01T00:00:00.250000Z")],
)
def test_times_have_six_digits_after_the_point(seconds: float, text: str) -> None:
    assert micro_time(seconds) == text


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"metadata":{"resourceVersion":7}}'])
def test_what_is_no_lease_is_none(body: bytes) -> None:
    assert read_lease(body) is None


def test_a_lease_never_held_has_no_holder() -> None:
    record = read_lease(b'{"metadata":{"resourceVersion":"7"},"spec":{"holderIdentity":""}}')
    assert record is not None
    assert record.holder is None


@settings(max_examples=150, deadline=None)
@given(
    trouble=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["cut", "heal", "kill", "start"]), st.floats(0.1, 6.0)),
        max_size=15,
    ),
    seed=st.integers(0, 1000),
)
def test_whatever_happens_one_of_the_living_leads_and_a_leader_leaves_only_for_another(
    trouble: list[tuple[int, str, float]], seed: int
) -> None:
    server, now = LeaseServer(), 0.0
    living: dict[int, Election | None] = {index: candidate(f"c{index}.0", seed + index) for index in range(3)}
    reachable = {0: True, 1: True, 2: True}
    starts = 0

    def play(seconds: float) -> None:
        nonlocal now
        end = now + seconds
        due = {index: now for index, each in living.items() if each is not None}
        while due and (at := min(due.values())) <= end:
            index = min(due, key=lambda each: due[each])
            election = living[index]
            assert election is not None
            was_leader, read_before = election.is_leader, election.holder
            again = step(election, server if reachable[index] else None, at)
            if was_leader and not election.is_leader:
                assert election.holder not in (None, election.identity, read_before)
            due[index] = max(again if again is not None else end + 1, at + 0.001)
        now = end

    for index, what, seconds in trouble:
        if what in ("cut", "heal"):
            reachable[index] = what == "heal"
        elif what == "kill":
            living[index] = None
        elif living[index] is None:
            starts += 1
            living[index] = candidate(f"c{index}.{starts}", seed + starts)
        play(seconds)
    for index in range(3):
        reachable[index] = True
        if living[index] is None:
            starts += 1
            living[index] = candidate(f"c{index}.{starts}", seed + starts)
    play(12.0)
    leaders = [each.identity for each in living.values() if each is not None and each.is_leader]
    assert len(leaders) == 1
    assert server.lease is not None
    assert server.lease.holder == leaders[0]
