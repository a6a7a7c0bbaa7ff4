"""What one picker decides, the others know: chains, load, ejections, slowness, sessions; and what happens at gaps."""

from random import Random

import pytest

from picker.api.hints import Hints
from picker.api.request import InferenceRequest
from picker.config import Config
from picker.sharing.attach import detach
from picker.sharing.codec import decode
from picker.sharing.peers import LOAD_SECONDS
from tests.unit.sharing.pair import Group, chain, specs


def test_what_one_picks_the_other_matches_by_identity_not_by_slot():
    group = Group()
    first, second = group.members
    hashes = chain(1, 2, 3)
    group.pick(first, hashes, only="a")
    group.exchange()
    assert first.endpoint("a").slot != second.endpoint("a").slot
    assert second.held(hashes) == {"a": 3}
    assert second.director.index.told(hashes, second.endpoint("a").slot)
    assert not first.director.index.told(hashes, first.endpoint("a").slot)


def test_a_next_turn_is_told_as_its_new_blocks_alone():
    group = Group()
    first, second = group.members
    group.pick(first, chain(*range(50)), only="a")
    group.exchange()
    group.pick(first, chain(*range(53)), only="a")
    _, batch = decode(group.tell(first))
    ((_, _, anchor, depth, _, raw),) = batch.chains
    assert (anchor, depth, len(raw)) == (chain(*range(50))[-1], 50, 3 * 8)
    assert second.held(chain(*range(53))) == {"a": 53}


def test_either_builds_on_what_the_other_told():
    group = Group(3)
    first, second, third = group.members
    group.pick(first, chain(1, 2, 3), only="a")
    group.exchange()
    group.pick(second, chain(1, 2, 3, 4, 5), only="b")
    _, batch = decode(group.tell(second))
    assert len(batch.chains[0][5]) == 2 * 8
    assert third.held(chain(1, 2, 3, 4, 5)) == {"a": 3, "b": 5}


def test_a_prompt_in_common_is_told_once_and_then_built_on():
    group = Group()
    first, second = group.members
    preamble = range(20)
    sizes = []
    for session in range(4):
        group.pick(first, chain(*preamble, 100 + session, 200), only="a")
        _, batch = decode(group.tell(first))
        sizes.append(len(batch.chains[0][5]) // 8)
        assert second.held(chain(*preamble, 100 + session, 200)) == {"a": 22}
    assert sizes == [22, 22, 2, 2]  # the second one shows where prompts part


def test_a_withdrawn_pick_is_not_told_or_taken_back():
    group = Group()
    first, second = group.members
    booking = group.pick(first, chain(1, 2), only="a")
    first.director.answered(booking, 503, group.now(first))
    _, batch = decode(group.tell(first))
    assert batch.chains == [] and batch.withdrawn == []
    booking = group.pick(first, chain(3, 4), only="a")
    group.exchange()
    assert second.held(chain(3, 4)) == {"a": 2}
    first.director.answered(booking, 404, group.now(first))
    group.exchange()
    assert second.held(chain(3, 4)) == {} == first.held(chain(3, 4))


def test_what_a_restarted_engine_lost_stays_lost_when_an_older_pick_is_told_later():
    group = Group(3)
    first, second, third = group.members
    group.pick(first, chain(1, 2), only="a")
    late = group.flush(first)
    told_at = group.time
    for member in group.members[1:2]:
        group.read(member, "a", prompt_tokens_total=100.0)
        group.time += 1.0
        assert group.read(member, "a", prompt_tokens_total=0.0)
    group.tell(second)
    group.deliver(third, late, sent_at=told_at)
    assert third.held(chain(1, 2)) == {}
    assert first.held(chain(1, 2)) == {}


def test_a_restart_that_another_told_of_is_not_a_second_one():
    group = Group()
    first, second = group.members
    for member in group.members:
        group.read(member, "a", prompt_tokens_total=100.0)
    group.time += 1.0
    group.read(first, "a", prompt_tokens_total=0.0)
    group.tell(first)
    group.pick(first, chain(1, 2), only="a")
    group.exchange()
    group.time += 0.5
    group.read(second, "a", prompt_tokens_total=0.0)
    assert second.held(chain(1, 2)) == {"a": 2}


def test_others_load_counts_and_that_of_the_silent_for_a_second():
    group = Group()
    first, second = group.members
    group.pick(first, chain(*range(40)), only="a")
    group.exchange()
    endpoint = second.endpoint("a")
    assert endpoint.others.requests == 1 and endpoint.in_flight_requests == 0
    slot = endpoint.slot
    requests, prefill, context, memory = second.director.ledger.columns(3)
    assert requests[slot] == 1 and prefill[slot] == context[slot] == memory[slot] == pytest.approx(40 * 1024 / 4)
    second.director.loads.check(second.director.datastore.snapshot(group.now(second)))
    group.time += LOAD_SECONDS * 1.01
    second.shared.tick(group.now(second))
    assert endpoint.others.requests == 0 and second.director.ledger.columns(3)[0][slot] == 0
    second.director.loads.check(second.director.datastore.snapshot(group.now(second)))


def test_load_is_stated_again_before_it_expires_and_given_back_at_the_end():
    group = Group()
    first, second = group.members
    booking = group.pick(first, chain(1), only="a")
    for _ in range(40):
        group.exchange(seconds=0.075)
        assert second.endpoint("a").others.requests == 1
    first.director.finish(booking, reached=True)
    group.exchange()
    assert second.endpoint("a").others.requests == 0
    assert second.shared.peers.requests() == 0


def test_late_load_of_a_second_ago_counts_for_nothing():
    group = Group()
    first, second = group.members
    group.pick(first, chain(1), only="a")
    batch, told_at = group.flush(first), group.time
    group.time += 1.5
    group.deliver(second, batch, sent_at=told_at)
    second.shared.tick(group.now(second))
    assert second.endpoint("a").others.requests == 0


def test_an_older_state_does_not_replace_a_newer_one():
    group = Group()
    first, second = group.members
    group.pick(first, chain(1), only="a")
    older, told_at = group.flush(first), group.time
    group.time += 0.1
    group.pick(first, chain(2), only="a")
    group.tell(first)
    group.deliver(second, older, sent_at=told_at)
    assert second.endpoint("a").others.requests == 2


def test_the_engines_count_of_waiting_requests_does_not_count_others_twice():
    group = Group()
    first, second = group.members
    group.pick(first, chain(1), only="a")
    group.pick(first, chain(2), only="a")
    group.exchange()
    group.read(second, "a", waiting_requests=3)
    snapshot = second.director.datastore.snapshot(group.now(second))
    assert snapshot.foreign_requests[second.endpoint("a").slot] == 1


def test_an_ejection_is_told_and_so_is_its_end():
    group = Group()
    first, second = group.members
    for _ in range(3):
        booking = group.pick(first, chain(1), only="a")
        ejected = first.director.answered(booking, 503, group.now(first))
        first.director.finish(booking, reached=True)
    assert ejected
    group.exchange()
    slot = second.endpoint("a").slot
    assert second.director.ejection.ejected(group.now(second)) == [slot]
    until = [until for _, until, _ in second.director.ejection.aside(group.now(second))]
    assert until == [pytest.approx(group.now(second) - 0.1 + Config().ejection.seconds, abs=0.01)]
    group.time += 6.0
    booking = group.pick(first, chain(1), only="a")
    first.director.answered(booking, 200, group.now(first))
    group.exchange()
    assert second.director.ejection.ejected(group.now(second)) == []
    assert second.director.ejection.aside(group.now(second)) == []


def test_slowness_is_the_mean_of_all_who_measured_it():
    group = Group()
    first, second = group.members
    for _ in range(60):
        for name, seconds in (("a", 2.0), ("b", 0.2), ("c", 0.2)):
            slot = first.endpoint(name).slot
            first.director.rates.observe_prefill(slot, 4096, seconds, now=group.now(first))
    group.exchange(rounds=30)
    mine, theirs = first.director.rates.slowness, second.director.rates.slowness
    assert mine[first.endpoint("a").slot] > 2.0
    assert theirs[second.endpoint("a").slot] == pytest.approx(mine[first.endpoint("a").slot], rel=0.05)
    assert theirs[second.endpoint("b").slot] == pytest.approx(mine[first.endpoint("b").slot], rel=0.05)
    group.members.remove(first)  # it dies
    group.exchange(rounds=200)
    assert (theirs[:3] == 1.0).all()


def test_sessions_and_stored_responses_are_told():
    group = Group()
    first, second = group.members
    hints = Hints(session=b"0123456789abcdef")
    request = InferenceRequest(api="chat", model="m", prompt_bytes=10, block_hashes=chain(1))
    booking = first.director.decide(request, now=group.now(first), rng=Random(1), hints=hints).booking
    first.director.answered(booking, 200, group.now(first))
    first.director.created(booking, "resp_1", group.now(first))
    group.exchange()
    name = booking.endpoint.spec.name
    found = second.director.stickiness.holder(request, hints, group.now(second))
    assert found is not None and found.spec.name == name
    follows = InferenceRequest(api="responses", model="m", prompt_bytes=10, previous_response_id="resp_1")
    found = second.director.stickiness.holder(follows, Hints(), group.now(second))
    assert found is not None and found.spec.name == name
    assert second.director.stickiness.sessions.news == [], "what was told is not told on"


def test_a_lost_batch_is_asked_for_and_made_good_by_what_its_picker_knows_since():
    group = Group(3)
    first, second, third = group.members
    group.pick(first, chain(1, 2), only="a")
    group.exchange()
    group.time += 0.1
    group.pick(first, chain(3, 4), only="b")
    lost = group.flush(first)
    group.deliver(third, lost)
    group.exchange(rounds=5)  # the next batch shows the gap
    assert second.held(chain(3, 4)) == {}
    assert group.hand_over(first)
    assert second.held(chain(3, 4)) == {"b": 2} == third.held(chain(3, 4))
    assert second.shared.counts.sent["asks"] == 1 and third.shared.counts.sent["asks"] == 0
    assert first.shared.counts.sent["runs"] == 1, "what was known before the gap is not written again"
    group.exchange(rounds=20)
    assert second.shared.counts.sent["asks"] == 1, "and not asked for again"


def test_news_that_found_no_room_are_a_gap():
    group = Group()
    first, second = group.members
    group.exchange()
    first.director.index.news_missed = True
    group.exchange(rounds=2)
    assert second.shared.counts.sent["asks"] == 1


def test_who_joins_asks_the_oldest_who_is_whole_and_is_whole_then():
    group = Group(3)
    first, second, third = group.members
    group.members.remove(third)
    for session in range(50):
        group.pick(first, chain(session, 1, 2), only="a")
        group.pick(second, chain(session, 1, 5), only="b")
    group.exchange()
    group.members.append(third)
    third.shared.join()
    assert not third.shared.whole
    group.exchange(rounds=2)
    assert second.shared.snapshot_due(group.now(second)) is None
    assert group.hand_over(first)
    assert third.shared.whole
    for session in range(50):
        assert third.held(chain(session, 1, 2)) == {"a": 3, "b": 2} == first.held(chain(session, 1, 2))
    third.director.index.check()


def test_after_somebody_asked_nothing_is_built_on_what_he_may_not_have():
    group = Group(3)
    first, second, third = group.members
    group.members.remove(third)
    group.pick(first, chain(1, 2, 3), only="a")
    group.exchange()
    group.members.append(third)
    third.shared.join()
    group.exchange(rounds=2)
    group.pick(second, chain(1, 2, 3, 4), only="a")
    _, batch = decode(group.tell(second))
    assert batch.chains[0][3] == 0, "told from the first block on"
    assert third.held(chain(1, 2, 3, 4)) == {"a": 4}


def test_pickers_that_begin_together_wait_for_nobody():
    group = Group(3)
    for member in group.members:
        member.shared.join()
    group.exchange(rounds=3)
    assert [member.shared.whole for member in group.members] == [True, False, False]
    group.hand_over(group.members[0])
    assert all(member.shared.whole for member in group.members)


def test_a_chain_waits_for_what_it_builds_on_and_is_asked_for_if_that_never_comes():
    group = Group(3)
    first, second, third = group.members
    group.pick(first, chain(1, 2), only="a")
    ground, told_at = group.flush(first), group.time
    group.deliver(second, ground)
    group.time += 0.05
    group.pick(second, chain(1, 2, 3), only="a")
    group.deliver(third, group.flush(second))
    assert third.held(chain(1, 2, 3)) == {}
    group.time += 0.1
    group.deliver(third, ground, sent_at=told_at)
    group.time += 0.1
    third.shared.work(group.now(third))
    assert third.held(chain(1, 2, 3)) == {"a": 3}


def test_a_chain_without_ground_is_asked_for():
    group = Group(3)
    first, second, third = group.members
    group.pick(first, chain(1, 2), only="a")
    group.deliver(second, group.flush(first))  # never told to the third
    group.time += 0.05
    group.pick(second, chain(1, 2, 3), only="a")
    group.tell(second)
    for _ in range(4):
        group.time += 0.6
        third.shared.work(group.now(third))
    assert third.shared.counts.dropped["unresolved"] == 1
    group.tell(third)
    assert group.hand_over(second)
    assert third.held(chain(1, 2, 3)) == {"a": 3}


def test_an_endpoint_that_one_does_not_know_yet_is_waited_for():
    group = Group()
    first, second = group.members
    first.director.replace_endpoints(specs("a", "b", "c", "d"))
    group.pick(first, chain(1, 2), only="d")
    group.exchange()
    assert second.held(chain(1, 2)) == {}
    second.director.replace_endpoints(specs("a", "b", "c", "d"))
    group.exchange()
    assert second.held(chain(1, 2)) == {"d": 2}


def test_another_pod_under_the_same_address_is_another_endpoint():
    group = Group()
    first, second = group.members
    group.pick(first, chain(1, 2), only="a")
    second.director.replace_endpoints(_renewed())
    group.exchange()
    assert second.held(chain(1, 2)) == {}


def _renewed():
    import msgspec

    old, *rest = specs("a", "b", "c")
    return [msgspec.structs.replace(old, uid="uid-a-2"), *rest]


def test_a_director_alone_keeps_no_news():
    group = Group(1)
    (member,) = group.members
    detach(member.director)
    booking = group.pick(member, chain(1, 2), only="a")
    member.director.answered(booking, 503, group.now(member))
    assert member.director.outbox is None and member.director.ejection.news is None is member.director.index.news
