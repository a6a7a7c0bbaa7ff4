"""Whatever happens between an API server and a list/watch, the set becomes what the server has.

Hypothesis plays objects (created, changed, deleted, re-created, made unreadable), the network (cut
anywhere, closed, silent) and the server's moods (410 both ways, 503, 403, 404, HTML, compaction between
pages). `ModelServer` keeps a history as etcd does. Two things are checked all the time: the machine's own
invariants, and that the changes it emitted, replayed, give its set. At the end all faults stop,
and within a bounded number of requests and seconds the set is the server's.
"""

import itertools
import random

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from picker.kubernetes.backoff import Fault
from picker.kubernetes.kubernetes_objects import Pod, read_pod
from picker.kubernetes.listwatch import ListWatch
from picker.kubernetes.watch_messages import Change, Deleted, List, Replaced, Timing, Upserted, Wait, Watch
from tests.kube.store import Store, event, expired

NAMES = ["a", "b", "c", "d", "e"]
PAGE_OBJECTS = 2


class ModelServer(Store):
    """Pods of a healthy API server, as the rules below play with them."""

    def __init__(self) -> None:
        super().__init__()
        self.created = 0

    def create(self, name: str) -> None:
        self.created += 1
        meta = {"name": name, "uid": f"uid-{self.created}", "namespace": "ns", "labels": {"app": "x"}}
        status = {"podIP": f"10.0.0.{self.created % 250}", "conditions": [{"type": "Ready", "status": "True"}]}
        self.put({"metadata": meta, "status": status})

    def set_ready(self, name: str, ready: bool) -> None:
        thing = self.objects[name]
        thing["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
        self.put(thing)

    def spoil(self, name: str) -> None:
        thing = self.objects[name]
        thing["status"]["conditions"] = "not a list"
        self.put(thing)

    def expected(self) -> dict[str, tuple[str, bool]]:
        """uid -> (name, ready) of every object that can be read."""
        readable = [t for t in self.objects.values() if isinstance(t["status"]["conditions"], list)]
        return {
            t["metadata"]["uid"]: (t["metadata"]["name"], t["status"]["conditions"][0]["status"] == "True")
            for t in readable
        }


def summary(objects: dict[str, Pod]) -> dict[str, tuple[str, bool]]:
    return {uid: (pod.name, pod.ready) for uid, pod in objects.items()}


KINDS = ["create", "create", "delete", "ready", "unready", "spoil", "again"]
GARBAGE = [b"<html>503</html>\n", b'{"type":"ADDED"}\n', b"\xff\xfe\n", b"\n", b'{"a":', b"[]\n"]
BAD_PAGES = [b"", b"<html>", b"{}", b'{"metadata":{}}', b'{"metadata":{"resourceVersion":"v1"},"ite']
FAULTS = st.sampled_from(
    [
        Fault("reset"),
        Fault("no byte for 90 s"),
        Fault("Unauthorized", 401),
        Fault("Forbidden", 403),
        Fault("no such resource", 404),
        Fault("Expired", 410),
        Fault("slow down", 429, 1.0),
        Fault("oops", 500),
        Fault("<html>", 503),
        Fault("later", 503, 5.0),
        Fault("Too large resource version", 504),
    ]
)


class Conversation(RuleBasedStateMachine):
    """A server, a machine, and a network between them that Hypothesis directs."""

    def __init__(self) -> None:
        super().__init__()
        self.server = ModelServer()
        timing = Timing(page_objects=PAGE_OBJECTS, relist_seconds=600.0)
        self.machine = ListWatch(read_pod, random.Random(7), selector={"labelSelector": "app=x"}, timing=timing)
        self.now = 100.0
        self.action: List | Watch | None = None
        self.stream = b""
        self.revision = 0
        self.opened = False
        self.replayed: dict[str, Pod] = {}

    # The world

    @rule(changes=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS)), min_size=1, max_size=5))
    def change(self, changes: list[tuple[str, str]]) -> None:
        for name, kind in changes:
            exists = name in self.server.objects
            if kind == "create" and not exists:
                self.server.create(name)
            elif exists and kind == "delete":
                self.server.delete(name)
            elif exists and kind == "again":
                self.server.delete(name)
                self.server.create(name)
            elif exists and kind == "spoil":
                self.server.spoil(name)
            elif exists and kind in ("ready", "unready"):
                self.server.set_ready(name, kind == "ready")

    @rule()
    def compact(self) -> None:
        self.server.compact()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 20.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # Requests, most of them fine

    @rule(pages=st.integers(1, 4))
    def proceed(self, pages: int) -> None:
        """Go on, through waits, up to a watch that is up to date."""
        for _ in range(2 * pages):
            self._step()
        if self.opened:
            self._receive(self._new_bytes())

    def _step(self) -> None:
        if self.action is None:
            action = self.machine.next_action(self.now)
            if isinstance(action, Wait):
                assert action.until_seconds > self.now
                self.now = action.until_seconds
                return
            self.action, self.stream, self.opened = action, b"", False
        elif isinstance(self.action, List):
            answer = self.server.list_page(dict(self.action.params))
            if answer is None:
                self.machine.failed(Fault("The provided continue parameter is too old", 410), self.now)
            else:
                self._replay(self.machine.list_page(answer, self.now))
        elif not self.opened:
            self.machine.watch_opened(self.now)
            self.opened = True
            revision = self.server.readable(self.action.params["resourceVersion"])
            self.revision = self.server.revision if revision is None else revision
            self.stream = event("ERROR", expired()) if revision is None else b""
        self._let_go()

    def _new_bytes(self) -> bytes:
        """What the server has still to send."""
        stream = self.stream + self.server.since(self.revision)
        self.stream, self.revision = b"", self.server.revision
        return stream

    @rule(share=st.floats(0.0, 1.0))
    def deliver(self, share: float) -> None:
        """Some of the bytes on their way, cut anywhere."""
        if self.opened:
            stream = self._new_bytes()
            size = round(len(stream) * share)
            self.stream = stream[size:]
            self._receive(stream[:size])

    @rule()
    def bookmark(self) -> None:
        """At the server's newest revision: everything before it has been sent."""
        if self.opened:
            meta = {"resourceVersion": self.server.version, "creationTimestamp": None}
            self._receive(self._new_bytes() + event("BOOKMARK", {"kind": "Pod", "metadata": meta}))

    # Troubles: each ends a request in its own way

    @rule(trouble=st.one_of(FAULTS, st.sampled_from(["close", "garbage", "bad page", "error event"])), data=st.data())
    def trouble(self, trouble: Fault | str, data: st.DataObject) -> None:
        if self.action is None:
            self._step()
        if isinstance(trouble, Fault) and self.action is not None:
            self.machine.failed(trouble, self.now)
        elif trouble == "close" and self.opened:
            self.machine.closed(self.now)
        elif trouble == "garbage" and self.opened:
            self._receive(data.draw(st.sampled_from(GARBAGE)))
        elif trouble == "error event" and self.opened:
            status = {"kind": "Status", "code": data.draw(st.sampled_from([410, 500, 503])), "message": "no"}
            self._receive(self._new_bytes() + event("ERROR", status))
        elif trouble == "bad page" and isinstance(self.action, List):
            self._replay(self.machine.list_page(data.draw(st.sampled_from(BAD_PAGES)), self.now))
        self._let_go()

    # What must hold

    def _receive(self, data: bytes) -> None:
        self._replay(self.machine.watch_bytes(data, self.now))
        self._let_go()

    def _let_go(self) -> None:
        if self.action is not None and not self.machine.busy:
            self.action, self.stream, self.opened = None, b"", False

    def _replay(self, changes: list[Change[Pod]]) -> None:
        for change in changes:
            if isinstance(change, Replaced):
                self.replayed = dict(change.objects)
            elif isinstance(change, Upserted):
                self.replayed[change.object.uid] = change.object
            elif isinstance(change, Deleted):
                del self.replayed[change.object.uid]

    @invariant()
    def holds(self) -> None:
        self.machine.check()
        assert self.replayed == dict(self.machine.objects)

    def teardown(self) -> None:
        """Faults end: equality after bounded work and within bounded time."""
        if self.action is not None:
            self.machine.failed(Fault("the last cut"), self.now)
            self._let_go()
        deadline = self.now + 200.0
        for _ in range(40):
            self._step()
            if self.opened:
                self._receive(self._new_bytes())
            if self.opened:
                break
        assert self.opened, "no watch after 40 steps"
        assert self.now <= deadline
        assert summary(dict(self.machine.objects)) == self.server.expected()
        self.holds()


Conversation.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestConversation = Conversation.TestCase


@given(
    changes=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS)), min_size=1, max_size=12),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_where_the_bytes_are_cut_makes_no_difference(changes: list[tuple[str, str]], cuts: list[float]) -> None:
    whole, cut = Conversation(), Conversation()
    for each in (whole, cut):
        each.proceed(2)
        each.change(changes)
    stream = whole._new_bytes()
    edges = sorted({0, len(stream), *(round(len(stream) * share) for share in cuts)})
    whole._receive(stream)
    for start, end in itertools.pairwise(edges):
        cut._receive(stream[start:end])
    assert cut.replayed == whole.replayed
    assert summary(cut.replayed) == cut.server.expected()
    assert (cut.machine.failures_total, cut.machine.busy) == (0, True)
