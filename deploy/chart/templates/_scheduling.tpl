{{/* nodeSelector, tolerations, affinity and spread. Takes (dict "root" $ "replicas" n "labels" yaml). */}}
{{- define "picker.scheduling" -}}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml .root.Values.topologySpreadConstraints | nindent 2 }}
{{- else if gt (int .replicas) 1 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- .labels | nindent 8 }}
{{- end }}
{{- end -}}
