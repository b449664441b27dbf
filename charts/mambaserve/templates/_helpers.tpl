{{/* The release's name for objects: at most 50 characters, so that suffixes fit a DNS label. */}}
{{- define "mambaserve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "mambaserve.selector" -}}
app.kubernetes.io/name: mambaserve
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "mambaserve.labels" -}}
{{ include "mambaserve.selector" . }}
{{ include "mambaserve.commonLabels" . }}
{{- end -}}

{{/* Of objects of every component. */}}
{{- define "mambaserve.commonLabels" -}}
app.kubernetes.io/part-of: mambaserve
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Who brought the CRD `crd`, where that was not this release; empty where this release may make it or has made it. */}}
{{- define "mambaserve.crdOfOthers" -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .crd -}}
{{- if $crd -}}
{{- $marks := default dict $crd.metadata.annotations -}}
{{- $name := default "" (get $marks "meta.helm.sh/release-name") -}}
{{- $namespace := default "" (get $marks "meta.helm.sh/release-namespace") -}}
{{- if not $name -}}
no release of Helm
{{- else if not (and (eq $name .root.Release.Name) (eq $namespace .root.Release.Namespace)) -}}
{{- printf "the release %s in %s" $name $namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "mambaserve.externalMetrics" -}}
{{- printf "%s-ext-metrics" (include "mambaserve.fullname" .) -}}
{{- end -}}

{{- define "mambaserve.redisSelector" -}}
app.kubernetes.io/name: mambaserve
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end -}}

{{- define "mambaserve.redisLabels" -}}
{{ include "mambaserve.redisSelector" . }}
{{ include "mambaserve.commonLabels" . }}
{{- end -}}

{{- define "mambaserve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "mambaserve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: with serviceAccount.create=false say which account has the operator's rights; the namespace's default account would give them to every pod" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "mambaserve.image" -}}
{{- include "mambaserve.reference" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{- define "mambaserve.engineImage" -}}
{{- include "mambaserve.reference" (dict "root" . "image" .Values.engineImage) -}}
{{- end -}}

{{/* Of an image's repository, tag and digest; the registry is the part before the first slash. */}}
{{- define "mambaserve.reference" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What the operator does in each namespace it serves. */}}
{{- define "mambaserve.rules" -}}
# The objects it serves: it writes nothing but their status.
- apiGroups: [serving.mambaserve.io]
  resources: [mambadeployments, mambagateways]
  verbs: [get, list, watch]
- apiGroups: [serving.mambaserve.io]
  resources: [mambadeployments/status, mambagateways/status]
  verbs: [patch]
# Owner references that block their deletion need it where the API server checks that.
- apiGroups: [serving.mambaserve.io]
  resources: [mambadeployments/finalizers, mambagateways/finalizers]
  verbs: [update]
# Children. Server-side apply needs create and patch.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [list, watch, create, patch, delete]
# The loader of a model cache.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, patch, delete]
# Downloaded weights outlive a change of mind; they go with their owner, which the cluster sees to.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, create, patch]
# The token of the engines' admin port, one Secret per deployment: made, and never read.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch, delete]
# Where the cluster has the kind, and a deployment asks for one.
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [list, create, patch, delete]
# The same for a gateway of several models.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [list, create, patch, delete]
# What each gateway may do; the operator can grant only what it holds itself.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
# What pods suffer from is told in the status; `patch` marks those that go when there shall be fewer.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Which release serves the namespace, where several were told to: that Lease and no other. `create` cannot be
# bound to a name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [mambaserve-served-by]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
# Events; `get` is for counting up one that was posted before.
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}
