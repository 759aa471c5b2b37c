{{- define "kinference.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kinference.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kinference.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kinference.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The Lease by which this release's replicas agree on the one that writes statuses. */}}
{{- define "kinference.leaseName" -}}
{{- printf "%s-control-status" (include "kinference.fullname" .) -}}
{{- end -}}

{{- define "kinference.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kinference.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: control
{{- end -}}

{{- define "kinference.labels" -}}
{{ include "kinference.selectorLabels" . }}
app.kubernetes.io/part-of: kinference
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kinference.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kinference.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kinference.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "kinference.serverSecret" -}}
{{- default (printf "%s-server-tls" (include "kinference.fullname" .)) .Values.tls.server.secretName -}}
{{- end -}}

{{- define "kinference.clientSecret" -}}
{{- default (printf "%s-client-tls" (include "kinference.fullname" .)) .Values.tls.client.secretName -}}
{{- end -}}

{{/* The names that gateways reach the service by, as a JSON list. */}}
{{- define "kinference.dnsNames" -}}
{{- $service := include "kinference.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $names := list $service (printf "%s.%s" $service $namespace) (printf "%s.%s.svc" $service $namespace) (printf "%s.%s.svc.cluster.local" $service $namespace) -}}
{{- concat $names .Values.tls.server.dnsNames | uniq | toJson -}}
{{- end -}}

{{/* Names of which a client's certificate must have one, as a JSON list; empty: any of the authority's will do. */}}
{{- define "kinference.clientNames" -}}
{{- $issued := eq .Values.tls.mode "secret" | ternary list (list "kinference-gateway") -}}
{{- concat $issued .Values.tls.client.names | uniq | toJson -}}
{{- end -}}

{{/* Namespaces in which the client's Secret is made, as a JSON list. */}}
{{- define "kinference.clientNamespaces" -}}
{{- concat (list .Release.Namespace) .Values.tls.client.namespaces | uniq | toJson -}}
{{- end -}}

{{/* What the control service reads. Secrets and ConfigMaps are read where a resource refers to them. */}}
{{- define "kinference.rules" -}}
- apiGroups: [kinference.dev]
  resources: [gatewaybackends, inferencepolicies, inferencepools, inferenceproviders, inferenceworkersets]
  verbs: [get, list, watch]
- apiGroups: [kinference.dev]
  resources:
  - gatewaybackends/status
  - inferencepolicies/status
  - inferencepools/status
  - inferenceproviders/status
  - inferenceworkersets/status
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, configmaps]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  {{- with .Values.rbac.secretNames }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get, list, watch]
{{- end -}}
