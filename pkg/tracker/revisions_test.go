package tracker

import (
	"reflect"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// Scenarios 22 to 24: what is there is told by revision, each object under the newest revision that listed it, which executes its removal;
// what lives as long as the module is counted apart.
func TestParts(t *testing.T) {
	cm := func(name string) fleet.ObjectID {
		return fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}
	}
	in := Input{Connected: true, Desired: desired(3), Observed: observed(fleet.PhaseApplied, true, fine, fine, fine)}
	in.Observed.Extras = []fleet.ExtraObject{
		{ID: cm("a"), Revision: 1, Reason: "KeptLegacy"},
		{ID: cm("b"), Revision: 2, Reason: "AwaitingReady", Message: "goes when everything else is ready"},
		{ID: cm("c"), Revision: 2, Reason: "Kept", Root: true},
		{ID: cm("d"), Revision: 2, Reason: "KeptLegacy"},
		{ID: cm("e"), Reason: "Terminating"},
	}
	in.Observed.ExtraCount = 6
	want := []Part{
		{Revision: 4, Current: true, Objects: 3, Root: 1},
		{Revision: 2, Objects: 3, Root: 1, Legacy: []fleet.ObjectID{cm("d")}, Leaving: 1, Reason: "AwaitingReady", Message: "goes when everything else is ready"},
		{Revision: 1, Objects: 1, Legacy: []fleet.ObjectID{cm("a")}},
		{Objects: 2, Leaving: 1, Reason: "Terminating"},
	}
	if got := Parts(in, 4, 1); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// A revision that was rolled back to is current, and what a newer one brought is under that.
func TestPartsAfterARollback(t *testing.T) {
	in := Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, fine)}
	in.Observed.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "Secret", Name: "new"}, Revision: 7, Reason: "KeptLegacy"}}
	if got := Parts(in, 3, 0); len(got) != 2 || !got[0].Current || got[0].Revision != 3 || got[1].Revision != 7 {
		t.Errorf("%+v", got)
	}
}

// Until the agent has said how far a removal is, all that it reported last is leaving.
func TestPartsOfARemoval(t *testing.T) {
	in := Input{Tombstone: &fleet.Tombstone{Module: ref, Generation: 9}, Observed: observed(fleet.PhaseApplied, true, fine, fine)}
	if got := Parts(in, 0, 0); len(got) != 1 || got[0].Leaving != 2 || got[0].Current {
		t.Errorf("%+v", got)
	}
	in.Desired, in.Before, in.Tombstone = desired(3), in.Tombstone, nil // the name was given again
	if got := Parts(in, 12, 0); len(got) != 2 || !got[0].Current || got[0].Objects != 3 || got[1].Leaving != 2 {
		t.Errorf("%+v", got)
	}
}

// TestRemovalThatLeavesItsObjects: what a module leaves behind is not said to go, neither while its agent is away nor when another one has its name.
func TestRemovalThatLeavesItsObjects(t *testing.T) {
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, Version: "v1"}}
	for policy, want := range map[string]string{fleet.DeleteDelete: fleet.TrackerRemoving, fleet.DeleteOrphan: fleet.TrackerReleasing} {
		tomb := &fleet.Tombstone{Module: ref, Generation: 9, Policy: policy}
		in := Input{Connected: true, Tombstone: tomb, Observed: observed(fleet.PhaseApplied, true, fine)}
		if got := Fold(in).Reason; got != want {
			t.Errorf("%s: the module is %s, want %s", policy, got, want)
		}
		for name, in := range map[string]Input{
			"connected": in, "away": {Tombstone: tomb, Observed: in.Observed},
			"its name was given again": {Desired: desired(1), Before: tomb, Observed: in.Observed},
		} {
			rows, parts := Rows(in, Listed{Left: entries}), Parts(in, 12, 0)
			if got := rows[0].Reason; got != want {
				t.Errorf("%s, %s: the object is %s, want %s", policy, name, got, want)
			}
			if got := parts[len(parts)-1].Reason; got != want {
				t.Errorf("%s, %s: the revision is %s, want %s", policy, name, got, want)
			}
		}
	}
}

// TestRowsOfARemovalAreOfWhatGoes: what goes is what the agent reported last, whatever the module lists that has the name since, and without
// what the module only listed: that is somebody else's, and stays.
func TestRowsOfARemovalAreOfWhatGoes(t *testing.T) {
	named := func(names ...string) (out []fleet.BundleEntry) {
		for _, n := range names {
			out = append(out, fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Name: n}, Version: "v1"})
		}
		return out
	}
	theirs := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftConflict, Used: true}
	tomb := &fleet.Tombstone{Module: ref, Generation: 9, Policy: fleet.DeleteDelete}
	seen := observed(fleet.PhaseFailed, false, fine, theirs, fine)
	seen.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "older"}}}
	left := named("a", "theirs", "both")
	for name, tc := range map[string]struct {
		in   Input
		l    Listed
		want []string
	}{
		"deleted":               {Input{Connected: true, Tombstone: tomb, Observed: seen}, Listed{Left: left}, []string{"a goes", "both goes", "older goes"}},
		"deleted while away":    {Input{Tombstone: tomb, Observed: seen}, Listed{Left: left}, []string{"a goes", "both goes", "older goes"}},
		"its name has another":  {Input{Desired: desired(2), Before: tomb, Observed: seen}, Listed{Entries: named("both", "new"), Left: left}, []string{"new", "a goes", "both goes", "older goes"}},
		"the agent is at it":    {Input{Connected: true, Desired: desired(2), Before: tomb, Observed: removing(9, "both")}, Listed{Entries: named("both", "new")}, []string{"new", "both goes"}},
		"listed again, as ever": {Input{Connected: true, Desired: desired(2), Observed: with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Extras = removing(9, "both").Extras })}, Listed{Entries: named("both", "new")}, []string{"both", "new"}},
	} {
		var got []string
		for _, r := range Rows(tc.in, tc.l) {
			what := r.ID.Name
			if r.Extra {
				what += " goes"
			}
			got = append(got, what)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	in := Input{Connected: true, Tombstone: tomb, Observed: seen}
	if c, parts := Fold(in).Counts, Parts(in, 0, 0); c.Extra != 3 || c.Objects != 3 || parts[0].Leaving != 3 {
		t.Errorf("counts %+v, parts %+v; want 3", c, parts)
	}
}

// removing is the report on a removal that goes on.
func removing(generation uint64, names ...string) *fleet.SyncStatus {
	s := &fleet.SyncStatus{Module: ref, Generation: generation, Phase: fleet.PhaseRemoving}
	for _, n := range names {
		s.Extras = append(s.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Name: n}})
	}
	return s
}
