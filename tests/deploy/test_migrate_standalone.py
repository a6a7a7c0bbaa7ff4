"""docs/migrate.md, "Their standalone chart", command for command: clients keep the Service, and lose no request.

Each of the clients keeps its connection and asks again and again: only so does it matter that the old Envoy, which
is stopped at once, has sent them away before. One answer runs from before the switch until it alone is left there.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.test_migrate import BODY, CHAT, NEW, OLD, POOL, STANDALONE, Reader, blocks
from tests.deploy.test_rights_of_a_picker import add_pod
from tests.deploy.walk import Clients
from tests.deploy.walk_standalone import Proxies
from tests.envoy.clients import Http1Client, post
from tests.envoy.picker_process import wait_until
from tests.envoy.upstream import Upstream, sse_events

pytestmark = pytest.mark.usefixtures("helm")

LENGTH = ("content-length", str(len(BODY)))
CONNECTIONS = "http.http-8081.downstream_cx_active"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as started:
        yield started


@pytest.fixture
def reader(cluster: ChartCluster, tmp_path: Path, upstream: Upstream) -> Iterator[Reader]:
    """With the old release installed, a model server, and the first step, which both walks share, done."""
    made = Reader(cluster, tmp_path, int(upstream.address.rpartition(":")[2]), STANDALONE)
    add_pod(cluster, made.namespace, "vllm-0", "127.0.0.1")
    made.types(f"helm install vllm-qwen3 {made.theirs} --namespace models")
    made.types(blocks("")[0])
    yield made
    for release in ("vllm-qwen3", "picker"):
        made.types(f"helm uninstall {release} --namespace models --ignore-not-found")


@contextmanager
def proxies(reader: Reader) -> Iterator[Proxies]:
    """The pods and the Service of the page; the old one serves."""
    folder = reader.folder / "pods"
    folder.mkdir()
    envoys = {OLD: "envoy", NEW: "picker-envoy"}
    with Proxies(reader.cluster, reader.namespace, folder, envoys, POOL, (OLD, 8081)) as controllers:
        wait_until(lambda: controllers.switches[-1:] == [OLD], "the old picker never serves", 30)
        port = controllers.door.port
        wait_until(lambda: post(port, f"{CHAT}?id=first", BODY).status == 200, "nothing is served", 30)
        reader.forwarded["localhost:19000"] = f"localhost:{controllers.pods[OLD].envoy.admin_port}"
        yield controllers


class Kept:
    """A client of each thread that keeps its connection until it is told that this was the last answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._own = threading.local()
        self._all: list[Http1Client] = []

    def ask(self, number: int) -> None:
        client = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = Http1Client(self._port)
            self._all.append(client)
        client.head("POST", f"{CHAT}?id=walk-{number}", [LENGTH])
        client.send(BODY)
        answer = client.response()
        if answer.value("connection") == "close":
            client.close()
            self._own.client = None
        assert answer.status == 200, answer

    def close(self) -> None:
        for client in self._all:
            client.close()


class Long:
    """An answer that has begun, and goes on when it is told to."""

    def __init__(self, port: int, upstream: Upstream) -> None:
        self._client = Http1Client(port)
        self._client.head("POST", f"{CHAT}?id=long&do=sse&n=5&stall=1", [LENGTH])
        self._client.send(BODY)
        self._head = self._client.read_head()
        self._begun = self._client.read_chunk()
        self._release = upstream.recorded("long").release

    def finish(self) -> bool:
        """Whether the client got all of it. It leaves."""
        self._release.set()
        with self._client:
            return self._begun + self._client.read_body(self._head).body == b"".join(sse_events(5))

    def close(self) -> None:
        self._release.set()
        self._client.close()


@contextmanager
def under_traffic(port: int) -> Iterator[Clients]:
    """Clients that ask all the while; none may be lost."""
    kept = Kept(port)
    try:
        with Clients(kept.ask) as clients:
            yield clients
            goes_on(clients)
    finally:
        kept.close()
    assert clients.failed == [] and clients.asked > 60


def goes_on(clients: Clients) -> None:
    before = clients.asked
    wait_until(lambda: clients.asked > before + 20, "the traffic stands still", 30)


def test_there(reader: Reader, upstream: Upstream) -> None:
    values, install, turn, leave = blocks("standalone")
    reader.types(values)
    with proxies(reader) as controllers, under_traffic(controllers.door.port) as clients:
        port, old = controllers.door.port, controllers.pods[OLD].envoy
        with closing(Long(port, upstream)) as long:
            reader.types(install)
            goes_on(clients)
            assert controllers.switches == [OLD], "nobody is sent to the new one yet"
            reader.types(turn)
            wait_until(lambda: controllers.switches[-1] == NEW, "the Service leads to no new pod", 30)
            goes_on(clients)
            assert old.stats(CONNECTIONS)[CONNECTIONS] > 1, "connections that exist stay"

            def let_go() -> tuple[bool, bool]:
                wait_until(lambda: old.stats(CONNECTIONS)[CONNECTIONS] == 1, "clients stay with the old Envoy", 60)
                return reader.has("deployment", OLD), long.finish()

            with ThreadPoolExecutor(1) as watcher:
                waited = watcher.submit(let_go)
                reader.types(leave)
            assert waited.result() == (True, True), "the old release was there until the last answer had ended"
        wait_until(lambda: OLD not in controllers.pods, "the old pod stays", 30)
        goes_on(clients)
        assert controllers.switches == [OLD, NEW]
    assert reader.has("service", OLD) and not reader.has("deployment", OLD)
    assert not reader.has("inferencepool", POOL), "it was the old release's"
    reader.types("helm upgrade picker deploy/chart --namespace models --values values.yaml")
    reader.types(blocks("later")[0])
    assert not reader.has("service", OLD) and reader.has("service", "picker-envoy")


def test_and_back(reader: Reader, upstream: Upstream) -> None:
    values, install, turn, _ = blocks("standalone")
    back, uninstall = blocks("undo")[0].splitlines()
    reader.types(values)
    with proxies(reader) as controllers, under_traffic(controllers.door.port) as clients:
        with closing(Long(controllers.door.port, upstream)) as long:
            for step, name in ((install, OLD), (turn, NEW), (back, OLD)):
                reader.types(step)
                wait_until(lambda name=name: controllers.switches[-1] == name, f"{name} is not served from", 30)
                goes_on(clients)
                if name == NEW:
                    assert post(controllers.door.port, f"{CHAT}?id=new", BODY).status == 200
            reader.types(uninstall)
            wait_until(lambda: NEW not in controllers.pods, "the new pod stays", 30)
            goes_on(clients)
            assert long.finish(), "the answer that ran all the while"
        assert controllers.switches == [OLD, NEW, OLD]
    assert not reader.has("deployment", "deployment.apps/picker")
    reader.types(f"helm upgrade vllm-qwen3 {reader.theirs} --namespace models")


def test_why_the_service_is_taken_out_of_the_old_release(reader: Reader) -> None:
    """Without that it goes when the release goes, though it leads elsewhere."""
    reader.types(blocks("standalone")[2])
    reader.types("helm uninstall vllm-qwen3 --namespace models")
    assert not reader.has("service", OLD)
