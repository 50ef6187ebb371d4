package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestHeirsWhereTheAgentIsAway: what a deleted module has in a cluster that is away is kept for one that comes to list it, also
// what only the values of the cluster name, and what the agent has not reported.
func TestHeirsWhereTheAgentIsAway(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second *towlinev1.Module
		heir          string
	}{
		"named by a value": {zoned(listing("one", "a", "m-${ZONE}")), nil, "m-eu"},
		"not reported":     {listing("one", "a"), listing("one", "a", "m"), "m"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.enroll("c", map[string]string{"zone": "eu"})
			w.connectWith("c", simagent.Options{
				Report: func(s fleet.Sync) fleet.SyncStatus {
					if s.Revision == 2 {
						return fleet.SyncStatus{}
					}
					return simagent.Ready(s)
				},
				Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} },
			})
			w.await("one", w.put(tc.first).GetRevision())
			if tc.second != nil {
				w.put(tc.second)
				w.awaitTracker("one", "c", "told", func(*towlinev1.Tracker) bool { return w.held("c", "one").Revision == 2 })
			}
			w.leaves("c")
			w.delete("one", false)
			w.awaitTracker("one", "c", "going", func(tr *towlinev1.Tracker) bool { return tr.GetHealth() == "Terminating" })
			w.put(waiting(listing("two", "b", tc.heir)))
			w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			w.reconnect("c")
			w.awaitHeir("c", "one", tc.heir, "two")
			w.delete("two", false)
			w.awaitHeir("c", "one", tc.heir, "")
		})
	}
}

// TestHeirsWhileTheAgentSearches: an agent that has lost its state, and searches for what it is to remove, names nothing of it. What
// it finds is kept for a module that came to list it meanwhile.
func TestHeirsWhileTheAgentSearches(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Report: simagent.Ready, Remove: func(t fleet.Tombstone) fleet.SyncStatus {
		return fleet.SyncStatus{Module: t.Module, Generation: t.Generation, Phase: fleet.PhaseRemoving, Reason: "AwaitingSearch", MoreExtras: true}
	}})
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	w.delete("one", false)
	w.awaitTracker("one", "c", "searched for", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AwaitingSearch" })
	w.put(waiting(listing("two", "m", "x")))
	w.awaitHeir("c", "one", "m", "two")
	w.awaitHeir("c", "one", "x", "two") // the cluster may have been put back to when the module had that, too
	w.delete("two", false)
	w.awaitHeir("c", "one", "m", "")
}

// TestHeirsOfALabelThatChangesWhileTheAgentIsAway: what a module lets go because the cluster has another label is kept for one
// that comes to list it before the agent is back.
func TestHeirsOfALabelThatChangesWhileTheAgentIsAway(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", map[string]string{"zone": "eu"})
	w.connectWith("c", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
		if s.Values["ZONE"] == "us" {
			return fleet.SyncStatus{}
		}
		return simagent.Ready(s)
	}})
	w.await("one", w.put(zoned(listing("one", "a", "m-${ZONE}"))).GetRevision())
	w.leaves("c")
	w.in("c", "us")
	w.put(waiting(listing("two", "b", "m-eu")))
	w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
	w.reconnect("c")
	w.awaitHeir("c", "one", "m-eu", "two")
	if got := w.held("c", "one").Values["ZONE"]; got != "us" {
		t.Errorf("the agent has the value %q", got)
	}
}
