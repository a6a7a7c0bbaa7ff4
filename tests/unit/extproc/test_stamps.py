"""Requests are named to engines that tell of their caches: only where their clients did not name them."""

import json

import pytest

from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.outcomes import Usage
from picker.residency.residency import Residency
from picker.residency.wire import Stored

FD, BUFFERED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED
TEXT = "word " * 1000


@pytest.fixture
def told(make_world):
    """One endpoint, whose engine's KV events are read."""
    world = make_world(addresses=("10.0.0.1:8000",))
    residency = Residency(world.director.index, stamps="p0123456789-")
    world.director.listen(residency)
    residency.heard(0)
    return world


def route(world, *, mode=FD, path="/v1/chat/completions", headers=None, **body):
    exchange = world.exchange()
    made = {":path": path, ":method": "POST", "content-type": "application/json", **(headers or {})}
    sent = exchange.receive(events.RequestHeaders(made, False, mode, FD, None), world.now)
    messages = [{"role": "user", "content": TEXT}]
    whole = json.dumps({"model": "m", "messages": messages, "prompt": TEXT, **body}).encode()
    sent += exchange.receive(events.RequestBody(whole, True), world.now)
    (found,) = [each for each in sent if isinstance(each, replies.RouteOnHeaders | replies.RouteOnBody)]
    return found.stamp, world.picked[-1].booking


@pytest.mark.parametrize("mode", [FD, BUFFERED])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_request_gets_a_name_of_its_own_and_of_one_length(told, mode, path):
    stamps = [route(told, mode=mode, path=path)[0] for _ in range(3)]
    assert [name for name, _ in stamps] == ["x-session-id"] * 3
    values = [value for _, value in stamps]
    assert len(set(values)) == 3 and {len(value) for value in values} == {22}
    assert all(value.startswith("p0123456789-") for value in values)


def test_what_the_client_named_is_left_alone_and_known_by_that_name(told):
    for more in ({"session_id": "mine"}, {"headers": {"x-session-id": "mine"}}):
        stamp, booking = route(told, **more)
        assert stamp is None and booking.session_id == "mine"
        told.director.finish(booking, reached=True)
    stamp, booking = route(told, headers={"x-session-id": "other"}, session_id="mine")
    assert stamp is None and booking.session_id == "mine", "engines read the body first"


def test_nobody_is_named_whose_engine_is_silent_or_where_no_header_is_configured(told, world):
    assert route(world)[0] is None
    told.director.stamp_header = None
    stamp, booking = route(told)
    assert stamp is None and booking.session_id is None
    told.director.stamp_header = "x-session-id"
    told.director.residency.forget(0)
    assert route(told)[0] is None


def test_a_request_without_blocks_is_not_named(told):
    exchange = told.exchange()
    made = {":path": "/v1/models", ":method": "GET"}
    (found,) = exchange.receive(events.RequestHeaders(made, True, FD, FD, None), told.now)
    assert found.stamp is None


def test_two_at_a_time_under_one_name_are_nobodys(told):
    _, first = route(told, session_id="mine")
    route(told, session_id="mine")
    residency, blocks = told.director.residency, len(first.hashes)
    event = Stored(list(range(1000)), None, 16, "mine", True, 0)
    residency.apply(0, [event])
    assert residency.confirmed(first.hashes, 0, blocks) == 0 and residency.unmatched_blocks_total == 1000


def test_usage_reaches_what_waits_for_the_end(told):
    (_, name), booking = route(told)
    residency = told.director.residency
    residency.apply(0, [Stored(list(range(50, 80)), 49, 16, name, True, 0)])
    assert residency.confirmed(booking.hashes, 0, len(booking.hashes)) == 0
    told.director.finish(booking, reached=True, usage=Usage(1280, 5, 800))
    assert residency.confirmed(booking.hashes, 0, len(booking.hashes)) == len(booking.hashes) == 4
    residency.check()
    told.check()


def test_a_restart_and_a_leave_forget_what_events_told(told):
    (_, name), booking = route(told)
    residency = told.director.residency
    residency.apply(0, [Stored(list(range(80)), None, 16, name, True, 0)])
    assert residency.confirmed_blocks(0) == 4
    told.director.replace_endpoints([])
    assert residency.confirmed_blocks(0) == 0 and not residency.tells(0)
    assert booking.hashes


def test_an_explanation_tells_how_much_the_engine_confirmed(told, world):
    (_, name), booking = route(told)
    told.director.residency.apply(0, [Stored(list(range(48)), None, 16, name, True, 0)])
    route(told)
    blocks = len(booking.hashes)
    view = told.picked[-1].explain().endpoints[0]
    assert (view.matched_share, view.confirmed_share) == (1.0, 3 / blocks)
    route(world)
    assert world.picked[-1].explain().endpoints[0].confirmed_share is None
