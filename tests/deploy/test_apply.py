"""A real API server judges what the chart renders; helm installs, upgrades and uninstalls it there."""

import copy
import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.examples import folders
from tests.deploy.test_render import VENDORS
from tests.deploy.tools import CHART, Objects, objects, only, render
from tests.deploy.values import BASE, Values, merged
from tests.kube.cluster import ApiFailure


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
        try:
            self.cluster.api.request(method, path, body, token=token or self.token())
        except ApiFailure as failure:
            return failure.status
        return 200


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
    ]
    for shape in shapes:
        release = Release(cluster, **shape)
        release.uninstall()
        assert release.objects_left() == []


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
