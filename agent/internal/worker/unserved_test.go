package worker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// One of a cluster's API servers does not serve a kind that another one does, as in the middle of an upgrade: the objects are
// in the store all the same.
func TestKindThatOneAPIServerDoesNotServe(t *testing.T) {
	for name, lost := range map[string]bool{"known": false, "found": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a, namespace: $NS}
spec: {maxUnavailable: 1, selector: {matchLabels: {a: b}}}
`, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if lost {
				r.loseState()
				r.eventually("what is there was found, and the next start does not search", func() bool {
					_, err := r.store.Read(t.Context(), findName)
					return r.m.searching() == "" && err != nil
				})
			}
			r.stop()
			r.count.upset(func(q *http.Request) error {
				if q.URL.Path == "/apis" { // which it lists no more than it knows it
					return inPlace{http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`}
				}
				q.URL.Path = strings.Replace(q.URL.Path, "/apis/policy", "/apis/unserved", 1)
				return nil
			})
			r.start()
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "removed, or waiting for the kind", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "does not serve PodDisruptionBudget now")
			})
			if x.Phase == fleet.PhaseRemoved {
				t.Error("the module is called removed, and its object is there")
			}
			r.count.upset(nil)
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("policy/v1", "poddisruptionbudgets", "a") != nil {
				t.Error("the module is called removed, and its object is there")
			}
		})
	}
}

func TestUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u unserved
		kind := schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}
		for _, step := range []struct {
			gone bool
			away time.Duration
		}{{true, 0}, {true, time.Minute}, {false, 0}, {true, 0}, {true, time.Minute}} {
			if away := u.note(kind, step.gone); away != step.away {
				t.Errorf("%+v: away for %s", step, away)
			}
			pass(time.Minute)
		}
	})
}

// Of a kind that is gone, some objects may be there and others not.
func TestOutlivesItsKind(t *testing.T) {
	budget := fleet.ObjectID{Group: "policy", Kind: "PodDisruptionBudget", Namespace: "a", Name: "a"}
	thing := fleet.ObjectID{Group: "example.com", Kind: "Thing", Namespace: "a", Name: "a"}
	for _, tc := range []struct {
		name   string
		record plan.Record
		away   time.Duration
		there  bool
	}{
		{"written", plan.Record{ID: budget, State: plan.Owned}, 0, true},
		{"written, long ago", plan.Record{ID: budget, State: plan.Owned}, unservedFor, false},
		{"found", plan.Record{ID: budget, State: plan.Intent, Found: true}, 0, true},
		{"to be written", plan.Record{ID: budget, State: plan.Intent}, 0, false},
		{"custom", plan.Record{ID: thing, State: plan.Owned}, 0, false},
		{"of an API server of its own", plan.Record{ID: thing, State: plan.Owned, Aggregated: true}, unservedFor, true},
	} {
		if why := outlivesItsKind(located{gone: true, away: tc.away}, tc.record); (why != "") != tc.there {
			t.Errorf("%s: %q", tc.name, why)
		}
	}
}

// What somebody else has in a Namespace keeps it, also where the list of the kind is answered by another of the cluster's API servers, which does not
// serve it: in an upgrade, or when it starts and has not read yet who serves the API.
func TestListOfOneAPIServerDoesNotEmptyANamespace(t *testing.T) {
	for name, of := range map[string]func(r *rig) (group, resource string, object map[string]any){
		"built in": func(*rig) (string, string, map[string]any) {
			return "policy", "poddisruptionbudgets", map[string]any{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": "hers"},
				"spec": map[string]any{"maxUnavailable": int64(1)}}
		},
		"of an API server of its own": func(r *rig) (string, string, map[string]any) {
			a := r.aggregated("Widget")
			return a.group, "widgets", map[string]any{"apiVersion": a.gv(), "kind": "Widget", "metadata": map[string]any{"name": "hers"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			group, resource, object := of(r)
			s := r.bundle("shop", nil, ownNamespace)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.create(group+"/v1", resource, r.ns+"-own", object)
			t.Cleanup(func() {
				_ = r.res("v1", "namespaces", "").Delete(context.Background(), r.ns+"-own", metav1.DeleteOptions{})
			})
			var begun atomic.Bool
			r.count.upset(func(q *http.Request) error {
				switch {
				case q.URL.Path == "/apis/"+group+"/v1/namespaces/"+r.ns+"-own/"+resource:
					begun.Store(true)
				case !begun.Load() || q.URL.Path != "/apis" && !strings.HasPrefix(q.URL.Path, "/apis/"+group):
					return nil
				case q.URL.Path == "/apis":
					return inPlace{http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`}
				}
				return inPlace{http.StatusNotFound, "404 page not found\n"}
			})
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "told", func(x fleet.SyncStatus) bool {
				return begun.Load() && (x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && (x.Extras[0].Reason == plan.ReasonTerminating || strings.Contains(x.Extras[0].Message, group)))
			})
			r.count.upset(nil)
			x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if ns := r.namespace(r.ns + "-own"); ns == nil || ns.GetDeletionTimestamp() != nil || !strings.Contains(x.Message, " hers") {
				t.Errorf("the namespace went with what somebody else has in it: %+v", x)
			}
		})
	}
}
