package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestRemovalTellsThePolicies: an agent that has lost its records hears with the removal of a module what stays of it.
func TestRemovalTellsThePolicies(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	told := make(chan string, 100)
	w.connectWith("a", simagent.Options{Remove: func(tomb fleet.Tombstone) fleet.SyncStatus {
		told <- tomb.Policies
		return simagent.Removed(tomb)
	}})
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{Names: []string{"db"}}, Delete: fleet.DeleteOrphan, Drift: fleet.DriftReport},
		{Drift: fleet.DriftIgnore}}
	w.await("shop", w.put(m).GetRevision())
	w.delete("shop", false)
	w.gone("shop")
	if got, want := <-told, `[{"match":{"names":["db"]},"delete":"Orphan"}]`; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}
