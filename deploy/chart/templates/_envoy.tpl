{{/*
The standalone Envoy's bootstrap. What it must get right, each learned the hard way:
 * the client's own destination header is removed before anything reads it (else a client picks any address: SSRF);
   with that, failing open is safe: a request without a pick finds no upstream (503), answers in progress go on;
 * the picker is health-checked, with panic threshold 0, so that a hung or dead one is noticed at once;
 * streams to the picker stay open until an answer ends: Envoy's default caps of 1,024 must go;
 * no retries of requests: ORIGINAL_DST would ask the same dead address again. A picker that died is another matter:
   the next one is asked, so that a crash beside a healthy picker fails no request.
*/}}
{{- define "picker.envoyName" -}}
{{- printf "%s-envoy" (include "picker.fullname" .) -}}
{{- end -}}

{{/* A memory quantity in bytes; "" where there is none. Takes the text. */}}
{{- define "picker.bytes" -}}
{{- $text := toString . -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "" 1 -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- if and (regexMatch "^[0-9]+(\\.[0-9]+)?[A-Za-z]*$" $text) (hasKey $units $unit) -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units $unit) | int64 -}}
{{- end -}}
{{- end -}}

{{- define "picker.envoyHeapBytes" -}}
{{- $limit := dig "limits" "memory" "" .Values.standalone.resources | include "picker.bytes" -}}
{{- if $limit -}}{{- divf (mulf (float64 $limit) 9) 10 | int64 -}}{{- end -}}
{{- end -}}

{{- define "picker.envoyBootstrap" -}}
{{- $sidecar := eq .Values.standalone.mode "sidecar" -}}
{{- $duplex := eq .Values.standalone.requestBodyMode "FULL_DUPLEX_STREAMED" -}}
{{- $timeout := printf "%ds" (int .Values.requestTimeoutSeconds) -}}
{{- $heap := include "picker.envoyHeapBytes" . -}}
admin:
  address:
    socket_address: {address: 127.0.0.1, port_value: 19000}
overload_manager:
  refresh_interval: 0.25s
  buffer_factory_config: {minimum_account_to_track_power_of_two: 20}
  resource_monitors:
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: {{ int .Values.standalone.connectionsMax }}
    {{- if $heap }}
    - name: envoy.resource_monitors.fixed_heap
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
        # Nine tenths of the container's limit.
        max_heap_size_bytes: {{ $heap }}
    {{- end }}
    # Written by `picker drain-envoy` when the pod is to end.
    - name: envoy.resource_monitors.injected_resource
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig
        filename: /tmp/envoy-pressure
  actions:
    {{- if $heap }}
    - name: envoy.overload_actions.shrink_heap
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.95}
    # The largest holders of buffers go first, not the next honest request.
    - name: envoy.overload_actions.reset_high_memory_stream
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          scaled: {scaling_threshold: 0.90, saturation_threshold: 0.98}
    - name: envoy.overload_actions.stop_accepting_requests
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.98}
    - name: envoy.overload_actions.stop_accepting_connections
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.98}
    {{- end }}
    - name: envoy.overload_actions.reduce_timeouts
      triggers:
        - name: envoy.resource_monitors.injected_resource
          threshold: {value: 0.9}
      typed_config:
        "@type": type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig
        timer_scale_factors:
          - {timer: HTTP_DOWNSTREAM_CONNECTION_IDLE, min_timeout: 1s}
static_resources:
  listeners:
    - name: requests
      address:
        socket_address: {{ include "picker.envoyListenAddress" (dict "root" . "port" 8080) }}
      # What one slow reader can hold. Buffered request bodies have a limit of their own, in the route.
      per_connection_buffer_limit_bytes: {{ min 262144 (int64 .Values.standalone.requestBodyBytesMax) }}
      socket_options:
        # TCP_USER_TIMEOUT: a client that takes nothing of its answer for so long is cut off. No timeout of HTTP does
        # that: to them it is a long answer.
        - {description: stalled readers, level: 6, name: 18, int_value: {{ mul (int .Values.standalone.stalledReaderSeconds) 1000 }}, state: STATE_LISTENING}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: requests
                codec_type: AUTO
                use_remote_address: true
                # A client that names its request finds it by that name (picker explain, the log).
                preserve_external_request_id: true
                xff_num_trusted_hops: {{ int .Values.standalone.trustedHops }}
                # A long generation may be silent for as long as it takes.
                stream_idle_timeout: {{ $timeout }}
                request_headers_timeout: 10s
                # From "Connection: close" to the close: a request that is on its way is still served.
                drain_timeout: 2s
                # To send the whole request; over when the answer begins.
                request_timeout: {{ int .Values.standalone.receiveTimeoutSeconds }}s
                # What others see of a path must be what the picker and the model server see. %2F stays: models have
                # names like org/model.
                normalize_path: true
                merge_slashes: true
                path_with_escaped_slashes_action: KEEP_UNCHANGED
                common_http_protocol_options:
                  idle_timeout: 3600s
                  headers_with_underscores_action: DROP_HEADER
                http_protocol_options:
                  # nginx's proxy_pass (until 1.29.7) and ApacheBench speak it.
                  accept_http_10: true
                  default_host_for_http_10: model-servers
                http2_protocol_options:
                  max_concurrent_streams: 256
                  initial_stream_window_size: 65536
                  initial_connection_window_size: 1048576
                {{- if .Values.standalone.accessLog }}
                access_log:
                  - name: envoy.access_loggers.stdout
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
                      log_format:
                        formatters:
                          - name: envoy.formatter.req_without_query
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery
                        json_format:
                          time: "%START_TIME%"
                          method: "%REQ(:METHOD)%"
                          path: "%REQ_WITHOUT_QUERY(X-ENVOY-ORIGINAL-PATH?:PATH)%"
                          protocol: "%PROTOCOL%"
                          status: "%RESPONSE_CODE%"
                          flags: "%RESPONSE_FLAGS%"
                          details: "%RESPONSE_CODE_DETAILS%"
                          reason: "%RESP(X-PICKER-REASON)%"
                          upstream: "%UPSTREAM_HOST%"
                          client: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
                          request_id: "%REQ(X-REQUEST-ID)%"
                          duration_ms: "%DURATION%"
                          first_byte_ms: "%RESPONSE_DURATION%"
                          bytes_received: "%BYTES_RECEIVED%"
                          bytes_sent: "%BYTES_SENT%"
                {{- end }}
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
                        {{- if not $duplex }}
                        # A CONNECT has no end of body to wait for, and nothing here is a tunnel.
                        - match: {connect_matcher: {}}
                          direct_response: {status: 403}
                          typed_per_filter_config:
                            envoy.filters.http.ext_proc:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                              disabled: true
                        # Large bodies that the picker does not read are not held, so they may have any size: first by
                        # their path, where it says all that the picker wants to know.
                        - match:
                            safe_regex:
                              regex: ".*/(files|uploads(/[^/]+/parts)?|api/blobs/[^/]+|models?/.+/(infer|invoke|converse)[^/]*|[^/]+:[A-Za-z]+)/?"
                            headers:
                              # From the limit on, and those that do not say how long they are.
                              - &large
                                name: content-length
                                range_match: {start: 0, end: {{ int64 .Values.standalone.requestBodyBytesMax }}}
                                invert_match: true
                                treat_missing_header_as_empty: true
                          route: &anywhere
                            cluster: model_servers
                            timeout: {{ $timeout }}
                          typed_per_filter_config: &unread
                            envoy.filters.http.ext_proc:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                              overrides:
                                processing_mode:
                                  request_header_mode: SEND
                                  response_header_mode: SEND
                                  request_body_mode: NONE
                                  response_body_mode: {{ .Values.standalone.responseBodyMode }}
                                  {{- if eq .Values.standalone.responseBodyMode "FULL_DUPLEX_STREAMED" }}
                                  response_trailer_mode: SEND
                                  {{- end }}
                        # Then whatever says that it is no JSON; a form's `model` is not seen. What says nothing is read.
                        - match:
                            prefix: /
                            headers:
                              - name: content-type
                                string_match:
                                  safe_regex: {regex: "(?i)[^;]*[/+](x-)?json([^a-z0-9-].*)?"}
                                invert_match: true
                              - *large
                          route: *anywhere
                          typed_per_filter_config: *unread
                        {{- end }}
                        - match: {prefix: /}
                          {{- if not $duplex }}
                          # Room for one buffered body; beyond it Envoy answers 413.
                          request_body_buffer_limit: {{ int64 .Values.standalone.requestBodyBytesMax }}
                          {{- end }}
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
      # Clients may be too many, or hold too much: probes and statistics are answered then above all.
      bypass_overload_manager: true
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
      per_connection_buffer_limit_bytes: 262144
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
                      address: {{ if $sidecar }}127.0.0.1{{ else }}{{ printf "%s-peers.%s.svc.%s" (include "picker.fullname" .) .Release.Namespace .Values.clusterDomain | quote }}{{ end }}
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
  - {{ .Values.standalone.logLevel | quote }}
  - --disable-hot-restart
ports:
  - {name: http-requests, containerPort: 8080}
  - {name: http-ready, containerPort: 19001}
readinessProbe:
  {{- $ready := dict "httpGet" (dict "path" "/ready" "port" 19001) "periodSeconds" 2 "failureThreshold" 2 }}
  {{- toYaml (mergeOverwrite $ready .Values.standalone.probes.readiness) | nindent 2 }}
livenessProbe:
  {{- $alive := dict "tcpSocket" (dict "port" 19001) "periodSeconds" 10 "failureThreshold" 3 }}
  {{- toYaml (mergeOverwrite $alive .Values.standalone.probes.liveness) | nindent 2 }}
resources:
  {{- toYaml .Values.standalone.resources | nindent 2 }}
securityContext:
  {{- include "picker.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: envoy-config, mountPath: /etc/envoy, readOnly: true}
  - {name: envoy-drain, mountPath: /tmp, readOnly: true}
{{- end -}}

{{/* Beside the Envoy: gets the SIGTERM, and ends when Envoy has finished with its clients. */}}
{{- define "picker.envoyDrainContainer" -}}
name: envoy-drain
image: {{ include "picker.image" (dict "image" .Values.image "tag" .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - drain-envoy
  - --admin=127.0.0.1:19000
  - --pressure-file=/tmp/envoy-pressure
  - --seconds={{ include "picker.drainSeconds" . }}
resources:
  requests: {cpu: 5m, memory: 32Mi}
  limits: {memory: 96Mi}
securityContext:
  {{- include "picker.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: envoy-drain, mountPath: /tmp}
{{- end -}}
