{{- define "hangup.fullname" -}}
{{- if contains "hangup" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-hangup" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "hangup.selector" -}}
app.kubernetes.io/name: hangup
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hangup.labels" -}}
{{ include "hangup.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
