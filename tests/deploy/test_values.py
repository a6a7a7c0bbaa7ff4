"""Single values: names that stay apart, null, what is generated, and what each value reaches."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.generated import ALERTS, DEFAULTS, SCHEMA, alerts, defaults, schema
from tests.deploy.test_render import containers, plain, pods
from tests.deploy.tools import CHART, REPOSITORY, Objects, kinds, only, render
from tests.deploy.values import BASE, merged

pytestmark = pytest.mark.usefixtures("helm")

ENVOY = {"standalone": {"enabled": True, "mode": "service"}}


def test_what_is_generated_is_up_to_date() -> None:
    stale = [
        path.name
        for path, text in ((SCHEMA, schema()), (DEFAULTS, defaults()), (ALERTS, alerts()))
        if path.read_text() != text
    ]
    assert stale == [], "run `.venv/bin/python -m tests.deploy.generated`"


def names(found: Objects) -> set[tuple[str, str]]:
    return {(o["kind"], o["metadata"]["name"]) for o in found}


LONG = "a-release-name-that-is-longer-than-the-room-for-it-"
"""51 characters; Helm takes 53."""


@pytest.mark.parametrize(
    ("one", "other"),
    [("picker", "picker-envoy"), ("picker", "picker-peers"), (f"{LONG}x", f"{LONG}y"), ("llm", "llm-picker-envoy")],
)
def test_two_releases_of_one_namespace_share_no_name(one: str, other: str) -> None:
    values = merged(BASE, ENVOY, {"metrics": {"auth": {"enabled": True}, "monitor": {"enabled": True}}})
    first, second = (names(render(values, release=release)) for release in (one, other))
    assert first & second == set()
    assert max(len(name) for kind, name in first | second if "Role" not in kind) <= 63


def test_the_one_pair_that_shares_its_names_is_named_and_told_apart() -> None:
    """`llm` beside `llm-picker`: what either is called is what installed releases have, so neither is renamed."""
    page = " ".join((REPOSITORY / "docs" / "chart.md").read_text().split())
    assert "the releases `llm` and `llm-picker` of one namespace would share `llm-picker`" in page
    first, second = (names(render(merged(BASE, ENVOY), release=release)) for release in ("llm", "llm-picker"))
    assert ("Deployment", "llm-picker") in first & second
    told_apart = names(render(merged(BASE, ENVOY, {"fullnameOverride": "other"}), release="llm-picker"))
    assert first & told_apart == set()


def test_cluster_roles_of_two_namespaces_share_no_name() -> None:
    def cluster_wide(release: str, namespace: str) -> set[tuple[str, str]]:
        values = merged(BASE, {"metrics": {"auth": {"enabled": True}}})
        found = render(values, release=release, namespace=namespace)
        return names([o for o in found if "namespace" not in o["metadata"]])

    first, second = cluster_wide("b-c-picker", "a"), cluster_wide("c-picker", "a-b")
    assert len(first) == len(second) == 4
    assert first & second == set()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "llm-picker"),
        ({"nameOverride": "epp"}, "llm-epp"),
        ({"fullnameOverride": "mine"}, "mine"),
    ],
)
def test_names_follow_the_overrides(values: dict[str, Any], name: str) -> None:
    found = render(merged(BASE, values), release="llm")
    assert only(found, "Deployment")["metadata"]["name"] == name
    assert only(found, "InferencePool")["spec"]["endpointPickerRef"]["name"] == name


@pytest.mark.parametrize(("release", "namespace"), [("1234", "no"), ("0x10", "1e3"), ("true", "null")])
def test_names_that_yaml_reads_as_something_else(release: str, namespace: str) -> None:
    found = render(merged(BASE, ENVOY, {"httpRoute": {"enabled": True}}), release=release, namespace=namespace)
    for o in found:
        texts = [o["metadata"]["name"], *o["metadata"]["labels"].values(), o["metadata"].get("namespace", "")]
        assert all(isinstance(text, str) for text in texts), o["metadata"]
    assert only(found, "InferencePool")["metadata"]["name"] == release
    assert only(found, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]["name"] == release
    assert only(found, "RoleBinding")["metadata"]["namespace"] == namespace
    assert "namespace" not in only(found, "RoleBinding")["subjects"][0], "its own; so Helm and plain manifests agree"


@pytest.mark.parametrize("name", ["1234", "0x10", "true", "null", "no"])
def test_what_others_are_called_may_read_as_something_else_too(name: str) -> None:
    """Secrets, hosts, classes: every name of a thing that the chart did not make."""
    scaling = {
        "enabled": True,
        "scaleTarget": {"name": name},
        "prometheus": {"serverAddress": "http://p", "triggerAuthentication": name},
    }
    found = plain(
        provider="istio",
        istio={"destinationRule": {"host": name}},
        sharedState={"url": "redis://store", "existingSecret": name},
        tls={"secretName": name},
        service={"appProtocol": name},
        serviceAccount={"name": name},
        priorityClassName=name,
        inferencePool={"name": name},
        clusterDomain=name,
        modelServers={"autoscaling": scaling},
        standalone={"enabled": True, "mode": "service", "service": {"type": "LoadBalancer", "loadBalancerClass": name}},
    )
    pod = only(found, "Deployment", "demo-picker")["spec"]["template"]["spec"]
    assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} == {name}
    assert [pod["serviceAccountName"], pod["priorityClassName"]] == [name, name]
    assert only(found, "DestinationRule")["spec"]["host"] == name
    assert only(found, "InferencePool")["metadata"]["name"] == name
    assert only(found, "Service", "demo-picker")["spec"]["ports"][0]["appProtocol"] == name
    assert only(found, "Service", "demo-picker-envoy")["spec"]["loadBalancerClass"] == name
    scaled = only(found, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == scaled["triggers"][0]["authenticationRef"]["name"] == name


@pytest.mark.parametrize(
    "key",
    [key for key in yaml.safe_load((CHART / "values.yaml").read_text()) if key not in ("resources", "replicas")],
)
def test_null_is_the_default(key: str) -> None:
    """A table with nothing behind its name: `config:`, `image:`, `httpRoute:`."""
    shape = merged(BASE, {"standalone": {"enabled": True}} if key != "standalone" else {})
    given = merged(shape, {key: None})
    wanted = merged(shape, {})
    if key == "modelServers":
        given["inferencePool"] = wanted["inferencePool"] = {"create": False, "name": "theirs"}
        del wanted["modelServers"]
    if key in ("podSecurityContext", "securityContext"):  # open tables: null is none of it
        wanted[key] = dict.fromkeys(yaml.safe_load((CHART / "values.yaml").read_text())[key])
    assert render(given) == render(wanted)


def test_null_inside_a_table() -> None:
    given = {"standalone": {"enabled": True, "image": None, "service": None}, "gke": {"healthCheck": None}}
    assert plain(provider="gke", **given) == plain(provider="gke", standalone={"enabled": True})
    without = only(plain(resources={"limits": None}), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "limits" not in without["resources"], "null still takes away what is in an open table"


def test_the_client_facing_envoy_has_no_token() -> None:
    for mode in ("sidecar", "service"):
        for template in pods(plain(standalone={"enabled": True, "mode": mode})):
            assert template["spec"]["automountServiceAccountToken"] is False
            with_token = [
                container["name"]
                for container in containers(template)
                for mount in container.get("volumeMounts", [])
                if "serviceaccount" in mount["mountPath"]
            ]
            assert with_token == (["picker"] if template["spec"].get("serviceAccountName") else [])


def test_the_pool_can_be_kept() -> None:
    def policy(**values: Any) -> Any:
        return only(plain(**values), "InferencePool")["metadata"].get("annotations")

    assert policy() is None
    assert policy(inferencePool={"keep": True}) == {"helm.sh/resource-policy": "keep"}


def test_who_may_call_the_ext_proc_port() -> None:
    """Where the chart knows the caller, it alone; without a standalone Envoy the chart knows nobody."""

    def peers(**values: Any) -> Any:
        policies = [
            o for o in plain(**values) if o["kind"] == "NetworkPolicy" and o["metadata"]["name"] == "demo-picker"
        ]
        if not policies:
            return "no policy"
        rules = [rule for rule in policies[0]["spec"]["ingress"] if rule["ports"][0]["port"] == 9002]
        return [rule.get("from", "anyone") for rule in rules]

    envoy = {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "inference-picker",
                "app.kubernetes.io/instance": "demo",
                "app.kubernetes.io/component": "envoy",
            }
        }
    }
    gateway = {"namespaceSelector": {"matchLabels": {"name": "gateways"}}}
    on = {"enabled": True}
    assert peers() == "no policy"
    assert peers(standalone=on) == [], "in the pod itself: no policy is asked"
    assert peers(**ENVOY) == [[envoy]]
    assert peers(**ENVOY, networkPolicy={"gatewayFrom": [gateway]}) == [[gateway, envoy]]
    assert peers(networkPolicy=on) == ["anyone"]
    assert peers(networkPolicy={**on, "gatewayFrom": [gateway]}) == [[gateway]]
    assert peers(standalone=on, networkPolicy={"enabled": False}) == "no policy"
    (printed,) = re.findall(r"```yaml\n(networkPolicy:.*?)```", (REPOSITORY / "docs/chart.md").read_text(), re.DOTALL)
    values = yaml.safe_load(printed)
    assert peers(**values) == [values["networkPolicy"]["gatewayFrom"]], "as the page prints it"
    automatic = only(plain(standalone=on), "NetworkPolicy")["spec"]
    assert automatic["policyTypes"] == ["Ingress"] and "egress" not in automatic


def test_metrics_are_read_with_a_token_where_the_monitor_brings_one() -> None:
    def asks(**metrics: Any) -> bool:
        arguments = only(plain(metrics=metrics), "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
        return "--metrics-auth" in arguments

    monitor = {"enabled": True}
    assert not asks()
    assert asks(monitor=monitor)
    assert not asks(monitor=monitor, auth={"enabled": False})
    assert asks(auth={"enabled": True})


def test_the_envoys_own_statistics_are_scraped() -> None:
    found = plain(**ENVOY, metrics={"monitor": {"enabled": True}})
    monitor = only(found, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["path"] == "/stats/prometheus"
    assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "envoy"
    assert "PodMonitor" not in kinds(plain(metrics={"monitor": {"enabled": True}}))


def test_the_alerts_are_those_of_the_repository() -> None:
    rule = only(plain(metrics={"rules": {"enabled": True}}), "PrometheusRule")
    written = yaml.safe_load((REPOSITORY / "deploy/alerts/picker.yaml").read_text())
    assert rule["spec"] == written
    rules = {"rules": {"enabled": True, "labels": {"release": "prom"}}}
    for values in ({"provider": "gke", "metrics": rules}, {"metrics": {**rules, "monitor": {"kind": "gmp"}}}):
        found = plain(**values)
        assert "PrometheusRule" not in kinds(found), "Google's operator does not read it"
        google = only(found, "Rules")
        assert google["apiVersion"] == "monitoring.googleapis.com/v1"
        assert google["metadata"]["labels"]["release"] == "prom"
        assert google["spec"]["groups"] == [{**group, "interval": "1m"} for group in written["groups"]]


def test_a_grpc_pool_is_health_checked_over_grpc() -> None:
    def check(**values: Any) -> Any:
        return only(plain(provider="gke", **values), "HealthCheckPolicy")["spec"]["default"]["config"]

    h2c = {"modelServers": {"appProtocol": "kubernetes.io/h2c"}}
    assert check(**h2c) == {"type": "GRPC", "grpcHealthCheck": {"portSpecification": "USE_SERVING_PORT"}}
    named = {"healthCheck": {"grpcServiceName": "vllm", "port": 9000}}
    assert check(**h2c, gke=named)["grpcHealthCheck"] == {
        "grpcServiceName": "vllm",
        "portSpecification": "USE_FIXED_PORT",
        "port": 9000,
    }
    assert check(**h2c, gke={"healthCheck": {"type": "HTTP"}})["type"] == "HTTP"


def test_objectives_are_of_the_group_that_the_cluster_has() -> None:
    values = merged(BASE, {"inferenceObjectives": [{"name": "batch", "priority": -1}]})
    assert only(render(values), "InferenceObjective")["apiVersion"] == "inference.networking.x-k8s.io/v1alpha2"
    values["inferenceObjectivesApiVersion"] = "llm-d.ai/v1alpha2"
    assert only(render(values), "InferenceObjective")["apiVersion"] == "llm-d.ai/v1alpha2"


def test_openshift_gives_the_uid() -> None:
    from tests.deploy.tools import objects, render_text

    text = render_text(BASE, flags=("--api-versions", "security.openshift.io/v1"))
    for template in pods(objects(text)):
        context = template["spec"]["securityContext"]
        assert "runAsUser" not in context and context["runAsNonRoot"] is True


def test_an_autoscaled_envoy_has_no_replicas_of_its_own() -> None:
    found = plain(standalone={"enabled": True, "mode": "service", "autoscaling": {"enabled": True, "maxReplicas": 5}})
    assert "replicas" not in only(found, "Deployment", "demo-picker-envoy")["spec"]
    scaler = only(found, "HorizontalPodAutoscaler")["spec"]
    assert (scaler["scaleTargetRef"]["name"], scaler["minReplicas"], scaler["maxReplicas"]) == (
        "demo-picker-envoy",
        2,
        5,
    )
    assert only(plain(**ENVOY), "Deployment", "demo-picker-envoy")["spec"]["replicas"] == 2


def test_common_labels_and_annotations_reach_every_object_and_no_selector() -> None:
    found = plain(
        **ENVOY,
        commonLabels={"team": "ml"},
        commonAnnotations={"example.com/owner": "ml"},
        httpRoute={"enabled": True},
        networkPolicy={"enabled": True},
        metrics={"auth": {"enabled": True}, "monitor": {"enabled": True}, "rules": {"enabled": True}},
    )
    for o in found:
        assert o["metadata"]["labels"].get("team") == "ml", o["kind"]
        assert o["metadata"]["annotations"].get("example.com/owner") == "ml", o["kind"]
        assert '"team"' not in json.dumps(o.get("spec", {}).get("selector", {})), o["kind"]
    assert [template["metadata"]["labels"].get("team") for template in pods(found)] == ["ml", "ml"]
    own = plain(**ENVOY, commonLabels={"team": "ml", "tier": "gold"}, podLabels={"team": "serving"})
    for template in pods(own):
        assert {"team": "serving", "tier": "gold"}.items() <= template["metadata"]["labels"].items()
    assert only(own, "Deployment", "demo-picker")["metadata"]["labels"]["team"] == "ml"


def test_the_envoys_strategy_and_probes_are_its_own() -> None:
    def envoy(**standalone: Any) -> dict[str, Any]:
        found = plain(standalone={"enabled": True, "mode": "service", **standalone})
        return dict(only(found, "Deployment", "demo-picker-envoy")["spec"])

    before = envoy()
    assert before["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert envoy(strategy={"type": "Recreate"})["strategy"] == {"type": "Recreate"}
    given = envoy(probes={"liveness": {"periodSeconds": 20}, "readiness": {"failureThreshold": 5}})
    (now,), (then,) = (spec["template"]["spec"]["initContainers"] for spec in (given, before))
    assert then["livenessProbe"] == {"tcpSocket": {"port": 19001}, "periodSeconds": 10, "failureThreshold": 3}
    assert now["livenessProbe"] == {**then["livenessProbe"], "periodSeconds": 20}
    assert now["readinessProbe"] == {**then["readinessProbe"], "failureThreshold": 5}
    beside = only(plain(**ENVOY, strategy={"type": "Recreate"}), "Deployment", "demo-picker-envoy")["spec"]
    assert beside["strategy"] == before["strategy"], "`strategy` is the picker's"


def test_arguments_are_texts_whatever_they_say() -> None:
    (template,) = pods(plain(standalone={"enabled": True, "logLevel": "off"}))
    assert all(isinstance(word, str) for each in containers(template) for word in each.get("args", []))
