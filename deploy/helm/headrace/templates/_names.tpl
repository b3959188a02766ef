{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a part. Takes a dict: root, part, and of a worker its name. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- with .worker }}
headrace/worker: {{ . }}
{{- end }}
{{- end -}}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Takes a dict: root, image. */}}
{{- define "headrace.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- define "headrace.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "headrace.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* A worker's entry over the defaults; takes a dict: root, entry. Returns JSON. */}}
{{- define "headrace.worker" -}}
{{- mergeOverwrite (deepCopy .root.Values.workerDefaults) .entry | toJson -}}
{{- end -}}

{{/* The public id of a worker's model, as the worker itself finds it. */}}
{{- define "headrace.servedId" -}}
{{- if .servedId }}{{ .servedId }}
{{- else if or (hasPrefix "/" .model) (hasPrefix "." .model) }}{{ base .model }}
{{- else }}{{ .model }}{{ end -}}
{{- end -}}

{{/* Whether there is anywhere for blobs. */}}
{{- define "headrace.hasBlobs" -}}
{{- if or .Values.blobs.location .Values.blobs.existingClaim }}yes{{ end -}}
{{- end -}}
