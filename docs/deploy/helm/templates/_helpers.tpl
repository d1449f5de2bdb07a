{{- define "oip-server.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "oip-server.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "oip-server.labels" -}}
{{ include "oip-server.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tensorferry
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* Fails unless models come from exactly one place. */}}
{{- define "oip-server.models" -}}
{{- $places := list }}
{{- if .Values.models.claim }}{{ $places = append $places "claim" }}{{ end }}
{{- if .Values.models.volume }}{{ $places = append $places "volume" }}{{ end }}
{{- if .Values.models.urls }}{{ $places = append $places "urls" }}{{ end }}
{{- if ne (len $places) 1 }}
{{- fail (printf "models: expected exactly one of claim, volume and urls, found %s; for example models.claim=NAME" (join " and " $places | default "none")) }}
{{- end }}
{{- first $places }}
{{- end }}

{{- /* Fails unless the image is named: there is no public one. */}}
{{- define "oip-server.image" -}}
{{- $repository := required "image.repository: no image is named; build one (cargo xtask image), push it to your registry, and set image.repository=REGISTRY/oip-server" .Values.image.repository }}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "oip-server.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .tls }}
  scheme: HTTPS
  {{- end }}
{{- end }}
