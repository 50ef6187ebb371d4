package worker

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// holding puts a hold on a module, or on one of its ConfigMaps.
func (r *rig) holding(s fleet.Sync, object string) fleet.Sync {
	if s = r.again(s); object == "" {
		s.Hold = true
	} else {
		s.Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: object}})
	}
	r.set([]fleet.Sync{s})
	return s
}

// TestHoldAfterADeleteWithoutAnAnswer: a hold cannot recall a DELETE that was sent and not answered before it. The status says so until it is
// known what came of it, and nothing else is sent.
func TestHoldAfterADeleteWithoutAnAnswer(t *testing.T) {
	for _, object := range []string{"", "b"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("object %q, restart %t", object, restart), func(t *testing.T) {
				r := newRig(t)
				a, b := configMap("a", "k: v"), configMap("b", "k: v")
				_, land := r.dropsUnanswered(a, b, restart)
				s := r.holding(r.bundle("shop", nil, a), object)
				r.wait("shop", "says that a DELETE may arrive", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonHeld && saysSent(x.Extras[0].Message, restart) &&
						(object != "" || x.Phase == fleet.PhaseHeld && saysSent(x.Message, restart))
				})
				if code := land(); code != http.StatusOK {
					t.Fatalf("the DELETE was answered with %d", code)
				}
				x := r.wait("shop", "has seen that it is gone", func(x fleet.SyncStatus) bool { return len(x.Extras) == 0 })
				if strings.Contains(x.Message, "DELETE") {
					t.Errorf("what is known is said to be unknown: %s", x.Message)
				}
			})
		}
	}
}

func saysSent(message string, restart bool) bool {
	if restart {
		return strings.Contains(message, "a DELETE may have been sent before the agent started at ") && strings.Contains(message, "may still go until ")
	}
	return strings.Contains(message, "a DELETE was sent at ") && strings.Contains(message, ", before the hold, and its answer is not known: it may still go until ")
}

// TestHoldOfWhatADeleteMayStillTake: nor can it recall one that was to make room for a new object. That this one is gone is the agent's own doing.
func TestHoldOfWhatADeleteMayStillTake(t *testing.T) {
	for _, object := range []string{"", "b"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("object %q, restart %t", object, restart), func(t *testing.T) {
				r := newRig(t)
				r.landing = time.Hour
				r.restart()
				s := r.bundle("shop", recreate, frozenMap("b", "k: v"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				sent, land := r.late(http.MethodDelete, "b")
				s = r.bundle("shop", recreate, frozenMap("b", "k: w"))
				r.set([]fleet.Sync{s})
				<-sent
				if restart {
					r.stop()
					r.start()
				}
				s = r.holding(s, object)
				r.wait("shop", "says that a DELETE may arrive", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && len(x.Exceptions) == 1 && saysSent(x.Exceptions[0].Message, restart)
				})
				if code := land(); code != http.StatusOK {
					t.Fatalf("the DELETE was answered with %d", code)
				}
				r.goneByItself("b")
				s = r.again(s)
				s.Hold, s.Held = false, nil
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.is("b", "w")
			})
		}
	}
}

// goneByItself waits until a module says of an object under a hold that it is gone, and by whom.
func (r *rig) goneByItself(name string) {
	r.t.Helper()
	x := r.wait("shop", "has seen that it is gone", func(x fleet.SyncStatus) bool {
		return len(x.States) == 1 && x.States[0].Health == fleet.HealthMissing && len(x.Exceptions) == 1
	})
	if m := x.Exceptions[0].Message; strings.Contains(m, "somebody") || !strings.Contains(m, name+": is gone, as the agent was to delete it") || !strings.Contains(m, "made again when the hold ends") {
		r.t.Errorf("it says %q", m)
	}
}

// TestDeleteThatDoesNotArriveIsForgotten: what may go is said for as long as it may, and no longer, though nothing happens.
func TestDeleteThatDoesNotArriveIsForgotten(t *testing.T) {
	r := newRig(t)
	a, b := configMap("a", "k: v"), configMap("b", "k: v")
	r.dropsUnanswered(a, b, false)
	r.landing = 10 * time.Second
	r.stop()
	r.start()
	s := r.holding(r.bundle("shop", nil, a), "b")
	said := func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && len(x.Extras) == 1 && saysSent(x.Extras[0].Message, true)
	}
	r.wait("shop", "says that a DELETE may arrive", said)
	r.wait("shop", "says it no more", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && !said(x) })
}

// TestHoldWithinARecreation: a hold, another policy or a rollback that comes after the DELETE and before the new object is made, as while a
// finalizer keeps the old one, does not have it deleted twice, and the object is made again: when the hold ends, or else at once.
func TestHoldWithinARecreation(t *testing.T) {
	for _, within := range []string{"hold", "hold of the object", "keep", "rollback", "nothing"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", within, restart), func(t *testing.T) { holdWithinARecreation(t, within, restart) })
		}
	}
}

func holdWithinARecreation(t *testing.T, within string, restart bool) {
	r := newRig(t)
	s := r.bundle("shop", recreate, frozenMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "configmaps", "b")
	r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"finalizers":["example.com/wait"]}}`)
	var deletes atomic.Int64
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/configmaps/b") {
			deletes.Add(1)
		}
		return nil
	})
	s = r.bundle("shop", recreate, frozenMap("b", "k: w"))
	r.set([]fleet.Sync{s})
	r.eventually("the old one is on its way out", func() bool { return r.get("v1", "configmaps", "b").GetDeletionTimestamp() != nil })
	if restart {
		r.stop()
		r.start()
	}
	want := "w"
	switch within {
	case "hold", "hold of the object":
		s = r.holding(s, map[bool]string{true: "b"}[within == "hold of the object"])
	case "nothing":
		r.set([]fleet.Sync{s})
	case "keep":
		s = r.bundle("shop", []fleet.Policy{{Prune: fleet.PruneNever, Drift: fleet.DriftReport}}, frozenMap("b", "k: w"))
		r.set([]fleet.Sync{s})
	case "rollback":
		s, want = r.bundle("shop", recreate, frozenMap("b", "k: v")), "v"
		r.set([]fleet.Sync{s})
	}
	r.wait("shop", "at it", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && !x.Ready })
	r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"finalizers":null}}`)
	if strings.HasPrefix(within, "hold") {
		r.goneByItself("b")
		if r.get("v1", "configmaps", "b") != nil {
			t.Error("made under the hold")
		}
		s = r.again(s)
		s.Hold, s.Held = false, nil
		r.set([]fleet.Sync{s})
	}
	r.ready(s)
	r.is("b", want)
	if got := r.uidOf("v1", "configmaps", "b"); got == uid {
		t.Error("is the old one")
	}
	if n := deletes.Load(); n != 1 {
		t.Errorf("%d DELETEs were sent", n)
	}
}

// TestHoldBetweenDeleteAndCreate: a hold that comes between the two requests leaves nothing away: the new object is made. What somebody else has made
// in its place is under the hold as anything is.
func TestHoldBetweenDeleteAndCreate(t *testing.T) {
	for _, theirs := range []bool{false, true} {
		for _, object := range []string{"", "b"} {
			t.Run(fmt.Sprintf("theirs %t, object %q", theirs, object), func(t *testing.T) { holdBetween(t, theirs, object) })
		}
	}
}

func holdBetween(t *testing.T, theirs bool, object string) {
	r := newRig(t)
	policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, Adopt: fleet.AdoptAlways}}
	s := r.bundle("shop", policies, frozenMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "configmaps", "b")
	s = r.bundle("shop", policies, frozenMap("b", "k: w"))
	held := r.again(s)
	if held.Hold = object == ""; object != "" {
		held.Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: object}})
	}
	var once sync.Once
	var made types.UID
	r.count.upset(func(q *http.Request) error {
		if q.Method != http.MethodPatch || q.URL.Query().Get("dryRun") != "" || !strings.HasSuffix(q.URL.Path, "/configmaps/b") || r.data("b", "k") != "<gone>" {
			return nil
		}
		once.Do(func() {
			r.setHeld(held, "b")
			if theirs {
				made = r.theirs("b", "ana")
			}
		})
		return nil
	})
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "held", func(x fleet.SyncStatus) bool {
		return x.Generation == held.Generation && (x.Phase == fleet.PhaseHeld || slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool { return e.Reason == plan.ReasonHeld }))
	})
	if want := map[bool]string{true: "ana", false: "w"}[theirs]; r.dataOf("b") != want {
		t.Errorf("it holds %s, not %s; %+v", r.dataOf("b"), want, x)
	}
	if now := r.uidOf("v1", "configmaps", "b"); now == uid || theirs && now != made {
		t.Errorf("is %s, after %s and %s", now, uid, made)
	}
	free := r.again(s)
	r.set([]fleet.Sync{free})
	r.ready(free)
	r.is("b", "w")
}

// TestHoldBetweenCreateAndRelease: what was deleted is made again under a hold that comes after the DELETE, be it of the hub or an annotation that comes
// with the new object. It counts as made at once, and what a policy leaves to nobody is let go of when the hold ends.
func TestHoldBetweenCreateAndRelease(t *testing.T) {
	leaves := map[string]fleet.Policy{
		"ignoreFields": {IgnoreFields: &fleet.IgnoreFields{JSONPointers: []string{"/data/x"}}},
		"applyOnce":    {ApplyOnce: &fleet.ApplyOnce{Paths: []string{"/data/x"}}},
	}
	for name, leave := range leaves {
		for _, held := range []string{"hub", "object", "annotation"} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, restart %t", name, held, restart), func(t *testing.T) { holdBeforeRelease(t, leave, held, restart) })
			}
		}
	}
}

func holdBeforeRelease(t *testing.T, leave fleet.Policy, by string, restart bool) {
	r := newRig(t)
	policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, IgnoreFields: leave.IgnoreFields, ApplyOnce: leave.ApplyOnce}}
	s := r.bundle("shop", policies, frozenMap("b", "k: v, x: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "configmaps", "b")
	s = r.bundle("shop", policies, frozenMap("b", "k: w, x: one"))
	r.holdsOnceGone(s, by)
	r.set([]fleet.Sync{s})
	made := func(x fleet.SyncStatus) bool {
		return !x.Ready && x.Reason == plan.ReasonHeld && len(x.States) == 1 && x.States[0].Health == fleet.HealthHealthy &&
			!slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool {
				return e.Reason != plan.ReasonHeld || strings.Contains(e.Message, "gone")
			})
	}
	r.wait("shop", "made, and held", made)
	if restart {
		r.stop()
		r.start()
		r.set(r.current.Syncs)
		r.wait("shop", "made, and held, after a restart", made)
	}
	now := r.uidOf("v1", "configmaps", "b")
	if now == uid || r.data("b", "k") != "w" {
		t.Errorf("it holds %s, and is %s, after %s", r.data("b", "k"), now, uid)
	}
	if by == "annotation" {
		r.notes("b", fleet.HoldAnnotation, "null")
	} else {
		s = r.again(s)
		r.set([]fleet.Sync{s})
	}
	r.ready(s)
	if got := r.uidOf("v1", "configmaps", "b"); got != now || r.data("b", "k") != "w" || r.data("b", "x") != "one" {
		t.Errorf("in the end it is %s, after %s, with %s and %s", got, now, r.data("b", "k"), r.data("b", "x"))
	}
	for _, f := range r.get("v1", "configmaps", "b").GetManagedFields() {
		if f.Manager == fleet.FieldManager && strings.Contains(f.FieldsV1.GetRawString(), `"f:x"`) {
			t.Errorf("what the policy leaves is ours: %s", f.FieldsV1.GetRawString())
		}
	}
}

// holdsOnceGone has a hold come when ConfigMap b is deleted: of the hub before the new one is made, or by an annotation of the new one before the next
// request.
func (r *rig) holdsOnceGone(s fleet.Sync, by string) {
	held := r.again(s)
	if held.Hold = by == "hub"; by == "object" {
		held.Held = assemble.HeldKeys([]fleet.ObjectID{r.configMapID("b")})
	}
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Method != http.MethodPatch || q.URL.Query().Get("dryRun") != "" || !strings.HasSuffix(q.URL.Path, "/configmaps/b") {
			return nil
		}
		switch k := r.data("b", "k"); {
		case by == "annotation" && k == "w":
			once.Do(func() { r.notes("b", fleet.HoldAnnotation, "mine") })
		case by != "annotation" && k == "<gone>":
			once.Do(func() {
				r.setHeld(held, "b")
			})
		}
		return nil
	})
}

// setHeld gives the agent a sync that holds its module, and waits until what would be written to an object asks for it.
func (r *rig) setHeld(held fleet.Sync, object string) {
	r.t.Helper()
	r.set([]fleet.Sync{held})
	r.eventually("the hold is known", func() bool {
		r.m.mu.Lock()
		w := r.m.workers[held.Module]
		r.m.mu.Unlock()
		return w.stops(r.configMapID(object)) != ""
	})
}

// TestKindThatIsMadeUnderAHold: a definition is made, and somebody holds it before the request that lets go of what a policy leaves. What is of its
// kind waits until it is served, as ever.
func TestKindThatIsMadeUnderAHold(t *testing.T) {
	r := newRig(t)
	crds := r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "")
	name := "gadgets." + r.ns + ".example.com"
	t.Cleanup(func() { _ = crds.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	crd := strings.Replace(gadgetCRD("x-kubernetes-preserve-unknown-fields: true"), "example.com}", "example.com, labels: {x: one}}", 1)
	s := r.bundle("shop", ignoring("/metadata/labels/x"), crd, "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\n")
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Method != http.MethodPatch || q.URL.Query().Get("dryRun") != "" || !strings.HasSuffix(q.URL.Path, "/"+name) {
			return nil
		}
		if _, err := crds.Get(context.Background(), name, metav1.GetOptions{}); err == nil {
			once.Do(func() {
				_, err := crds.Patch(context.Background(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":"mine"}}}`), metav1.PatchOptions{FieldManager: "ana"})
				if err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	})
	r.set([]fleet.Sync{s})
	r.wait("shop", "made, and held", func(x fleet.SyncStatus) bool {
		return x.Reason == plan.ReasonHeld && len(x.States) == 2 && x.States[0].Health == fleet.HealthHealthy && x.States[1].Health == fleet.HealthHealthy
	})
	if strings.Contains(r.heard.String(), apply.ReasonNoKind) {
		t.Error("its object was tried before its kind was served")
	}
}
