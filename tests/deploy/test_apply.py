"""A real API server judges what the chart renders; helm installs, upgrades and uninstalls it there."""

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from picker.lab.child import dying_with_us
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.examples import folders
from tests.deploy.test_render import VENDORS
from tests.deploy.tools import CHART, Objects, objects, only, render, run, tool
from tests.deploy.values import BASE, PROVIDERS, WITHOUT_POOL, Values, merged
from tests.kube.cluster import ApiFailure, TestCluster
from tests.printed import NOTES, as_printed, to_run


def unlike(rendered: dict[str, Objects]) -> Objects:
    """Each object once: those that differ from an earlier one by more than the release's name."""
    seen: dict[str, dict[str, Any]] = {}
    for name, found in rendered.items():
        for o in found:
            if o["kind"] not in VENDORS:
                seen.setdefault(re.sub(rf"\b{name}\b", "NAME", json.dumps(o, sort_keys=True)), o)
    return list(seen.values())


def test_every_object_is_accepted(cluster: ChartCluster, rendered: dict[str, Objects]) -> None:
    cluster.kubectl("create", "namespace", "models")
    wanted = unlike(rendered)
    assert {o["kind"] for o in wanted} >= {
        "Deployment",
        "InferencePool",
        "InferenceObjective",
        "HTTPRoute",
        "NetworkPolicy",
    }
    code, answer = cluster.dry_run(wanted)
    judged = [line for line in answer.splitlines() if line.endswith("(server dry run)")]
    complaints = [line for line in answer.splitlines() if line not in judged]
    assert code == 0 and complaints == [], "\n".join(complaints)[:3000]
    assert len(judged) == len(wanted)


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("InferencePool", ("spec", "targetPorts"), [{"number": 99999}], "65535"),
        ("InferencePool", ("spec", "targetPorts"), [{"number": 1}, {"number": 1}], "port number must be unique"),
        ("Deployment", ("spec", "replica"), 1, "unknown field"),
        ("HTTPRoute", ("spec", "rules"), [{"timeouts": {"request": "soon"}}], "timeouts"),
    ],
)
def test_the_judge_is_strict(
    cluster: ChartCluster, kind: str, path: tuple[str, ...], value: object, words: str
) -> None:
    """What is wrong is refused, so what is accepted means something: schema, CEL and unknown fields."""
    found = copy.deepcopy(only(render(merged(BASE, {"httpRoute": {"enabled": True}}), namespace="default"), kind))
    found[path[0]][path[1]] = value
    code, answer = cluster.dry_run([found])
    assert code != 0 and words in answer, answer


def test_the_plain_examples_are_accepted(cluster: ChartCluster) -> None:
    for folder in folders():
        found = [o for path in folder.glob("[!v]*.yaml") for o in objects(path.read_text()) if o["kind"] not in VENDORS]
        code, answer = cluster.dry_run(found)
        assert code == 0, f"{folder.name}: {answer}"


class Release:
    """The chart, installed in a namespace of its own."""

    def __init__(self, cluster: ChartCluster, **values: Any) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace()
        self._helm("install", values)

    def upgrade(self, **values: Any) -> None:
        self._helm("upgrade", values)

    def uninstall(self) -> None:
        self.cluster.helm("uninstall", "demo", "--namespace", self.namespace)

    def _helm(self, verb: str, values: Values) -> None:
        text = yaml.safe_dump(merged(BASE, values))
        command = [verb, "demo", str(CHART), "--namespace", self.namespace, "--values", "-"]
        self.cluster.helm(*command, stdin=text)

    def get(self, path: str, name: str) -> dict[str, Any]:
        """`get('apps/v1/deployments', 'demo-picker')`."""
        group, plural = path.rsplit("/", 1)
        root = "/api" if group == "v1" else "/apis"
        return dict(self.cluster.api.request("GET", f"{root}/{group}/namespaces/{self.namespace}/{plural}/{name}"))

    def objects_left(self) -> list[str]:
        kinds = "deploy,svc,cm,sa,role,rolebinding,infpool,httproute,secret,pdb,netpol"
        lines = self.cluster.kubectl("get", kinds, "--namespace", self.namespace, "--output", "name").split()
        return sorted(line for line in lines if "kube-root-ca" not in line)

    def token(self) -> str:
        """A real token of the picker's service account."""
        return self.cluster.api.service_account_token(self.namespace, "demo-picker")

    def status(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> int:
        """The HTTP status that the picker's service account gets."""
        for _ in range(20):
            try:
                self.cluster.api.request(method, path, body, token=token or self.token())
            except ApiFailure as failure:
                if failure.status != 429:
                    return failure.status
                time.sleep(0.5)  # what a CRD that is new, or changes, answers for a moment
            else:
                return 200
        return 429


def test_install_upgrade_uninstall(cluster: ChartCluster) -> None:
    release = Release(cluster, httpRoute={"enabled": True})
    pool = release.get("inference.networking.k8s.io/v1/inferencepools", "demo")
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    before = release.get("apps/v1/deployments", "demo-picker")

    release.upgrade(httpRoute={"enabled": True}, config={"weights": {"prefix": 3, "queue": 5, "kv": 2}})
    after = release.get("apps/v1/deployments", "demo-picker")
    assert after["metadata"]["generation"] == before["metadata"]["generation"], "configuration rolls no pods"
    settings = yaml.safe_load(release.get("v1/configmaps", "demo-picker")["data"]["picker.yaml"])
    assert settings["weights"]["queue"] == 5

    release.upgrade(replicas=2)
    assert release.get("apps/v1/deployments", "demo-picker")["spec"]["replicas"] == 2
    assert not [name for name in release.objects_left() if name.startswith("httproute")], "no longer asked for"

    release.uninstall()
    assert release.objects_left() == []


def test_every_shape_installs(cluster: ChartCluster) -> None:
    """Dry runs create nothing that others refer to; so the richest shapes are installed for real."""
    shapes: list[Values] = [
        {"standalone": {"enabled": True, "mode": "service"}, "replicas": 2, "networkPolicy": {"enabled": True}},
        {"standalone": {"enabled": True}, "discovery": "selector"},
        {"replicas": 3, "highAvailability": "active-active", "metrics": {"auth": {"enabled": True}}},
        merged(WITHOUT_POOL["everything"], {"metrics": None, "inferencePool": {"keep": False}}),
    ]
    for shape in shapes:
        release = Release(cluster, **shape)
        release.uninstall()
        assert release.objects_left() == []


def test_every_change_of_mode_is_an_upgrade_and_rolls_back(cluster: ChartCluster) -> None:
    """One release through every shape and back: no selector, no immutable field stands in the way."""
    release = Release(cluster)
    shapes: list[Values] = [
        {"standalone": {"enabled": True}},
        {"standalone": {"enabled": True, "mode": "service"}, "replicas": 2},
        {"standalone": {"enabled": True, "mode": "service", "autoscaling": {"enabled": True}}},
        {"replicas": 3, "highAvailability": "active-active", "metrics": {"auth": {"enabled": True}}},
        {"tls": {"insecure": True}, "config": {"weights": {"prefix": 3, "queue": 5, "kv": 2}}},
        {"httpRoute": {"enabled": True}, "inferencePool": {"failureMode": "FailClose"}},
        {"modelServers": {"targetPorts": [8000, 8001], "appProtocol": "kubernetes.io/h2c"}},
    ]
    for shape in shapes:
        release.upgrade(**shape)
    everything = release.objects_left()
    release.cluster.helm("rollback", "demo", "2", "--namespace", release.namespace)
    assert "deployment.apps/demo-picker" in release.objects_left()
    assert "service/demo-picker-envoy" in release.objects_left() and everything != release.objects_left()
    release.uninstall()
    assert release.objects_left() == []


@pytest.mark.parametrize(
    "name", ["1234", "true", "picker-envoy", "a-release-name-that-is-longer-than-the-room-for-it-x"]
)
def test_odd_names_install(cluster: ChartCluster, name: str) -> None:
    namespace = cluster.namespace()
    text = yaml.safe_dump(
        merged(BASE, {"standalone": {"enabled": True, "mode": "service"}, "httpRoute": {"enabled": True}})
    )
    cluster.helm("install", name, str(CHART), "--namespace", namespace, "--values", "-", stdin=text)
    pools = cluster.kubectl("get", "infpool", "--namespace", namespace, "--output", "name").split()
    assert pools == [f"inferencepool.inference.networking.k8s.io/{name}"]
    cluster.helm("uninstall", name, "--namespace", namespace)


def test_objectives_are_installed_under_the_group_that_the_cluster_has(cluster: ChartCluster) -> None:
    """It has both here: the newer one. `picker serve` reads either."""
    release = Release(cluster, inferenceObjectives=[{"name": "batch", "priority": -1}])
    found = release.get("llm-d.ai/v1alpha2/inferenceobjectives", "batch")
    assert found["spec"]["poolRef"]["name"] == "demo" and found["spec"]["priority"] == -1
    release.uninstall()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_installs_upgrades_and_goes(cluster: ChartCluster, provider: str) -> None:
    values: Values = {
        "provider": provider,
        "httpRoute": {"enabled": True},
        "metrics": {"monitor": {"enabled": True}, "rules": {"enabled": True}},
        "standalone": {"enabled": True},
    }
    release = Release(cluster, **values)
    release.upgrade(**merged(values, {"standalone": {"mode": "service"}, "replicas": 2}))
    release.uninstall()
    assert release.objects_left() == []


def test_a_cluster_without_any_crd(tmp_path: Path) -> None:
    """`discovery=selector` with an Envoy of its own needs none: neither the install, nor an upgrade, looking for a pool
    that it would delete."""
    values = yaml.safe_dump(merged(BASE, {"discovery": "selector", "standalone": {"enabled": True}}))
    with TestCluster() as bare:
        kubeconfig = bare.kubeconfig(tmp_path / "kubeconfig")
        for command in (["install"], ["upgrade"], ["upgrade", "--set", "standalone.mode=service"]):
            done = run("helm", *command, "demo", str(CHART), "--values", "-", kubeconfig=kubeconfig, stdin=values)
            assert done.returncode == 0, done.stderr
        assert run("helm", "uninstall", "demo", kubeconfig=kubeconfig).returncode == 0


class TestThePool:
    """What would delete it by accident is refused; what keeps it keeps it."""

    def test_it_is_not_given_up_by_the_way(self, cluster: ChartCluster) -> None:
        release = Release(cluster)
        for values in ({"inferencePool": {"create": False, "name": "demo"}}, {"discovery": "selector"}):
            with pytest.raises(AssertionError, match=r"inferencePool\.keep=true"):
                release.upgrade(**values)
        with pytest.raises(AssertionError, match=r"inferencePool\.keep=true"):
            release.upgrade(inferencePool={"create": False, "name": "demo", "keep": True})
        release.upgrade(inferencePool={"keep": True})
        uid = release.get("inference.networking.k8s.io/v1/inferencepools", "demo")["metadata"]["uid"]
        release.upgrade(inferencePool={"create": False, "name": "demo"})
        assert release.get("inference.networking.k8s.io/v1/inferencepools", "demo")["metadata"]["uid"] == uid

    def test_a_kept_one_outlives_the_release(self, cluster: ChartCluster) -> None:
        release = Release(cluster, inferencePool={"keep": True})
        release.uninstall()
        assert release.objects_left() == ["inferencepool.inference.networking.k8s.io/demo"]


def notes(release: Release) -> str:
    return release.cluster.helm("get", "notes", "demo", "--namespace", release.namespace)


@pytest.mark.parametrize("mode", ["leader-election", "active-active"])
def test_the_printed_wait_ends_with_the_first_ready_address(cluster: ChartCluster, mode: str) -> None:
    """Run as printed, right after install; the test does what the EndpointSlice controller would."""
    release = Release(cluster, replicas=2, highAvailability=mode)
    (command,) = (as_printed(each, notes(release)) for each in to_run(NOTES, r"until "))
    assert command is not None
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{release.namespace}/endpointslices"

    def slice_of(name: str, *ready: bool) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "demo-picker"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [f"10.0.0.{number}"], "conditions": {"ready": each}}
                for number, each in enumerate(ready, start=1)
            ],
        }

    with waiting(command, cluster) as process:
        assert still_runs(process), "nothing is there yet"
        cluster.api.request("POST", slices, slice_of("demo-picker-a", False, False))
        assert still_runs(process), "nobody is ready yet"
        ready = (False, True) if mode == "leader-election" else (True, True)
        cluster.api.request("PUT", f"{slices}/demo-picker-a", slice_of("demo-picker-a", *ready))
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0 and "10.0.0.2" in out


@contextlib.contextmanager
def waiting(command: str, cluster: ChartCluster) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{tool('kubectl').parent}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        dying_with_us(["bash", "-c", command]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def still_runs(process: subprocess.Popen[str]) -> bool:
    """Two rounds of its loop later."""
    try:
        process.wait(2.5)
    except subprocess.TimeoutExpired:
        return True
    return False


class TestRights:
    """The Role, as the API server enforces it on the picker's own service account."""

    def test_what_the_watcher_asks_for_is_allowed(self, cluster: ChartCluster) -> None:
        release = Release(cluster)
        pods = f"/api/v1/namespaces/{release.namespace}/pods"
        pools = f"/apis/inference.networking.k8s.io/v1/namespaces/{release.namespace}/inferencepools"
        objectives = f"/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{release.namespace}/inferenceobjectives"
        watch = "watch=1&timeoutSeconds=1"
        allowed = [
            f"{pods}?labelSelector=app%3Dvllm&limit=500",
            f"{pods}?{watch}",
            f"{pools}?fieldSelector=metadata.name%3Ddemo",
            f"{pools}?fieldSelector=metadata.name%3Ddemo&{watch}",
            objectives,
            f"{objectives}?{watch}",
        ]
        assert {path: release.status("GET", path) for path in allowed} == dict.fromkeys(allowed, 200)

    def test_nothing_else_is(self, cluster: ChartCluster) -> None:
        release = Release(cluster)
        other = cluster.namespace()
        base = f"/api/v1/namespaces/{release.namespace}"
        pools = f"/apis/inference.networking.k8s.io/v1/namespaces/{release.namespace}/inferencepools"
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases"
        refused = [
            ("GET", f"/api/v1/namespaces/{other}/pods"),
            ("GET", "/api/v1/pods"),
            ("GET", f"{base}/secrets"),
            ("GET", f"{base}/configmaps"),
            ("GET", pools),
            ("GET", f"{pools}?fieldSelector=metadata.name%3Dother"),
            ("DELETE", f"{base}/pods/any"),
            ("PUT", f"{pools}/demo"),
            ("PUT", f"{pools}/demo/status"),
            ("GET", leases),
            ("POST", leases),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ]
        found = {
            (method, path): release.status(method, path, {} if method != "GET" else None) for method, path in refused
        }
        assert found == dict.fromkeys(refused, 403)

    def test_a_leader_election_may_take_and_renew_its_lease(self, cluster: ChartCluster) -> None:
        release = Release(cluster, replicas=2)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases"
        lease = {"metadata": {"name": "picker-abc"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 4}}
        assert release.status("GET", f"{leases}/picker-abc") == 404
        assert release.status("POST", leases, lease) == 200
        held = cluster.api.request("GET", f"{leases}/picker-abc", token=release.token())
        held["spec"]["holderIdentity"] = "b"
        assert release.status("PUT", f"{leases}/picker-abc", held) == 200
        assert release.status("GET", f"{leases}/picker-abc") == 200
        assert release.status("DELETE", f"{leases}/picker-abc") == 403
        assert release.status("GET", leases) == 403

    def test_metrics_authentication_can_review_tokens(self, cluster: ChartCluster) -> None:
        release = Release(cluster, metrics={"auth": {"enabled": True}})
        reader = cluster.api.service_account_token(release.namespace, "demo-picker-metrics-reader")
        user = f"system:serviceaccount:{release.namespace}:demo-picker-metrics-reader"

        def review(path: str, spec: dict[str, Any]) -> dict[str, Any]:
            return dict(cluster.api.request("POST", path, {"spec": spec}, token=release.token())["status"])

        tokens = "/apis/authentication.k8s.io/v1/tokenreviews"
        accesses = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert review(tokens, {"token": reader})["user"]["username"] == user
        wanted = {"user": user, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
        assert review(accesses, wanted)["allowed"] is True
        stranger = {**wanted, "user": "system:serviceaccount:default:other"}
        assert review(accesses, stranger)["allowed"] is False
        release.uninstall()
