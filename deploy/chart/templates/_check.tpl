{{/* What no schema can say. Every message names the value and the way out. */}}
{{- define "picker.check" -}}
{{- $usesOwnPool := or (ne .Values.discovery "pool") .Values.inferencePool.create -}}
{{- if and $usesOwnPool (not .Values.modelServers.matchLabels) -}}
{{- fail "modelServers.matchLabels is empty: name the labels of the model servers' pods, e.g. --set modelServers.matchLabels.app=vllm" -}}
{{- end -}}
{{- if and (eq .Values.discovery "pool") (not .Values.inferencePool.create) (not .Values.inferencePool.name) -}}
{{- fail "inferencePool.create is false and inferencePool.name is empty: name the existing InferencePool" -}}
{{- end -}}
{{- if ne .Values.discovery "pool" -}}
{{- if ne .Values.provider "none" -}}
{{- fail (printf "provider %s routes to an InferencePool: set discovery=pool, or provider=none with standalone.enabled=true" .Values.provider) -}}
{{- end -}}
{{- if .Values.httpRoute.enabled -}}
{{- fail "httpRoute.enabled routes to an InferencePool: set discovery=pool" -}}
{{- end -}}
{{- if .Values.inferenceObjectives -}}
{{- fail "inferenceObjectives name an InferencePool: set discovery=pool, or use config.objectives" -}}
{{- end -}}
{{- end -}}
{{- with .Values.modelServers.autoscaling -}}
{{- if .enabled -}}
{{- if not .scaleTarget.name -}}
{{- fail "modelServers.autoscaling.scaleTarget.name is empty: name the Deployment (or what else has the model servers' pods)" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "modelServers.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and (eq .kind "keda") (not .prometheus.serverAddress) -}}
{{- fail "modelServers.autoscaling.prometheus.serverAddress is empty: KEDA asks Prometheus, at http://prometheus-operated.monitoring:9090, say" -}}
{{- end -}}
{{- if and (eq .kind "hpa") (eq (int .minReplicas) 0) -}}
{{- fail "modelServers.autoscaling.minReplicas 0 needs kind=keda: a HorizontalPodAutoscaler keeps one" -}}
{{- end -}}
{{- if eq (dig "learn" true ($.Values.config.routing | default dict)) false -}}
{{- fail "modelServers.autoscaling follows what is learned from answers: leave config.routing.learn true" -}}
{{- end -}}
{{- if and $.Values.standalone.enabled (eq $.Values.standalone.responseBodyMode "NONE") -}}
{{- fail "modelServers.autoscaling follows what is learned from answers, which standalone.responseBodyMode=NONE hides: use STREAMED" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey $.Values.podLabels $key -}}
{{- fail (printf "podLabels has %s: Deployment and Services select pods by it, so it is the chart's own" $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" -}}
{{- if hasKey $.Values.commonLabels $key -}}
{{- fail (printf "commonLabels has %s, which the chart sets itself: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- if .Values.modelServers.matchLabels -}}
{{- $labels := merge (dict) .Values.podLabels .Values.commonLabels -}}
{{- $selected := true -}}
{{- range $key, $value := .Values.modelServers.matchLabels -}}
{{- if not (and (hasKey $labels $key) (eq (get $labels $key) $value)) -}}{{- $selected = false -}}{{- end -}}
{{- end -}}
{{- if $selected -}}
{{- fail "podLabels and commonLabels have all of modelServers.matchLabels: the picker's own pods would be taken for model servers" -}}
{{- end -}}
{{- end -}}
{{- if and .Release.IsUpgrade (.Capabilities.APIVersions.Has "inference.networking.k8s.io/v1/InferencePool") -}}
{{- $rendered := ternary (include "picker.poolName" .) "" (and (eq .Values.discovery "pool") .Values.inferencePool.create) -}}
{{- range $pool := list (include "picker.poolName" .) .Release.Name | uniq -}}
{{- $live := lookup "inference.networking.k8s.io/v1" "InferencePool" $.Release.Namespace $pool | default dict -}}
{{- $notes := dig "metadata" "annotations" dict $live | default dict -}}
{{- $ours := eq (get $notes "meta.helm.sh/release-name") $.Release.Name -}}
{{- if and $ours (ne $pool $rendered) (ne (get $notes "helm.sh/resource-policy") "keep") -}}
{{- fail (printf "InferencePool %s belongs to this release, and with these values Helm would delete it, with all its traffic. First upgrade with inferencePool.create=true and inferencePool.keep=true, then with these values" $pool) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.standalone.autoscaling.enabled (gt (int .Values.standalone.autoscaling.minReplicas) (int .Values.standalone.autoscaling.maxReplicas)) -}}
{{- fail "standalone.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and .Values.standalone.autoscaling.enabled (eq .Values.standalone.mode "sidecar") -}}
{{- fail "standalone.autoscaling scales an Envoy of its own: set standalone.mode=service" -}}
{{- end -}}
{{- $memory := dig "limits" "memory" "" .Values.standalone.resources -}}
{{- if and $memory (not (include "picker.bytes" $memory)) -}}
{{- fail (printf "standalone.resources.limits.memory %v is not a quantity that can be read: write 1Gi or 900Mi" $memory) -}}
{{- end -}}
{{- if and (include "picker.isAgentgateway" .) .Values.tls.insecure -}}
{{- fail "provider agentgateway calls an endpoint picker with TLS only: leave tls.insecure false" -}}
{{- end -}}
{{- if and .Values.tls.insecure .Values.tls.secretName -}}
{{- fail "tls.insecure and tls.secretName exclude each other" -}}
{{- end -}}
{{- if and .Values.tls.secretName .Values.config.tls -}}
{{- fail "tls.secretName sets config.tls: give only one of them" -}}
{{- end -}}
{{- if lt (include "picker.graceSeconds" . | int) (include "picker.drainSeconds" . | int) -}}
{{- fail (printf "terminationGracePeriodSeconds %v is shorter than the drain of %s s (config.drain): running answers would be cut" .Values.terminationGracePeriodSeconds (include "picker.drainSeconds" .)) -}}
{{- end -}}
{{- if gt (int .Values.gke.healthCheck.timeoutSeconds) (int .Values.gke.healthCheck.intervalSeconds) -}}
{{- fail "gke.healthCheck.timeoutSeconds is longer than intervalSeconds: Google's health checks refuse that" -}}
{{- end -}}
{{- if and .Values.standalone.enabled (gt (int (.Values.config.destinations_max | default 1)) 1) -}}
{{- fail "config.destinations_max above 1 needs a proxy that takes a list: the standalone Envoy (ORIGINAL_DST) answers 503 to one" -}}
{{- end -}}
{{- if .Values.standalone.enabled -}}
{{- $limit := (.Values.config.limits | default dict).request_body_bytes_max -}}
{{- if and $limit (eq .Values.standalone.requestBodyMode "BUFFERED") (lt (int64 .Values.standalone.requestBodyBytesMax) (int64 $limit)) -}}
{{- fail (printf "standalone.requestBodyBytesMax %d is below config.limits.request_body_bytes_max %d: Envoy would answer 413 first" (int64 .Values.standalone.requestBodyBytesMax) (int64 $limit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
