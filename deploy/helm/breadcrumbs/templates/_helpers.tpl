{{- define "breadcrumbs.name" -}}
{{- .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "breadcrumbs.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "breadcrumbs.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: {{ include "breadcrumbs.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Labels that select the pods of a component. Arguments: root, component. */}}
{{- define "breadcrumbs.selector" -}}
app.kubernetes.io/name: {{ include "breadcrumbs.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "breadcrumbs.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "breadcrumbs.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Seconds after which a frozen worker loses its lanes, with the default of the product. */}}
{{- define "breadcrumbs.leaseSeconds" -}}
{{- dig "lease_seconds" 6 .Values.settings -}}
{{- end -}}

{{/* Fails if a worker would be killed before it has drained. Arguments: root, name, seconds. */}}
{{- define "breadcrumbs.checkGracePeriod" -}}
{{- $needed := add1 (ceil (include "breadcrumbs.leaseSeconds" .root | float64)) -}}
{{- if le (int .seconds) (int $needed) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d: use more than %d, because a worker drains for up to lease_seconds + 1 seconds" .name (int .seconds) (int $needed)) -}}
{{- end -}}
{{- end -}}

{{/* The pod template of a role. Arguments: root, component, values, args, port, keys (whether the pod gets API keys). */}}
{{- define "breadcrumbs.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "breadcrumbs.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  annotations:
    # A change of the settings starts new pods.
    checksum/config: {{ include (print $root.Template.BasePath "/configmap.yaml") $root | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "breadcrumbs.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # SIGTERM drains the process.
  terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: "{{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}"
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        {{- toYaml .args | nindent 8 }}
      env:
        - name: CRUMB_CONFIG
          value: /etc/breadcrumbs/crumb.toml
        - name: CRUMB_LOG_FORMAT
          value: json
        - name: CRUMB_REDIS
          {{- if $root.Values.redis.existingSecret }}
          valueFrom:
            secretKeyRef:
              name: {{ $root.Values.redis.existingSecret }}
              key: {{ $root.Values.redis.existingSecretKey }}
          {{- else }}
          value: {{ required "set redis.existingSecret, or redis.url for a server without a password" $root.Values.redis.url | quote }}
          {{- end }}
        {{- if .keys }}
        - name: CRUMB_API_KEYS
          valueFrom:
            secretKeyRef:
              name: {{ required "set apiKeys.existingSecret to a Secret with API keys, see docs/operations.md" $root.Values.apiKeys.existingSecret }}
              key: {{ $root.Values.apiKeys.existingSecretKey }}
        {{- end }}
        {{- if eq .portName "metrics" }}
        - name: CRUMB_METRICS_HOST
          value: 0.0.0.0
        - name: CRUMB_METRICS_PORT
          value: {{ .port | quote }}
        - name: CRUMB_WORKER_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- end }}
        {{- if $root.Values.contextConfig }}
        - name: CRUMB_CONTEXT_CONFIG
          value: /etc/breadcrumbs/context-builder-config.json
        {{- end }}
        {{- if $root.Values.agents }}
        - name: CRUMB_AGENTS
          value: /etc/breadcrumbs-agents
        {{- end }}
        {{- with .values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: {{ .portName }}
          containerPort: {{ .port }}
      # The process has started when it answers /health. Opening a large store can take a while.
      startupProbe:
        httpGet: { path: /health, port: {{ .portName }} }
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: { path: /health, port: {{ .portName }} }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: { path: /ready, port: {{ .portName }} }
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- with .values.preStopSeconds }}
      lifecycle:
        preStop:
          exec:
            command: ["sleep", "{{ . }}"]
      {{- end }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: config
          mountPath: /etc/breadcrumbs
          readOnly: true
        {{- if $root.Values.agents }}
        - name: agents
          mountPath: /etc/breadcrumbs-agents
          readOnly: true
        {{- end }}
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: config
      configMap:
        name: {{ include "breadcrumbs.fullname" $root }}
    {{- if $root.Values.agents }}
    - name: agents
      configMap:
        name: {{ include "breadcrumbs.fullname" $root }}-agents
    {{- end }}
    - name: tmp
      emptyDir:
        medium: Memory
        sizeLimit: 64Mi
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .values.affinity }}
  affinity:
    {{- toYaml .values.affinity | nindent 4 }}
  {{- else }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "breadcrumbs.selector" (dict "root" $root "component" .component) | nindent 10 }}
  {{- end }}
{{- end -}}

{{/* Deployment, PodDisruptionBudget and ScaledObject of a worker. Arguments: root, component, values, args, kind, path. */}}
{{- define "breadcrumbs.worker" -}}
{{- include "breadcrumbs.checkGracePeriod" (dict "root" .root "name" .path "seconds" .values.terminationGracePeriodSeconds) -}}
{{- $name := printf "%s-%s" (include "breadcrumbs.fullname" .root) .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "breadcrumbs.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- if not .values.autoscaling.enabled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  selector:
    matchLabels:
      {{- include "breadcrumbs.selector" (dict "root" .root "component" .component) | nindent 6 }}
  template:
    {{- include "breadcrumbs.podTemplate" (dict "root" .root "component" .component "values" .values "args" .args "portName" "metrics" "port" .root.Values.metricsPort "keys" false) | nindent 4 }}
{{- if .values.podDisruptionBudget.enabled }}
---
{{ include "breadcrumbs.podDisruptionBudget" . }}
{{- end }}
{{- if .values.autoscaling.enabled }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $name }}
  labels:
    {{- include "breadcrumbs.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  scaleTargetRef:
    name: {{ $name }}
  pollingInterval: {{ .root.Values.autoscaling.pollingInterval }}
  cooldownPeriod: {{ .root.Values.autoscaling.cooldownPeriod }}
  minReplicaCount: {{ .values.autoscaling.minReplicas }}
  maxReplicaCount: {{ .values.autoscaling.maxReplicas }}
  # Without Prometheus, keep the configured number.
  fallback:
    failureThreshold: 3
    replicas: {{ .values.replicas }}
  triggers:
    - type: prometheus
      metadata:
        serverAddress: {{ .root.Values.autoscaling.prometheusAddress }}
        # The lag is equal in all API processes.
        query: max(breadcrumbs_worker_lag_events{kind={{ .kind | quote }}, namespace={{ .root.Release.Namespace | quote }}})
        threshold: {{ .values.autoscaling.lagEvents | quote }}
{{- end }}
{{- end -}}

{{/* Arguments: root, component, values. */}}
{{- define "breadcrumbs.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "breadcrumbs.fullname" .root }}-{{ .component }}
  labels:
    {{- include "breadcrumbs.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "breadcrumbs.selector" (dict "root" .root "component" .component) | nindent 6 }}
{{- end -}}
