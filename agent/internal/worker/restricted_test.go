package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

const restrictedForm = "../../../deploy/agent/rbac-restricted.yaml"

// restricted installs the roles of the restricted form under names of the test's own, and has the manager ask as who has them.
func (r *rig) restricted() (user string) {
	r.t.Helper()
	data, err := os.ReadFile(restrictedForm)
	if err != nil {
		r.t.Fatal(err)
	}
	text := strings.NewReplacer("name: towline-agent", "name: ta-"+r.ns, "towline-system", r.ns+"-own").Replace(string(data))
	r.clusterScoped("namespaces", "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n")
	docs := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := docs.Decode(&u.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			r.t.Fatal(err)
		}
		resource := strings.ToLower(u.GetKind()) + "s"
		r.create(u.GetAPIVersion(), resource, u.GetNamespace(), u.Object)
		r.t.Cleanup(func() {
			_ = r.res(u.GetAPIVersion(), resource, u.GetNamespace()).Delete(context.Background(), u.GetName(), metav1.DeleteOptions{})
		})
	}
	user = "system:serviceaccount:" + r.ns + "-own:ta-" + r.ns
	r.create(rbacV1, "rolebindings", r.ns, map[string]any{"apiVersion": rbacV1, "kind": "RoleBinding", "metadata": map[string]any{"name": "agent"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ta-" + r.ns + "-modules"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": r.ns + "-own", "name": "ta-" + r.ns}}})
	r.home = r.ns + "-own"
	r.restart()
	r.count.upset(func(q *http.Request) error {
		q.Header.Set("Impersonate-User", user)
		return nil
	})
	return user
}

// TestRestrictedRightsAreEnough: with the rights of the restricted form an agent applies, corrects, prunes and removes in the
// namespaces that it was bound to, and nothing elsewhere; it cannot write the ConfigMap of the policy, by itself or for a module.
func TestRestrictedRightsAreEnough(t *testing.T) {
	r := newRig(t)
	user := r.restricted()
	objects := []string{configMap("cm", "k: v"), plainSecret("s"), deployment("web", 0)}
	s := r.bundle("shop", nil, append(objects, configMap("dropped", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "cm", "kubectl-edit", `{"data":{"k":"changed"}}`)
	r.eventually("drift is corrected", func() bool { return r.data("cm", "k") == "v" })
	next := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{next})
	r.ready(next)
	r.eventually("what was dropped goes", func() bool { return r.get("v1", "configmaps", "dropped") == nil })

	policy := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: towline-agent-policy, namespace: $NS-own}\n"
	other := r.bundle("other", nil, policy, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: elsewhere-$NS, namespace: default}\n",
		"apiVersion: "+rbacV1+"\nkind: ClusterRole\nmetadata: {name: towline-agent-modules}\n")
	r.set([]fleet.Sync{next, other})
	r.wait("other", "refused", func(x fleet.SyncStatus) bool {
		reasons := map[string]int{}
		for _, e := range x.Exceptions {
			reasons[e.Reason]++
		}
		return reasons[apply.ReasonProtected] == 2 && reasons[apply.ReasonForbidden] == 1
	})
	as := labConfig(t)
	as.Impersonate.UserName = user
	client, err := dynamic.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(gvr("v1", "configmaps")).Namespace(r.home).Patch(context.Background(), "towline-agent-policy", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap"}`), metav1.PatchOptions{FieldManager: "x"})
	if !apierrors.IsForbidden(err) {
		t.Errorf("the account of the agent writes the policy: %v", err)
	}
	if _, err := client.Resource(gvr("coordination.k8s.io/v1", "leases")).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("which other agents live in the cluster cannot be told: %v", err)
	}
	r.set([]fleet.Sync{other}, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}
