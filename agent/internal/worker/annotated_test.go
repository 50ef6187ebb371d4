package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// notes sets annotations of a ConfigMap as kubectl annotate does; a value of null takes one away.
func (r *rig) notes(name string, pairs ...string) {
	r.t.Helper()
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		value := fmt.Sprintf("%q", pairs[i+1])
		if pairs[i+1] == "null" {
			value = "null"
		}
		list = append(list, fmt.Sprintf("%q: %s", pairs[i], value))
	}
	r.patch("v1", "configmaps", name, "kubectl-annotate", `{"metadata":{"annotations":{`+strings.Join(list, ",")+`}}}`)
}

func (r *rig) annotated(module, name string) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(module, name+" is held by its annotation", func(x fleet.SyncStatus) bool {
		return slices.ContainsFunc(x.Holds, func(h fleet.ObjectHold) bool { return h.ID.Name == name })
	})
}

// TestAnnotatedObject: nothing is written to an object that its annotation holds, be it a correction, another revision or the end of
// it, also after a restart of the agent, and all the while everything is to the others. When the annotation goes, what was held back
// is done.
func TestAnnotatedObject(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"), configMap("c", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.notes("a", fleet.HoldAnnotation, "debugging INC-42")
	status := r.wait("shop", "held and fine", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Holds) == 1 && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == plan.ReasonHeld && strings.Contains(x.Exceptions[0].Message, "INC-42")
	})
	if h := status.Holds[0]; h.ID.Name != "a" || h.ID.Kind != "ConfigMap" || h.Version != "v1" || h.Reason != "debugging INC-42" || h.By != "kubectl-annotate" || time.Since(h.Since).Abs() > time.Hour || !h.Until.IsZero() {
		t.Errorf("%+v", h)
	}
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	status = r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
	wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"one"`, Live: `"other"`, ChangedBy: "ana", Seen: 1})
	r.patch("v1", "configmaps", "b", "ana", `{"data":{"k":"other"}}`)
	r.eventually("the other one is corrected", func() bool { return r.data("b", "k") == "one" })

	r.stop()
	next := r.bundle("shop", nil, configMap("a", "k: two"), configMap("b", "k: two"), configMap("c", "k: two"))
	r.start()
	r.set([]fleet.Sync{next})
	r.wait("shop", "waiting for the annotation", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplying && x.Reason == plan.ReasonHeld && strings.Contains(x.Message, "INC-42") &&
			x.States[0].Drift == fleet.DriftHeld && x.States[1].Sync == fleet.SyncSynced && x.States[2].Sync == fleet.SyncSynced
	})
	dropped := r.bundle("shop", nil, configMap("b", "k: two"))
	r.set([]fleet.Sync{dropped})
	r.eventually("the other one that is dropped goes", func() bool { return r.data("c", "k") == "<gone>" })
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == dropped.Generation && len(x.Holds) == 1 && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
			return e.ID.Name == "a" && e.Reason == plan.ReasonHeld && strings.Contains(e.Message, "INC-42")
		})
	})
	if got := r.data("a", "k"); got != "other" {
		t.Errorf("a is %q", got)
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.eventually("it goes at once when the annotation is away", func() bool { return r.data("a", "k") == "<gone>" })
	r.wait("shop", "free", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Holds) == 0 && len(x.Extras) == 0 })
}

// TestAnnotatedBeforeAnythingIsSeen: an annotation counts that the agent has not seen, for it came while it was away, or the kind cannot
// be watched: what is sent is sent for what was looked at.
func TestAnnotatedBeforeAnythingIsSeen(t *testing.T) {
	for _, tc := range []struct {
		name string
		next func(r *rig) ([]fleet.Sync, []fleet.Tombstone)
	}{
		{"another revision", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("shop", nil, configMap("a", "k: two"), configMap("b", "k: two"))}, nil
		}},
		{"prune", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("shop", nil, configMap("b", "k: two"))}, nil
		}},
		{"orphaned", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("shop", []fleet.Policy{{Delete: fleet.DeleteOrphan}}, configMap("b", "k: two"))}, nil
		}},
		{"tombstone", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return nil, []fleet.Tombstone{r.tombstone("shop", fleet.DeleteDelete)}
		}},
	} {
		for _, unwatched := range []bool{false, true} {
			if unwatched && tc.name != "another revision" {
				continue // nothing is deleted before it is known what would go with it
			}
			t.Run(fmt.Sprintf("%s, unwatched %t", tc.name, unwatched), func(t *testing.T) {
				r := newRig(t)
				s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.stop()
				r.notes("a", fleet.HoldAnnotation, "mine")
				before := r.get("v1", "configmaps", "a")
				if unwatched {
					r.count.upset(func(q *http.Request) error {
						if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps") {
							return errors.New("connection reset by a test")
						}
						return nil
					})
				}
				r.start()
				syncs, tombstones := tc.next(r)
				r.set(syncs, tombstones...)
				r.wait("shop", "held", func(x fleet.SyncStatus) bool {
					said := x.Reason == plan.ReasonHeld && x.Phase == fleet.PhaseHeld
					for _, e := range x.Extras {
						said = said || e.ID.Name == "a" && e.Reason == plan.ReasonHeld
					}
					for _, e := range x.Exceptions {
						said = said || e.Ordinal == 0 && e.Reason == plan.ReasonHeld
					}
					return said
				})
				if len(syncs) > 0 {
					r.eventually("the other one is written", func() bool { return r.data("b", "k") == "two" })
				}
				after := r.get("v1", "configmaps", "a")
				if after == nil || after.GetResourceVersion() != before.GetResourceVersion() {
					t.Fatalf("it was written: %v", after)
				}
			})
		}
	}
}

// TestAnnotatedJustBeforeTheRequest: an annotation that is set between the look and the delete counts, also where the delete is one to
// make the object again.
func TestAnnotatedJustBeforeTheRequest(t *testing.T) {
	for _, tc := range []struct {
		name string
		next func(r *rig) ([]fleet.Sync, []fleet.Tombstone)
	}{
		{"prune", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("shop", nil, configMap("b", "k: two"))}, nil
		}},
		{"tombstone", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return nil, []fleet.Tombstone{r.tombstone("shop", fleet.DeleteDelete)}
		}},
		{"recreation", func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			return []fleet.Sync{r.bundle("shop", []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}, immutable("a", "k: two"), configMap("b", "k: two"))}, nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, immutable("a", "k: one"), configMap("b", "k: one"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.uidOf("v1", "configmaps", "a")
			r.stop()
			var once sync.Once
			r.answers(func(q *http.Request) *http.Response {
				if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/configmaps/a") {
					once.Do(func() { r.notes("a", fleet.HoldAnnotation, "just now") })
				}
				return nil
			})
			r.start()
			r.set([]fleet.Sync{s})
			r.ready(s)
			syncs, tombstones := tc.next(r)
			r.set(syncs, tombstones...)
			r.annotated("shop", "a")
			if got := r.get("v1", "configmaps", "a"); got == nil || got.GetUID() != uid {
				t.Fatal("it was deleted")
			}
			r.notes("a", fleet.HoldAnnotation, "null")
			r.eventually("it goes on", func() bool { return r.data("a", "k") != "one" })
		})
	}
}

// TestAnnotatedWithoutItsLabel: no event tells what becomes of an object that has lost our label, so the correction that gives it back looks
// at it before.
func TestAnnotatedWithoutItsLabel(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	var denies atomic.Bool
	var denied atomic.Int32
	r.answers(func(q *http.Request) *http.Response {
		if !denies.Load() || q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/a") {
			return nil
		}
		denied.Add(1)
		return unavailable(q)
	})
	r.start()
	r.set([]fleet.Sync{s})
	r.ready(s)
	denies.Store(true)
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"labels":{"towline.dev/hub":null}},"data":{"k":"other"}}`)
	r.eventually("a correction is tried", func() bool { return denied.Load() > 0 })
	r.notes("a", fleet.HoldAnnotation, "mine")
	r.annotated("shop", "a")
	denies.Store(false)
	r.is("a", "other")
}

func immutable(name, data string) string { return configMap(name, data) + "\nimmutable: true" }

// TestAnnotatedUntil: a hold with an end ends by itself, and one whose end is no time does not, and says so.
func TestAnnotatedUntil(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.notes("a", fleet.HoldAnnotation, "x", fleet.HoldUntilAnnotation, "tomorrow")
	r.wait("shop", "told plainly", func(x fleet.SyncStatus) bool {
		return len(x.Holds) == 1 && x.Holds[0].Unread == "tomorrow" && len(x.Exceptions) == 1 && strings.Contains(x.Exceptions[0].Message, `no time: "tomorrow"`)
	})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
	dropped := r.bundle("shop", nil, configMap("b", "k: two"))
	r.set([]fleet.Sync{s})
	until := func(d time.Duration) (end time.Time) {
		end = r.m.clock.Now().Add(d).UTC()
		r.notes("a", fleet.HoldUntilAnnotation, end.Format(time.RFC3339))
		return end
	}
	ends := func(x fleet.SyncStatus) bool { return len(x.Holds) == 1 && !x.Holds[0].Until.IsZero() }
	until(time.Hour)
	r.wait("shop", "an end is known", ends)
	end := until(3 * time.Second)
	r.eventually("it is corrected when the time is over", func() bool { return r.data("a", "k") == "one" })
	if now := r.m.clock.Now(); now.Before(end.Truncate(time.Second)) {
		t.Errorf("corrected at %s, held until %s", now, end)
	}
	r.wait("shop", "free", func(x fleet.SyncStatus) bool { return len(x.Holds) == 0 && x.States[0].Fine() })
	until(time.Hour)
	r.wait("shop", "held again", ends)
	r.set([]fleet.Sync{dropped})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonHeld })
	until(2 * time.Second)
	r.eventually("it goes when the time is over", func() bool { return r.data("a", "k") == "<gone>" })
}

// TestAnnotatedAndHeldByTheHub: each of two holds keeps the object.
func TestAnnotatedAndHeldByTheHub(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.notes("a", fleet.HoldAnnotation, "x")
	r.annotated("shop", "a")
	held := r.again(s)
	held.Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}})
	r.set([]fleet.Sync{held})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	isHeld := func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld }
	r.wait("shop", "drift held", isHeld)
	r.notes("a", fleet.HoldAnnotation, "null")
	r.wait("shop", "held by the hub", func(x fleet.SyncStatus) bool { return isHeld(x) && len(x.Holds) == 0 })
	r.notes("a", fleet.HoldAnnotation, "x")
	r.annotated("shop", "a")
	free := r.again(s)
	r.set([]fleet.Sync{free})
	r.wait("shop", "held by its annotation", func(x fleet.SyncStatus) bool { return x.Generation == free.Generation && isHeld(x) })
	if got := r.data("a", "k"); got != "other" {
		t.Errorf("a is %q", got)
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.eventually("it is corrected when both have ended", func() bool { return r.data("a", "k") == "one" })
}

// TestAnnotatedRemoval: a module that is deleted waits as a whole for an object of it that its annotation holds, and says so; so does
// the removal of the cluster.
func TestAnnotatedRemoval(t *testing.T) {
	for _, tc := range []struct {
		name  string
		order func(r *rig)
	}{
		{"tombstone", func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteDelete)) }},
		{"tombstone that orphans", func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteOrphan)) }},
		{"leave", func(r *rig) { r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.notes("a", fleet.HoldAnnotation, "INC-42")
			r.annotated("shop", "a")
			tc.order(r)
			r.wait("shop", "held", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseHeld && x.Reason == plan.ReasonHeld && strings.Contains(x.Message, "a: held in the cluster") && strings.Contains(x.Message, "INC-42") && len(x.Holds) == 1
			})
			r.stop()
			r.start()
			tc.order(r)
			r.wait("shop", "held after a restart", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld && len(x.Holds) == 1 })
			if r.data("a", "k") != "one" || r.data("b", "k") != "one" {
				t.Fatal("the removal went on")
			}
			r.notes("a", fleet.HoldAnnotation, "null")
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return isRemoved(x) && len(x.Holds) == 0 })
		})
	}
}

// TestAnnotatedWhileTheRemovalGoesOn: an annotation that comes while one step of a removal goes on stops the next one as a whole.
func TestAnnotatedWhileTheRemovalGoesOn(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, "apiVersion: v1\nkind: Service\nmetadata: {name: first, namespace: "+r.ns+"}\nspec: {ports: [{port: 80}]}", configMap("a", "k: one"), configMap("b", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}
	var once sync.Once
	said := make(chan struct{})
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/services/first") {
			once.Do(func() {
				r.notes("a", fleet.HoldAnnotation, "INC-42")
				r.eventually("the watch tells of it", func() bool { return r.m.hold(id) != nil })
				select { // it is told of while the request is on its way
				case <-said:
				case <-q.Context().Done():
				}
			})
		}
		return nil
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "held", func(x fleet.SyncStatus) bool {
		return len(x.Holds) == 1 && x.Reason == plan.ReasonHeld && strings.Contains(x.Message, "INC-42")
	})
	close(said)
	r.eventually("the step that went on ends", func() bool { return r.get("v1", "services", "first") == nil })
	if r.data("a", "k") != "one" || r.data("b", "k") != "one" {
		t.Error("the removal did not stop between two steps")
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.wait("shop", "removed", isRemoved)
}

// TestOrphanOutlivesALeave: what a person said of a module that is to be let go stays so when the cluster is to be removed with its
// objects before that is done.
func TestOrphanOutlivesALeave(t *testing.T) {
	r := newRig(t)
	s, other := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one")), r.bundle("other", nil, configMap("c", "k: one"))
	r.set([]fleet.Sync{s, other})
	r.ready(s)
	r.ready(other)
	r.notes("a", fleet.HoldAnnotation, "INC-42")
	r.annotated("shop", "a")
	r.set([]fleet.Sync{other}, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld && len(x.Holds) == 1 })
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
	r.eventually("the others go", func() bool { return r.data("c", "k") == "<gone>" })
	if policy, removed := r.m.removalOf(fleet.ModuleRef{Project: "default", Name: "shop"}); !removed || policy != fleet.DeleteOrphan {
		t.Errorf("the other modules take it for removed: %v, %q", removed, policy)
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.wait("shop", "removed", isRemoved)
	if r.data("a", "k") != "one" || r.data("b", "k") != "one" {
		t.Error("what was to be left is deleted")
	}
}

// TestAnnotatedOnItsWayOut: what was sent already is not taken back, so that an annotation on what is being deleted holds nothing up.
func TestAnnotatedOnItsWayOut(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"finalizers":["example.com/wait"]}}`)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("it is being deleted", func() bool {
		u := r.get("v1", "configmaps", "a")
		return u != nil && u.GetDeletionTimestamp() != nil
	})
	r.notes("a", fleet.HoldAnnotation, "too late")
	r.eventually("the other one goes", func() bool { return r.data("b", "k") == "<gone>" })
	r.wait("shop", "waits for the finalizer", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoving && len(x.Holds) == 0 && len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonTerminating
	})
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"finalizers":null}}`)
	r.wait("shop", "removed", isRemoved)
}

// TestAnnotatedObjectOfOthers: an object that the module is to take over is not taken while its annotation holds it, and one that it
// only reads is held by nothing, for nothing is written to it.
func TestAnnotatedObjectOfOthers(t *testing.T) {
	r := newRig(t)
	held := map[string]any{"annotations": map[string]any{fleet.HoldAnnotation: "wait"}}
	for _, name := range []string{"a", "read"} {
		r.createAs("kubectl-create", "v1", "configmaps", r.ns, r.configMapObject(name, held, map[string]any{"k": "theirs"}))
	}
	yes := true
	s := r.bundle("shop", []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"read"}}, ReadOnly: &yes}, {Adopt: fleet.AdoptAlways}},
		configMap("a", "k: one"), configMap("read", "k: theirs"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool {
		return x.Reason == plan.ReasonHeld && len(x.Holds) == 1 && x.Holds[0].ID.Name == "a" && x.States[1].Fine()
	})
	if got := r.data("a", "k"); got != "theirs" {
		t.Errorf("a is %q", got)
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.ready(s)
	if got := r.data("a", "k"); got != "one" {
		t.Errorf("a is %q", got)
	}
}

// TestAnnotatedObjectMoves: an object does not change hands while its annotation holds it, from module to module or between modules that
// share it, and neither while the hub holds it.
func TestAnnotatedObjectMoves(t *testing.T) {
	for _, tc := range []struct {
		name    string
		hub     bool
		deleted bool // the owner goes
	}{
		{"annotation, a revision", false, false}, {"annotation, a deletion", false, true},
		{"hub, a revision", true, false}, {"hub, a deletion", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			keys := assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: "x"}})
			one := r.bundle("one", sharing("x"), configMap("x", "k: one"), configMap("other", "k: v"))
			two := yieldingTo(r.bundle("two", sharing("x"), configMap("x", "k: two")), "one", 2, 0)
			r.set([]fleet.Sync{one, two})
			r.ready(one)
			r.shares("two", "one", two)
			hold := func(s fleet.Sync) fleet.Sync {
				if tc.hub {
					s.Held = keys
				}
				return s
			}
			if tc.hub {
				one = hold(r.again(one))
				r.set([]fleet.Sync{one, two})
			} else {
				r.notes("x", fleet.HoldAnnotation, "x")
			}
			r.wait("one", "held", func(x fleet.SyncStatus) bool {
				return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == plan.ReasonHeld
			})
			r.wait("two", "not held: it has nothing", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Holds) == 0 })
			r.edit("x")
			r.wait("one", "drift held", func(x fleet.SyncStatus) bool {
				return slices.ContainsFunc(x.States, func(s fleet.ObjectState) bool { return s.Drift == fleet.DriftHeld })
			})

			two.Yields = nil
			if tc.deleted {
				dead := r.tombstone("one", fleet.DeleteDelete)
				dead.Hold = tc.hub
				r.set([]fleet.Sync{two}, dead)
				r.wait("one", "waits", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
			} else {
				one = hold(r.bundle("one", sharing("x"), configMap("other", "k: w")))
				r.set([]fleet.Sync{one, two})
				r.wait("one", "keeps it", func(x fleet.SyncStatus) bool {
					return x.Generation == one.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonHeld
				})
				r.eventually("the rest is written", func() bool { return r.data("other", "k") == "w" })
			}
			if got := r.dataOf("x"); got != "edited" {
				t.Errorf("x is %q", got)
			}
			if tc.hub {
				one.Held = nil
				if tc.deleted {
					r.set([]fleet.Sync{two}, r.tombstone("one", fleet.DeleteDelete))
				} else {
					r.set([]fleet.Sync{r.again(one), two})
				}
			} else {
				r.notes("x", fleet.HoldAnnotation, "null")
			}
			r.eventually("the second one has it", func() bool { return r.dataOf("x") == "two" })
			r.ready(two)
		})
	}
}

// TestHoldThatEndsBeforeItsStatus: a hold ends by itself after something was decided by it and before the status of that pass is made.
// It is not told any more, and what it held is looked at all the same. One that was found not to have ended yet still ends.
func TestHoldThatEndsBeforeItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{m: &Manager{watcher: &watch.Watcher{}, clock: &apply.Clock{}}, items: []*item{{}}}
		live := &unstructured.Unstructured{}
		live.SetAnnotations(map[string]string{fleet.HoldAnnotation: "", fleet.HoldUntilAnnotation: time.Now().Add(2 * time.Second).Format(time.RFC3339)})
		if w.holdOn(live) == nil {
			t.Fatal("it does not hold")
		}
		if w.endHolds(); w.items[0].look {
			t.Error("it is looked at before the end")
		}
		<-time.After(time.Until(w.ends.wake(w.m.clock.Now())))
		if told := w.annotated(); len(told) > 0 {
			t.Errorf("it is told: %v", told)
		}
		if w.endHolds(); !w.items[0].look || !w.ends.wake(w.m.clock.Now()).IsZero() {
			t.Errorf("what was held is not looked at; the end is %s", w.ends.at)
		}
	})
}
