package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestWhatAnotherModuleIsAboutToMakeKeepsItsPlace: a Namespace stays, and so does the definition of a kind, when its module lets it go
// and another one lists something in it, or of it, that is not there yet, as where a cluster was away and is told of both at once.
func TestWhatAnotherModuleIsAboutToMakeKeepsItsPlace(t *testing.T) {
	const late = "/late"
	for name, tc := range map[string]struct {
		place, object, apiVersion, resource, placed string
	}{
		"a namespace": {"apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-n}\n",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, namespace: $NS-n}\n", "v1", "namespaces", "$NS-n"},
		"a definition": {thing("Namespaced"),
			"apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: late, namespace: $NS}\n", "apiextensions.k8s.io/v1", "customresourcedefinitions", "things.$NS.example.com"},
	} {
		for _, how := range []string{"its module is deleted", "a revision drops it"} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRig(t)
				place := func() *metav1.ObjectMeta {
					u, err := r.res(tc.apiVersion, tc.resource, "").Get(context.Background(), strings.ReplaceAll(tc.placed, "$NS", r.ns), metav1.GetOptions{})
					if err != nil {
						return nil
					}
					return &metav1.ObjectMeta{UID: u.GetUID(), DeletionTimestamp: u.GetDeletionTimestamp()}
				}
				base := r.bundle("base", nil, tc.place, configMap("a", "k: v"))
				r.set([]fleet.Sync{base})
				r.ready(base)
				before := place()
				var open atomic.Bool
				r.count.upset(func(req *http.Request) error {
					if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, late) && !open.Load() {
						return errors.New("the API server is slow")
					}
					return nil
				})
				app := r.bundle("app", nil, tc.object)
				if how == "its module is deleted" {
					r.set([]fleet.Sync{app}, r.tombstone("base", fleet.DeleteDelete))
					r.wait("base", "removed", isRemoved)
				} else {
					next := r.bundle("base", nil, configMap("a", "k: v"))
					r.set([]fleet.Sync{app, next})
					r.wait("base", "kept", func(x fleet.SyncStatus) bool {
						return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && (len(x.Extras) == 0 || x.Extras[0].Reason == plan.ReasonNotEmpty || x.Extras[0].Reason == plan.ReasonInUse)
					})
				}
				if now := place(); now == nil || now.UID != before.UID || now.DeletionTimestamp != nil {
					t.Fatalf("it was deleted: %+v", now)
				}
				open.Store(true)
				r.ready(app)
				if how == "its module is deleted" {
					r.set(nil, r.tombstone("app", fleet.DeleteDelete))
					r.wait("app", "removed", isRemoved)
					return
				}
				r.set([]fleet.Sync{r.again(r.bundle("base", nil, configMap("a", "k: v")))}, r.tombstone("app", fleet.DeleteDelete))
				r.wait("app", "removed", isRemoved)
				r.eventually("it goes when nobody lists anything there", func() bool { return place() == nil })
			})
		}
	}
}

// TestWhatAModuleMayNotMakeNowKeepsItsPlace: the same where the other module is held, or the cluster's policy denies what it is to make.
func TestWhatAModuleMayNotMakeNowKeepsItsPlace(t *testing.T) {
	place := func(r *rig, resource, name string) *unstructured.Unstructured {
		u, err := r.res(map[bool]string{true: "v1", false: "apiextensions.k8s.io/v1"}[resource == "namespaces"], resource, "").Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return u
	}
	for name, tc := range map[string]struct {
		crd, denied, object, waits bool // object: not the module is held, but the single one; waits: for another module, too
	}{
		"a namespace, by a hold":                         {},
		"a namespace, by a hold of the object":           {object: true},
		"a namespace, by a hold before its turn":         {waits: true},
		"a namespace, by the cluster's policy":           {denied: true},
		"a namespace, by the policy and before its turn": {denied: true, waits: true},
		"a definition, by a hold":                        {crd: true},
		"a definition, by the cluster's policy":          {crd: true, denied: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			brings, resource, placed := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-n}\n", "namespaces", r.ns+"-n"
			late, id := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, namespace: $NS-n}\n", fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns + "-n", Name: "late"}
			if tc.crd {
				brings, resource, placed = thing("Namespaced"), "customresourcedefinitions", "things."+r.ns+".example.com"
				late = "apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: late, namespace: $NS}\n"
			}
			base := r.bundle("base", nil, brings, configMap("a", "k: v"))
			r.set([]fleet.Sync{base})
			r.ready(base)
			before := place(r, resource, placed)
			app, others := r.bundle("app", nil, late), []fleet.Sync(nil)
			stopped := func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld }
			switch {
			case tc.denied:
				r.accept("maxObjects: 0\nallow: {deleteNamespaces: true, deleteCRDs: true}\n")
				stopped = func(x fleet.SyncStatus) bool { return strings.Contains(fmt.Sprint(x.Exceptions), plan.ReasonDenied) }
			case tc.object:
				app.Held = assemble.HeldKeys([]fleet.ObjectID{id})
				stopped = func(x fleet.SyncStatus) bool { return x.Reason == plan.ReasonHeld }
			default:
				app.Hold = true
			}
			if tc.waits {
				app.DependsOn = moduleOf("db")
				others = []fleet.Sync{r.bundle("db", nil, deployment("db", 1))}
				others[0].Hold = true
			}
			next := r.bundle("base", nil, configMap("a", "k: v"))
			r.set(append(others, app, next))
			r.wait("app", "stopped", stopped)
			r.wait("base", "kept", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && (len(x.Extras) == 0 || x.Extras[0].Reason == plan.ReasonNotEmpty || x.Extras[0].Reason == plan.ReasonInUse)
			})
			if now := place(r, resource, placed); now == nil || now.GetUID() != before.GetUID() || now.GetDeletionTimestamp() != nil {
				t.Fatalf("it was deleted: %+v", now)
			}
			r.set([]fleet.Sync{r.again(next)}, r.tombstone("app", fleet.DeleteDelete))
			r.wait("app", "removed", isRemoved)
			r.accept("")
			r.eventually("it goes when nobody lists anything there", func() bool { return place(r, resource, placed) == nil })
		})
	}
}
