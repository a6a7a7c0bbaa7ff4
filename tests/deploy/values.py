"""Value combinations that are linted, rendered, checked and applied: every provider with every shape."""

from typing import Any

Values = dict[str, Any]

BASE: Values = {"modelServers": {"matchLabels": {"app": "vllm"}}}

PROVIDERS = ("none", "gke", "istio", "envoyGateway", "agentgateway")

SHAPES: dict[str, Values] = {
    "plain": {},
    "leader-election": {"replicas": 2},
    "active-active": {"replicas": 3, "highAvailability": "active-active"},
    "ranks": {"modelServers": {"targetPorts": [8000, 8001, 8002, 8003, 8004, 8005, 8006, 8007]}},
    "routed": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "gw", "namespace": "edge", "sectionName": "https"}],
            "hostnames": ["llm.example.com"],
            "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
            "annotations": {"example.com/team": "ml"},
        }
    },
    "observed": {"metrics": {"auth": {"enabled": True}, "monitor": {"enabled": True, "labels": {"release": "prom"}}}},
    "fenced": {
        "networkPolicy": {
            "enabled": True,
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"name": "gateways"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        }
    },
    "configured": {
        "config": {"weights": {"prefix": 3, "queue": 5, "kv": 2}, "drain": {"accept_seconds": 5, "seconds": 600.5}},
        "logLevel": "debug",
        "extraArgs": ["--grpc-port=9002"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "tls": {"secretName": "picker-tls"},
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "x", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "service": {"annotations": {"e": "f"}},
        "serviceAccount": {"annotations": {"g": "h"}},
    },
    "objectives": {"inferenceObjectives": [{"name": "batch", "priority": -1}, {"name": "chat", "priority": 5}]},
    "existing-pool": {"inferencePool": {"create": False, "name": "theirs"}, "modelServers": {"matchLabels": {}}},
    "sidecar": {"standalone": {"enabled": True}},
    "service": {
        "replicas": 2,
        "standalone": {"enabled": True, "mode": "service", "service": {"type": "LoadBalancer"}},
        "networkPolicy": {"enabled": True, "gatewayFrom": [{"podSelector": {}}], "clientsFrom": [{"podSelector": {}}]},
    },
}

AUTOSCALING: Values = {
    "enabled": True,
    "scaleTarget": {"name": "vllm"},
    "prometheus": {
        "serverAddress": "http://prometheus-operated.monitoring:9090",
        "triggerAuthentication": "prometheus",
    },
}

WITHOUT_POOL: dict[str, Values] = {
    "scaled-by-keda": {"modelServers": {"autoscaling": AUTOSCALING}},
    "scaled-by-hpa": {
        "modelServers": {
            "targetPorts": [8000, 8001],
            "autoscaling": {**AUTOSCALING, "kind": "hpa", "externalMetric": {"matchLabels": {"pool": "demo"}}},
        }
    },
    "everything": {
        "replicas": 2,
        "highAvailability": "active-active",
        "commonLabels": {"team": "ml"},
        "commonAnnotations": {"example.com/owner": "ml"},
        "inferencePool": {"keep": True},
        "extraEnvFrom": [{"secretRef": {"name": "tokens"}}],
        "extraVolumes": [{"name": "models", "emptyDir": {"sizeLimit": "1Mi"}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
        "initContainers": [
            {
                "name": "wait",
                "image": "busybox:1.37",
                "command": ["true"],
                "resources": {"limits": {"memory": "16Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 1,
        "probes": {"liveness": {"periodSeconds": 20}},
        "dnsPolicy": "ClusterFirst",
        "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "metrics": {"monitor": {"enabled": True}, "rules": {"enabled": True, "labels": {"release": "prom"}}},
        "standalone": {
            "enabled": True,
            "mode": "service",
            "autoscaling": {"enabled": True, "minReplicas": 3},
            "service": {
                "type": "LoadBalancer",
                "loadBalancerClass": "example.com/nlb",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
            },
        },
        "networkPolicy": {"enabled": True},
    },
    "gke-grpc": {"provider": "gke", "modelServers": {"appProtocol": "kubernetes.io/h2c"}},
    "sidecar-monitored": {
        "provider": "gke",
        "standalone": {"enabled": True},
        "metrics": {"monitor": {"enabled": True}, "rules": {"enabled": True, "labels": {"team": "ml"}}},
    },
    # Names that YAML reads as something else.
    "1234": {"standalone": {"enabled": True}, "metrics": {"monitor": {"enabled": True}}},
    "selector": {"discovery": "selector"},
    "selector-sidecar": {"discovery": "selector", "listenAddress": "::", "standalone": {"enabled": True}},
    "selector-service": {
        "discovery": "selector",
        "replicas": 2,
        "highAvailability": "active-active",
        "tls": {"insecure": True},
        "modelServers": {"appProtocol": "kubernetes.io/h2c", "targetPorts": [8000, 8001]},
        "standalone": {
            "enabled": True,
            "mode": "service",
            "requestBodyMode": "FULL_DUPLEX_STREAMED",
            "responseBodyMode": "FULL_DUPLEX_STREAMED",
        },
        "networkPolicy": {"enabled": True},
    },
    "plaintext-istio": {"provider": "istio", "tls": {"insecure": True}},
    "gke-fixed-port": {"provider": "gke", "gke": {"healthCheck": {"port": 8080, "path": "/ready"}, "autopilot": True}},
    "istio-pool": {"provider": "istio", "istio": {"destinationRule": {"connectionPool": {"http": {"maxRetries": 1}}}}},
    "no-accounts": {"serviceAccount": {"create": False, "name": "given"}, "rbac": {"create": False}},
}


def merged(*parts: Values) -> Values:
    """Later parts win; tables are merged, except label tables given empty."""
    result: Values = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict) and value and isinstance(result.get(key), dict):
                result[key] = merged(result[key], value)
            else:
                result[key] = value
    return result


def combinations() -> dict[str, Values]:
    """Name -> values, as Helm release names."""
    found = {
        f"{provider.lower()}-{shape}": merged(BASE, {"provider": provider}, values)
        for provider in PROVIDERS
        for shape, values in SHAPES.items()
    }
    return found | {name: merged(BASE, values) for name, values in WITHOUT_POOL.items()}
