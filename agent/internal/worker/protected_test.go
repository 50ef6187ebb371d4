package worker

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// TestOwnObjectsAreProtected: whatever the hub says, the agent writes nothing that is its own, nor grants itself
// anything; the rest of the module is applied.
func TestOwnObjectsAreProtected(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.home = r.ns
	r.start()
	t.Cleanup(func() {
		for _, x := range []string{"clusterroles", "clusterrolebindings"} {
			_ = r.res("rbac.authorization.k8s.io/v1", x, "").Delete(context.Background(), "grant-"+r.ns, metav1.DeleteOptions{})
			_ = r.res("rbac.authorization.k8s.io/v1", x, "").Delete(context.Background(), fleet.AgentName, metav1.DeleteOptions{})
		}
		_ = r.res("v1", "configmaps", "kube-system").Delete(context.Background(), "cm-"+r.ns, metav1.DeleteOptions{})
	})
	const group = "apiVersion: rbac.authorization.k8s.io/v1\n"
	s := r.bundle("shop", nil,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm-$NS, namespace: kube-system}\n",
		configMap("inside", "k: v"),
		"apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: towline-agent, namespace: $NS}\nspec: {holderIdentity: me}\n",
		group+"kind: ClusterRole\nmetadata: {name: towline-agent}\nrules: []\n",
		group+"kind: ClusterRole\nmetadata: {name: grant-$NS}\nrules: []\n",
		group+"kind: ClusterRoleBinding\nmetadata: {name: grant-$NS}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n"+
			"subjects: [{kind: ServiceAccount, name: towline-agent, namespace: $NS}]\n")
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 4 })
	for _, e := range status.Exceptions {
		if e.Reason != "Protected" || !strings.Contains(e.Message, "agent") {
			t.Errorf("exception %+v", e)
		}
	}
	if _, err := r.res("v1", "configmaps", "kube-system").Get(context.Background(), "cm-"+r.ns, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := r.res("rbac.authorization.k8s.io/v1", "clusterroles", "").Get(context.Background(), "grant-"+r.ns, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	_, paths := r.count.take()
	for _, p := range paths {
		own := strings.HasSuffix(p, "/inside") || strings.HasSuffix(p, "/leases/towline-agent") || strings.HasSuffix(p, "/towline-agent") ||
			strings.HasSuffix(p, "/clusterrolebindings/grant-"+r.ns)
		if own && !strings.HasPrefix(p, "GET") && !strings.HasPrefix(p, "WATCH") {
			t.Errorf("written: %s", p)
		}
	}
}

// TestOwnObjectsAreNotDeleted: what became the agent's own after a module had made it stays when the module goes.
func TestOwnObjectsAreNotDeleted(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.home = r.ns
	r.start()
	r.count.take()
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.data("a", "k") != "v" || r.data("b", "k") != "v" {
		t.Error("the agent's own objects went with the module")
	}
	if counts, paths := r.count.take(); counts["DELETE"]+counts["PATCH"] > 0 || slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, "POST") }) {
		t.Errorf("written: %v", paths)
	}
}
