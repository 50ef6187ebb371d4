package worker

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

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

// A manifest that came out of a cluster lists what the API server makes and keeps, equal: the groups that it serves, its priorities, the
// address of its own Service, by what other API servers know whom to trust. Nothing of that goes with a module, not even taken by force, nor when
// the agent has lost its records of that.
func TestWhatTheServerKeepsStays(t *testing.T) {
	r := newRig(t)
	type object struct {
		apiVersion, resource, namespace, name string
		marked                                bool
	}
	all := []object{{"apiregistration.k8s.io/v1", "apiservices", "", "v1.policy", true}, {"flowcontrol.apiserver.k8s.io/v1", "flowschemas", "", "probes", true},
		{"flowcontrol.apiserver.k8s.io/v1", "prioritylevelconfigurations", "", "workload-low", true}, {"networking.k8s.io/v1", "ipaddresses", "", "10.96.0.1", true},
		{"v1", "configmaps", "kube-system", "extension-apiserver-authentication", false}, {"scheduling.k8s.io/v1", "priorityclasses", "", "system-node-critical", false}}
	uids := map[string]string{}
	look := func(o object) *unstructured.Unstructured {
		u, err := r.res(o.apiVersion, o.resource, o.namespace).Get(context.Background(), o.name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s %s: %v", o.resource, o.name, err)
		}
		return u
	}
	var listed []string
	for _, o := range all {
		u := look(o)
		uids[o.name] = string(u.GetUID())
		meta := map[string]any{"name": o.name}
		for key, m := range map[string]map[string]string{"labels": u.GetLabels(), "annotations": u.GetAnnotations()} {
			if len(m) > 0 {
				meta[key] = m
			}
		}
		if o.namespace != "" {
			meta["namespace"] = o.namespace
		}
		u.Object["metadata"] = meta
		delete(u.Object, "status")
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, string(text))
	}
	s := r.bundle("shop", nil, listed...)
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed })
	for i, o := range all {
		conflict := slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool {
			return strings.Contains(e.Message, o.name+": belongs to the API server")
		})
		if conflict != all[i].marked {
			t.Errorf("%s: in conflict: %t; %+v", o.name, conflict, x.Exceptions)
		}
	}
	for _, lost := range []bool{false, true} {
		s = r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, listed...)
		r.set([]fleet.Sync{s})
		r.ready(s)
		if lost {
			r.lose()
			r.start()
		}
		r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
		r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		for _, o := range all {
			u := look(o)
			if string(u.GetUID()) != uids[o.name] || u.GetDeletionTimestamp() != nil || u.GetLabels()[fleet.HubLabel] != "" {
				t.Errorf("%s %s was deleted, or kept our marks; records lost: %t: %v", o.resource, o.name, lost, u)
			}
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
