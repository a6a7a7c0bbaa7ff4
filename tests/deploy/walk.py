"""What stands in for a cluster's own programs while a guide is walked: kubelet, EndpointSlice and gateway controllers.

One thread looks at the API server, again and again, and makes it so:

* a Deployment that exists has its picker as a process of this machine, started with the Deployment's own arguments and
  its service account's token; a Deployment that is gone has its picker stopped with SIGTERM, and left to drain;
* a picker that is SERVING is a ready address in an EndpointSlice of its Service;
* the Envoy asks the picker that the InferencePool's endpointPickerRef names, as long as there are a route, that pool
  and a ready address; else nobody, and it answers 5xx: what clients see of a pool that is gone.
"""

import json
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, build
from tests.deploy.cluster_fixture import ChartCluster
from tests.envoy.picker_process import PickerProcess
from tests.kube.cluster import ApiFailure

LOOK_SECONDS = 0.1


class Controllers:
    """Runs from `with` to its end. `deployments` and `pool` are the names that it looks for."""

    insecure = True
    """Whether the pickers speak plaintext to the Envoy, whatever their Deployments say."""

    def __init__(self, cluster: ChartCluster, namespace: str, folder: Path, deployments: tuple[str, ...], pool: str):
        self._cluster = cluster
        self._namespace = namespace
        self._folder = folder
        self._deployments = deployments
        self._pool = pool
        self._pickers: dict[str, PickerProcess] = {}
        self._stopped: list[PickerProcess] = []
        self._ready: set[str] = set()
        self._routed: str | None = None
        self._version = 0
        self.switches: list[str | None] = []
        """Whom the gateway asked, in order; None is nobody."""
        self._end = threading.Event()
        self._broken: str | None = None
        self._thread = threading.Thread(target=self._run, name="controllers")
        self._write_endpoints(None)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        assert self._broken is None, self._broken

    def bootstrap(self) -> dict[str, Any]:
        """An Envoy whose cluster `picker` follows this gateway."""
        config = build(
            EnvoyConfig(
                balancing=Balancing.ORIGINAL_DST,
                picker_address="127.0.0.1:1",
                request_body=BodySendMode.BUFFERED,
                response_body=BodySendMode.STREAMED,
            )
        )
        (cluster,) = (each for each in config["static_resources"]["clusters"] if each["name"] == "picker")
        config["node"] = {"id": "gateway", "cluster": "gateway"}  # EDS asks for it
        del cluster["load_assignment"]
        source = {
            "path_config_source": {"path": str(self._endpoints), "watched_directory": {"path": str(self._folder)}}
        }
        cluster["type"] = "EDS"
        cluster["eds_cluster_config"] = {"eds_config": {**source, "resource_api_version": "V3"}}
        return config

    @property
    def _endpoints(self) -> Path:
        return self._folder / "endpoints.json"

    def _run(self) -> None:
        try:
            while not self._end.wait(LOOK_SECONDS):
                self._look()
        except Exception:
            self._broken = traceback.format_exc()
        finally:
            for process in (*self._pickers.values(), *self._stopped):
                process.close()
            self._close()

    def _pod_started(self, name: str, deployment: dict[str, Any]) -> None:
        """What else runs in the pod; and below, what becomes of it, and what ends with these controllers."""

    def _pod_stopped(self, name: str) -> None: ...

    def _close(self) -> None: ...

    def _look(self) -> None:
        for name in self._deployments:
            deployment = self._get(f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{name}")
            if deployment is not None and name not in self._pickers:
                self._pickers[name] = self._start(name, deployment)
                self._pod_started(name, deployment)
            elif deployment is None and name in self._pickers:
                self._pickers[name].terminate()
                self._stopped.append(self._pickers.pop(name))
                self._ready.discard(name)
                self._pod_stopped(name)
        for name, picker in self._pickers.items():
            if name not in self._ready and picker.health("readiness", picker.health_address) == "SERVING":
                self._publish(name)
                self._ready.add(name)
        self._route()

    def _start(self, name: str, deployment: dict[str, Any]) -> PickerProcess:
        pod = deployment["spec"]["template"]["spec"]
        kubeconfig = self._folder / f"{name}.kubeconfig"
        token = self._cluster.api.service_account_token(self._namespace, pod["serviceAccountName"])
        self._cluster.api.kubeconfig(kubeconfig, token, self._namespace)
        flags = [f"--pool={self._pool}", f"--namespace={self._namespace}"]
        found = [container for container in pod["containers"] if container["name"] == "picker"]
        if found:  # not the old one: it has its pool and that is all
            config = self._folder / f"{name}.yaml"
            data = self._get(f"/api/v1/namespaces/{self._namespace}/configmaps/{name}")
            assert data is not None
            config.write_text(data["data"]["picker.yaml"])
            there = {
                "--config=/etc/picker/config/picker.yaml": f"--config={config}",
                "--host=0.0.0.0": "--host=127.0.0.1",
            }
            args = found[0]["args"][1:]
            given = [flag for flag in args if "-port=" not in flag or flag.startswith("--target-port=")]
            flags = [there.get(flag, flag).replace("$(NAMESPACE)", self._namespace) for flag in given]
        environment = {"KUBECONFIG": str(kubeconfig), "POD_NAME": f"{name}-1"}
        return PickerProcess(flags=flags, env=environment, insecure=self.insecure)

    def _publish(self, name: str) -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices"
        body = {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        }
        self._cluster.api.request("POST", path, body)

    def _route(self) -> None:
        route = self._get(f"/apis/gateway.networking.k8s.io/v1/namespaces/{self._namespace}/httproutes/{self._pool}")
        pool = self._get(
            f"/apis/inference.networking.k8s.io/v1/namespaces/{self._namespace}/inferencepools/{self._pool}"
        )
        backend = route["spec"]["rules"][0]["backendRefs"][0]["name"] if route else None
        wanted = pool["spec"]["endpointPickerRef"]["name"] if pool and backend == self._pool else None
        wanted = wanted if wanted in self._ready else None
        if wanted != self._routed:
            self._routed = wanted
            self.switches.append(wanted)
            self._write_endpoints(self._pickers[wanted].grpc_address if wanted else None)

    def _write_endpoints(self, address: str | None) -> None:
        self._version += 1
        endpoints = []
        if address is not None:
            host, _, port = address.rpartition(":")
            socket = {"socket_address": {"address": host, "port_value": int(port)}}
            endpoints = [{"lb_endpoints": [{"endpoint": {"address": socket}}]}]
        kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
        resource = {"@type": kind, "cluster_name": "picker", "endpoints": endpoints}
        part = self._folder / ".endpoints"
        part.write_text(json.dumps({"version_info": str(self._version), "resources": [resource]}))
        part.rename(self._endpoints)

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            return dict(self._cluster.api.request("GET", path))
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise


class Clients:
    """Threads that ask without end. `failed` is every request that did not end well, in words."""

    def __init__(self, ask: Callable[[int], None], count: int = 4) -> None:
        self._ask = ask
        self._end = threading.Event()
        self._lock = threading.Lock()
        self.asked = 0
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            with self._lock:
                self.asked += 1
                number = self.asked
            try:
                self._ask(number)
            except Exception as error:
                self.failed.append(f"request {number}: {error!r}")
