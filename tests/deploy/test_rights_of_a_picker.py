"""The real picker, as the installed chart starts it, with exactly the rights that the chart gives it."""

import http.client
from pathlib import Path

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.test_apply import Release
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.kube.cluster import ApiFailure


def add_model_server(release: Release, name: str, ip: str) -> None:
    """A pod of the release's namespace, running and Ready."""
    add_pod(release.cluster, release.namespace, name, ip)


def add_pod(cluster: ChartCluster, namespace: str, name: str, ip: str) -> None:
    """A pod as the kubelet would report it: running and Ready."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"nodeName": "n1", "containers": [{"name": "m", "image": "none", "ports": [{"containerPort": 8000}]}]}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
    request = cluster.api.request
    request("POST", pods, {"metadata": {"name": name, "labels": {"app": "vllm"}}, "spec": spec})
    request("PATCH", f"{pods}/{name}/status", {"status": status}, content_type="application/merge-patch+json")


def flags_of(release: Release, config: Path) -> list[str]:
    """The installed Deployment's arguments; ports are the test's, and the mounted file is a file."""
    container = release.get("apps/v1/deployments", "demo-picker")["spec"]["template"]["spec"]["containers"][0]
    config.write_text(release.get("v1/configmaps", "demo-picker")["data"]["picker.yaml"])
    assert container["args"][0] == "serve"
    kept = [flag for flag in container["args"][1:] if "-port=" not in flag or flag.startswith("--target-port=")]
    there = {"--config=/etc/picker/config/picker.yaml": f"--config={config}", "--host=0.0.0.0": "--host=127.0.0.1"}
    return [there.get(flag, flag).replace("$(NAMESPACE)", release.namespace) for flag in kept]


@pytest.fixture
def as_pod(cluster: ChartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a pod, but for the service account's token: that comes with the returned kubeconfig."""
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("POD_NAME", "demo-picker-5d4f8c7b9-x2x2x")
    monkeypatch.setenv("POD_TEMPLATE_HASH", "5d4f8c7b9")
    return path


@pytest.mark.parametrize("discovery", ["pool", "selector"])
def test_the_role_is_enough(cluster: ChartCluster, as_pod: Path, tmp_path: Path, discovery: str) -> None:
    release = Release(cluster, replicas=2, discovery=discovery)
    add_model_server(release, "vllm-0", "127.0.0.2")
    cluster.api.kubeconfig(as_pod, release.token(), release.namespace)
    with PickerProcess(flags=flags_of(release, tmp_path / "picker.yaml")) as picker:
        wait_until(lambda: picker.health("readiness", picker.health_address) == "SERVING", "it never became ready")
        wait_until(lambda: picker.metric("inference_pool_ready_pods") == 1, "it does not know the pod")
        leases = cluster.api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases")
        holders = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in leases["items"]}
        assert [name for name in holders if name.endswith("-5d4f8c7b9")], holders
        add_model_server(release, "vllm-1", "127.0.0.3")
        wait_until(lambda: picker.metric("inference_pool_ready_pods") == 2, "it does not see the second pod")
        assert "forbidden" not in picker.log().lower(), picker.log()


def test_without_the_role_it_says_what_is_missing(cluster: ChartCluster, as_pod: Path, tmp_path: Path) -> None:
    """What the test above rests on: rights come from the chart's Role and from nothing else."""
    release = Release(cluster, rbac={"create": False})
    with pytest.raises(ApiFailure):
        release.get("rbac.authorization.k8s.io/v1/roles", "demo-picker")
    cluster.api.kubeconfig(as_pod, release.token(), release.namespace)
    with PickerProcess(flags=flags_of(release, tmp_path / "picker.yaml")) as picker:
        wait_until(lambda: "forbidden" in picker.log().lower(), "it never said so")
        assert picker.health("readiness", picker.health_address) == "NOT_SERVING"
        assert picker.health("liveness", picker.health_address) == "SERVING"


def test_the_metrics_page_asks_the_api_server_who_may_read(cluster: ChartCluster, as_pod: Path, tmp_path: Path) -> None:
    release = Release(cluster, metrics={"auth": {"enabled": True}})
    reader = cluster.api.service_account_token(release.namespace, "demo-picker-metrics-reader")
    cluster.api.kubeconfig(as_pod, release.token(), release.namespace)

    def status(path: str, token: str | None) -> int:
        connection = http.client.HTTPConnection(picker.metrics_address, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status
        finally:
            connection.close()

    try:
        with PickerProcess(flags=flags_of(release, tmp_path / "picker.yaml")) as picker:
            wait_until(lambda: picker.health("readiness", picker.health_address) == "SERVING", "it never became ready")
            found = {who: status("/metrics", token) for who, token in tokens(release, reader).items()}
            assert found == {"reader": 200, "picker": 401, "nobody": 401, "stranger": 401}
            assert status("/debug/decisions", None) == 401
            assert status("/readyz", None) == 200
            assert reader not in picker.log()
    finally:
        release.uninstall()


def tokens(release: Release, reader: str) -> dict[str, str | None]:
    """The picker itself may review tokens, but not read the page."""
    return {"reader": reader, "picker": release.token(), "nobody": None, "stranger": "made-up"}
