{{/* What every pod has. Takes a dict: root, own (its part of the values). */}}
{{- define "headrace.podCommon" -}}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
# A Service named headrace would else set HEADRACE_PORT in every pod, which is an option of ours.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with .own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Pods of one part apart from one another, as far as that can be had. As "headrace.selector". */}}
{{- define "headrace.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "headrace.selector" $ | nindent 8 }}
  {{- end }}
{{- end -}}

{{- define "headrace.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{/* A variable out of the Secret. Takes a dict: root, name, key, and whether it may be missing. */}}
{{- define "headrace.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.existingSecret }}
      key: {{ .key }}
      {{- if .optional }}
      optional: true
      {{- end }}
{{- end -}}

{{- define "headrace.databaseEnv" -}}
{{ include "headrace.secretEnv" (dict "root" . "name" "HEADRACE_DATABASE" "key" .Values.secretKeys.databaseUrl) }}
{{- end -}}

{{/* What everybody who uses the broker is told. */}}
{{- define "headrace.commonEnv" -}}
{{- $keys := .Values.secretKeys -}}
{{ include "headrace.secretEnv" (dict "root" . "name" "HEADRACE_AMQP_URL" "key" $keys.amqpUrl) }}
- name: HEADRACE_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: HEADRACE_LOG_FORMAT
  value: {{ .Values.logFormat }}
{{- if include "headrace.hasBlobs" . }}
- name: HEADRACE_BLOBS
  value: {{ default "/blobs" .Values.blobs.location | quote }}
{{- end }}
{{- if .Values.blobs.location }}
{{ include "headrace.secretEnv" (dict "root" . "name" "AWS_ACCESS_KEY_ID" "key" $keys.awsAccessKeyId "optional" true) }}
{{ include "headrace.secretEnv" (dict "root" . "name" "AWS_SECRET_ACCESS_KEY" "key" $keys.awsSecretAccessKey "optional" true) }}
{{- end }}
{{- with .Values.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Metrics of what serves no HTTP otherwise. */}}
{{- define "headrace.metricsEnv" -}}
- name: HEADRACE_METRICS_PORT
  value: "9100"
- name: HEADRACE_METRICS_HOST
  value: 0.0.0.0
{{- end -}}

{{- define "headrace.blobsMount" -}}
{{- if .Values.blobs.existingClaim }}
- name: blobs
  mountPath: /blobs
{{- end }}
{{- end -}}

{{- define "headrace.blobsVolume" -}}
{{- with .Values.blobs.existingClaim }}
- name: blobs
  persistentVolumeClaim: { claimName: {{ . }} }
{{- end }}
{{- end -}}

{{- define "headrace.configMount" -}}
{{- if .Values.config }}
- name: config
  mountPath: /etc/headrace
  readOnly: true
{{- end }}
{{- end -}}

{{- define "headrace.configVolume" -}}
{{- if .Values.config }}
- name: config
  configMap: { name: {{ include "headrace.fullname" . }}-config }
{{- end }}
{{- end -}}

{{- define "headrace.configEnv" -}}
{{- if .Values.config }}
- name: HEADRACE_CONFIG
  value: /etc/headrace/headrace.yaml
{{- end }}
{{- end -}}

{{/* The file is read at the start, so other pods for another file. Takes a dict: root, own. */}}
{{- define "headrace.podAnnotations" -}}
{{- $found := deepCopy .own.podAnnotations -}}
{{- if .root.Values.config }}
{{- $_ := set $found "checksum/config" (.root.Values.config | toYaml | sha256sum) -}}
{{- end }}
{{- with $found }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
