package plan

import (
	"fmt"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// tier is what selects objects by their label.
func tier(name string) fleet.PolicyMatch {
	return fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": name}}}
}

// droppedAll is the input of a revision that drops all of a module's objects, which have these labels and were noted as policies said.
func droppedAll(n int, policies []fleet.Policy, noted func(*Record)) PruneInput {
	in := input()
	in.Records, in.Policies = nil, policies
	in.Desired = func(fleet.ObjectID) bool { return false }
	for i := range n {
		r := owned(cm(fmt.Sprintf("cm-%02d", i)))
		r.Prune, r.Delete = fleet.PruneOnUpdate, fleet.DeleteDelete
		noted(&r)
		in.Records = append(in.Records, r)
	}
	return in
}

func labelled(tier string) func(Record) map[string]string {
	return func(Record) map[string]string { return map[string]string{fleet.HubLabel: "h", "tier": tier} }
}

// TestWhatLabelsKeepIsNotLost: what a policy keeps by labels is no loss that a person would have to confirm, and what they let go is
// one, whatever the policies say of others.
func TestWhatLabelsKeepIsNotLost(t *testing.T) {
	never := func(r *Record) { r.Prune = fleet.PruneNever }
	legacy := func(r *Record) { r.Legacy = true }
	ordinary := func(*Record) {}
	for _, tc := range []struct {
		name        string
		policies    []fleet.Policy
		noted       func(*Record)
		labels      func(Record) map[string]string
		kept, waits int
		asks        bool
	}{
		{"kept by what was noted, whatever its labels are", []fleet.Policy{{Match: tier("db"), Prune: fleet.PruneNever}}, never, nil, 20, 0, false},
		{"kept until its tracker goes, whatever its labels are", []fleet.Policy{{Match: tier("db"), KeepLegacy: new(true)}}, legacy, nil, 20, 0, false},
		{"kept by the labels that it has", []fleet.Policy{{Match: tier("db"), Prune: fleet.PruneNever}}, ordinary, labelled("db"), 20, 0, true},
		{"kept by its labels, before a rule that lets go", []fleet.Policy{{Match: tier("db"), Prune: fleet.PruneNever}, {Prune: fleet.PruneOnUpdate}}, never, labelled("db"), 20, 0, true},
		{"kept until its tracker goes by its labels", []fleet.Policy{{Match: tier("db"), KeepLegacy: new(true)}}, ordinary, labelled("db"), 20, 0, true},
		{"others are kept by labels", []fleet.Policy{{Match: tier("db"), Prune: fleet.PruneNever}}, ordinary, labelled("web"), 0, 20, true},
		{"goes by its labels, and the others are kept", []fleet.Policy{{Match: tier("cache"), Prune: fleet.PruneOnUpdate}, {Prune: fleet.PruneNever}}, ordinary, labelled("cache"), 0, 20, true},
		{"the others go by labels", []fleet.Policy{{Match: tier("cache"), Prune: fleet.PruneOnUpdate}, {Prune: fleet.PruneNever}}, ordinary, labelled("web"), 20, 0, true},
		{"its labels cannot be seen", []fleet.Policy{{Match: tier("cache"), Prune: fleet.PruneOnUpdate}, {Prune: fleet.PruneNever}}, ordinary, nil, 20, 0, true},
		{"no policy asks for labels", []fleet.Policy{{Prune: fleet.PruneOnUpdate}}, ordinary, nil, 0, 20, false},
	} {
		in := droppedAll(20, tc.policies, tc.noted)
		if asks := in.AsksLabels(in.Records[0]); asks != tc.asks {
			t.Errorf("%s: its labels are asked for: %v", tc.name, asks)
		}
		in.Labels = tc.labels
		out := Prune(in)
		kept := 0
		for _, k := range out.Kept {
			if keptByPolicy(k.Reason) {
				kept++
			}
		}
		if kept != tc.kept || len(out.Held) != tc.waits || len(slices.Concat(out.Delete...)) != 0 {
			t.Errorf("%s: %d are kept, %d wait for a confirm, %d go", tc.name, kept, len(out.Held), len(slices.Concat(out.Delete...)))
		}
	}
}

// TestLabelsThatWereNotReadMakeNoModuleLarger: a look that could not read the labels does not count what they keep as of the module, so
// that a later one, which could, lets no more than half go.
func TestLabelsThatWereNotReadMakeNoModuleLarger(t *testing.T) {
	in := droppedAll(100, []fleet.Policy{{Match: tier("db"), Prune: fleet.PruneNever}, {Prune: fleet.PruneOnUpdate}}, func(*Record) {})
	in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-90" }
	in.Change = Prune(in).Change
	in.Labels = func(r Record) map[string]string {
		if r.ID.Name < "cm-60" {
			return labelled("db")(r)
		}
		return labelled("web")(r)
	}
	if out := Prune(in); len(out.Held) != 30 || len(slices.Concat(out.Delete...)) != 0 {
		t.Errorf("%d of 40 go, %d wait for a confirm", len(slices.Concat(out.Delete...)), len(out.Held))
	}
}

// TestWhatLabelsLeaveIsReleased: with its labels known, what is left by them is let go of at once, not first when it would be deleted.
func TestWhatLabelsLeaveIsReleased(t *testing.T) {
	in := droppedAll(1, []fleet.Policy{{Match: tier("db"), Delete: fleet.DeleteOrphan}}, func(*Record) {})
	in.Labels = labelled("db")
	if out := Prune(in); len(out.Release) != 1 || len(out.Delete) != 0 {
		t.Errorf("%+v", out)
	}
}

// TestLabelsSayWhenAnObjectGoes: a policy by labels has what is dropped go before the rest is applied.
func TestLabelsSayWhenAnObjectGoes(t *testing.T) {
	in := droppedAll(1, []fleet.Policy{{Match: tier("front"), PruneWhen: fleet.PruneFirst}}, func(*Record) {})
	in.Applied, in.Ready = false, false
	for of, goes := range map[string]int{"front": 1, "db": 0} {
		if in.Labels = labelled(of); !in.AsksLabels(in.Records[0]) || len(slices.Concat(Prune(in).Delete...)) != goes {
			t.Errorf("tier %s: %+v", of, Prune(in))
		}
	}
}

// TestLabelsThatWereNotReadLetNothingGoFirst: what a selector matches by a label that is not there goes first only if it is known not to
// be there.
func TestLabelsThatWereNotReadLetNothingGoFirst(t *testing.T) {
	keepless := fleet.PolicyMatch{Labels: without("keep")}
	in := droppedAll(1, []fleet.Policy{{Match: keepless, PruneWhen: fleet.PruneFirst}, {PruneWhen: fleet.PruneAfterReady}}, func(*Record) {})
	in.Applied, in.Ready = true, false
	for name, tc := range map[string]struct {
		labels func(Record) map[string]string
		goes   int
	}{
		"not read":      {nil, 0},
		"it has it":     {func(Record) map[string]string { return map[string]string{"keep": ""} }, 0},
		"it has it not": {labelled("web"), 1},
	} {
		in.Labels = tc.labels
		out := Prune(in)
		if n := len(slices.Concat(out.Delete...)); n != tc.goes || tc.goes == 0 && out.Kept[0].Reason != ReasonAwaitingReady {
			t.Errorf("%s: %d go, kept %+v", name, n, out.Kept)
		}
	}
	in.Labels, in.Ready = nil, true // it is looked at once more before it goes
	if out := Prune(in); len(slices.Concat(out.Delete...)) != 1 {
		t.Errorf("not read, and all is ready: %+v", out)
	}
}

// TestWhatIsKeptAfterAllIsAskedAboutAnew: a person confirmed that objects go; a revision keeps them before they went, and a later one
// lets them go again: that is another decision.
func TestWhatIsKeptAfterAllIsAskedAboutAnew(t *testing.T) {
	in := droppedAll(20, []fleet.Policy{{Prune: fleet.PruneNever}}, func(r *Record) { r.Deleting = fleet.Age{Generation: 2} })
	out := Prune(in)
	for i, k := range out.Kept {
		if !k.Rescued() {
			t.Fatalf("%+v is still to go", k)
		}
		in.Records[i].Deleting = fleet.Age{}
	}
	in.Policies, in.Age.Generation, in.Change = []fleet.Policy{{Prune: fleet.PruneOnUpdate}}, in.Age.Generation+1, Change{}
	if out := Prune(in); len(out.Held) != 20 {
		t.Errorf("%d wait for a confirm, %d go", len(out.Held), len(slices.Concat(out.Delete...)))
	}
	for _, k := range []Kept{
		{Record: Record{Deleting: fleet.Age{Generation: 2}}, Rule: RuleApplyFirst, Reason: ReasonAwaitingReady}, {Record: Record{Deleting: fleet.Age{Generation: 2}}, Rule: RuleProtection, Reason: ReasonHeld},
		{Record: Record{Deleting: fleet.Age{Generation: 2}}, Rule: RuleLineage, Reason: ReasonKept}, {Rule: RuleProtection, Reason: ReasonKept},
	} {
		if k.Rescued() {
			t.Errorf("%+v: what only waits is decided still", k)
		}
	}
}
