package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

const (
	rbacV1   = "rbac.authorization.k8s.io/v1"
	mayAll   = `["*"]`
	agentFor = "agent-"
)

// limited has the manager ask about ConfigMaps as somebody who may do with them what allow says.
func (r *rig) limited() (allow func(verbs string)) {
	r.t.Helper()
	r.clusterScoped("clusterroles", "apiVersion: "+rbacV1+"\nkind: ClusterRole\nmetadata: {name: maps-$NS}\n"+
		`rules: [{apiGroups: [""], resources: [configmaps], verbs: ["*"]}]`)
	r.clusterScoped("clusterrolebindings", "apiVersion: "+rbacV1+"\nkind: ClusterRoleBinding\nmetadata: {name: maps-$NS}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: maps-$NS}\n"+
		"subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "+agentFor+"$NS}]\n")
	as := labConfig(r.t)
	as.Impersonate.UserName = agentFor + r.ns
	client, err := dynamic.NewForConfig(as)
	if err != nil {
		r.t.Fatal(err)
	}
	maps := client.Resource(gvr("v1", "configmaps")).Namespace(r.ns)
	tries := map[string]func() error{
		"list":   func() error { _, err := maps.List(context.Background(), metav1.ListOptions{Limit: 1}); return err },
		"get":    func() error { _, err := maps.Get(context.Background(), "none", metav1.GetOptions{}); return err },
		"delete": func() error { return maps.Delete(context.Background(), "none", metav1.DeleteOptions{}) },
		"patch": func() error {
			_, err := maps.Patch(context.Background(), "none", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return err
		},
	}
	allow = func(verbs string) {
		r.t.Helper()
		_, err := r.res(rbacV1, "clusterroles", "").Patch(context.Background(), "maps-"+r.ns, types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/rules/0/verbs","value":`+verbs+`}]`), metav1.PatchOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		var list []string
		if err := json.Unmarshal([]byte(verbs), &list); err != nil {
			r.t.Fatal(err)
		}
		for verb, try := range tries {
			may := verbs == mayAll || strings.Contains(verbs, `"`+verb+`"`)
			r.eventually("the rights hold", func() bool { return apierrors.IsForbidden(try()) != may })
		}
	}
	allow(mayAll)
	r.restart(func(o *Options) { o.blindAfter = time.Second })
	r.count.upset(func(q *http.Request) error {
		if strings.Contains(q.URL.Path, "/configmaps") {
			q.Header.Set("Impersonate-User", agentFor+r.ns)
		}
		return nil
	})
	return allow
}

// TestRefusedLookSaysWhy: what the API server says where it refuses to have an object read is told: it cannot be of what the object has.
func TestRefusedLookSaysWhy(t *testing.T) {
	r := newRig(t)
	allow := r.limited()
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	allow(`["list", "watch", "patch"]`)
	kind := apply.Resource{GroupVersionResource: gvr("v1", "configmaps"), Kind: "ConfigMap", Namespaced: true}
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}
	_, err := r.m.client.Get(t.Context(), kind, r.ns, "a")
	if f := r.m.workers[s.Module].explain(t.Context(), kind, id, nil, nil, err); f.Reason != apply.ReasonForbidden || !strings.Contains(f.Message, "cannot get resource") {
		t.Errorf("%s: %s", f.Reason, f.Message)
	}
}

// Rights that are taken away in the middle are said where they are missed, and what could not be done is done when they
// are back.
func TestRightsThatAreTakenAway(t *testing.T) {
	r := newRig(t)
	allow := r.limited()
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)

	allow(`["get","list","watch","delete"]`)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"}}`)
	status := r.wait("shop", "told that a drifts, and why", func(x fleet.SyncStatus) bool {
		return x.States[0].Drift == fleet.DriftDrifted && len(x.Exceptions) == 1 && strings.Contains(x.Exceptions[0].Message, "cannot patch")
	})
	if status.Phase != fleet.PhaseApplied || status.States[0].Sync != fleet.SyncOutOfSync || !status.States[2].Fine() {
		t.Errorf("status %+v", status)
	}
	allow(`["list","watch","delete"]`)
	more := r.bundle("shop", nil, configMap("a", "k: w"), configMap("b", "k: v"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\n")
	r.set([]fleet.Sync{more})
	r.wait("shop", "told why a is not written, though it may not be read either", func(x fleet.SyncStatus) bool {
		return x.Generation == more.Generation && len(x.Exceptions) > 0 && strings.Contains(x.Exceptions[0].Message, "cannot patch")
	})
	r.set([]fleet.Sync{r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\n")})
	allow(mayAll)
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 && x.States[0].Fine() })

	allow(`["get","list","watch","create","patch"]`)
	less := r.bundle("shop", nil, configMap("a", "k: v"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\n")
	r.set([]fleet.Sync{less})
	r.wait("shop", "told that b stays, and why", func(x fleet.SyncStatus) bool {
		return x.Generation == less.Generation && len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "cannot delete")
	})
	allow(mayAll)
	r.wait("shop", "b is gone", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 })

	allow(`["get","create","patch","delete"]`)
	r.conns.cut()
	r.wait("shop", "told that nothing is known of a", func(x fleet.SyncStatus) bool {
		return !x.Ready && x.States[0].Sync == fleet.SyncUnknown && x.States[0].Health == fleet.HealthUnknown && x.States[1].Fine() &&
			len(x.Exceptions) == 1 && strings.Contains(x.Exceptions[0].Message, "is forbidden")
	})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers again"}}`)
	allow(mayAll)
	r.wait("shop", "corrected again", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 && r.data("a", "k") == "v" })

	allow(`["list","watch","create","patch","delete"]`)
	r.delete("v1", "configmaps", "a")
	r.wait("shop", "not told as fine", func(x fleet.SyncStatus) bool {
		return !x.Ready && !x.States[0].Fine() && len(x.Exceptions) == 1 && strings.Contains(x.Exceptions[0].Message, "cannot get")
	})
	allow(mayAll)
	r.ready(less)
}
