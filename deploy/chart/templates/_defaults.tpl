{{/* values.yaml for `picker.fill`, which says why. Written by `python -m tests.deploy.generated`. */}}
{{- define "picker.defaults" -}}
{
 "nameOverride": "",
 "fullnameOverride": "",
 "clusterDomain": "cluster.local",
 "commonLabels": {},
 "commonAnnotations": {},
 "image": {
  "repository": "inference-picker",
  "tag": "",
  "digest": "",
  "pullPolicy": "IfNotPresent"
 },
 "imagePullSecrets": [],
 "provider": "none",
 "discovery": "pool",
 "modelServers": {
  "matchLabels": {},
  "targetPorts": [
   8000
  ],
  "appProtocol": "http",
  "autoscaling": {
   "enabled": false,
   "kind": "keda",
   "scaleTarget": {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "name": ""
   },
   "minReplicas": 1,
   "maxReplicas": 8,
   "targetLoad": 0.7,
   "coolDownSeconds": 300,
   "prometheus": {
    "serverAddress": "",
    "query": "",
    "triggerAuthentication": ""
   },
   "externalMetric": {
    "name": "picker_wanted_replicas",
    "matchLabels": {}
   }
  }
 },
 "inferencePool": {
  "create": true,
  "name": "",
  "failureMode": "FailOpen",
  "keep": false
 },
 "inferenceObjectives": [],
 "inferenceObjectivesApiVersion": "",
 "replicas": 1,
 "highAvailability": "leader-election",
 "sharedState": {
  "url": "",
  "existingSecret": ""
 },
 "logLevel": "info",
 "extraArgs": [],
 "extraEnv": [],
 "extraEnvFrom": [],
 "extraVolumes": [],
 "extraVolumeMounts": [],
 "initContainers": [],
 "listenAddress": "0.0.0.0",
 "tls": {
  "insecure": false,
  "secretName": ""
 },
 "service": {
  "port": 9002,
  "annotations": {},
  "appProtocol": null
 },
 "requestTimeoutSeconds": 3600,
 "httpRoute": {
  "enabled": false,
  "parentRefs": [
   {
    "name": "inference-gateway"
   }
  ],
  "hostnames": [],
  "matches": [
   {
    "path": {
     "type": "PathPrefix",
     "value": "/"
    }
   }
  ],
  "annotations": {}
 },
 "gke": {
  "healthCheck": {
   "type": "",
   "grpcServiceName": "",
   "port": null,
   "path": "/health",
   "intervalSeconds": 15,
   "timeoutSeconds": 5,
   "healthyThreshold": 1,
   "unhealthyThreshold": 2,
   "logging": false
  },
  "connectionDrainingSeconds": 120,
  "logging": false,
  "autopilot": false
 },
 "istio": {
  "destinationRule": {
   "host": "",
   "connectionPool": {}
  }
 },
 "standalone": {
  "enabled": false,
  "mode": "sidecar",
  "replicas": 2,
  "autoscaling": {
   "enabled": false,
   "minReplicas": 2,
   "maxReplicas": 10,
   "targetCPUUtilizationPercentage": 70
  },
  "strategy": {},
  "probes": {
   "liveness": {},
   "readiness": {}
  },
  "image": {
   "repository": "envoyproxy/envoy",
   "tag": "distroless-v1.40.0",
   "digest": "",
   "pullPolicy": "IfNotPresent"
  },
  "service": {
   "type": "ClusterIP",
   "port": 80,
   "annotations": {},
   "loadBalancerClass": "",
   "loadBalancerSourceRanges": [],
   "externalTrafficPolicy": ""
  },
  "requestBodyMode": "BUFFERED",
  "requestBodyBytesMax": 16777216,
  "responseBodyMode": "STREAMED",
  "receiveTimeoutSeconds": 60,
  "stalledReaderSeconds": 300,
  "connectionsMax": 50000,
  "trustedHops": 0,
  "accessLog": true,
  "concurrency": 2,
  "logLevel": "warning",
  "resources": {}
 },
 "serviceAccount": {
  "create": true,
  "name": "",
  "annotations": {}
 },
 "rbac": {
  "create": true
 },
 "resources": {},
 "terminationGracePeriodSeconds": null,
 "strategy": {},
 "revisionHistoryLimit": 3,
 "probes": {
  "startup": {},
  "liveness": {},
  "readiness": {}
 },
 "dnsPolicy": "",
 "dnsConfig": {},
 "podSecurityContext": {},
 "securityContext": {},
 "podDisruptionBudget": {
  "enabled": true,
  "minAvailable": 1,
  "maxUnavailable": null
 },
 "networkPolicy": {
  "enabled": null,
  "gatewayFrom": [],
  "metricsFrom": [],
  "clientsFrom": [],
  "extraEgress": []
 },
 "metrics": {
  "auth": {
   "enabled": null
  },
  "monitor": {
   "enabled": false,
   "kind": "",
   "interval": "10s",
   "labels": {}
  },
  "rules": {
   "enabled": false,
   "labels": {}
  }
 },
 "tests": {
  "enabled": true
 },
 "podAnnotations": {},
 "podLabels": {},
 "nodeSelector": {},
 "tolerations": [],
 "affinity": {},
 "topologySpreadConstraints": [],
 "priorityClassName": "",
 "config": {}
}
{{- end -}}
