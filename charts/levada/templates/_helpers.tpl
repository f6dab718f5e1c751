{{- define "levada.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 54 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, with the chart's name unless it is included already. Short enough for the suffixes. */ -}}
{{- define "levada.fullname" -}}
{{- $name := include "levada.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "levada.operator" -}}
{{- printf "%s-operator" (include "levada.fullname" .) }}
{{- end }}

{{- define "levada.selectorLabels" -}}
app.kubernetes.io/name: {{ include "levada.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "levada.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "levada.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: levada
{{- end }}

{{- define "levada.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "levada.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "levada.operator" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* The restricted Pod Security Standard; the user is the image's, or one that the cluster assigns. */ -}}
{{- define "levada.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.assignedUser }}
runAsUser: 185
runAsGroup: 185
fsGroup: 185
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "levada.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{- /* The operator's rights in a namespace that it serves. No secrets, no exec, no wildcards. */ -}}
{{- define "levada.rules" -}}
- apiGroups: [levada.dev]
  resources: [pipelines]
  verbs: [list, watch, patch]
- apiGroups: [levada.dev]
  resources: [pipelines/status, tablesyncs/status]
  verbs: [patch]
- apiGroups: [levada.dev]
  resources: [tablesyncs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  # The verb create is for dry runs. The rights below let it start pods in any case.
  verbs: [create, list]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list, patch]
- apiGroups: [""]
  resources: [namespaces]
  # Granted to each driver for its own namespace, which it cleans up after.
  verbs: [get]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, create, patch, delete]
{{- if .Values.rbac.executors }}
# RBAC lets a subject grant only rights that it has. Drivers of mode Cluster create their executors' pods.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, deletecollection, get, list, patch, watch]
{{- end }}
{{- end }}

{{- /* Users' rights over Levada's objects. */ -}}
{{- define "levada.viewRules" -}}
- apiGroups: [levada.dev]
  resources: [pipelines, tablesyncs]
  verbs: [get, list, watch]
{{- end }}

{{- define "levada.editRules" -}}
- apiGroups: [levada.dev]
  resources: [pipelines, tablesyncs]
  verbs: [create, update, patch, delete, deletecollection]
{{- end }}
