package manifest

import (
	"maps"
	"strings"
)

type kindKey struct{ group, kind string }

// scopes says of kinds whether they are namespaced.
type scopes map[kindKey]bool

// builtin are the kinds of Kubernetes 1.29 and later: cluster-scoped before the bar, namespaced behind it.
var builtin = readScopes(map[string]string{
	"": "ComponentStatus Namespace Node PersistentVolume | Binding ConfigMap Endpoints Event LimitRange " +
		"PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
	"admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration " +
		"ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration |",
	"apiextensions.k8s.io":         "CustomResourceDefinition |",
	"apiregistration.k8s.io":       "APIService |",
	"apps":                         "| ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
	"autoscaling":                  "| HorizontalPodAutoscaler",
	"batch":                        "| CronJob Job",
	"certificates.k8s.io":          "CertificateSigningRequest ClusterTrustBundle | PodCertificateRequest",
	"coordination.k8s.io":          "| Lease LeaseCandidate",
	"discovery.k8s.io":             "| EndpointSlice",
	"events.k8s.io":                "| Event",
	"flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration |",
	"networking.k8s.io":            "IPAddress IngressClass ServiceCIDR | Ingress NetworkPolicy",
	"node.k8s.io":                  "RuntimeClass |",
	"policy":                       "| PodDisruptionBudget",
	"rbac.authorization.k8s.io":    "ClusterRole ClusterRoleBinding | Role RoleBinding",
	"resource.k8s.io":              "DeviceClass DeviceTaintRule ResourceSlice | ResourceClaim ResourceClaimTemplate",
	"scheduling.k8s.io":            "PriorityClass |",
	"storage.k8s.io":               "CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass | CSIStorageCapacity",
})

func readScopes(table map[string]string) scopes {
	out := scopes{}
	for group, kinds := range table {
		cluster, namespaced, _ := strings.Cut(kinds, "|")
		for _, kind := range strings.Fields(cluster) {
			out[kindKey{group, kind}] = false
		}
		for _, kind := range strings.Fields(namespaced) {
			out[kindKey{group, kind}] = true
		}
	}
	return out
}

// Namespaced says whether a kind of Kubernetes is namespaced; known is false for every other kind.
func Namespaced(group, kind string) (namespaced, known bool) {
	namespaced, known = builtin[kindKey{group, kind}]
	return namespaced, known
}

func newScopes() scopes { return maps.Clone(builtin) }

// learn takes the scope that a CustomResourceDefinition declares.
func (s scopes) learn(obj map[string]any) {
	version, _ := obj["apiVersion"].(string)
	if obj["kind"] != "CustomResourceDefinition" || !strings.HasPrefix(version, "apiextensions.k8s.io/") {
		return
	}
	spec, _ := obj["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	scope, _ := spec["scope"].(string)
	key := kindKey{group, kind}
	if _, known := builtin[key]; known || scope != "Namespaced" && scope != "Cluster" {
		return
	}
	s[key] = scope == "Namespaced"
}

// spelling is the kind of Kubernetes that differs from kind in case only.
func spelling(group, kind string) (string, bool) {
	for key := range builtin {
		if key.group == group && key.kind != kind && strings.EqualFold(key.kind, kind) {
			return key.kind, true
		}
	}
	return "", false
}
