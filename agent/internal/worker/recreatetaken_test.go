package worker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestObjectThatAnotherHubTakesIsNotMadeAgain: an agent of another hub takes an object (adopt: Always) while the write of a revision that changes what
// cannot be changed is on its way. What that refusal has made again is another one's by then: it stays, whatever the module may take itself.
func TestObjectThatAnotherHubTakesIsNotMadeAgain(t *testing.T) {
	for name, policies := range map[string][]fleet.Policy{"it takes nothing": recreate, "it takes what others have": {{Recreate: fleet.RecreateIfImmutable, Adopt: fleet.AdoptAlways}}} {
		t.Run(name, func(t *testing.T) {
			theirs, ours, p := second(t), aloneRig(t), newPause()
			theirs.ns = ours.ns
			ours.stop()
			var armed atomic.Bool
			ours.answers(func(q *http.Request) *http.Response {
				if armed.Load() && q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/configmaps/moves") {
					p.wait()
				}
				return nil
			})
			ours.restart(func(o *Options) {
				o.Served = func(context.Context) (map[string]bool, error) { return map[string]bool{theirs.hub: true}, nil }
			})
			s := ours.bundle("shop", policies, frozenMap("moves", "k: v"))
			ours.set([]fleet.Sync{s})
			ours.ready(s)
			uid := ours.uidOf("v1", "configmaps", "moves")
			armed.Store(true)
			next := ours.bundle("shop", policies, frozenMap("moves", "k: w"))
			ours.set([]fleet.Sync{next})
			p.at(ours, func() {
				taken := theirs.bundle("site", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, frozenMap("moves", "k: v"))
				theirs.set([]fleet.Sync{taken})
				theirs.ready(taken)
				theirs.stop()
			})
			ours.wait("shop", "decided", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && (x.Phase == fleet.PhaseFailed || x.Phase == fleet.PhaseApplied)
			})
			if got := ours.uidOf("v1", "configmaps", "moves"); got != uid {
				t.Error("what another hub's agent has was deleted")
			}
		})
	}
}

// TestObjectOfAFormerHubIsNotMadeAgain: the agent went over from a hub of which another agent of the cluster works for, and both have a module of the
// name. What that one has carries the marks of this module as well; it may be taken (adopt: Always), and is not deleted to be made again.
func TestObjectOfAFormerHubIsNotMadeAgain(t *testing.T) {
	theirs, ours := second(t), aloneRig(t)
	theirs.ns = ours.ns
	has := theirs.bundle("shop", nil, frozenMap("listed", "k: v"))
	theirs.set([]fleet.Sync{has})
	theirs.ready(has)
	theirs.stop()
	uid := ours.uidOf("v1", "configmaps", "listed")
	ours.options = append(ours.options, func(o *Options) {
		o.Served = func(context.Context) (map[string]bool, error) { return map[string]bool{theirs.hub: true}, nil }
	})
	ours.rejoin(theirs.hub)
	ours.rejoin(ours.ns + "-now")
	ours.eventually("the search is over", func() bool { return ours.m.searching() == "" })
	s := ours.bundle("shop", []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, Adopt: fleet.AdoptAlways}}, frozenMap("listed", "k: ours"))
	ours.set([]fleet.Sync{s})
	x := ours.decided(s)
	if got := ours.uidOf("v1", "configmaps", "listed"); got != uid {
		t.Errorf("what another hub's agent has was deleted: %+v", x)
	}
}
