package worker

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// A DELETE that nobody heard the answer of may arrive when a revision has come to list the object again, with the same content, so that an apply
// changes nothing: what the sync says is applied does not go by it. The agent may have been killed meanwhile, also when it had taken the
// revision and not applied it.
func TestDeleteThatArrivesLateTakesNothing(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			a, b := configMap("a", "k: v"), configMap("b", "k: v")
			uid, land := r.dropsUnanswered(a, b, restart)
			s := r.bundle("shop", nil, a, b)
			r.set([]fleet.Sync{s})
			r.ready(s)
			if code := land(); code != http.StatusConflict {
				t.Errorf("the DELETE from before the sync was answered with %d", code)
			}
			got := r.get("v1", "configmaps", "b")
			if got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil {
				t.Fatalf("what is listed went by a DELETE of before: %v", got)
			}
			if n := len(got.GetAnnotations()); n != 1 {
				t.Errorf("annotations %v", got.GetAnnotations())
			}
			version := got.GetResourceVersion()
			s = r.again(s)
			r.set([]fleet.Sync{s})
			r.ready(s)
			if got := r.get("v1", "configmaps", "b"); got.GetResourceVersion() != version {
				t.Error("it is written again, which nothing asks for")
			}
		})
	}
}

// The same of a DELETE of which a proxy before the API server, or its store, has given up.
func TestDeleteOfWhichOthersHaveGivenUpTakesNothing(t *testing.T) {
	for name, meanwhile := range givenUp() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.landing = time.Hour
			r.restart()
			a, b := configMap("a", "k: v"), configMap("b", "k: v")
			s := r.bundle("shop", nil, a, b)
			r.set([]fleet.Sync{s})
			r.ready(s)
			sent, land := r.lateAnswered(http.MethodDelete, "b", meanwhile)
			r.set([]fleet.Sync{r.bundle("shop", nil, a)})
			<-sent
			s = r.bundle("shop", nil, a, b)
			r.set([]fleet.Sync{s})
			r.ready(s)
			if code := land(); code != http.StatusConflict {
				t.Errorf("the DELETE from before the sync was answered with %d", code)
			}
		})
	}
}

// dropsUnanswered has module shop let b go beside a, by a DELETE that is sent and has no answer before it lands. The agent may be started anew
// then.
func (r *rig) dropsUnanswered(a, b string, restart bool) (uid types.UID, land func() int) {
	r.t.Helper()
	r.landing = time.Hour
	r.restart()
	s := r.bundle("shop", nil, a, b)
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid = r.uidOf("v1", "configmaps", "b")
	sent, land := r.late(http.MethodDelete, "b")
	r.set([]fleet.Sync{r.bundle("shop", nil, a)})
	<-sent
	if restart {
		r.stop()
		r.start()
	}
	return uid, land
}

// TestDeleteOfARecreationThatArrivesLateTakesNothing: a DELETE that was to make room for a new object had no answer, and the module goes back to
// the revision of before, by which the object is as it is to be. It does not go by the DELETE when that arrives.
func TestDeleteOfARecreationThatArrivesLateTakesNothing(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			r.landing = time.Hour
			r.restart()
			s := r.bundle("shop", recreate, frozenMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.uidOf("v1", "configmaps", "b")
			sent, land := r.late(http.MethodDelete, "b")
			r.set([]fleet.Sync{r.bundle("shop", recreate, frozenMap("b", "k: w"))})
			<-sent
			if restart {
				r.stop()
				r.start()
			}
			s = r.bundle("shop", recreate, frozenMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if code := land(); code != http.StatusConflict {
				t.Errorf("the DELETE from before the sync was answered with %d", code)
			}
			if got := r.get("v1", "configmaps", "b"); got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil {
				t.Fatalf("what is listed went by a DELETE of before: %v", got)
			}
		})
	}
}

// TestDeleteThatArrivesLateTakesNothingOfAnotherModule: nor does what another module has come to list by then, as it is, whether the one of before
// dropped it or goes.
func TestDeleteThatArrivesLateTakesNothingOfAnotherModule(t *testing.T) {
	for _, goes := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("goes %t, restart %t", goes, restart), func(t *testing.T) {
				r := newRig(t)
				r.landing = time.Hour
				r.restart()
				a, b := configMap("a", "k: v"), configMap("b", "k: v")
				s := r.bundle("shop", nil, a, b)
				r.set([]fleet.Sync{s})
				r.ready(s)
				uid := r.uidOf("v1", "configmaps", "b")
				sent, land := r.late(http.MethodDelete, "b")
				syncs, dead := []fleet.Sync{r.bundle("shop", nil, a)}, []fleet.Tombstone(nil)
				if goes {
					syncs, dead = nil, []fleet.Tombstone{r.tombstone("shop", fleet.DeleteDelete)}
				}
				r.set(syncs, dead...)
				<-sent
				if restart {
					r.stop()
					r.start()
				}
				cart := r.bundle("cart", nil, b)
				r.set(append(syncs, cart), dead...)
				r.ready(cart)
				if code := land(); code != http.StatusConflict {
					t.Errorf("the DELETE from before the sync was answered with %d", code)
				}
				if got := r.get("v1", "configmaps", "b"); got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil {
					t.Fatalf("what is listed went by a DELETE of before: %v", got)
				}
			})
		}
	}
}

// TestDeleteThatArrivesLateTakesNothingThatIsKept: nor what a policy has come to keep by then, which nobody lists any more.
func TestDeleteThatArrivesLateTakesNothingThatIsKept(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			a, b := configMap("a", "k: v"), configMap("b", "k: v")
			uid, land := r.dropsUnanswered(a, b, restart)
			r.set([]fleet.Sync{r.bundle("shop", []fleet.Policy{{Prune: fleet.PruneNever}}, a)})
			r.keptFor("shop", "b", plan.ReasonKept)
			if code := land(); code != http.StatusConflict {
				t.Errorf("the DELETE from before the policy was answered with %d", code)
			}
			got := r.get("v1", "configmaps", "b")
			if got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil {
				t.Fatalf("what is kept went by a DELETE of before: %v", got)
			}
			if n := len(got.GetAnnotations()); n != 1 {
				t.Errorf("annotations %v", got.GetAnnotations())
			}
		})
	}
}
