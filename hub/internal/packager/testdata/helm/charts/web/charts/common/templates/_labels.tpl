{{- define "common.labels" -}}
{{ include "web.labels" . }}
common: "true"
{{- end -}}
