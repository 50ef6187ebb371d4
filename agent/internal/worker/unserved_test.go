package worker

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
				r.eventually("what is there was found", func() bool { return r.m.searching() == "" })
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
