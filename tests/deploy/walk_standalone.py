"""What stands in for a cluster while clients move from one chart's own Envoy to another's: a Service, and pods.

Beside what tests/deploy/walk.py does: the pod of a Deployment also has an Envoy of this machine, with the bootstrap of
its ConfigMap in the API server. A Service's port is a port of this machine (`Door`), whose new connections go to a
ready pod that the Service selects, to the port that its `targetPort` means there. Connections that exist stay where
they are, as with kube-proxy.
"""

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import yaml

from picker.lab.envoy import EnvoyProcess
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.standalone import on_this_machine
from tests.deploy.test_envoy_drain import Drain
from tests.deploy.walk import Controllers


class Pod:
    """Labels, ports and Envoy of one Deployment's pod."""

    def __init__(self, deployment: dict[str, Any], bootstrap: dict[str, Any], picker: str, folder: Path) -> None:
        template = deployment["spec"]["template"]
        self.labels: dict[str, str] = template["metadata"]["labels"]
        sidecars = template["spec"].get("initContainers", [])
        containers = [*template["spec"]["containers"], *sidecars]
        self._names = {port["name"]: port["containerPort"] for c in containers for port in c.get("ports", ())}
        (envoy,) = (c for c in containers if "envoy" in c["image"])
        flags = envoy["args"]
        flags = flags[flags.index("--drain-strategy") : flags.index("-c")] if "--drain-strategy" in flags else []
        listeners = bootstrap["static_resources"]["listeners"]
        asked = {each["address"]["socket_address"]["port_value"]: each["name"] for each in listeners}
        self.envoy = EnvoyProcess(_here(bootstrap, picker, folder / "pressure"), flags=flags)
        try:
            statuses = json.loads(self.envoy.admin("/listeners?format=json"))["listener_statuses"]
            here = {each["name"]: each["local_address"]["socket_address"]["port_value"] for each in statuses}
            self._ports = {port: here[name] for port, name in asked.items()}
            self._drain = Drain(self.envoy.admin_port, folder / "pressure", 60) if envoy in sidecars else None
        except BaseException:
            self.envoy.stop()
            raise

    def port(self, target: int | str) -> int | None:
        """The port of this machine that a Service's `targetPort` means; None where nothing listens."""
        number = self._names.get(target) if isinstance(target, str) else target
        return None if number is None else self._ports.get(number)

    def leave(self) -> None:
        """What the kubelet does: SIGTERM to all containers, and to a native sidecar when the others have ended."""
        if self._drain is None:
            self.envoy.stop()
        else:
            self._drain.begin()

    def close(self) -> None:
        if self._drain is not None:
            self._drain.__exit__()
        self.envoy.stop()


def _here(bootstrap: dict[str, Any], picker: str, pressure: Path) -> dict[str, Any]:
    """Either chart's bootstrap with ports of this machine."""
    resources = bootstrap["static_resources"]
    for listener in resources["listeners"]:
        listener.pop("additional_addresses", None)  # of IPv6
    for cluster in resources["clusters"]:
        if cluster["name"] == "ext_proc":  # theirs
            endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
            host, _, port = picker.rpartition(":")
            endpoint["address"]["socket_address"] = {"address": host, "port_value": int(port)}
    return on_this_machine(bootstrap, picker, pressure if "overload_manager" in bootstrap else None)


class Proxies(Controllers):
    """`envoys` names the ConfigMap with the Envoy's bootstrap of each Deployment, `service` what clients call."""

    insecure = False

    def __init__(
        self,
        cluster: ChartCluster,
        namespace: str,
        folder: Path,
        envoys: dict[str, str],
        pool: str,
        service: tuple[str, int],
    ) -> None:
        super().__init__(cluster, namespace, folder, tuple(envoys), pool)
        self._envoys = envoys
        self._service, self._port = service
        self.pods: dict[str, Pod] = {}
        self._left: list[Pod] = []
        self.door = Door()

    def _pod_started(self, name: str, deployment: dict[str, Any]) -> None:
        data = self._get(f"/api/v1/namespaces/{self._namespace}/configmaps/{self._envoys[name]}")
        assert data is not None
        folder = self._folder / name
        folder.mkdir()
        bootstrap = yaml.safe_load(data["data"]["envoy.yaml"])
        self.pods[name] = Pod(deployment, bootstrap, self._pickers[name].grpc_address, folder)

    def _pod_stopped(self, name: str) -> None:
        pod = self.pods.pop(name)
        self._left.append(pod)
        self._route()  # a pod that leaves is no endpoint any more
        pod.leave()

    def _close(self) -> None:
        self.door.close()
        for pod in (*self.pods.values(), *self._left):
            pod.close()

    def _route(self) -> None:
        service = self._get(f"/api/v1/namespaces/{self._namespace}/services/{self._service}")
        behind = None
        for port in service["spec"]["ports"] if service else ():
            for name in self._ready & set(self.pods):
                selected = service["spec"]["selector"].items() <= self.pods[name].labels.items() if service else False
                if selected and port["port"] == self._port and (here := self.pods[name].port(port["targetPort"])):
                    behind = (name, here)
        self.door.target = behind[1] if behind else None
        if self.switches[-1:] != [behind[0] if behind else None]:
            self.switches.append(behind[0] if behind else None)


class Door:
    """A port that hands each new connection on to `target`, a port; with none, it closes it."""

    def __init__(self) -> None:
        self.target: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._serving: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        _shut(*self._open)
        for thread in self._serving:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target or 0), timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serving = threading.Thread(target=self._serve, args=(client, server), daemon=True)
            self._serving.append(serving)
            serving.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            self._open.update((client, server))
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
            self._open.difference_update((client, server))


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """One direction. Its end is passed on; a direction that breaks ends both."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        _shut(source, sink)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
