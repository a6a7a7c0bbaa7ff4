"""What must hold for every combination of values, and what each one is for."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from picker import __version__, cli, config
from tests.deploy.tools import CHART, Objects, RenderError, kinds, only, render, run
from tests.deploy.values import BASE, combinations, merged

pytestmark = pytest.mark.usefixtures("helm")

SCHEMAS = Path(__file__).parent / "schemas"
VENDORS = (
    "HealthCheckPolicy",
    "GCPBackendPolicy",
    "DestinationRule",
    "ServiceMonitor",
    "PodMonitor",
    "PodMonitoring",
    "PrometheusRule",
    "Rules",
    "ScaledObject",
)


def pods(found: Objects) -> list[dict[str, Any]]:
    """The pod templates of all Deployments."""
    return [o["spec"]["template"] for o in found if o["kind"] == "Deployment"]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def picker_arguments(found: Objects) -> list[str]:
    for template in pods(found):
        for container in containers(template):
            if container["name"] == "picker":
                return list(container["args"])
    raise AssertionError("no container called picker")


def scaled(**more: Any) -> dict[str, Any]:
    """Model servers that are scaled, otherwise plain."""
    given = {
        "enabled": True,
        "scaleTarget": {"name": "vllm"},
        "prometheus": {"serverAddress": "http://prometheus:9090"},
    }
    return {"modelServers": {"matchLabels": {"app": "vllm"}, "autoscaling": {**given, **more}}}


def plain(**values: Any) -> Objects:
    return render(merged(BASE, values))


class TestEveryCombination:
    def test_pods_are_locked_down(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            for template in pods(found):
                pod = template["spec"]["securityContext"]
                assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0, name
                assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
                for container in containers(template):
                    assert container["securityContext"] == {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    }, (name, container["name"])

    def test_memory_is_bounded_and_probes_are_there(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            for template in pods(found):
                for container in containers(template):
                    assert "memory" in container["resources"]["limits"], name
                    # `envoy-drain` serves nothing, it waits for SIGTERM; `wait` is a user's init container.
                    probed = {"livenessProbe", "readinessProbe"} <= container.keys()
                    assert probed or container["name"] in ("envoy-drain", "wait"), name

    def test_no_sub_path_anywhere(self, rendered: dict[str, Objects]) -> None:
        """A subPath mount never sees a changed ConfigMap."""
        assert "subPath" not in json.dumps(rendered)

    def test_selectors_select(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            labels = [template["metadata"]["labels"] for template in pods(found)]
            for o in found:
                if o["kind"] == "Service":
                    selector = o["spec"]["selector"]
                elif o["kind"] in ("PodDisruptionBudget", "Deployment", "PodMonitoring", "PodMonitor"):
                    selector = o["spec"]["selector"]["matchLabels"]
                elif o["kind"] == "NetworkPolicy":
                    selector = o["spec"]["podSelector"]["matchLabels"]
                else:
                    continue
                matched = [each for each in labels if selector.items() <= each.items()]
                assert len(matched) == 1, f"{name}: {o['kind']} {o['metadata']['name']} matches {len(matched)}"

    def test_a_monitor_finds_one_service(self, rendered: dict[str, Objects]) -> None:
        """Two matches would scrape every pod twice."""
        for name, found in rendered.items():
            for monitor in (o for o in found if o["kind"] == "ServiceMonitor"):
                wanted = monitor["spec"]["selector"]["matchLabels"].items()
                services = [o for o in found if o["kind"] == "Service"]
                assert len([s for s in services if wanted <= s["metadata"]["labels"].items()]) == 1, name

    def test_named_ports_exist(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            declared = {p["name"] for t in pods(found) for c in containers(t) for p in c.get("ports", [])}
            for service in (o for o in found if o["kind"] == "Service"):
                assert {p["targetPort"] for p in service["spec"]["ports"]} <= declared, name

    def test_the_pool_names_the_service_and_its_port(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            for pool in (o for o in found if o["kind"] == "InferencePool"):
                reference = pool["spec"]["endpointPickerRef"]
                service = only(found, "Service", reference["name"])
                assert reference["port"]["number"] in {p["port"] for p in service["spec"]["ports"]}, name

    def test_the_picker_follows_what_the_route_names(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            arguments = picker_arguments(found)
            for route in (o for o in found if o["kind"] == "HTTPRoute"):
                backend = route["spec"]["rules"][0]["backendRefs"][0]
                assert backend["kind"] == "InferencePool"
                assert f"--pool={backend['name']}" in arguments, name

    def test_the_mounted_configuration_is_one_the_picker_loads(self, rendered: dict[str, Objects]) -> None:
        for found in rendered.values():
            for o in found:
                if o["kind"] == "ConfigMap" and "picker.yaml" in o["data"]:
                    config.load(o["data"]["picker.yaml"])

    def test_every_object_is_namespaced_labelled_and_short_of_name(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            for o in found:
                assert len(o["metadata"]["name"]) <= 63, name
                assert o["metadata"]["labels"]["app.kubernetes.io/instance"] == name
                if o["kind"] not in ("ClusterRole", "ClusterRoleBinding"):
                    assert o["metadata"]["namespace"] == "models", (name, o["kind"])

    def test_grace_outlasts_the_drain(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            settings = config.load(only(found, "ConfigMap", f"{name}-picker")["data"]["picker.yaml"])
            for template in pods(found):
                grace = template["spec"]["terminationGracePeriodSeconds"]
                assert grace > settings.drain.accept_seconds + settings.drain.seconds, name

    def test_no_rule_allows_a_write_to_pools_or_pods(self, rendered: dict[str, Objects]) -> None:
        for name, found in rendered.items():
            for o in found:
                for rule in o.get("rules", []) if o["kind"] in ("Role", "ClusterRole") else []:
                    assert "*" not in json.dumps(rule), name
                    if {"pods", "inferencepools", "inferenceobjectives"} & set(rule.get("resources", [])):
                        assert rule["verbs"] == ["list", "watch"], name

    def test_vendors_objects_keep_to_the_fields_their_crds_know(self, rendered: dict[str, Objects]) -> None:
        seen = set()
        for o in itertools.chain.from_iterable(rendered.values()):
            if o["kind"] in VENDORS:
                jsonschema.validate(o, json.loads((SCHEMAS / f"{o['kind']}.json").read_text()))
                seen.add(o["kind"])
        assert seen == set(VENDORS)


def test_lint_is_clean_for_every_provider() -> None:
    for name, values in combinations().items():
        if not name.endswith("-routed") and not name.startswith("selector"):
            continue
        done = run("helm", "lint", "--strict", str(CHART), "--values", "-", stdin=yaml.safe_dump(values))
        assert done.returncode == 0 and "WARNING" not in done.stdout, f"{name}: {done.stdout}{done.stderr}"


def test_the_chart_carries_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_plain_is_just_what_a_picker_needs() -> None:
    assert kinds(plain()) == [
        "ConfigMap",
        "Deployment",
        "InferencePool",
        "Pod",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]


@pytest.mark.parametrize(
    ("provider", "more"),
    [
        ("none", []),
        ("gke", ["GCPBackendPolicy", "HealthCheckPolicy"]),
        ("istio", ["DestinationRule"]),
        ("envoyGateway", []),
        ("agentgateway", []),
        ("kgateway", []),
    ],
)
def test_what_each_provider_adds(provider: str, more: list[str]) -> None:
    assert kinds(plain(provider=provider)) == sorted(kinds(plain()) + more)


@pytest.mark.parametrize(
    ("values", "protocol"),
    [
        ({"provider": "none"}, None),
        ({"provider": "gke"}, None),
        ({"provider": "istio"}, None),
        ({"provider": "envoyGateway"}, "http2"),
        ({"provider": "kgateway"}, "http2"),
        ({"tls": {"insecure": True}}, "kubernetes.io/h2c"),
        ({"service": {"appProtocol": "grpcs"}}, "grpcs"),
    ],
)
def test_the_services_app_protocol(values: dict[str, Any], protocol: str | None) -> None:
    port = only(plain(**values), "Service")["spec"]["ports"][0]
    assert (port["name"], port.get("appProtocol")) == ("grpc-ext-proc", protocol)


def test_health_check_port_comes_with_its_word_or_not_at_all() -> None:
    def check(**values: Any) -> dict[str, Any]:
        found = only(plain(provider="gke", **values), "HealthCheckPolicy")
        return dict(found["spec"]["default"]["config"]["httpHealthCheck"])

    assert check() == {"requestPath": "/health"}
    fixed = check(gke={"healthCheck": {"port": 8081, "path": "/ready"}})
    assert fixed == {"requestPath": "/ready", "portSpecification": "USE_FIXED_PORT", "port": 8081}


def test_long_generations_are_not_cut() -> None:
    policy = only(plain(provider="gke"), "GCPBackendPolicy")
    assert policy["spec"]["default"]["timeoutSec"] == 3600
    routed = {"httpRoute": {"enabled": True}}
    rule = only(plain(provider="istio", **routed), "HTTPRoute")["spec"]["rules"][0]
    assert rule["timeouts"] == {"request": "3600s"}
    assert "timeouts" not in only(plain(provider="gke", **routed), "HTTPRoute")["spec"]["rules"][0]


def test_a_changed_configuration_leaves_the_pods_alone() -> None:
    """The mounted file reloads; a checksum annotation would restart what need not restart."""
    before = only(plain(config={"weights": {"queue": 3}}), "Deployment")
    after = only(plain(config={"weights": {"queue": 5}}), "Deployment")
    assert before == after


def test_configuration_is_passed_through_verbatim() -> None:
    given = {"weights": {"prefix": 3, "queue": 5, "kv": 2}, "epsilon": 0.02, "objectives": {"batch": -1}}
    assert yaml.safe_load(only(plain(config=given), "ConfigMap")["data"]["picker.yaml"]) == given


def test_a_tls_secret_is_mounted_and_configured() -> None:
    found = plain(tls={"secretName": "cert"})
    settings = config.load(only(found, "ConfigMap")["data"]["picker.yaml"])
    pod = pods(found)[0]["spec"]
    mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "tls")
    assert settings.tls.certificate_file == f"{mount['mountPath']}/tls.crt"
    assert settings.tls.key_file == f"{mount['mountPath']}/tls.key"
    assert {"name": "tls", "secret": {"secretName": "cert"}} in pod["volumes"]


def test_the_store_of_the_shared_state_is_configured_with_its_password_and_reached() -> None:
    assert "shared_state" not in yaml.safe_load(only(plain(), "ConfigMap")["data"]["picker.yaml"])
    url = "rediss+sentinel://store-0.db:26379,store-1.db:26380/models"
    found = plain(
        sharedState={"url": url, "existingSecret": "redis"},
        config={"shared_state": {"warm_start_seconds": 2}},
        networkPolicy={"enabled": True},
    )
    settings = config.load(only(found, "ConfigMap")["data"]["picker.yaml"]).shared_state
    pod = pods(found)[0]["spec"]
    mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "shared-state")
    assert (settings.url, settings.warm_start_seconds) == (url, 2.0)
    assert settings.password_file == f"{mount['mountPath']}/password"
    assert {"name": "shared-state", "secret": {"secretName": "redis"}} in pod["volumes"]
    rules = only(found, "NetworkPolicy")["spec"]["egress"]
    opened = [{each["port"] for each in rule["ports"]} for rule in rules if "ports" in rule and "to" not in rule]
    assert {26379, 26380, 6379} in opened


@pytest.mark.parametrize(
    ("drain", "grace"),
    [({}, 140), ({"accept_seconds": 5, "seconds": 600.5}, 616), ({"seconds": 0}, 20)],
)
def test_grace_follows_the_configured_drain(drain: dict[str, float], grace: int) -> None:
    wanted = math.ceil(drain.get("accept_seconds", 10) + drain.get("seconds", 120)) + 10
    assert wanted == grace
    assert pods(plain(config={"drain": drain}))[0]["spec"]["terminationGracePeriodSeconds"] == grace


def test_the_arguments_of_a_follower_of_a_pool_and_of_labels() -> None:
    fixed = [
        "--namespace=$(NAMESPACE)",
        "--config=/etc/picker/config/picker.yaml",
        "--host=0.0.0.0",
        "--grpc-port=9002",
        "--grpc-health-port=9003",
        "--metrics-port=9090",
        "--log-level=info",
    ]
    assert picker_arguments(plain()) == ["serve", "--pool=demo", *fixed]
    labels = {"matchLabels": {"app": "vllm", "tier": "gold"}, "targetPorts": [8000, 8001]}
    found = plain(discovery="selector", modelServers=labels, replicas=2, tls={"insecure": True})
    selected = ["--selector=app=vllm,tier=gold", "--target-port=8000,8001"]
    assert picker_arguments(found) == ["serve", *selected, *fixed, "--insecure", "--leader-election"]
    assert "inferencepools" not in json.dumps(only(found, "Role"))


def test_the_picker_knows_the_arguments(rendered: dict[str, Objects]) -> None:
    unknown = {argument for found in rendered.values() for argument in unknown_arguments(picker_arguments(found))}
    assert unknown == set()


def unknown_arguments(arguments: list[str]) -> list[str]:
    return cli._parser().parse_known_args(arguments)[1]


def test_identity_comes_from_the_downward_api() -> None:
    environment = {
        e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in pods(plain())[0]["spec"]["containers"][0]["env"]
    }
    assert environment == {
        "NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "POD_TEMPLATE_HASH": "metadata.labels['pod-template-hash']",
    }


def test_leases_only_where_a_leader_is_elected() -> None:
    def lease_verbs(**values: Any) -> list[str] | None:
        rules = only(plain(**values), "Role")["rules"]
        return next((rule["verbs"] for rule in rules if rule["resources"] == ["leases"]), None)

    assert lease_verbs() is None
    assert lease_verbs(replicas=2) == ["get", "create", "update"]
    assert lease_verbs(replicas=2, highAvailability="active-active") is None


def test_a_disruption_budget_only_where_all_serve() -> None:
    assert "PodDisruptionBudget" not in kinds(plain(replicas=3))
    assert "PodDisruptionBudget" not in kinds(plain(highAvailability="active-active"))
    budget = only(plain(replicas=3, highAvailability="active-active"), "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1


def test_metrics_authentication_may_review_and_nothing_else() -> None:
    found = plain(metrics={"auth": {"enabled": True}})
    rules = [rule for o in found if o["kind"] == "ClusterRole" for rule in o["rules"]]
    assert rules == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ]
    assert "--metrics-auth" in picker_arguments(found)
    assert "ClusterRole" not in kinds(plain())


def test_the_sidecar_outlives_the_drain() -> None:
    """A native sidecar is stopped after the containers: answers in progress go through it."""
    template = pods(plain(standalone={"enabled": True}))[0]["spec"]
    envoy = template["initContainers"][0]
    assert (envoy["name"], envoy["restartPolicy"]) == ("envoy", "Always")
    assert "startupProbe" not in envoy, "it would wait for a picker that starts after it"


def test_an_envoy_of_its_own_waits_for_its_answers() -> None:
    found = plain(standalone={"enabled": True, "mode": "service"})
    envoy = only(found, "Deployment", "demo-picker-envoy")["spec"]["template"]["spec"]
    (proxy,), (drain,) = envoy["initContainers"], envoy["containers"]
    assert (proxy["name"], proxy["restartPolicy"]) == ("envoy", "Always"), "Kubernetes stops it after `envoy-drain`"
    assert drain["args"] == [
        "drain-envoy",
        "--admin=127.0.0.1:19000",
        "--pressure-file=/tmp/envoy-pressure",
        "--seconds=130",
    ]
    assert unknown_arguments(drain["args"]) == []
    assert envoy["terminationGracePeriodSeconds"] == 140
    peers = only(found, "Service", "demo-picker-peers")["spec"]
    assert (peers["clusterIP"], peers["publishNotReadyAddresses"]) == ("None", True)


def test_model_servers_are_scaled_by_keda_on_the_sum_over_pickers() -> None:
    assert "ScaledObject" not in kinds(plain())
    spec = only(plain(**scaled(minReplicas=0, coolDownSeconds=120)), "ScaledObject", "demo-picker-servers")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 8)
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": 120}}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090",
        "query": 'sum(picker_wanted_replicas{namespace="models",pod=~"demo-picker-[a-z0-9]+-[a-z0-9]+"})',
        "threshold": "0.700",
        "activationThreshold": "0.01",
        "ignoreNullValues": "false",
    }
    authenticated = scaled(prometheus={"serverAddress": "https://p", "triggerAuthentication": "token"})
    (trigger,) = only(plain(**authenticated), "ScaledObject")["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"name": "token"}


def test_model_servers_are_scaled_by_an_external_metric() -> None:
    metric = {"name": "picker_wanted_replicas", "matchLabels": {"pool": "demo"}}
    found = plain(**scaled(kind="hpa", targetLoad=0.65, externalMetric=metric))
    assert "ScaledObject" not in kinds(found)
    spec = only(found, "HorizontalPodAutoscaler", "demo-picker-servers")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 8)
    assert spec["metrics"] == [
        {
            "type": "External",
            "external": {
                "metric": {"name": "picker_wanted_replicas", "selector": {"matchLabels": {"pool": "demo"}}},
                "target": {"type": "AverageValue", "averageValue": "650m"},
            },
        }
    ]


def test_a_pod_of_several_ranks_counts_for_as_many_replicas() -> None:
    values = scaled(targetLoad=0.7)
    values["modelServers"]["targetPorts"] = [8000, 8001, 8002, 8003]
    (trigger,) = only(plain(**values), "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "2.800"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modelServers": {"matchLabels": {}}}, "modelServers.matchLabels is empty"),
        ({"inferencePool": {"create": False}}, "inferencePool.name is empty"),
        ({"provider": "gke", "discovery": "selector"}, "set discovery=pool"),
        ({"discovery": "selector", "httpRoute": {"enabled": True}}, "set discovery=pool"),
        ({"discovery": "selector", "inferenceObjectives": [{"name": "a", "priority": 1}]}, "config.objectives"),
        ({"provider": "kgateway", "tls": {"insecure": True}}, "leave tls.insecure false"),
        ({"tls": {"insecure": True, "secretName": "x"}}, "exclude each other"),
        ({"tls": {"secretName": "x"}, "config": {"tls": {"key_file": "/y"}}}, "only one of them"),
        ({"terminationGracePeriodSeconds": 30}, "shorter than the drain of 130 s"),
        ({"provider": "gke", "gke": {"healthCheck": {"timeoutSeconds": 20}}}, "longer than intervalSeconds"),
        ({"standalone": {"enabled": True}, "config": {"destinations_max": 2}}, "answers 503"),
        (
            {"standalone": {"enabled": True}, "config": {"limits": {"request_body_bytes_max": 33554432}}},
            "33554432: Envoy would answer 413",
        ),
        ({"sharedState": {"url": "http://store"}}, "sharedState"),
        ({"repicas": 2}, "repicas"),
        ({"config": {"weights": {"quue": 3}}}, "quue"),
        ({"config": {"wieghts": {}}}, "wieghts"),
        ({"config": {"epsilon": 2}}, "epsilon"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "select pods by it"),
        ({"commonLabels": {"helm.sh/chart": "x"}}, "sets itself"),
        ({"commonLabels": {"app": "vllm"}}, "taken for model servers"),
        ({"podLabels": {"app": "vllm"}}, "taken for model servers"),
        ({"standalone": {"enabled": True, "autoscaling": {"enabled": True}}}, "standalone.mode=service"),
        ({"standalone": {"enabled": True, "resources": {"limits": {"memory": "lots"}}}}, "write 1Gi"),
        ({"standalone": {"enable": True}}, "enable"),
        (scaled(scaleTarget={"name": ""}), "scaleTarget.name is empty"),
        (scaled(minReplicas=9), "minReplicas is above maxReplicas"),
        (scaled(prometheus={"serverAddress": ""}), "KEDA asks Prometheus"),
        (scaled(kind="hpa", minReplicas=0), "needs kind=keda"),
        (scaled(kind="vpa"), "kind"),
        (scaled(targetLoad=70), "targetLoad"),
        ({**scaled(), "config": {"routing": {"learn": False}}}, "leave config.routing.learn true"),
        ({**scaled(), "standalone": {"enabled": True, "responseBodyMode": "NONE"}}, "use STREAMED"),
        ({"provider": "nginx"}, "provider"),
        ({"replicas": 0}, "replicas"),
        ({"modelServers": {"targetPorts": [8000, 8000]}}, "targetPorts"),
        ({"modelServers": {"targetPorts": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}, "targetPorts"),
        ({"modelServers": {"targetPorts": [65536]}}, "targetPorts"),
        ({"modelServers": {"matchLabels": {"app": "no spaces"}}}, "matchLabels"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"metrics": {"monitor": {"interval": 10}}}, "interval"),
    ],
)
def test_wrong_values_are_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RenderError) as caught:
        plain(**values)
    assert words in str(caught.value)


def test_notes_say_the_next_step(rendered: dict[str, Objects]) -> None:
    def notes(**values: Any) -> str:
        text = yaml.safe_dump(merged(BASE, values))
        command = ["install", "demo", str(CHART), "--dry-run=client", "--namespace", "models", "--values", "-"]
        return run("helm", *command, stdin=text).stdout.partition("NOTES:")[2]

    assert "only the leader becomes Ready" in notes(replicas=2)
    assert "highAvailability=active-active" in notes(replicas=2)
    assert "active-active" not in notes(replicas=2, highAvailability="active-active")
    assert "port-forward service/demo-picker-envoy" in notes(standalone={"enabled": True})
    assert "kubectl -n models get gateway inference-gateway" in notes(httpRoute={"enabled": True})
    elsewhere = {"enabled": True, "parentRefs": [{"name": "gw", "namespace": "edge"}]}
    assert "kubectl -n edge get gateway gw" in notes(httpRoute=elsewhere)
    existing = notes(inferencePool={"create": False, "name": "theirs"}, httpRoute={"enabled": False})
    assert "patch inferencepool theirs" in existing and "httpRoute.enabled" not in existing
    assert "Envoy AI Gateway" in notes(provider="envoyGateway")
    assert "kind: InferencePool, name: demo" in notes()
