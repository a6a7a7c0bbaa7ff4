"""Sessions, stored responses and conversations go where they were; the map that says so is bounded."""

from random import Random

import pytest

from picker.api.hints import NO_HINTS, Hints, digest
from picker.api.request import InferenceRequest
from picker.config import Config, Limits, SessionAffinity
from picker.director import Director
from picker.outcomes import Reason
from picker.pool.endpoint import Endpoint
from picker.pool.specs import EndpointSpec
from picker.scheduling.stickiness import Holders

ANN, BOB = Hints(session=digest("header", "ann")), Hints(session=digest("header", "bob"))


def specs(count):
    return [EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(count)]


def director(count=4, **config) -> Director:
    made = Director(Config(**{"epsilon": 0.0, **config}))
    made.replace_endpoints(specs(count))
    return made


def ask(made, *, now=1.0, seed=0, finish=True, hints=NO_HINTS, subset=None, **request):
    decision = made.decide(
        InferenceRequest(api="responses", **request), now=now, rng=Random(seed), hints=hints, subset=subset
    )
    if finish:
        made.answered(decision.booking, 200, now)
        made.finish(decision.booking, reached=True)
    return decision


def test_a_session_stays_where_it_began_however_busy_that_is():
    made = director()
    home = ask(made, hints=ANN, finish=False)
    assert home.reason is Reason.HEADERS, "the first one goes by the rule"
    for seed in range(20):
        again = ask(made, hints=ANN, seed=seed, finish=False, prompt=b"x" * 5000, prompt_bytes=5000)
        assert (again.addresses, again.reason) == (home.addresses, Reason.STICKY)
    assert ask(made, hints=BOB).addresses != home.addresses
    assert len({ask(made, seed=seed).addresses for seed in range(40)}) == 3, "others avoid the busy one"


def test_sessions_are_told_apart_by_where_their_name_stood():
    made = director(64)
    assert digest("header", "ann") != digest("cookie", "ann")
    ask(made, hints=ANN)
    cookie = ask(made, hints=Hints(session=digest("cookie", "ann")))
    assert cookie.reason is Reason.HEADERS


def test_a_session_whose_server_left_moves_once_and_stays_there():
    made = director()
    home = ask(made, hints=ANN).addresses[0]
    made.replace_endpoints([spec for spec in specs(4) if spec.address != home])
    moved = ask(made, hints=ANN)
    assert moved.reason is Reason.HEADERS and moved.addresses[0] != home
    assert all(ask(made, hints=ANN, seed=seed).addresses == moved.addresses for seed in range(10))
    made.replace_endpoints(specs(4))
    assert ask(made, hints=ANN).addresses == moved.addresses, "who returns is another endpoint"


def test_a_session_leaves_a_server_that_is_ejected_or_not_allowed():
    made = director()
    home = ask(made, hints=ANN)
    others = [spec.address for spec in specs(4) if spec.address != home.addresses[0]]
    elsewhere = ask(made, hints=ANN, subset=others)
    assert elsewhere.addresses[0] in others
    assert ask(made, hints=ANN).addresses == elsewhere.addresses, "it is where its last request went"
    for _ in range(3):
        failing = ask(made, hints=ANN, finish=False)
        made.answered(failing.booking, 500, 1.0)
        made.finish(failing.booking, reached=True)
    assert ask(made, hints=ANN).addresses != elsewhere.addresses


def test_a_session_is_forgotten_after_its_time_which_each_request_renews():
    made = director(64, session_affinity=SessionAffinity(header="x-session", seconds=100))
    home = ask(made, hints=ANN, now=0.0)
    for now in (90.0, 180.0, 280.0):
        assert ask(made, hints=ANN, now=now).reason is Reason.STICKY
    assert ask(made, hints=ANN, now=380.1, seed=7).reason is Reason.HEADERS
    assert home.addresses


def test_what_was_remembered_is_bounded_and_the_least_recently_used_go():
    made = director(8, session_affinity=SessionAffinity(header="x-session", sessions_max=100))
    for number in range(1000):
        ask(made, hints=Hints(session=digest("header", str(number % 450))))
        ask(made, hints=ANN)
    assert len(made.stickiness.sessions) == 100
    assert ask(made, hints=ANN).reason is Reason.STICKY
    assert ask(made, hints=Hints(session=digest("header", "0"))).reason is Reason.HEADERS
    made.reconfigure(Config(session_affinity=SessionAffinity(header="x-session", sessions_max=10)))
    assert len(made.stickiness.sessions) == 10


def test_a_response_is_continued_where_it_was_made():
    made = director()
    first = ask(made, finish=False)
    made.created(first.booking, "resp_1", 1.0)
    made.finish(first.booking, reached=True)
    for seed in range(20):
        more = ask(made, previous_response_id="resp_1", seed=seed)
        assert (more.addresses, more.reason) == (first.addresses, Reason.STICKY)
        assert ask(made, hints=Hints(held_id="resp_1"), seed=seed).addresses == first.addresses
    assert ask(made, previous_response_id="resp_other").reason is Reason.HEADERS


def test_a_response_whose_server_left_goes_by_the_rule():
    made = director()
    first = ask(made, finish=False)
    made.created(first.booking, "resp_1", 1.0)
    made.replace_endpoints([spec for spec in specs(4) if spec.address != first.addresses[0]])
    assert ask(made, previous_response_id="resp_1").reason is Reason.HEADERS


def test_a_conversation_stays_where_its_first_request_went():
    made = director()
    first = ask(made, conversation_id="conv_1")
    assert all(ask(made, conversation_id="conv_1", seed=seed).addresses == first.addresses for seed in range(20))
    assert ask(made, hints=Hints(held_id="conv_1")).reason is Reason.STICKY


def test_who_is_refused_teaches_nothing():
    """Until it is answered a request is only thought to belong there, and pushes out nobody who was answered."""
    made = director(8, session_affinity=SessionAffinity(header="x-session", sessions_max=10))
    for number in range(10):
        ask(made, hints=Hints(session=digest("header", str(number))))
    for number in range(1000):
        refused = ask(made, hints=Hints(session=digest("header", f"junk {number}")), finish=False)
        follows = ask(made, hints=Hints(session=digest("header", f"junk {number}")), finish=False)
        assert follows.addresses == refused.addresses, "a burst of a new session stays together"
        for each in (refused, follows):
            made.answered(each.booking, 429, 1.0)
            made.finish(each.booking, reached=True)
    assert made.stickiness._thought == {}
    for number in range(10):
        assert ask(made, hints=Hints(session=digest("header", str(number)))).reason is Reason.STICKY


def test_names_of_conversations_push_out_no_stored_response():
    made = director(8, limits=Limits(response_ids_max=10))
    first = ask(made, finish=False)
    made.created(first.booking, "resp_1", 1.0)
    for number in range(100):
        ask(made, conversation_id=f"made up {number}")
    assert ask(made, previous_response_id="resp_1").addresses == first.addresses


@pytest.mark.parametrize("kind", ["session", "conversation", "response"])
def test_names_that_are_used_once_push_out_none_that_is_in_use(kind):
    """However many are answered between two uses of an honest one."""
    made = director(
        8,
        session_affinity=SessionAffinity(header="x-session", sessions_max=100),
        limits=Limits(response_ids_max=100),
    )

    def use(name: str, seed: int = 0):
        if kind == "session":
            return ask(made, hints=Hints(session=digest("header", name)), seed=seed)
        if kind == "conversation":
            return ask(made, conversation_id=name, seed=seed)
        answered = ask(made, previous_response_id=name, seed=seed, finish=False)
        if name != "honest 0":
            made.created(answered.booking, name, 1.0)
        made.finish(answered.booking, reached=True)
        return answered

    if kind == "response":
        first = ask(made, finish=False)
        made.created(first.booking, "honest 0", 1.0)
        made.finish(first.booking, reached=True)
    else:
        use("honest 0")
    home = use("honest 0")
    assert home.reason is Reason.STICKY
    for round_ in range(5):
        for number in range(1_000):
            use(f"made up {round_} {number}")
        again = use("honest 0", seed=round_)
        assert (again.reason, again.addresses) == (Reason.STICKY, home.addresses)


def test_kept_names_are_bounded_too_and_leave_room_for_new_ones():
    """The oldest of those that came back becomes the newest of the others."""
    table = Holders()
    table.bound(10, 100.0)
    endpoint = Endpoint(specs(1)[0], slot=0)
    keys = [digest("id", str(number)) for number in range(30)]
    for key in keys:
        table.hold(key, endpoint, 1.0)
        assert table.find(key, 1.0) is endpoint
        assert len(table) <= 10
    assert [key for key in keys if table.find(key, 1.0)] == keys[-10:]
    table.hold(digest("id", "new"), endpoint, 1.0)
    assert table.find(digest("id", "new"), 1.0) is endpoint
    table.bound(0, 100.0)
    assert len(table) == 0


def test_what_is_continued_goes_before_the_session():
    made = director()
    first = ask(made, finish=False)
    made.created(first.booking, "resp_1", 1.0)
    other = next(spec.address for spec in specs(4) if spec.address != first.addresses[0])
    assert ask(made, hints=ANN, subset=[other]).addresses == (other,)
    assert ask(made, hints=ANN, previous_response_id="resp_1").addresses == first.addresses


def test_a_request_that_another_endpoint_served_takes_its_session_there():
    made = director()
    first = ask(made, hints=ANN, conversation_id="conv_1", finish=False)
    other = next(spec.address for spec in specs(4) if spec.address != first.addresses[0])
    assert made.served_by(first.booking, other, 1.0)
    made.answered(first.booking, 200, 1.0)
    made.created(first.booking, "resp_1", 1.0)
    made.finish(first.booking, reached=True)
    assert ask(made, hints=ANN).addresses == (other,)
    assert ask(made, conversation_id="conv_1").addresses == (other,)
    assert ask(made, previous_response_id="resp_1").addresses == (other,)


def test_fallbacks_of_a_session_are_the_cheapest_others():
    made = director(destinations_max=3)
    home = ask(made, hints=ANN)
    again = ask(made, hints=ANN)
    assert again.addresses[0] == home.addresses[0] and len(set(again.addresses)) == 3


def test_a_sticky_pick_explains_itself_and_throws_no_dice():
    made = director()
    ask(made, hints=ANN)
    again = made.decide(InferenceRequest(api="other"), now=1.0, rng=None, hints=ANN)  # no dice to throw
    explained = again.explain()
    assert explained.reason == "sticky" and "session" in explained.summary
    assert explained.endpoints[0].picked and len(explained.endpoints) == 4


def test_a_cheaper_endpoint_that_was_passed_over_is_told_why():
    """However little cheaper it is; and what costs more than the pick is not called cheaper."""
    made = director(3)
    for _ in range(3):
        ask(made, hints=ANN, finish=False)
    explained = ask(made, hints=ANN).explain()
    pick, *others = explained.endpoints
    assert pick.why.startswith("picked: ") and 0 < pick.cost_seconds - others[0].cost_seconds < 1
    for each in others:
        less = pick.cost_seconds - each.cost_seconds
        assert each.why == f"{less:.3f} s cheaper, but the pick holds the session"


def test_a_response_id_takes_bounded_room():
    made = director(2, limits=Limits(response_ids_max=50))
    first = ask(made, finish=False)
    for number in range(500):
        made.created(first.booking, f"resp_{number}" + "x" * 10_000, 1.0)
    assert len(made.stickiness.stored) == 50


@pytest.mark.parametrize(("seconds", "found"), [(9.9, True), (10.1, False)])
def test_the_map_alone(seconds, found):
    held, endpoint = Holders(), Endpoint(specs(1)[0], 0)
    held.bound(2, 10.0)
    held.hold(b"a", endpoint, 0.0)
    assert (held.find(b"a", seconds) is endpoint) is found
    assert len(held) == int(found)
    assert held.find(b"b", 0.0) is None


def test_asking_where_it_is_is_no_use_of_it():
    made = director(session_affinity=SessionAffinity(header="x-session", sessions_max=10))
    home = ask(made, hints=ANN, now=1.0).addresses[0]
    for second in range(2, 12):
        assert [kind for kind, _ in made.stickiness.known("ann", float(second))] == ["session"]
        assert made.stickiness.known("ann", float(second))[0][1].spec.address == home
        if second < 11:
            ask(made, hints=Hints(session=digest("header", f"other-{second}")), now=float(second))
    ask(made, hints=Hints(session=digest("header", "one more")), now=12.0)
    assert made.stickiness.known("ann", 12.0) == [], "who only asked has not kept it"
