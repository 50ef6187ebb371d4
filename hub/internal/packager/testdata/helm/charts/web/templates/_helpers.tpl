{{- define "web.labels" -}}
app: web
chart: {{ .Chart.Name }}-{{ .Chart.Version }}
managed-by: {{ .Release.Service }}
{{- end -}}
