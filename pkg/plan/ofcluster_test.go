package plan

import (
	"maps"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What the API server makes when it starts is let go, whatever a module took and whatever policies say of its kind.
func TestWhatTheClusterNeedsIsLetGo(t *testing.T) {
	if project := (fleet.ObjectID{Group: "project.openshift.io", Kind: "Project", Name: "default"}); !input().Releases(owned(project)) {
		t.Error("the Project by which a Namespace of the cluster goes is deleted")
	}
	for id, want := range map[fleet.ObjectID]bool{
		{Kind: "Service", Namespace: "default", Name: "kubernetes"}:                                  true,
		{Group: "networking.k8s.io", Kind: "ServiceCIDR", Name: "kubernetes"}:                        true,
		{Kind: "Service", Namespace: "shop", Name: "kubernetes"}:                                     false,
		{Group: "serving.knative.dev", Kind: "Service", Namespace: "default", Name: "kubernetes"}:    false,
		{Group: "networking.k8s.io", Kind: "ServiceCIDR", Name: "more"}:                              false,
		{Kind: "Endpoints", Namespace: "default", Name: "kubernetes"}:                                true,
		{Group: "discovery.k8s.io", Kind: "EndpointSlice", Namespace: "default", Name: "kubernetes"}: true,
		{Kind: "ConfigMap", Namespace: "kube-system", Name: "extension-apiserver-authentication"}:    true,
		{Kind: "ConfigMap", Namespace: "shop", Name: "extension-apiserver-authentication"}:           false,
		{Group: "scheduling.k8s.io", Kind: "PriorityClass", Name: "system-node-critical"}:            true,
		{Group: "scheduling.k8s.io", Kind: "PriorityClass", Name: "shop"}:                            false,
	} {
		if got := input().Releases(owned(id)); got != want {
			t.Errorf("%s is let go: %t, want %t", id, got, want)
		}
	}
	lease := fleet.ObjectID{Kind: "Namespace", Name: "kube-node-lease"}
	named := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Namespace"}}, Prune: fleet.PruneOnUpdate, Delete: fleet.DeleteDelete}}
	for _, removed := range []bool{false, true} {
		in := input()
		in.Records[1].ID, in.Policies, in.Tombstone, in.Policy = lease, named, removed, fleet.DeleteDelete
		in.Records[1].Named = true
		if out := Prune(in); len(out.Release) == 0 || out.Release[len(out.Release)-1].ID != lease {
			t.Errorf("removed %t: %+v", removed, out)
		}
	}
	if !Survives(named, lease, nil) {
		t.Error("is counted as one that goes")
	}

	boot := map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults", fleet.HubLabel: "h"}
	role := owned(fleet.ObjectID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "view"})
	seen := Seen{Found: true, UID: role.UID, Labels: boot, Listed: map[string]bool{"kubernetes.io/bootstrapping": true}, Proof: Proof{Applied: true, Marked: true},
		Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", role.ID)}}
	for name, tc := range map[string]struct {
		keepers string
		want    Verdict
	}{
		"was there before": {Keepers(Existing{Labels: boot}), Release},
		"the module made":  {"", Delete},
	} {
		r := role
		r.Keepers = tc.keepers
		if got, _ := Verify(input(), r, seen, shopHere); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// What carries a mark of the API server is not taken for being equal, and let go after it was taken.
func TestWhatTheServerKeepsIsLetGo(t *testing.T) {
	for key, value := range map[string]string{"kube-aggregator.kubernetes.io/automanaged": "onstart", "apf.kubernetes.io/autoupdate-spec": "true",
		"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "apiserver.kubernetes.io/identity": "kube-apiserver"} {
		for _, e := range []Existing{{Labels: map[string]string{key: value}}, {Annotations: map[string]string{key: value}}} {
			id := fleet.ObjectID{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema", Name: "probes"}
			if got := Adopt(shopHere, id, e, nil, fleet.Policy{Adopt: fleet.AdoptIfNoDiff}); got.Verdict != AdoptRefuse {
				t.Errorf("%s: %+v", key, got)
			}
			r := owned(id)
			seen := Seen{Found: true, UID: r.UID, Labels: map[string]string{fleet.HubLabel: "h"}, Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", id)},
				Listed: map[string]bool{key: true}, Proof: Proof{Applied: true, Marked: true}}
			maps.Copy(seen.Labels, e.Labels)
			maps.Copy(seen.Annotations, e.Annotations)
			for _, keepers := range []string{Keepers(e), ""} { // an agent that did not know the mark, or that lost its records, noted none
				r.Keepers = keepers
				if got, _ := Verify(input(), r, seen, shopHere); got != Release {
					t.Errorf("%s, with keepers %q: %v", key, keepers, got)
				}
			}
		}
	}
	theirs := Existing{Annotations: map[string]string{"apf.kubernetes.io/autoupdate-spec": "false"}}
	if got := Adopt(shopHere, fleet.ObjectID{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema", Name: "probes"}, theirs, nil, fleet.Policy{Adopt: fleet.AdoptIfNoDiff}); got.Verdict != AdoptIfEqual {
		t.Errorf("what somebody took from the API server: %+v", got)
	}
}

// What a module wrote into a Namespace that it only uses goes with it, also into one of the cluster's.
func TestUseOfANamespaceOfTheClusterEnds(t *testing.T) {
	in := input()
	in.Tombstone, in.Policy = true, fleet.DeleteDelete
	r := owned(fleet.ObjectID{Kind: "Namespace", Name: "kube-system"})
	r.State = Used
	if in.Leaves(r, nil) {
		t.Error("the labels stay")
	}
	r.Delete = fleet.DeleteOrphan
	if !in.Leaves(r, nil) {
		t.Error("the labels go, though the module is orphaned")
	}
}
