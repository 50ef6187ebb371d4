package plan

import (
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

var reads = fleet.Policy{ReadOnly: new(true)}

// What is only to be read is looked at, and nothing else, whatever is known of it.
func TestDecideReading(t *testing.T) {
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "a", Name: "x"}
	for name, tc := range map[string]struct {
		f    Facts
		want Action
	}{
		"not read yet":        {Facts{}, Action{Read, fleet.DriftInSync}},
		"as wanted":           {Facts{Read: true}, Action{Skip, fleet.DriftInSync}},
		"otherwise":           {Facts{Read: true, Differs: true}, Action{Leave, fleet.DriftDrifted}},
		"otherwise, and held": {Facts{Read: true, Differs: true, Hold: true}, Action{Leave, fleet.DriftDrifted}},
		"otherwise when it was read, and changed since": {Facts{Differs: true}, Action{Read, fleet.DriftDrifted}},
		"it has a record":         {Facts{Record: &Record{ID: id, State: Owned, UID: "1"}}, Action{Read, fleet.DriftInSync}},
		"it is another module's":  {Facts{Record: &Record{ID: id, Module: fleet.ModuleRef{Name: "o"}, State: Owned}}, Action{Read, fleet.DriftInSync}},
		"the hub gave it another": {Facts{Yields: true}, Action{Read, fleet.DriftInSync}},
	} {
		tc.f.Policy = reads
		if got := Decide(tc.f); got != tc.want || got.Verb.Writes() {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
	ignoring := reads
	ignoring.Drift = fleet.DriftIgnore
	if got := Decide(Facts{Policy: ignoring, Read: true, Differs: true}); got != (Action{Leave, fleet.DriftIgnored}) {
		t.Errorf("drift: Ignore: %+v", got)
	}
}

// What a module had and is only to read is let go of at once, by no guard and without a delete; it goes to the module that waits for
// it, and stays while nothing may be written.
func TestPruneOfWhatIsOnlyRead(t *testing.T) {
	shop, other := fleet.ModuleRef{Project: "p", Name: "shop"}, fleet.ModuleRef{Project: "p", Name: "other"}
	var records []Record
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
		records = append(records, Record{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: name}, Module: shop, State: Owned, UID: name,
			Generation: 1, Prune: fleet.PruneNever, Delete: fleet.DeleteDelete})
	}
	base := PruneInput{Module: shop, Age: fleet.Age{Generation: 2}, Complete: true, Records: records, Policies: []fleet.Policy{reads},
		Desired: func(fleet.ObjectID) bool { return true }, Reads: func(fleet.ObjectID) bool { return true },
		WantedBy:   func(fleet.ObjectID) (fleet.ModuleRef, bool) { return fleet.ModuleRef{}, false },
		AppliedUID: func(string) bool { return false }, Kind: func(Record) (KindState, string) { return KindServed, "" }}
	got := Prune(base)
	if len(got.Release) != len(records) || len(slices.Concat(got.Delete...)) != 0 || len(got.Held) != 0 || len(got.Kept) != 0 {
		t.Errorf("%+v", got)
	}
	for what, change := range map[string]func(*PruneInput){
		"held":             func(in *PruneInput) { in.Hold = true },
		"an older lineage": func(in *PruneInput) { in.Lineage = 1 },
		"incomplete":       func(in *PruneInput) { in.Complete = false },
		"an unknown kind":  func(in *PruneInput) { in.Kind = func(Record) (KindState, string) { return KindUnknown, "away" } },
	} {
		in := base
		change(&in)
		if got := Prune(in); len(got.Release)+len(got.Delete)+len(got.Kept)+len(got.Handover) != 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	waits := base
	waits.WantedBy = func(fleet.ObjectID) (fleet.ModuleRef, bool) { return other, true }
	if got := Prune(waits); len(got.Handover) != len(records) {
		t.Errorf("another module waits: %+v", got)
	}
	seen := Seen{Found: true, UID: "a", Proof: Proof{Applied: true, Marked: true}, Labels: map[string]string{fleet.HubLabel: "h"},
		Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "u", records[0].ID)}}
	if v, _ := Verify(base, records[0], seen, Claimant{Module: shop, Hub: "h", ClusterUID: "u"}); v != Release {
		t.Errorf("a look at it: %v", v)
	}
}

// A tombstone leaves what was noted as only read, and what is found of it when the records were lost.
func TestTombstoneLeavesWhatIsOnlyRead(t *testing.T) {
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "a"}
	for what, policies := range map[string][]fleet.Policy{
		"it is":                 {reads, {Delete: fleet.DeleteDelete}},
		"it may be, by a label": {{Match: fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"a": "b"}}}, ReadOnly: new(true)}},
	} {
		if got := Remember(policies, Record{ID: id}); got.Delete != fleet.DeleteOrphan {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if got := Remember([]fleet.Policy{{ReadOnly: new(false)}, reads}, Record{ID: id}); got.Delete != fleet.DeleteDelete {
		t.Errorf("an exception: %+v", got)
	}
	if !Survives([]fleet.Policy{reads}, id, nil) {
		t.Error("it does not survive its module")
	}
}
