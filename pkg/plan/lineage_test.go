package plan

import (
	"fmt"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// newLineage has the sync come from a hub that was joined after the records were written, and counts anew.
func newLineage(in *PruneInput, generation uint64) {
	in.Age, in.Lineage = fleet.Age{Lineage: 2, Generation: generation}, 2
	for i := range in.Records {
		in.Records[i].Born, in.Records[i].Generation = 700, 900
	}
}

func TestLineages(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*PruneInput)
		rule   Rule // of the object that stays
	}{
		{"of a lineage that is over", func(in *PruneInput) { in.Lineage = 2 }, RuleLineage},
		{"tombstone of a lineage that is over", func(in *PruneInput) { in.Tombstone, in.Lineage = true, 2 }, RuleLineage},
		{"a new lineage counts from one", func(in *PruneInput) { newLineage(in, 1) }, ""},
		{"a new lineage's tombstone", func(in *PruneInput) { newLineage(in, 1); in.Tombstone = true }, ""},
		{"written in a newer lineage", func(in *PruneInput) { in.Records[1].Lineage = 2 }, RulePositiveIntent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			tc.change(&in)
			out := Prune(in)
			goes := slices.ContainsFunc(slices.Concat(out.Delete...), func(r Record) bool { return r.ID.Name == "b" })
			stays := slices.ContainsFunc(out.Kept, func(k Kept) bool { return k.Record.ID.Name == "b" && k.Rule == tc.rule })
			if goes == stays || goes != (tc.rule == "") {
				t.Errorf("goes %t, stays by the rule %t", goes, stays)
			}
		})
	}
}

func TestAtRemembersWhatIsOlderThanALineage(t *testing.T) {
	r := Record{Born: 700, Generation: 900, Lineage: 1}
	same := r.At(fleet.Age{Lineage: 1, Generation: 901})
	if same.Born != 700 || same.Age() != (fleet.Age{Lineage: 1, Generation: 901}) {
		t.Errorf("in the same lineage: %+v", same)
	}
	anew := r.At(fleet.Age{Lineage: 2, Generation: 3})
	if !anew.bornBefore(fleet.Age{Lineage: 2, Generation: 1}) || anew.Age() != (fleet.Age{Lineage: 2, Generation: 3}) {
		t.Errorf("in a new lineage: %+v", anew)
	}
}

// TestGuardOfEachLineage: what a hub decided, and a person confirmed to it, is no word on what the next hub drops, whichever of the two
// has the higher numbers.
func TestGuardOfEachLineage(t *testing.T) {
	for _, generation := range []uint64{5, 900, 950} {
		t.Run(fmt.Sprint(generation), func(t *testing.T) {
			in := input()
			in.Records = nil
			for i := range 30 {
				r := owned(cm(fmt.Sprintf("cm-%02d", i)))
				if i < 18 { // their deletion was refused, or is not sent yet
					r.Deleting = fleet.Age{Lineage: 1, Generation: 900}
				}
				r.Lineage, in.Records = 1, append(in.Records, r)
			}
			in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-18" }
			in.Change = Change{Owned: 30, Confirmed: fleet.Age{Lineage: 1, Generation: 900}}
			newLineage(&in, generation)
			out := Prune(in)
			if n := len(slices.Concat(out.Delete...)); n != 0 || len(out.Held) != 18 {
				t.Errorf("%d go, and %d are held, of 18 that the new hub drops", n, len(out.Held))
			}
			in.Change = out.Change
			in.confirm(out)
			out = Prune(in)
			if n := len(slices.Concat(out.Delete...)); n != 18 || out.Change.Confirmed != in.Age {
				t.Errorf("after the confirm %d go; %+v", n, out.Change)
			}
			if r := in.Doom(in.Records[0]); r.Deleting != in.Age {
				t.Errorf("what goes is noted as decided by %+v", r.Deleting)
			}
		})
	}
}

// TestVerifyOfFormerHubs: an agent belonged to hub a, then to b, and now to c. What it wrote in one lineage carries the label of that hub, or
// of a later one. With that of an earlier one another agent has taken it.
func TestVerifyOfFormerHubs(t *testing.T) {
	claimant := Claimant{Module: shop, Hub: "c", ClusterUID: "c", Hubs: []string{"a", "b", "c"}}
	for lineage, want := range map[uint64]map[string]Verdict{
		0: {"a": Delete, "b": Delete, "c": Delete, "x": Foreign, "": Foreign},
		1: {"a": Delete, "b": Delete, "c": Delete, "x": Foreign, "": Foreign},
		2: {"a": Foreign, "b": Delete, "c": Delete, "x": Foreign, "": Foreign},
		3: {"a": Foreign, "b": Foreign, "c": Delete, "x": Foreign, "": Foreign},
		4: {"a": Foreign, "b": Foreign, "c": Delete, "x": Foreign, "": Foreign},
	} {
		for hub, want := range want {
			r := owned(cm("b"))
			r.Lineage = lineage
			seen := Seen{Found: true, UID: r.UID, Labels: map[string]string{fleet.HubLabel: hub}, Proof: Proof{Applied: true, Marked: true},
				Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", r.ID)}}
			if got, _ := Verify(input(), r, seen, claimant); got != want {
				t.Errorf("written in lineage %d, with the label of hub %q: %v, want %v", lineage, hub, got, want)
			}
			if r.Found = true; lineage > 0 && hub == "a" { // by its marks, which are of any of them
				if got, _ := Verify(input(), r, seen, claimant); got != Delete {
					t.Errorf("found, with the label of hub %q: %v", hub, got)
				}
			}
		}
	}
}
