package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestNamespaceWithForeignContentsOutlivesItsOwner: an operator makes something cluster-scoped the owner of a Namespace, as Capsule does with
// its Tenant. A module that lists both drops both, or goes, the owner first: the Namespace goes along only if all that is in it goes.
func TestNamespaceWithForeignContentsOutlivesItsOwner(t *testing.T) {
	const rbac = "rbac.authorization.k8s.io/v1"
	for name, tc := range map[string]struct {
		foreign, removed bool
		guest            string // what becomes of what another module has there, whose removal is held
		taken            bool   // somebody's release has come to have what the module has there
	}{
		"it is empty": {}, "foreign contents": {foreign: true}, "foreign contents, and the module goes": {foreign: true, removed: true},
		"a removal on hold that leaves": {guest: fleet.DeleteOrphan}, "a removal on hold that deletes": {guest: fleet.DeleteDelete},
		"what a release has come to have": {taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			name := r.ns + "-oil"
			ours := strings.ReplaceAll(configMap("ours", "k: v"), "namespace: $NS", "namespace: $NS-oil")
			s := r.bundle("shop", nil, "apiVersion: "+rbac+"\nkind: ClusterRole\nmetadata: {name: $NS-oil, annotations: {"+fleet.WaveAnnotation+": '1'}}\nrules: []\n",
				"apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-oil}\n", ours, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			t.Cleanup(func() { _ = r.res("v1", "namespaces", "").Delete(context.Background(), name, metav1.DeleteOptions{}) })
			held := r.tombstone("guest", tc.guest)
			held.Hold = true
			theirs := "theirs"
			if tc.taken {
				theirs = "ours"
				r.takenByHelm(name, theirs)
			}
			if tc.guest != "" {
				guest := r.bundle("guest", nil, strings.Replace(ours, "name: ours", "name: theirs", 1))
				r.set([]fleet.Sync{s, guest})
				r.ready(guest)
				r.set([]fleet.Sync{s}, held)
			}
			if tc.foreign {
				r.create("v1", "configmaps", name, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "theirs", "namespace": name}})
			}
			owner, err := r.res(rbac, "clusterroles", "").Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			body := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"ClusterRole","name":%q,"uid":%q,"controller":true}]}}`, rbac, name, owner.GetUID())
			if _, err := r.res("v1", "namespaces", "").Patch(context.Background(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "capsule"}); err != nil {
				t.Fatal(err)
			}
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			switch next := r.bundle("shop", nil, configMap("a", "k: v")); {
			case tc.removed:
				r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			case tc.guest != "":
				r.set([]fleet.Sync{next}, held)
			default:
				r.set([]fleet.Sync{next})
			}
			r.eventually("the owner is gone", func() bool { return !r.exists(rbac, "clusterroles", "", name) })
			stays := func() bool {
				ns, err := r.res("v1", "namespaces", "").Get(context.Background(), name, metav1.GetOptions{})
				return err == nil && ns.GetDeletionTimestamp() == nil
			}
			if !tc.foreign && !tc.taken && tc.guest == "" {
				r.eventually("the namespace goes along", func() bool { return !stays() })
				return
			}
			r.collected()
			if !stays() || !r.exists("v1", "configmaps", name, theirs) {
				t.Error("the namespace went with its owner, and with it what is not the module's")
			}
		})
	}
}

// takenByHelm puts the marks of a release on a ConfigMap.
func (r *rig) takenByHelm(namespace, name string) {
	r.t.Helper()
	const marks = `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"x","meta.helm.sh/release-namespace":"x"}}}`
	if _, err := r.res("v1", "configmaps", namespace).Patch(context.Background(), name, types.MergePatchType, []byte(marks), metav1.PatchOptions{FieldManager: "helm"}); err != nil {
		r.t.Fatal(err)
	}
}

// TestWhatGoesItselfHoldsUpNothing: the owner of what a policy by labels may keep cannot be read. The policy does not keep this one, which
// goes itself: nobody has to know with what else it would go. One that it keeps holds up what may be the owner of its owner.
func TestWhatGoesItselfHoldsUpNothing(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("kept %t", kept), func(t *testing.T) {
			r := newRig(t)
			policies := keptBy(fleet.Policy{Prune: fleet.PruneNever})
			first := strings.Replace(configMap("first", "k: v"), "namespace: $NS", "namespace: $NS, annotations: {"+fleet.WaveAnnotation+": '1'}", 1)
			s := r.bundle("shop", policies, configMap("a", "k: v"), first, certificate("b2xk"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if kept {
				r.patch("v1", "secrets", "s", "ana", `{"metadata":{"labels":{"keep":"yes"}}}`)
			}
			r.createAs("operator", "v1", "configmaps", r.ns, r.configMapObject("middle", nil, map[string]any{"k": "v"}))
			r.ownedBy("secrets", "s", "middle")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps/middle") {
					return errors.New("not now")
				}
				return nil
			})
			next := r.bundle("shop", policies, configMap("a", "k: v"))
			r.set([]fleet.Sync{next})
			r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
				held := strings.Contains(fmt.Sprint(x.Extras), "cannot be seen whether Secret s would go with it")
				return x.Generation == next.Generation && (held || x.Ready && len(x.Extras) == 0)
			})
			if gone := r.get("v1", "configmaps", "first") == nil; gone == kept {
				t.Errorf("what goes first is gone: %t", gone)
			}
		})
	}
}

// tenants is a cluster-scoped custom kind, as that of Capsule.
const tenants = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: tenants.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Cluster
  names: {kind: Tenant, plural: tenants}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// TestNamespaceGoesAfterItsOwnerAndThatOnesKind: a module brings a kind along, an object of it and a Namespace that this owns, and goes. The
// garbage collector may not come to know the kind before it is gone, and then takes nothing.
func TestNamespaceGoesAfterItsOwnerAndThatOnesKind(t *testing.T) {
	r := newRig(t)
	name := r.ns + "-oil"
	s := r.bundle("shop", nil, tenants, "apiVersion: $NS.example.com/v1\nkind: Tenant\nmetadata: {name: $NS-oil}\n", "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-oil}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	t.Cleanup(func() { _ = r.res("v1", "namespaces", "").Delete(context.Background(), name, metav1.DeleteOptions{}) })
	owner, err := r.res(r.group()+"/v1", "tenants", "").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"Tenant","name":%q,"uid":%q,"controller":true}]}}`, r.group()+"/v1", name, owner.GetUID())
	if _, err := r.res("v1", "namespaces", "").Patch(context.Background(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "capsule"}); err != nil {
		t.Fatal(err)
	}
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	ns, err := r.res("v1", "namespaces", "").Get(context.Background(), name, metav1.GetOptions{})
	if err == nil && ns.GetDeletionTimestamp() == nil {
		t.Errorf("it stays, with labels %v and owners %v", ns.GetLabels(), ns.GetOwnerReferences())
	}
}
