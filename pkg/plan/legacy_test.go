package plan

import (
	"fmt"
	"slices"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

func keepLegacy(yes bool) []fleet.Policy { return []fleet.Policy{{KeepLegacy: &yes}} }

func recycles(revision int64, ids ...fleet.ObjectID) []fleet.Recycle {
	r := fleet.Recycle{Revision: revision}
	for _, id := range ids {
		r.Keys = append(r.Keys, assemble.HeirKey(id))
	}
	slices.Sort(r.Keys)
	return []fleet.Recycle{r}
}

// Scenario 25: what keepLegacy keeps goes when the tracker of the revision that listed it last is deleted, when the policy is turned off,
// or with the module, and by nothing else.
func TestPruneOfLegacy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*PruneInput)
		goes   bool
		reason string
	}{
		"it stays":               {func(*PruneInput) {}, false, ReasonLegacy},
		"its tracker is deleted": {func(in *PruneInput) { in.Recycles = recycles(1, cm("b")) }, true, ""},
		"its tracker was deleted before the hub had heard what is here": {func(in *PruneInput) {
			in.Recycles = recycles(1, cm("b"))
			in.Recycles[0].Unasked = true
		}, false, ReasonKept},
		"the tracker of another revision is": {func(in *PruneInput) { in.Recycles = recycles(2, cm("b")) }, false, ReasonLegacy},
		"it was not shown":                   {func(in *PruneInput) { in.Recycles = recycles(1, cm("c")) }, false, ReasonLegacy},
		"its tracker is deleted, an apply failed": {func(in *PruneInput) {
			in.Recycles, in.Applied, in.Ready = recycles(1, cm("b")), false, false
		}, false, ReasonAwaitingApply},
		"its tracker is deleted, and old pods may use it": {func(in *PruneInput) {
			in.Recycles, in.Old = recycles(1, cm("b")), "Deployment web has 2"
		}, false, ReasonAwaitingUpdate},
		"its tracker is deleted, and prune: Never": {func(in *PruneInput) {
			in.Recycles = recycles(1, cm("b"))
			in.Policies[0].Prune = fleet.PruneNever
		}, false, ReasonKept},
		"under a hold":            {func(in *PruneInput) { in.Recycles, in.Hold = recycles(1, cm("b")), true }, false, ReasonHeld},
		"turned off":              {func(in *PruneInput) { in.Policies = keepLegacy(false) }, true, ""},
		"of another object":       {func(in *PruneInput) { in.Policies[0].Match.Names = []string{"c"} }, true, ""},
		"dropped with its policy": {func(in *PruneInput) { in.Policies, in.Records[1].Legacy = nil, true }, false, ReasonLegacy},
		"and then turned off":     {func(in *PruneInput) { in.Policies, in.Records[1].Legacy = keepLegacy(false), true }, true, ""},
		"the module goes":         {func(in *PruneInput) { in.Tombstone = true }, true, ""},
		"pruneWhen: First":        {func(in *PruneInput) { in.Policies[0].PruneWhen = fleet.PruneFirst }, false, ReasonLegacy},
		"found by its marks":      {func(in *PruneInput) { in.Records[1].Found, in.Records[1].Revision = true, RevisionUnknown }, false, ReasonLegacy},
		"found by its marks, and deleted": {func(in *PruneInput) {
			in.Records[1].Found, in.Records[1].Revision = true, RevisionUnknown
			in.Recycles = recycles(0, cm("b"))
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Records[1].Revision = 1
			in.Policies = keepLegacy(true)
			tc.change(&in)
			out := Prune(in)
			goes := slices.ContainsFunc(slices.Concat(out.Delete...), func(r Record) bool { return r.ID == cm("b") })
			kept := slices.IndexFunc(out.Kept, func(k Kept) bool { return k.Record.ID == cm("b") })
			if goes != tc.goes || !goes && (kept < 0 || out.Kept[kept].Reason != tc.reason) {
				t.Errorf("%+v", out)
			}
		})
	}
}

// A person who deletes a tracker was shown each object: there is nothing more to confirm.
func TestDeletedTrackerNeedsNoConfirm(t *testing.T) {
	in := input()
	in.Policies = keepLegacy(true)
	var ids []fleet.ObjectID
	for i := range 2 * GuardObjects {
		r := owned(cm(fmt.Sprint("old-", i)))
		r.Revision = 3
		in.Records, ids = append(in.Records, r), append(ids, r.ID)
	}
	in.Recycles = recycles(3, ids...)
	if out := Prune(in); len(slices.Concat(out.Delete...)) != len(ids) || len(out.Held) > 0 {
		t.Errorf("%d go, %d wait", len(slices.Concat(out.Delete...)), len(out.Held))
	}
	in.Policies = keepLegacy(false)
	in.Recycles = nil
	if out := Prune(in); len(out.Held) != len(ids)+1 {
		t.Errorf("%d wait for a confirm", len(out.Held))
	}
}

// Labels are known only when the object is looked at.
func TestVerifyOfLegacyByLabels(t *testing.T) {
	in := input()
	in.Policies = keepLegacy(true)
	in.Policies[0].Match.Labels = &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}
	r := in.Records[1]
	r.Revision = 1
	seen := Seen{Found: true, UID: r.UID, Labels: map[string]string{fleet.HubLabel: "h", "keep": "yes"},
		Annotations: map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "c", r.ID)}, Proof: Proof{Applied: true}}
	claimant := Claimant{Module: shop, Hub: "h", ClusterUID: "c"}
	if got, _ := Verify(in, r, seen, claimant); got != Stay {
		t.Errorf("%v, want it to stay", got)
	}
	in.Recycles = recycles(1, r.ID)
	if got, _ := Verify(in, r, seen, claimant); got != Delete {
		t.Errorf("%v, want it to go", got)
	}
	in.Recycles[0].Unasked = true
	if got, _ := Verify(in, r, seen, claimant); got != Stay || in.Keeping(r, seen.Labels) != ReasonKept {
		t.Errorf("%v, %s, want it to stay, and the order to be through", got, in.Keeping(r, seen.Labels))
	}
	if r = RememberSeen(in.Policies, r, seen.Labels); !r.Legacy {
		t.Error("what was seen is not noted")
	}
}
