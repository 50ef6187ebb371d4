package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/pkg/fleet"
)

// A module that labels a Node has not made it, whatever adoption says: the kubelet did, and what runs there goes with it. Who
// makes Nodes by a module names the kind.
func TestNodeStays(t *testing.T) {
	for _, how := range []string{"prune", "tombstone", "named"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			node := "apiVersion: v1\nkind: Node\nmetadata: {name: n-$NS, labels: {disk: ssd}}\n"
			r.clusterScoped("nodes", node+"spec: {taints: [{key: example.com/nobody, effect: NoExecute}]}\n") // no pod of another test comes to be there
			var policies []fleet.Policy
			if how == "named" {
				policies = []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Node"}}, Prune: fleet.PruneOnUpdate}}
			}
			s := r.bundle("shop", policies, configMap("a", "k: v"), node)
			r.set([]fleet.Sync{s})
			r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
			if how == "prune" {
				s = r.bundle("shop", policies, configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				r.wait("shop", "without it", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && len(x.Extras) == 0 })
			} else {
				r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
			u, err := r.res("v1", "nodes", "").Get(context.Background(), "n-"+r.ns, metav1.GetOptions{})
			switch {
			case (err == nil) != (how != "named"):
				t.Errorf("the node is there: %t", err == nil)
			case err == nil && u.GetLabels()[fleet.HubLabel] != "":
				t.Error("the node still carries the module's mark")
			}
		})
	}
}

// A module may take what the API server made when it started, such as the ClusterRole view, and the Namespaces in which the cluster lives.
// They stay when it goes: the Nodes' Leases are in one of them, and nobody makes a role again before the API server starts anew.
func TestWhatTheClusterNeedsStays(t *testing.T) {
	r := newRig(t)
	role := "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: view-$NS, labels: {kubernetes.io/bootstrapping: rbac-defaults}}\nrules: []\n"
	r.clusterScoped("clusterroles", role)
	s := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, role, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-node-lease, labels: {team: a}}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !strings.Contains(x.Message, "kept: ") {
		t.Errorf("status %+v", x)
	}
	for resource, at := range map[string]dynamic.ResourceInterface{"view-" + r.ns: r.res("rbac.authorization.k8s.io/v1", "clusterroles", ""), "kube-node-lease": r.res("v1", "namespaces", "")} {
		u, err := at.Get(context.Background(), resource, metav1.GetOptions{})
		if err != nil || u.GetDeletionTimestamp() != nil || u.GetLabels()[fleet.HubLabel] != "" {
			t.Errorf("%s: %v, %v", resource, u, err)
		}
	}
}

// What a module wrote into a Namespace of the cluster that it only uses goes when the module does.
func TestLabelsOfAClustersNamespaceGo(t *testing.T) {
	r := newRig(t)
	label := "team-" + r.ns
	s := r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-public, labels: {team-$NS: a}}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	labels := func() map[string]string {
		u, err := r.res("v1", "namespaces", "").Get(context.Background(), "kube-public", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.GetLabels()
	}
	if labels()[label] != "a" {
		t.Fatalf("labels %v", labels())
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if _, there := labels()[label]; there {
		t.Errorf("labels %v", labels())
	}
}
