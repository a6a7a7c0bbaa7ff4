{{/*
Puts defaults back where a values file says null (`image:` with nothing behind it). Every file of templates/ calls it
first: helm shares one .Values among them.
*/}}
{{- define "picker.fill" -}}
{{- include "picker.fillTable" (dict "values" .Values "defaults" (include "picker.defaults" . | fromJson)) -}}
{{- end -}}

{{- define "picker.fillTable" -}}
{{- $values := .values -}}
{{- range $key, $default := .defaults -}}
{{- $given := get $values $key -}}
{{- if kindIs "invalid" (index $values $key) -}}
{{- if not (kindIs "invalid" $default) -}}{{- $_ := set $values $key (deepCopy $default) -}}{{- end -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $given) -}}
{{- include "picker.fillTable" (dict "values" $given "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "picker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
Prefix of every object, of 45 characters at most: that leaves room for the longest suffix. What is longer is cut and
gets a hash of the whole, so that two long names stay two. A release that is called like an object of another one
(`picker-envoy` beside `picker`) is not taken at its word.
*/}}
{{- define "picker.fullname" -}}
{{- $name := default "picker" .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- include "picker.short" .Values.fullnameOverride -}}
{{- else if and (contains $name .Release.Name) (not (regexMatch "-(envoy|peers|test|metrics-reader|metrics-reader-secret)$" .Release.Name)) -}}
{{- include "picker.short" .Release.Name -}}
{{- else -}}
{{- include "picker.short" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{- define "picker.short" -}}
{{- if gt (len .) 45 -}}
{{- printf "%s-%s" (trunc 38 . | trimSuffix "-" | trimSuffix ".") (sha256sum . | trunc 6) -}}
{{- else -}}
{{- . | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Of an object outside of namespaces. The colon is in no name of a namespace or release, so `a` with `b-c` and `a-b` with
`c` stay two. Takes (dict "root" $ "name" text).
*/}}
{{- define "picker.clusterName" -}}
{{- printf "%s:%s" .root.Release.Namespace .name -}}
{{- end -}}

{{- define "picker.poolName" -}}
{{- default .Release.Name .Values.inferencePool.name -}}
{{- end -}}

{{- define "picker.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "picker.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "picker.selectorLabels" -}}
app.kubernetes.io/name: {{ include "picker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: picker
{{- end -}}

{{- define "picker.envoySelectorLabels" -}}
app.kubernetes.io/name: {{ include "picker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: {{ if eq .Values.standalone.mode "sidecar" }}picker{{ else }}envoy{{ end }}
{{- end -}}

{{- define "picker.commonLabels" -}}
app.kubernetes.io/name: {{ include "picker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of pods, beside what selects them: the pods' own win over those of all objects. */}}
{{- define "picker.podLabels" -}}
{{- with merge (dict) .Values.podLabels .Values.commonLabels -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* `annotations:` of an object: those of its own and those of all. Takes (dict "root" $ "own" map). */}}
{{- define "picker.annotations" -}}
{{- with merge (dict) (.own | default dict) .root.Values.commonAnnotations -}}
{{- printf "annotations:%s" (toYaml . | nindent 2) | nindent 2 -}}
{{- end -}}
{{- end -}}

{{/* repository:tag, or repository@digest. Takes (dict "image" ... "tag" default). */}}
{{- define "picker.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .tag .image.tag }}
{{- end -}}
{{- end -}}

{{/* "yes" where several replicas elect one. */}}
{{- define "picker.electsLeader" -}}
{{- if and (gt (int .Values.replicas) 1) (eq .Values.highAvailability "leader-election") -}}yes{{- end -}}
{{- end -}}

{{- define "picker.activeActive" -}}
{{- if and (gt (int .Values.replicas) 1) (eq .Values.highAvailability "active-active") -}}yes{{- end -}}
{{- end -}}

{{/* The longest drain that `config` allows: accept_seconds, then seconds. */}}
{{- define "picker.drainSeconds" -}}
{{- $drain := .Values.config.drain | default dict -}}
{{- $accept := 10 -}}{{- if hasKey $drain "accept_seconds" -}}{{- $accept = $drain.accept_seconds -}}{{- end -}}
{{- $run := 120 -}}{{- if hasKey $drain "seconds" -}}{{- $run = $drain.seconds -}}{{- end -}}
{{- addf $accept $run | ceil | int -}}
{{- end -}}

{{- define "picker.graceSeconds" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add (include "picker.drainSeconds" . | int) 10 -}}
{{- else -}}
{{- .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/*
What tells the caller to speak HTTP/2 to the picker. Istio reads the port's name (grpc-...), GKE's controller knows
an endpoint picker's Service by itself; plaintext must be named everywhere.
*/}}
{{- define "picker.appProtocol" -}}
{{- if not (kindIs "invalid" .Values.service.appProtocol) -}}
{{- .Values.service.appProtocol -}}
{{- else if .Values.tls.insecure -}}
kubernetes.io/h2c
{{- else if has .Values.provider (list "envoyGateway" "agentgateway" "kgateway") -}}
http2
{{- end -}}
{{- end -}}

{{/* `config`, and the certificate files when a Secret brings them. */}}
{{- define "picker.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $config "tls" (dict "certificate_file" "/etc/picker/tls/tls.crt" "key_file" "/etc/picker/tls/tls.key") -}}
{{- end -}}
{{- if .Values.sharedState.url -}}
{{- $shared := dict "url" .Values.sharedState.url -}}
{{- if .Values.sharedState.existingSecret -}}
{{- $_ := set $shared "password_file" "/etc/picker/shared-state/password" -}}
{{- end -}}
{{- $_ := set $config "shared_state" (mergeOverwrite (get $config "shared_state" | default dict) $shared) -}}
{{- end -}}
{{- if $config -}}{{ toYaml $config }}{{- else -}}{}{{- end -}}
{{- end -}}

{{- define "picker.matchLabelsText" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.modelServers.matchLabels -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "picker.targetPortsText" -}}
{{- $ports := list -}}
{{- range .Values.modelServers.targetPorts -}}
{{- $ports = append $ports (int . | toString) -}}
{{- end -}}
{{- join "," $ports -}}
{{- end -}}

{{- define "picker.containerSecurity" -}}
{{- toYaml .Values.securityContext -}}
{{- end -}}

{{/* OpenShift's restricted SCC gives each namespace a range of UIDs, and refuses others. */}}
{{- define "picker.podSecurity" -}}
{{- $context := .Values.podSecurityContext -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* "yes" where the port's /metrics asks for a token. */}}
{{- define "picker.metricsAuth" -}}
{{- $given := .Values.metrics.auth.enabled -}}
{{- if or (and (kindIs "invalid" $given) .Values.metrics.monitor.enabled) (eq (toString $given) "true") -}}yes{{- end -}}
{{- end -}}

{{/* prometheusOperator or gmp. */}}
{{- define "picker.monitorKind" -}}
{{- default (ternary "gmp" "prometheusOperator" (eq .Values.provider "gke")) .Values.metrics.monitor.kind -}}
{{- end -}}

{{/* agentgateway, whatever it is called. */}}
{{- define "picker.isAgentgateway" -}}
{{- if has .Values.provider (list "agentgateway" "kgateway") -}}yes{{- end -}}
{{- end -}}

{{/* The group of the cluster's InferenceObjective CRD; llm-d's, the newer one, where it has both; the older where it tells nothing (helm template). */}}
{{- define "picker.objectivesApiVersion" -}}
{{- $old := "inference.networking.x-k8s.io/v1alpha2" -}}
{{- $new := "llm-d.ai/v1alpha2" -}}
{{- if .Values.inferenceObjectivesApiVersion -}}
{{- .Values.inferenceObjectivesApiVersion -}}
{{- else if .Capabilities.APIVersions.Has (printf "%s/InferenceObjective" $new) -}}
{{- $new -}}
{{- else -}}
{{- $old -}}
{{- end -}}
{{- end -}}
