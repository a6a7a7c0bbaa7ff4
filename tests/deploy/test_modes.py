"""One release through every mode of the chart and back again, on a real API server: helm upgrade, rollback, uninstall.

After each step everything that the API server holds in the namespace, of whatever kind, is compared with what `helm
template` makes of the step's values: the same objects, nothing left over, and each rendered field as rendered. What
matters most is written down by hand beside it (`Step.there`, `Step.gone`). On the way back every object must be as it
was on the way there, to the last field.
"""

import concurrent.futures
import copy
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.tools import CHART, objects, render_text
from tests.deploy.values import AUTOSCALING, BASE, Values, merged
from tests.kube.cluster import ApiFailure

pytestmark = pytest.mark.usefixtures("helm")

Held = dict[str, dict[str, Any]]
"""Objects by `Kind/name`."""

KEPT: Values = {"inferencePool": {"keep": True}}
SERVICE: Values = merged(KEPT, {"standalone": {"enabled": True, "mode": "service"}})
SCALED: Values = merged(SERVICE, {"standalone": {"autoscaling": {"enabled": True}}})
EVEN: Values = {"replicas": 3, "highAvailability": "active-active"}
WATCHED: Values = merged(KEPT, {"metrics": {"monitor": {"enabled": True}, "rules": {"enabled": True}}})

POOL, PICKER, ENVOY = "InferencePool/demo", "Deployment/demo-picker", "Deployment/demo-picker-envoy"
CLUSTER_ROLE = "ClusterRole/:demo-picker-metrics-auth"
CLIENTS, PEERS = "Service/demo-picker-envoy", "Service/demo-picker-peers"
READER = tuple(f"{kind}/demo-picker-metrics-reader" for kind in ("ServiceAccount", "Secret"))


@dataclass
class Step:
    """A revision: its values, and what must (not) be there, by hand."""

    name: str
    values: Values
    there: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    arguments: tuple[str, ...] = field(default=())
    """What the picker's command line has in this mode, and in no step that does not say so."""


STEPS = [
    Step("plain", {}, there=(POOL, PICKER, "Role/demo-picker"), gone=(CLIENTS, "NetworkPolicy/demo-picker")),
    Step("the pool is kept", KEPT, there=(POOL,)),
    Step("somebody else's pool", {"inferencePool": {"create": False, "name": "demo"}}, there=(POOL,)),
    Step(
        "pods by label, an Envoy in the pod",
        {"discovery": "selector", "standalone": {"enabled": True}},
        there=(POOL, CLIENTS, "NetworkPolicy/demo-picker"),
        gone=(ENVOY, PEERS),
        arguments=("--selector=app=vllm", "--target-port=8000"),
    ),
    Step(
        "our pool again, an Envoy of its own",
        SERVICE,
        there=(CLIENTS, PEERS, ENVOY, "PodDisruptionBudget/demo-picker-envoy", "NetworkPolicy/demo-picker-envoy"),
    ),
    Step(
        "Envoys by load, and three pickers that know the same",
        merged(
            merged(SCALED, EVEN),
            {
                "sharedState": {"url": "rediss://redis:6380/0", "existingSecret": "redis"},
                "podDisruptionBudget": {"maxUnavailable": 1},
                "networkPolicy": {"enabled": True},
            },
        ),
        there=(ENVOY, "HorizontalPodAutoscaler/demo-picker-envoy", "PodDisruptionBudget/demo-picker"),
        arguments=("--active-active",),
    ),
    Step(
        "one Envoy, replaced at once, before a leader and a follower; no policy",
        merged(
            SERVICE,
            {
                "standalone": {"replicas": 1, "strategy": {"type": "Recreate"}},
                "replicas": 2,
                "networkPolicy": {"enabled": False},
            },
        ),
        there=(ENVOY,),
        gone=(
            *("HorizontalPodAutoscaler/demo-picker-envoy", "NetworkPolicy/demo-picker"),
            *("PodDisruptionBudget/demo-picker", "PodDisruptionBudget/demo-picker-envoy"),
        ),
        arguments=("--leader-election",),
    ),
    Step(
        "one picker in plaintext, replaced at once, its Envoy for the world",
        merged(
            KEPT,
            {
                "standalone": {"enabled": True, "service": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}},
                "strategy": {"type": "Recreate"},
                "tls": {"insecure": True},
                "listenAddress": "::",
            },
        ),
        there=(CLIENTS, "NetworkPolicy/demo-picker"),
        gone=(ENVOY, PEERS, "NetworkPolicy/demo-picker-envoy"),
        arguments=("--insecure", "--host=::"),
    ),
    Step(
        "no Envoy, a certificate of ours, another port; watched",
        merged(WATCHED, {"tls": {"secretName": "tls"}, "service": {"port": 9443}}),
        there=(*READER, "ServiceMonitor/demo-picker", "PrometheusRule/demo-picker", CLUSTER_ROLE),
        gone=(CLIENTS, "NetworkPolicy/demo-picker", "PodMonitor/demo-picker-envoy"),
        arguments=("--metrics-auth",),
    ),
    Step(
        "watched by Google",
        merged(WATCHED, {"provider": "gke", "standalone": {"enabled": True}}),
        there=(
            *("PodMonitoring/demo-picker", "PodMonitoring/demo-picker-envoy", "Rules/demo-picker"),
            *("HealthCheckPolicy/demo-picker", "GCPBackendPolicy/demo-picker"),
            "Role/demo-picker-metrics-reader-secret",
        ),
        gone=("ServiceMonitor/demo-picker", "PrometheusRule/demo-picker", "DestinationRule/demo-picker"),
        arguments=("--metrics-auth",),
    ),
    Step(
        "behind Istio, scaling the model servers with KEDA",
        merged(
            KEPT,
            {"provider": "istio", "httpRoute": {"enabled": True}, "modelServers": {"autoscaling": AUTOSCALING}},
        ),
        there=("DestinationRule/demo-picker", "HTTPRoute/demo", "ScaledObject/demo-picker-servers"),
        gone=(*READER, "HealthCheckPolicy/demo-picker", "PodMonitoring/demo-picker", CLUSTER_ROLE),
    ),
    Step(
        "behind Envoy Gateway, scaling them with an HPA",
        merged(
            KEPT,
            {
                "provider": "envoyGateway",
                "httpRoute": {"enabled": True},
                "modelServers": {"autoscaling": {**AUTOSCALING, "kind": "hpa"}, "targetPorts": [8000, 8001]},
            },
        ),
        there=("HTTPRoute/demo", "HorizontalPodAutoscaler/demo-picker-servers"),
        gone=("DestinationRule/demo-picker", "ScaledObject/demo-picker-servers"),
    ),
    Step(
        "behind agentgateway, with objectives, and an account and rights that others give",
        merged(
            KEPT,
            {
                "provider": "agentgateway",
                "inferencePool": {"failureMode": "FailClose"},
                "inferenceObjectives": [{"name": "batch", "priority": -1}],
                "serviceAccount": {"create": False, "name": "given"},
                "rbac": {"create": False},
            },
        ),
        there=("InferenceObjective/batch",),
        gone=(
            *("HTTPRoute/demo", "HorizontalPodAutoscaler/demo-picker-servers"),
            *("ServiceAccount/demo-picker", "Role/demo-picker", "RoleBinding/demo-picker"),
        ),
    ),
    Step(
        "three pickers, an account of another name, tests off",
        merged(
            merged(KEPT, EVEN),
            {"serviceAccount": {"name": "ours"}, "tests": {"enabled": False}, "commonLabels": {"team": "ml"}},
        ),
        there=("ServiceAccount/ours", "Role/demo-picker", "PodDisruptionBudget/demo-picker"),
        gone=("ServiceAccount/demo-picker", "InferenceObjective/batch"),
        arguments=("--active-active",),
    ),
    Step("plain again, the pool kept", KEPT, there=(POOL, "ServiceAccount/demo-picker"), gone=("ServiceAccount/ours",)),
]

SELECTING = ("Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "PodMonitor", "PodMonitoring")
MODE_FLAGS = ("--selector", "--target-port", "--leader-election", "--active-active", "--insecure", "--metrics-auth")


class Release:
    """The release `demo` in a namespace of its own, and all that the API server holds there."""

    def __init__(self, cluster: ChartCluster) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace()
        self._lists = list(listed(cluster))

    def helm(self, *words: str, values: Values | None = None) -> None:
        given = () if values is None else (str(CHART), "--values", "-")
        kept = () if words[0] in ("install", "uninstall") else ("--history-max", "0")  # Helm forgets all but ten
        text = None if values is None else yaml.safe_dump(merged(BASE, values))
        self.cluster.helm(*words, *given, *kept, "--namespace", self.namespace, stdin=text)

    def held(self) -> Held:
        """Every object of the namespace, of any kind, and those outside of it that carry its name; not Helm's own."""
        found: Held = {}
        for path, kind, namespaced in self._lists:
            where = path.replace("NAMESPACE", self.namespace)
            for each in self._list(where):
                name = each["metadata"]["name"]
                if each.get("type") == "helm.sh/release.v1" or not (
                    namespaced or name.startswith(f"{self.namespace}:")
                ):
                    continue
                key = f"{kind}/{name.removeprefix(self.namespace)}"
                assert key not in found, f"{key} is there under two API groups"
                found[key] = {**each, "kind": kind, "group": path.split("/")[2] if path.startswith("/apis/") else ""}
        return found

    def _list(self, path: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 20
        while True:
            try:
                return list(self.cluster.api.request("GET", path)["items"])
            except ApiFailure as failure:
                if failure.status != 429 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)  # what a CRD that is new answers for a moment


def listed(cluster: ChartCluster) -> Iterator[tuple[str, str, bool]]:
    """(path, kind, whether in a namespace) of all that the API server can list and that a chart could leave behind."""
    request = cluster.api.request
    roots = ["/api/v1", *(f"/apis/{g['preferredVersion']['groupVersion']}" for g in request("GET", "/apis")["groups"])]
    for root in roots:
        for kind in request("GET", root)["resources"]:
            if "list" not in kind["verbs"] or kind["kind"] == "Event":
                continue
            if kind["namespaced"]:
                yield f"{root}/namespaces/NAMESPACE/{kind['name']}", kind["kind"], True
            elif root.startswith("/apis/rbac."):
                yield f"{root}/{kind['name']}", kind["kind"], False


def expected(values: Values, namespace: str) -> Held:
    """What the chart renders for these values, by the same keys."""
    flags = ("--no-hooks", "--api-versions", "llm-d.ai/v1alpha2/InferenceObjective")
    found = objects(render_text(merged(BASE, values), namespace=namespace, flags=flags))
    return {f"{o['kind']}/{o['metadata']['name'].removeprefix(namespace)}": o for o in found}


def differences(rendered: Any, live: Any, where: str) -> Iterator[str]:
    """Where what the API server holds is not as rendered. It may add defaults; what is empty it may leave out."""
    if rendered in (None, "", {}, []) and not live:
        return
    if isinstance(rendered, dict) and isinstance(live, dict):
        for key, value in rendered.items():
            yield from differences(value, live.get(key), f"{where}.{key}")
    elif isinstance(rendered, list) and isinstance(live, list) and len(rendered) == len(live):
        for number, value in enumerate(rendered):
            yield from differences(value, live[number], f"{where}[{number}]")
    elif rendered != live:
        yield f"{where}: rendered {rendered!r}, held {live!r}"


def as_it_was(held: Held) -> Held:
    """Without what the API server gives anew to each object, and counts."""
    left = copy.deepcopy(held)
    for each in left.values():
        each.pop("status", None)
        for key in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"):
            each["metadata"].pop(key, None)
        if each["kind"] == "Service" and each["spec"]["clusterIP"] != "None":
            for key in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
                each["spec"].pop(key, None)
            for port in each["spec"]["ports"]:
                port.pop("nodePort", None)
    return left


def check_what_points_points_at_something(held: Held) -> None:
    """Whatever the templates say: no selector and no reference leads to nothing."""
    pods = [o["spec"]["template"]["metadata"]["labels"] for key, o in held.items() if key.startswith("Deployment/")]
    for key, each in held.items():
        kind, spec = each["kind"], each.get("spec", {})
        if kind in SELECTING:
            selector = spec.get("podSelector") or spec["selector"]
            wanted = selector if kind == "Service" else selector["matchLabels"]
            assert any(wanted.items() <= labels.items() for labels in pods), f"{key} selects no pods"
        elif kind in ("RoleBinding", "ClusterRoleBinding"):
            name = re.sub("^.*:", ":", each["roleRef"]["name"])
            assert f"{each['roleRef']['kind']}/{name}" in held, f"{key} gives {name}, which is not there"
            accounts = {f"ServiceAccount/{subject['name']}" for subject in each["subjects"]}
            assert accounts <= {*held, "ServiceAccount/collector"}, f"{key} is for {accounts}"
        elif key == PICKER:
            account = spec["template"]["spec"]["serviceAccountName"]
            assert f"ServiceAccount/{account}" in held or account == "given", f"{key} runs as {account}"
    reference = held[POOL]["spec"]["endpointPickerRef"]
    ports = [port["port"] for port in held[f"Service/{reference['name']}"]["spec"]["ports"]]
    assert reference["port"]["number"] in ports, "the pool names a port that its Service has not"


class Walk:
    """What must hold after each step, and what must never change from one to the next."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._selectors: dict[str, Any] = {}
        self._uids: dict[str, str] = {}
        self.were: list[Held] = []

    def check(self, step: Step, rendered: Held) -> Held:
        held = self.release.held()
        more = {POOL} - set(rendered)  # it was kept
        assert set(held) == set(rendered) | more, step.name
        assert [key for key in step.there if key not in held] == [], step.name
        assert [key for key in step.gone if key in held] == [], step.name
        for key, wanted in rendered.items():
            live = held[key]
            assert live["group"] == wanted["apiVersion"].rpartition("/")[0], key
            parts = {name: part for name, part in wanted.items() if name not in ("metadata", "apiVersion", "kind")}
            assert list(differences(parts, live, f"{step.name}: {key}")) == []
            assert live["metadata"]["labels"] == wanted["metadata"]["labels"], key
            notes = {
                name: value
                for name, value in live["metadata"]["annotations"].items()
                if not name.startswith("meta.helm.sh/")
            }
            assert notes == (wanted["metadata"].get("annotations") or {}), key
        check_what_points_points_at_something(held)
        flags = held[PICKER]["spec"]["template"]["spec"]["containers"][0]["args"]
        modes = [flag for flag in flags if flag.partition("=")[0] in MODE_FLAGS or flag == "--host=::"]
        assert sorted(modes) == sorted(step.arguments), step.name
        for key in (POOL, PICKER, "Service/demo-picker"):
            uid = held[key]["metadata"]["uid"]
            assert self._uids.setdefault(key, uid) == uid, f"{step.name}: {key} was made anew"
        for key, each in held.items():
            if key.startswith("Deployment/"):
                selector = each["spec"]["selector"]
                assert self._selectors.setdefault(key, selector) == selector, f"{step.name}: {key}"
        return held


def test_through_every_mode_and_back(cluster: ChartCluster) -> None:
    release = Release(cluster)
    walk = Walk(release)
    with concurrent.futures.ThreadPoolExecutor(1) as renderer:
        renderings = [renderer.submit(expected, step.values, release.namespace) for step in STEPS]
        for number, step in enumerate(STEPS):
            verb = "upgrade" if number else "install"
            release.helm(verb, "demo", values=step.values)
            walk.were.append(as_it_was(walk.check(step, renderings[number].result())))
        for number in reversed(range(len(STEPS) - 1)):
            release.helm("rollback", "demo", str(number + 1))
            held = walk.check(STEPS[number], renderings[number].result())
            assert as_it_was(held) == walk.were[number], f"on the way back: {STEPS[number].name}"
    release.helm("rollback", "demo", "2")
    assert STEPS[1].values == KEPT
    release.helm("uninstall", "demo")
    assert set(release.held()) == {POOL}


def test_no_envoy_is_taken_away_when_an_autoscaler_comes(cluster: ChartCluster) -> None:
    """Left out of the manifest at once, `replicas` would fall to 1. docs/chart.md says how to switch it off again."""
    release = Release(cluster)
    path = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/demo-picker-envoy"

    def envoys() -> int:
        return int(cluster.api.request("GET", path)["spec"]["replicas"])

    def scaled(count: int) -> None:
        """What the autoscaler does."""
        scale = cluster.api.request("GET", f"{path}/scale")
        scale["spec"]["replicas"] = count
        cluster.api.request("PUT", f"{path}/scale?fieldManager=kube-controller-manager", scale)

    four = merged(SERVICE, {"standalone": {"replicas": 4}})
    release.helm("install", "demo", values=four)
    release.helm("upgrade", "demo", values=merged(four, SCALED))
    assert envoys() == 4
    release.helm("upgrade", "demo", values=merged(four, SCALED))
    assert envoys() == 4, "nobody else has set them yet"
    scaled(6)
    release.helm("upgrade", "demo", values=merged(four, SCALED))
    assert envoys() == 6
    with pytest.raises(AssertionError, match=r"conflict with .*kube-controller-manager.*\.spec\.replicas"):
        release.helm("upgrade", "demo", values=four)
    release.helm("upgrade", "demo", "--force-conflicts", values=four)
    assert envoys() == 4 and "HorizontalPodAutoscaler/demo-picker-envoy" not in release.held()
    release.helm("upgrade", "demo", values=merged(SERVICE, {"standalone": {"replicas": 1}}))
    release.helm("upgrade", "demo", values=SCALED)
    assert envoys() == 2, "the least that it may scale to"
    release.helm("uninstall", "demo")


def test_a_rollback_takes_a_pool_along_that_is_not_kept(cluster: ChartCluster) -> None:
    """As docs/chart.md says: it renders nothing, so nothing refuses it."""
    release = Release(cluster)
    release.helm("install", "demo", values={"discovery": "selector"})
    release.helm("upgrade", "demo", values={})
    assert POOL in release.held()
    release.helm("rollback", "demo", "1")
    assert POOL not in release.held()
    release.helm("upgrade", "demo", values=KEPT)
    release.helm("rollback", "demo", "1")
    assert POOL in release.held()
    release.helm("uninstall", "demo")
