package tracker

import (
	"reflect"
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
