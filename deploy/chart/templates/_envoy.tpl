{{/*
The standalone Envoy's bootstrap. What it must get right, each learned the hard way:
 * the client's own destination header is removed before anything reads it (else a client picks any address: SSRF);
   with that, failing open is safe: a request without a pick finds no upstream (503), answers in progress go on;
 * the picker is health-checked, with panic threshold 0, so that a hung or dead one is noticed at once;
 * streams to the picker stay open until an answer ends: Envoy's default caps of 1,024 must go;
 * no retries of requests: ORIGINAL_DST would ask the same dead address again. A picker that died is another matter:
   the next one is asked, so that a crash beside a healthy picker fails no request.
*/}}
{{- define "picker.envoyBootstrap" -}}
{{- $sidecar := eq .Values.standalone.mode "sidecar" -}}
{{- $duplex := eq .Values.standalone.requestBodyMode "FULL_DUPLEX_STREAMED" -}}
{{- $timeout := printf "%ds" (int .Values.requestTimeoutSeconds) -}}
admin:
  address:
    socket_address: {address: 127.0.0.1, port_value: 19000}
overload_manager:
  resource_monitors:
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: 50000
static_resources:
  listeners:
    - name: requests
      address:
        socket_address: {{ include "picker.envoyListenAddress" (dict "root" . "port" 8080) }}
      {{- if not $duplex }}
      # Room for one buffered body; beyond it Envoy answers 413.
      per_connection_buffer_limit_bytes: {{ int64 .Values.standalone.requestBodyBytesMax }}
      {{- end }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: requests
                codec_type: AUTO
                use_remote_address: true
                # A long generation may be silent for as long as it takes.
                stream_idle_timeout: {{ $timeout }}
                request_headers_timeout: 10s
                early_header_mutation_extensions:
                  - name: envoy.http.early_header_mutation.header_mutation
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
                      mutations:
                        - remove: x-gateway-destination-endpoint
                route_config:
                  name: requests
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        # An upgrade has no body before its answer: decided on the headers alone.
                        - match:
                            prefix: /
                            headers:
                              - name: upgrade
                                string_match: {exact: websocket, ignore_case: true}
                          route:
                            cluster: model_servers
                            timeout: 0s
                            upgrade_configs:
                              - upgrade_type: websocket
                          typed_per_filter_config:
                            envoy.filters.http.ext_proc:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                              overrides:
                                processing_mode:
                                  request_header_mode: SEND
                                  response_header_mode: SEND
                                  request_body_mode: NONE
                                  response_body_mode: NONE
                        - match: {prefix: /}
                          route:
                            cluster: model_servers
                            timeout: {{ $timeout }}
                http_filters:
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service:
                        envoy_grpc: {cluster_name: picker}
                        retry_policy:
                          retry_on: connect-failure,refused-stream,reset,unavailable
                          num_retries: 2
                          host_selection_retry_max_attempts: 5
                          retry_host_predicate:
                            - name: envoy.retry_host_predicates.previous_hosts
                              typed_config:
                                "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                      failure_mode_allow: true
                      message_timeout: 5s
                      processing_mode:
                        request_header_mode: SEND
                        response_header_mode: SEND
                        request_body_mode: {{ .Values.standalone.requestBodyMode }}
                        response_body_mode: {{ .Values.standalone.responseBodyMode }}
                        {{- if $duplex }}
                        request_trailer_mode: SEND
                        {{- end }}
                        {{- if eq .Values.standalone.responseBodyMode "FULL_DUPLEX_STREAMED" }}
                        response_trailer_mode: SEND
                        {{- end }}
                      metadata_options:
                        forwarding_namespaces:
                          untyped: [envoy.lb, envoy.lb.subset_hint]
                        receiving_namespaces:
                          untyped: [envoy.lb]
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    - name: ready
      address:
        socket_address: {{ include "picker.envoyListenAddress" (dict "root" . "port" 19001) }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ready
                route_config:
                  name: ready
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {path: /stats/prometheus}
                          route: {cluster: admin}
                http_filters:
                  - name: envoy.filters.http.health_check
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
                      pass_through_mode: false
                      headers:
                        - name: ":path"
                          string_match: {exact: /ready}
                      {{- if not $sidecar }}
                      cluster_min_healthy_percentages:
                        picker: {value: 1}
                      {{- end }}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    # Whatever address the picker named, and nothing else.
    - name: model_servers
      type: ORIGINAL_DST
      lb_policy: CLUSTER_PROVIDED
      connect_timeout: 2s
      original_dst_lb_config:
        use_http_header: true
        http_header_name: x-gateway-destination-endpoint
      circuit_breakers:
        thresholds:
          - {max_connections: 65536, max_pending_requests: 65536, max_requests: 65536}
      # Idle connections end before vLLM's own 5 s: a request on one that is just being closed is lost.
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          common_http_protocol_options: {idle_timeout: 4s}
          explicit_http_config:
            {{ if eq .Values.modelServers.appProtocol "kubernetes.io/h2c" }}http2_protocol_options{{ else }}http_protocol_options{{ end }}: {}
    - name: picker
      {{- if $sidecar }}
      type: STATIC
      {{- else }}
      # Every picker's address, ready or not: Envoy's own health check finds the one that serves, sooner than DNS.
      cluster_type:
        name: envoy.cluster.dns
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster
          dns_lookup_family: V4_PREFERRED
          dns_refresh_rate: 2s
      {{- end }}
      connect_timeout: 1s
      circuit_breakers:
        thresholds:
          # Retries too: Envoy allows three at a time, and a dead picker makes as many as there are requests.
          - {max_connections: 65536, max_pending_requests: 65536, max_requests: 65536, max_retries: 65536}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config:
            http2_protocol_options:
              # Finds a picker that the network swallowed.
              connection_keepalive: {interval: 10s, timeout: 5s}
              initial_stream_window_size: 1048576
              initial_connection_window_size: 16777216
      common_lb_config:
        healthy_panic_threshold: {value: 0}
        # What a health check finds counts at once; Envoy would collect changes for a second.
        update_merge_window: 0s
      health_checks:
        - timeout: 1s
          interval: 1s
          no_traffic_interval: 1s
          unhealthy_threshold: 2
          healthy_threshold: 1
          grpc_health_check:
            # In one pod, readiness is the kubelet's business, and a draining picker still takes new requests.
            service_name: {{ if $sidecar }}liveness{{ else }}envoy.service.ext_proc.v3.ExternalProcessor{{ end }}
      load_assignment:
        cluster_name: picker
        endpoints:
          - lb_endpoints:
              - endpoint:
                  address:
                    socket_address:
                      address: {{ if $sidecar }}127.0.0.1{{ else }}{{ include "picker.fullname" . }}-peers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}{{ end }}
                      port_value: 9002
      {{- if not .Values.tls.insecure }}
      # Encrypted, not verified: the picker's certificate is its own unless a Secret brings one.
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2]
            validation_context: {}
      {{- end }}
    - name: admin
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        cluster_name: admin
        endpoints:
          - lb_endpoints:
              - endpoint:
                  address:
                    socket_address: {address: 127.0.0.1, port_value: 19000}
{{- end -}}

{{- define "picker.envoyListenAddress" -}}
{{- $address := .root.Values.listenAddress -}}
{address: {{ $address | quote }}, port_value: {{ .port }}{{ if eq $address "::" }}, ipv4_compat: true{{ end }}}
{{- end -}}

{{- define "picker.envoyContainer" -}}
name: envoy
image: {{ include "picker.image" (dict "image" .Values.standalone.image "tag" "") | quote }}
imagePullPolicy: {{ .Values.standalone.image.pullPolicy }}
args:
  - --config-path
  - /etc/envoy/envoy.yaml
  - --concurrency
  - {{ .Values.standalone.concurrency | quote }}
  - --log-level
  - {{ .Values.standalone.logLevel }}
  - --disable-hot-restart
ports:
  - {name: http-requests, containerPort: 8080}
  - {name: http-ready, containerPort: 19001}
readinessProbe:
  httpGet: {path: /ready, port: 19001}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  tcpSocket: {port: 19001}
  periodSeconds: 10
  failureThreshold: 3
resources:
  {{- toYaml .Values.standalone.resources | nindent 2 }}
securityContext:
  {{- include "picker.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: envoy-config, mountPath: /etc/envoy, readOnly: true}
{{- end -}}
