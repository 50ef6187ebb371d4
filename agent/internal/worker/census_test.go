package worker

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestGarbage(t *testing.T) {
	owner := func(apiVersion, kind, uid string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, UID: types.UID(uid)}
	}
	c := census{erased: func(uid types.UID) bool { return uid == "erased" },
		namespaced: map[schema.GroupKind]bool{{Group: "apps", Kind: "ReplicaSet"}: true},
		all: map[types.UID]*found{
			"ours":    {ours: true},
			"leaving": {leaving: true},
			"foreign": {},
			"below":   {owners: []metav1.OwnerReference{owner("apps/v1", "Deployment", "ours")}},
			"cycle":   {owners: []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", "cycle")}},
		}}
	for _, tc := range []struct {
		name   string
		owners []metav1.OwnerReference
		is     bool
	}{
		{"of nobody", nil, false},
		{"ours", []metav1.OwnerReference{owner("apps/v1", "Deployment", "ours")}, true},
		{"ours, further up", []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", "below")}, true},
		{"on its way out", []metav1.OwnerReference{owner("apps/v1", "Deployment", "leaving")}, true},
		{"foreign", []metav1.OwnerReference{owner("apps/v1", "Deployment", "foreign")}, false},
		{"one of two is foreign", []metav1.OwnerReference{owner("apps/v1", "Deployment", "ours"), owner("apps/v1", "Deployment", "foreign")}, false},
		{"gone from the namespace", []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", "unknown")}, true},
		{"cluster-scoped", []metav1.OwnerReference{owner("v1", "Node", "unknown")}, false},
		{"cluster-scoped, of a custom kind", []metav1.OwnerReference{owner("example.com/v1", "Composite", "unknown")}, false},
		{"cluster-scoped, deleted by us", []metav1.OwnerReference{owner("example.com/v1", "Composite", "erased")}, true},
		{"owns itself", []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", "cycle")}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := c.isGarbage(&found{owners: tc.owners}, 0); got != tc.is {
				t.Errorf("%t", got)
			}
		})
	}
}
