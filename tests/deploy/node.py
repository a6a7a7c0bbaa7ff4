"""What stands in for a node and the controllers of a cluster while its reader types a page's commands.

One thread looks at the API server, again and again, and makes it so in one namespace:

* a Deployment has its pods, and each container that the project has a program for runs as a process of this machine:
  the picker with the Deployment's own arguments and its service account's rights, the simulated model servers at the
  pod's address, the chart's Envoy with the bootstrap of its ConfigMap. The pods are Ready, and the Deployment says so;
* a Service of these pods has their addresses in an EndpointSlice;
* a pod that has no Deployment (`helm test`) is bound to the node, runs to its end, and says how that was;
* the kubelet's port answers `kubectl port-forward` and `kubectl logs`, through the API server.

A changed Deployment is not rolled out.
"""

import itertools
import os
import random
import re
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Self

import yaml

from picker.lab.child import dying_with_us
from picker.lab.envoy import EnvoyProcess
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.standalone import on_this_machine
from tests.deploy.tools import REPOSITORY
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.kube.port_forward import KubeletPort

LOOK_SECONDS = 0.1
MERGE = "application/merge-patch+json"
SOME_TIME = "2026-01-01T00:00:00Z"
PYTHON = "/opt/picker/bin/python"


class Node:
    """Runs from `with` to its end."""

    def __init__(self, cluster: ChartCluster, namespace: str, folder: Path) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._folder = folder / "node"
        self._folder.mkdir()
        self._name = f"node-of-{namespace}"
        self._kubelet = KubeletPort(self._folder / "kubelet", self._where, self._log)
        network = f"127.{random.randrange(16, 250)}.{random.randrange(250)}"
        self._addresses = (f"{network}.{number}" for number in itertools.count(1))
        """No other run on this machine is likely to have the same: a model server keeps the port that it is told."""
        self._ports: dict[str, dict[int, str]] = {}
        """What listens here for a port of a pod, by the pod's name."""
        self._published: set[str] = set()
        """Services."""
        self.pickers: dict[str, PickerProcess] = {}
        """By the pod's name."""
        self._envoys: list[EnvoyProcess] = []
        self._others: dict[str, subprocess.Popen[str]] = {}
        self._end = threading.Event()
        self._broken: str | None = None
        self._thread = threading.Thread(target=self._run, name="node")

    def __enter__(self) -> Self:
        self._kubelet.__enter__()
        self._ask("POST", "/api/v1/nodes", {"metadata": {"name": self._name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.port}},
        }
        self._ask("PATCH", f"/api/v1/nodes/{self._name}/status", {"status": status})
        self._thread.start()
        try:
            wait_until(self._has_deployed, "pods that a reader finds already", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _has_deployed(self) -> bool:
        """What there is now; a `kubectl rollout status` waits for the rest."""
        found = self._ask("GET", self._in_namespace("apis/apps/v1", "deployments"))["items"]
        done = all(each.get("status", {}).get("observedGeneration") == each["metadata"]["generation"] for each in found)
        return done or self._broken is not None

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._kubelet.__exit__()
        assert self._broken is None, self._broken

    # What the kubelet's port is asked

    def _where(self, _: str, pod: str, port: int) -> str | None:
        return self._ports.get(pod, {}).get(port)

    def _log(self, _: str, pod: str) -> str:
        return self.pickers[pod].log()

    # The thread

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self._cluster.api.request(
            method, path, body, content_type=MERGE if method == "PATCH" else "application/json"
        )

    def _in_namespace(self, group: str, rest: str) -> str:
        return f"/{group}/namespaces/{self._namespace}/{rest}"

    def _run(self) -> None:
        try:
            while not self._end.wait(LOOK_SECONDS):
                for deployment in self._ask("GET", self._in_namespace("apis/apps/v1", "deployments"))["items"]:
                    if deployment.get("status", {}).get("observedGeneration") != deployment["metadata"]["generation"]:
                        self._deploy(deployment)
                pods = self._ask("GET", self._in_namespace("api/v1", "pods"))["items"]
                for service in self._ask("GET", self._in_namespace("api/v1", "services"))["items"]:
                    self._publish(service, pods)
                for pod in pods:
                    if "nodeName" not in pod["spec"]:
                        self._run_to_its_end(pod)
        except Exception:
            self._broken = traceback.format_exc()
        finally:
            for picker in self.pickers.values():
                picker.close()
            for envoy in self._envoys:
                envoy.stop()
            for other in self._others.values():
                other.kill()
                other.communicate()

    def _deploy(self, deployment: dict[str, Any]) -> None:
        name, count = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        for number in range(count):
            if f"{name}-{number}" not in self._ports:
                self._start_pod(f"{name}-{number}", deployment["spec"]["template"])
        kinds = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = {"observedGeneration": deployment["metadata"]["generation"], **dict.fromkeys(kinds, count)}
        self._ask("PATCH", self._in_namespace("apis/apps/v1", f"deployments/{name}/status"), {"status": status})

    def _publish(self, service: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        """The ready addresses of a Service, when there are any, and once. The API server takes no loopback there."""
        name, selector = service["metadata"]["name"], service["spec"].get("selector")
        ready = [
            {"addresses": [pod["status"]["podIP"].replace("127.", "10.", 1)], "conditions": {"ready": True}}
            for pod in pods
            if selector and pod["metadata"]["name"] in self._ports and "podIP" in pod["status"]
            if selector.items() <= pod["metadata"]["labels"].items()
        ]
        if ready and name not in self._published:
            self._published.add(name)
            labels = {"kubernetes.io/service-name": name}
            body = {"metadata": {"name": f"{name}-1", "labels": labels}, "addressType": "IPv4", "endpoints": ready}
            self._ask("POST", self._in_namespace("apis/discovery.k8s.io/v1", "endpointslices"), body)

    def _start_pod(self, name: str, template: dict[str, Any]) -> None:
        spec = {**template["spec"], "nodeName": self._name}
        labels = template["metadata"]["labels"]
        self._ask(
            "POST", self._in_namespace("api/v1", "pods"), {"metadata": {"name": name, "labels": labels}, "spec": spec}
        )
        ip = next(self._addresses)
        self._ports[name] = {}
        containers = {each["name"]: each for each in (*spec["containers"], *spec.get("initContainers", ()))}
        if "picker" in containers:
            self._start_picker(name, spec, containers["picker"])
        if "envoy" in containers:
            self._start_envoy(name, spec)
        for container in containers.values():
            if container.get("command", [""])[0] == PYTHON:
                self._start_python(name, container, ip)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": SOME_TIME}
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
        self._ask("PATCH", self._in_namespace("api/v1", f"pods/{name}/status"), {"status": status})

    def _file_of(self, spec: dict[str, Any], file: str) -> str:
        """A file that the pod mounts from a ConfigMap."""
        for volume in spec["volumes"]:
            if "configMap" in volume:
                path = self._in_namespace("api/v1", f"configmaps/{volume['configMap']['name']}")
                data = self._ask("GET", path)["data"]
                if file in data:
                    return str(data[file])
        raise AssertionError(f"no ConfigMap of the pod has {file}")

    def _start_picker(self, pod: str, spec: dict[str, Any], container: dict[str, Any]) -> None:
        kubeconfig = self._folder / f"{pod}.kubeconfig"
        token = self._cluster.api.service_account_token(self._namespace, spec["serviceAccountName"])
        self._cluster.api.kubeconfig(kubeconfig, token, self._namespace)
        config = self._folder / f"{pod}.yaml"
        config.write_text(self._file_of(spec, "picker.yaml"))
        there = {
            "--config=/etc/picker/config/picker.yaml": f"--config={config}",
            "--host=0.0.0.0": "--host=127.0.0.1",
        }
        given = [flag for flag in container["args"][1:] if not re.match(r"--(grpc|grpc-health|metrics)-port=", flag)]
        flags = [there.get(flag, flag).replace("$(NAMESPACE)", self._namespace) for flag in given]
        environment = {"KUBECONFIG": str(kubeconfig), "POD_NAME": pod, "POD_TEMPLATE_HASH": "5d4f8c7b9"}
        picker = PickerProcess(flags=flags, insecure=False, env=environment)
        self.pickers[pod] = picker
        self._ports[pod] |= {9002: picker.grpc_address, 9003: picker.health_address, 9090: picker.metrics_address}
        wait_until(
            lambda: picker.health("readiness", picker.health_address) == "SERVING" or self._end.is_set(),
            "it never became ready",
            30,
        )

    def _start_envoy(self, pod: str, spec: dict[str, Any]) -> None:
        bootstrap = yaml.safe_load(self._file_of(spec, "envoy.yaml"))
        port = bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
        envoy = EnvoyProcess(on_this_machine(bootstrap, self.pickers[pod].grpc_address))
        self._envoys.append(envoy)
        self._ports[pod][port] = f"127.0.0.1:{envoy.port}"

    def _start_python(self, pod: str, container: dict[str, Any], ip: str) -> None:
        arguments = [word.replace("--host=0.0.0.0", f"--host={ip}") for word in container.get("args", ())]
        command = [sys.executable, *container["command"][1:], *arguments]
        process = subprocess.Popen(
            dying_with_us(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        self._others[pod] = process
        if "ports" in container:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("listening "), said
            self._ports[pod] |= {each["containerPort"]: f"{ip}:{each['containerPort']}" for each in container["ports"]}

    def _run_to_its_end(self, pod: dict[str, Any]) -> None:
        """Addresses of Services become those of this machine; a cluster's DNS and proxy would do that."""
        name = pod["metadata"]["name"]
        path = self._in_namespace("api/v1", f"pods/{name}")
        self._ask(
            "POST", f"{path}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": self._name}}
        )
        (container,) = pod["spec"]["containers"]
        container["args"] = [
            re.sub(r"(?<=^http://)([\w-]+)\.[\w.-]+:(\d+)", lambda found: self._service(found[1], int(found[2])), word)
            for word in container["args"]
        ]
        self._start_python(name, container, "")
        said, _ = self._others[name].communicate(timeout=100)
        good = self._others[name].returncode == 0
        ended = {"exitCode": 0 if good else 1, "message": said, "startedAt": SOME_TIME, "finishedAt": SOME_TIME}
        statuses = [{"name": container["name"], "image": "", "imageID": "", "ready": False, "restartCount": 0}]
        statuses[0]["state"] = {"terminated": ended}
        status = {"phase": "Succeeded" if good else "Failed", "containerStatuses": statuses}
        self._ask("PATCH", f"{path}/status", {"status": status})

    def _service(self, name: str, port: int) -> str:
        """The address here of a Service's port, by its selector and target port, as a cluster would have it."""
        spec = self._ask("GET", self._in_namespace("api/v1", f"services/{name}"))["spec"]
        (target,) = (each["targetPort"] for each in spec["ports"] if each["port"] == port)
        for pod in self._ask("GET", self._in_namespace("api/v1", "pods"))["items"]:
            if spec["selector"].items() <= pod["metadata"].get("labels", {}).items():
                for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
                    number = _number(container, target)
                    if number is not None and (listens := self._where("", pod["metadata"]["name"], number)):
                        return listens
        raise AssertionError(f"the Service {name} leads nowhere with its port {port}")


def _number(container: dict[str, Any], port: int | str) -> int | None:
    """The number of a container's port, which may be named."""
    named = {each.get("name"): int(each["containerPort"]) for each in container.get("ports", ())}
    return port if isinstance(port, int) else named.get(port)
