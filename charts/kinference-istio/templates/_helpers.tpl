{{- define "kinference.labels" -}}
app.kubernetes.io/name: kinference-istio
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: kinference
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kinference.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* True when a host is an IP address, so that nothing has to be looked up. */}}
{{- define "kinference.isAddress" -}}
{{- if regexMatch "^[0-9.]+$|:" . }}true{{ end -}}
{{- end -}}

{{/* The control service as gRPC names it. */}}
{{- define "kinference.target" -}}
{{- if contains ":" .Values.control.host }}{{ printf "[%s]:%v" .Values.control.host .Values.control.port }}
{{- else }}{{ printf "%s:%v" .Values.control.host .Values.control.port }}{{ end -}}
{{- end -}}

{{/* Where the patches of the gateway's own listener apply. */}}
{{- define "kinference.listener" -}}
{{- if .Values.gateway.port }}
portNumber: {{ .Values.gateway.port }}
{{- end }}
filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}
{{- end -}}

{{- define "kinference.bufferLimit" -}}
{{ add (int64 .Values.bodyLimitBytes) 1048576 }}
{{- end -}}

{{/* True when Envoy itself reads the module. Others are fetched by the Istio agent, which only looks at extensions. */}}
{{- define "kinference.isLocal" -}}
{{- $given := compact (list .Values.module.image .Values.module.url .Values.module.file) -}}
{{- if ne (len $given) 1 }}{{ fail "give exactly one of module.image, module.url and module.file (set the others to \"\")" }}{{ end -}}
{{- if and .Values.module.url (not .Values.module.sha256) }}{{ fail "module.url needs module.sha256" }}{{ end -}}
{{- if .Values.module.file }}true{{ end -}}
{{- end -}}

{{- define "kinference.code" -}}
{{- if .Values.module.file -}}
local: {filename: {{ .Values.module.file | quote }}}
{{- else -}}
remote:
  http_uri:
    uri: {{ default .Values.module.url .Values.module.image | quote }}
    timeout: 60s
    # The Istio agent fetches it; no cluster is used.
    cluster: _
  {{- with .Values.module.sha256 }}
  sha256: {{ . | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* The filter's typed_config. Takes a dict with root (values and so on), rootId and configuration. */}}
{{- define "kinference.filter" -}}
"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
config:
  name: kinference
  root_id: {{ .rootId }}
  configuration:
    "@type": type.googleapis.com/google.protobuf.StringValue
    value: {{ .configuration | toJson | quote }}
  # Should the filter ever trap, its virtual machine is made anew.
  failure_policy: FAIL_RELOAD
  reload_config: {backoff: {base_interval: 1s}}
  # The filter decides when it has seen the body; without this no body would come while the headers wait.
  allow_on_headers_stop_iteration: true
  vm_config:
    vm_id: kinference
    runtime: envoy.wasm.runtime.v8
    code: {{- include "kinference.code" .root | nindent 6 }}
    {{- with .root.Values.module.imagePullSecret }}
    environment_variables:
      key_values: {ISTIO_META_WASM_IMAGE_PULL_SECRET: {{ printf "%s/%s" $.root.Release.Namespace . | quote }}}
    {{- end }}
{{- end -}}

{{- define "kinference.gatewayFilter" -}}
{{- $backend := printf "%s/%s" .Values.gatewayBackend.namespace .Values.gatewayBackend.name -}}
{{- $configuration := dict "gatewayBackend" $backend "controlCluster" "kinference_control" "failureMode" .Values.module.failureMode -}}
{{- if .Values.providers -}}
{{- $names := list -}}
{{- range .Values.providers }}{{ $names = append $names (include "kinference.providerName" (dict "root" $ "provider" .)) }}{{ end -}}
{{- $configuration = set $configuration "providers" $names -}}
{{- end -}}
{{- include "kinference.filter" (dict "root" . "rootId" "kinference" "configuration" $configuration) -}}
{{- end -}}

{{/* As the control service names it. Takes a dict with root (values) and provider; a GatewayBackend has only providers of
its own namespace. */}}
{{- define "kinference.providerName" -}}
kinference_provider_{{ default .root.Values.gatewayBackend.namespace .provider.namespace }}_{{ .provider.name }}
{{- end -}}

{{/* Envoy's own errors in the form of OpenAI's. What the filter answers carries no such flag and stays as it is. */}}
{{- define "kinference.localReply" -}}
mappers:
- filter:
    response_flag_filter: {flags: [UH, UF, UO, UR, UC, UT, LR, URX, NR, NC, SI, DPE]}
  body_format_override:
    json_format:
      error:
        message: "%LOCAL_REPLY_BODY%"
        type: server_error
        param: null
        code: "%RESPONSE_CODE_DETAILS%"
{{- end -}}
