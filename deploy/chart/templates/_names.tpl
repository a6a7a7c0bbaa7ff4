{{- define "picker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every object. 45 characters leave room for the longest suffix. */}}
{{- define "picker.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains "picker" .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-picker" (.Release.Name | trunc 38 | trimSuffix "-") -}}
{{- end -}}
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
app.kubernetes.io/name: {{ include "picker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: picker
{{- end -}}

{{- define "picker.envoySelectorLabels" -}}
app.kubernetes.io/name: {{ include "picker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ if eq .Values.standalone.mode "sidecar" }}picker{{ else }}envoy{{ end }}
{{- end -}}

{{- define "picker.commonLabels" -}}
app.kubernetes.io/name: {{ include "picker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
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
{{- else if has .Values.provider (list "envoyGateway" "kgateway") -}}
http2
{{- end -}}
{{- end -}}

{{/* `config`, and the certificate files when a Secret brings them. */}}
{{- define "picker.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $config "tls" (dict "certificate_file" "/etc/picker/tls/tls.crt" "key_file" "/etc/picker/tls/tls.key") -}}
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
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "picker.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}
