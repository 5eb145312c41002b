{{- define "tensorserve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tensorserve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "tensorserve.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tensorserve.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tensorserve.selector" -}}
app.kubernetes.io/name: {{ include "tensorserve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "tensorserve.labels" -}}
{{ include "tensorserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tensorserve.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository .Values.image.tag -}}
{{- end -}}
{{- end -}}

{{- define "tensorserve.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tensorserve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The settings that follow from other values. */ -}}
{{- define "tensorserve.settings" -}}
host: "0.0.0.0"
http_port: 8500
grpc_port: 8501
shutdown_delay: {{ printf "%vs" .Values.shutdownDelaySeconds }}
shutdown_timeout: {{ printf "%vs" .Values.shutdownTimeoutSeconds }}
model_cache_dir: /cache/models
model_cache_bytes: {{ .Values.cache.modelBytes }}
load_probe_cache: /cache/probes
release_state: /cache/releases
{{- if .Values.gpu.enabled }}
require_gpu: {{ .Values.gpu.required }}
{{- end }}
{{- if .Values.auth.existingSecret }}
auth_file: /etc/tensorserve-auth/auth.toml
{{- end }}
{{- if .Values.tls.existingSecret }}
tls_certificate: /etc/tensorserve-tls/tls.crt
tls_key: /etc/tensorserve-tls/tls.key
{{- end }}
{{- end -}}

{{- /* The configuration file. Whole numbers of values are decimal ones for Helm, so they are printed here. */ -}}
{{- define "tensorserve.toml" -}}
{{- $settings := include "tensorserve.settings" . | fromYaml -}}
{{- range $key := keys $settings -}}
{{- if hasKey $.Values.config $key -}}
{{- fail (printf "config.%s: this setting follows from other values of the chart" $key) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.config "models" -}}
{{- fail "config.models: write the models under `models`" -}}
{{- end -}}
{{- if not .Values.models -}}
{{- fail "models: there is none to serve; name one, as with --set 'models[0].path=s3://BUCKET/MODEL'" -}}
{{- end -}}
{{- range $key, $value := merge $settings .Values.config }}
{{ $key }} = {{ include "tensorserve.toml.value" $value }}
{{- end }}
{{- range .Values.models }}

[[models]]
{{- range $key, $value := . }}
{{ $key }} = {{ include "tensorserve.toml.value" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tensorserve.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ $key | toJson }} = {{ include "tensorserve.toml.value" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "tensorserve.toml.value" $value }}{{ end }}]
{{- else if kindIs "string" . -}}
{{ . | toJson }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}
