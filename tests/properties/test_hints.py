"""Whatever clients write into the headers and paths that are read: one answer, one end, bounded books."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from picker.config import load
from picker.director import Director
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.extproc.exchange import Exchange
from picker.outcomes import Outcome
from picker.pool.specs import EndpointSpec
from tests.faults import raised

CONFIG = load(
    "epsilon: 0\nendpoint_labels: {header: x-labels}\n"
    "session_affinity: {header: x-session, cookie: sid, sessions_max: 3}\n"
    "limits: {response_ids_max: 3}\ndebug: {explain_header: true}"
)
texts = st.text(max_size=60) | st.sampled_from(["tier=gold", "tier!=gold", "sid=a", "a", ";sid=;sid=b", "=", "a=b,c"])
paths = st.sampled_from(["/v1/responses", "/v1/conversations", "/v1/responses/r1", "/v1/responses/r1/cancel"]) | texts
requests = st.fixed_dictionaries(
    {
        "headers": st.dictionaries(st.sampled_from(["x-labels", "x-session", "cookie", "traceparent"]), texts),
        "path": paths,
        "body": st.sampled_from(
            [None, b'{"input":"x","previous_response_id":"r1"}', b'{"conversation":{"id":"c"}}', b"{"]
        ),
        "answer": st.sampled_from([b'{"id":"r1"}', b'{"id":"\xff"}', b"", b"data: {}\n\n"]) | st.binary(max_size=80),
    }
)


@given(st.lists(requests, max_size=12))
def test_any_hints_come_to_one_answer_and_bounded_books(sequence):
    director = Director(CONFIG)
    director.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n), labels={"tier": "gold"} if n else {})
        for n in range(3)
    )
    ended = []
    for request in sequence:
        exchange = Exchange(
            director,
            clock=lambda: 1.0,
            rng=Random(1),
            finished=ended.append,
            decided=lambda picked, record: None,
            faulted=raised,
        )
        before = len(ended)
        head = {":method": "POST", ":path": request["path"], **request["headers"]}
        mode = BodyMode.FULL_DUPLEX_STREAMED
        sent = exchange.receive(events.RequestHeaders(head, request["body"] is None, mode, mode), 1.0)
        if request["body"] is not None:
            sent += exchange.receive(events.RequestBody(request["body"], True), 1.0)
        assert isinstance(sent[0], replies.RouteOnHeaders | replies.Immediate)
        if isinstance(sent[0], replies.RouteOnHeaders):
            (continued,) = exchange.receive(events.ResponseHeaders({":status": "200"}), 1.0)
            assert continued.explain.isprintable()
            exchange.receive(events.ResponseBody(request["answer"], True), 1.0)
        else:
            assert sent[0].status in (400, 503)
        exchange.close()
        assert len(ended) == before + 1
        assert ended[-1].outcome in (Outcome.COMPLETED, Outcome.REJECTED, Outcome.UNAVAILABLE)
    assert len(director.stickiness.sessions) <= 3 and len(director.stickiness.stored) <= 3
    assert director.ledger.open_charges == 0
    director.datastore.check()
