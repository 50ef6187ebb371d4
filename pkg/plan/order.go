// Package plan decides what is to be done in a cluster: from what is wanted, what is recorded as ours and what is live
// it says which object is created, applied, corrected, left alone or deleted, in which order and by which rule. It must
// not read, write or wait.
package plan

import (
	"cmp"

	"towline.dev/towline/pkg/fleet"
)

// Stage is a step of a sync that begins when the one before it is done: namespaces, then CRDs, then each wave in two
// halves, the second of which holds what may stand in the way of all others.
type Stage struct {
	// Class is ClassNamespace, ClassCRD or ClassWave.
	Class int
	// Wave counts only in ClassWave.
	Wave int32
	// Late is the second half of a wave.
	Late bool
}

// Classes of stages, in order.
const (
	ClassNamespace = iota
	ClassCRD
	ClassWave
)

// kindOrder is the order within a wave: what others refer to comes first. Kinds that are not in it come between the
// last rank below and the first above unlisted.
var kindOrder = map[string]int{
	"PriorityClass": 1, "RuntimeClass": 1, "StorageClass": 1, "VolumeSnapshotClass": 1, "IngressClass": 1, "GatewayClass": 1,
	"ResourceQuota": 2, "LimitRange": 2,
	"ServiceAccount": 3,
	"ClusterRole":    4, "Role": 4,
	"ClusterRoleBinding": 5, "RoleBinding": 5,
	"Secret": 6, "ConfigMap": 6,
	"PersistentVolume": 7, "PersistentVolumeClaim": 8,
	"NetworkPolicy": 9,
	"Service":       10, "EndpointSlice": 11, "Endpoints": 11,
	"PodDisruptionBudget": 12,
	"DaemonSet":           20, "Pod": 21, "ReplicationController": 22, "ReplicaSet": 23, "Deployment": 24, "StatefulSet": 25,
	"Job": 26, "CronJob": 27, "HorizontalPodAutoscaler": 28, "Ingress": 29,
	"APIService": 60, "ValidatingAdmissionPolicy": 61, "ValidatingAdmissionPolicyBinding": 62, "MutatingAdmissionPolicy": 61,
	"MutatingAdmissionPolicyBinding": 62, "MutatingWebhookConfiguration": 63, "ValidatingWebhookConfiguration": 64,
}

// customOrder are kinds of kindOrder that CRDs define.
var customOrder = map[string]bool{"VolumeSnapshotClass": true, "GatewayClass": true}

const (
	unlisted  = 40
	lateAfter = 60
)

// grounds are the last ranks of what others find in place when they are made: quotas, limits and accounts; then rights, Secrets, volumes and network
// policies.
var grounds = [...]int{3, 9}

// Ground tells apart what is not sent at the same time within a stage, in order. Kubernetes judges an object by what is there when it is made: a Pod has
// no limits of a LimitRange that comes a moment later, and the token controller deletes the token of a ServiceAccount that is not there.
func Ground(id fleet.ObjectID) int {
	r := rank(id)
	for i, last := range grounds {
		if r <= last {
			return i
		}
	}
	return len(grounds)
}

// IsNamespace reports that the object is a Namespace.
func IsNamespace(id fleet.ObjectID) bool { return id.Group == "" && id.Kind == "Namespace" }

// TakesNamespace reports that a namespace goes with the object, and all that is in it.
func TakesNamespace(id fleet.ObjectID) bool { return fleet.NamespaceOf(id) != "" }

// IsCRD reports that the object defines a kind.
func IsCRD(id fleet.ObjectID) bool {
	return id.Group == "apiextensions.k8s.io" && id.Kind == "CustomResourceDefinition"
}

// StageOf is the stage of an object.
func StageOf(id fleet.ObjectID, wave int32) Stage {
	switch {
	case IsNamespace(id):
		return Stage{Class: ClassNamespace}
	case IsCRD(id):
		return Stage{Class: ClassCRD}
	default:
		return Stage{Class: ClassWave, Wave: wave, Late: rank(id) >= lateAfter}
	}
}

// rank is the place of a kind in a wave. A custom kind may have the name of one of Kubernetes, and is something else.
func rank(id fleet.ObjectID) int {
	r, ok := kindOrder[id.Kind]
	if !ok || IsCustom(id) && !customOrder[id.Kind] {
		return unlisted
	}
	return r
}

// Compare orders stages.
func (s Stage) Compare(b Stage) int {
	late := func(x Stage) int {
		if x.Late {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(s.Class, b.Class), cmp.Compare(s.Wave, b.Wave), cmp.Compare(late(s), late(b)))
}

// CompareApply orders objects for applying: by stage, then kind, then namespace and name.
func CompareApply(a fleet.ObjectID, waveA int32, b fleet.ObjectID, waveB int32) int {
	return cmp.Or(StageOf(a, waveA).Compare(StageOf(b, waveB)), cmp.Compare(rank(a), rank(b)),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
