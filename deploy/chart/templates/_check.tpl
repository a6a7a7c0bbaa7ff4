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
{{- if and (eq .Values.provider "kgateway") .Values.tls.insecure -}}
{{- fail "provider kgateway calls an endpoint picker with TLS only: leave tls.insecure false" -}}
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
