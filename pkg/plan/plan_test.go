package plan

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

var (
	shop  = fleet.ModuleRef{Project: "default", Name: "shop"}
	other = fleet.ModuleRef{Project: "default", Name: "other"}
	one   = fleet.DigestOf([]byte("one"))
	two   = fleet.DigestOf([]byte("two"))
)

func cm(name string) fleet.ObjectID {
	return fleet.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: name}
}

func owned(id fleet.ObjectID) Record {
	return Record{ID: id, Version: "v1", Module: shop, State: Owned, UID: "u-" + id.Name, ResourceVersion: 10, Want: one, Born: 1, Generation: 1, Lineage: 1}
}

// What the hub gave to another module is not created, wherever that module is; once it was handed over it is kept.
func TestDecideYields(t *testing.T) {
	rec := owned(cm("a"))
	facts := Facts{Module: rec.Module, Want: one, Yields: true}
	if got := Decide(facts); got != (Action{Conflict, fleet.DriftConflict}) {
		t.Errorf("new: %+v", got)
	}
	facts.Record, facts.Live = &rec, Live{Known: true, Exists: true, UID: rec.UID, Match: MatchYes}
	if got := Decide(facts); got.Verb != Skip {
		t.Errorf("handed over: %+v", got)
	}
}

// TestDecideOfWhatIsGoneAndListedAlike: what is wanted is named by other values than an object was written with, or its marks are to be other ones, and
// the module lists it alike. Where a policy leaves it deleted that is no reason to make it, but for what the module itself deletes or was given.
func TestDecideOfWhatIsGoneAndListedAlike(t *testing.T) {
	rec := owned(cm("a"))
	taking, going, given, ran, job := rec, rec, rec, rec, rec
	taking.Taking, going.Deleting, given.From = true, fleet.Age{Lineage: 1, Generation: 2}, other
	ran.Fleeting, ran.Outcome, job.Fleeting = true, Completed, true
	gone, unseen := Live{Known: true, Confirmed: true}, Live{Known: true}
	for name, tc := range map[string]struct {
		record Record
		live   Live
		drift  string
		want   Action
	}{
		"reported":              {rec, gone, fleet.DriftReport, Action{Leave, fleet.DriftDrifted}},
		"ignored":               {rec, gone, fleet.DriftIgnore, Action{Leave, fleet.DriftIgnored}},
		"corrected":             {rec, gone, fleet.DriftCorrect, Action{Create, fleet.DriftInSync}},
		"only the watch says":   {rec, unseen, fleet.DriftReport, Action{Look, fleet.DriftInSync}},
		"to be made again":      {taking, gone, fleet.DriftReport, Action{Create, fleet.DriftInSync}},
		"dropped, and not":      {going, gone, fleet.DriftReport, Action{Create, fleet.DriftInSync}},
		"of another module":     {given, gone, fleet.DriftReport, Action{Create, fleet.DriftInSync}},
		"ran":                   {ran, gone, fleet.DriftReport, Action{Create, fleet.DriftInSync}},
		"may have run":          {job, gone, fleet.DriftReport, Action{Create, fleet.DriftInSync}},
		"it is there after all": {rec, Live{Known: true, Exists: true, UID: rec.UID}, fleet.DriftReport, Action{Apply, fleet.DriftInSync}},
	} {
		facts := Facts{Module: shop, Want: two, Record: &tc.record, Live: tc.live, Policy: fleet.Policy{Drift: tc.drift}, Alike: true}
		if got := Decide(facts); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestDecide(t *testing.T) {
	rec := owned(cm("a"))
	intent := rec
	intent.State, intent.UID = Intent, ""
	theirs := rec
	theirs.Module = other
	ran := func(o Outcome) *Record {
		r := rec
		r.Fleeting, r.Outcome = true, o
		return &r
	}
	used := owned(fleet.ObjectID{Kind: "Namespace", Name: "a"})
	theirNamespace := used
	theirNamespace.Module = other
	used.State, used.UID = Used, rec.UID
	is := func(m Match) Live { return Live{Known: true, Exists: true, UID: rec.UID, Match: m} }
	leaving := is(MatchYes)
	leaving.Terminating = true
	foreign := is(MatchYes)
	foreign.UID = "another"
	gone, unseen := Live{Known: true, Confirmed: true}, Live{Known: true}
	for _, tc := range []struct {
		name   string
		record *Record
		want   fleet.Digest
		live   Live
		drift  string
		hold   bool
		verb   Verb
		state  fleet.Drift
	}{
		{"new", nil, one, Live{}, "", false, Create, fleet.DriftInSync},
		{"new under a hold", nil, one, Live{}, "", true, Leave, fleet.DriftHeld},
		{"interrupted", &intent, one, Live{}, "", false, Create, fleet.DriftInSync},
		{"of another module", &theirs, one, is(MatchYes), "", false, Conflict, fleet.DriftConflict},
		{"changed", &rec, two, Live{}, "", false, Apply, fleet.DriftInSync},
		{"changed and gone", &rec, two, gone, "", false, Create, fleet.DriftInSync},
		{"changed and replaced", &rec, two, foreign, "", false, Create, fleet.DriftInSync},
		{"changed and leaving", &rec, two, leaving, "", false, Wait, fleet.DriftInSync},
		{"changed under a hold", &rec, two, is(MatchYes), "", true, Leave, fleet.DriftHeld},
		{"same, kind not synced: no verdict", &rec, one, Live{}, "", false, Wait, fleet.DriftInSync},
		{"same", &rec, one, is(MatchYes), "", false, Skip, fleet.DriftInSync},
		{"not comparable", &rec, one, is(MatchUnknown), "", false, Look, fleet.DriftInSync},
		{"drifted", &rec, one, is(MatchNo), "", false, Correct, fleet.DriftDrifted},
		{"drifted, reported", &rec, one, is(MatchNo), fleet.DriftReport, false, Leave, fleet.DriftDrifted},
		{"drifted, ignored", &rec, one, is(MatchNo), fleet.DriftIgnore, false, Leave, fleet.DriftIgnored},
		{"drifted under a hold", &rec, one, is(MatchNo), "", true, Leave, fleet.DriftHeld},
		{"drifted under a hold, reported", &rec, one, is(MatchNo), fleet.DriftReport, true, Leave, fleet.DriftDrifted},
		{"drifted under a hold, ignored", &rec, one, is(MatchNo), fleet.DriftIgnore, true, Leave, fleet.DriftIgnored},
		{"deleted under a hold, reported", &rec, one, gone, fleet.DriftReport, true, Leave, fleet.DriftDrifted},
		{"taken", &rec, one, is(MatchTaken), "", false, Correct, fleet.DriftInSync},
		{"taken, reported", &rec, one, is(MatchTaken), fleet.DriftReport, false, Skip, fleet.DriftInSync},
		{"taken under a hold", &rec, one, is(MatchTaken), "", true, Skip, fleet.DriftInSync},
		{"another write of ours", &rec, one, is(MatchUnsettled), "", false, Repeat, fleet.DriftInSync},
		{"another write of ours, drift ignored", &rec, one, is(MatchUnsettled), fleet.DriftIgnore, false, Repeat, fleet.DriftInSync},
		{"another write of ours under a hold", &rec, one, is(MatchUnsettled), "", true, Leave, fleet.DriftHeld},
		{"deleted", &rec, one, gone, "", false, Restore, fleet.DriftDrifted},
		{"not seen: a hint", &rec, one, unseen, "", false, Look, fleet.DriftInSync},
		{"not seen, reported", &rec, one, unseen, fleet.DriftReport, false, Look, fleet.DriftInSync},
		{"not seen under a hold", &rec, one, unseen, "", true, Look, fleet.DriftInSync},
		{"changed and not seen", &rec, two, unseen, "", false, Create, fleet.DriftInSync},
		{"deleted, reported", &rec, one, gone, fleet.DriftReport, false, Leave, fleet.DriftDrifted},
		{"replaced", &rec, one, foreign, "", false, Restore, fleet.DriftDrifted},
		{"ran, and taken away", ran(Completed), one, gone, "", false, Skip, fleet.DriftInSync},
		{"ran, taken away and made by somebody again", ran(Completed), one, foreign, "", false, Skip, fleet.DriftInSync},
		{"failed, and taken away", ran(Failed), one, gone, "", false, Skip, fleet.DriftInSync},
		{"ended and still there, changed by somebody", ran(Completed), one, is(MatchNo), "", false, Correct, fleet.DriftDrifted},
		{"ran, and taken away; another is wanted", ran(Completed), two, gone, "", false, Create, fleet.DriftInSync},
		{"deleted before it ended", ran(Interrupted), one, gone, "", false, Restore, fleet.DriftDrifted},
		{"gone while nobody looked", ran(Running), one, gone, "", false, Look, fleet.DriftInSync},
		{"gone while nobody looked, and no word of it", ran(OutcomeUnknown), one, gone, "", false, Skip, fleet.DriftInSync},
		{"of another module, and used", &theirNamespace, one, is(MatchYes), "", false, Use, fleet.DriftInSync},
		{"used", &used, one, is(MatchYes), "", false, Skip, fleet.DriftInSync},
		{"used, changed", &used, two, is(MatchYes), "", false, Apply, fleet.DriftInSync},
		{"used, drifted", &used, one, is(MatchNo), "", false, Correct, fleet.DriftDrifted},
		{"used, what others have may be free", &used, one, is(MatchContested), "", false, Repeat, fleet.DriftInSync},
		{"used, deleted by somebody", &used, one, gone, "", false, Restore, fleet.DriftDrifted},
		{"leaving", &rec, one, leaving, "", false, Wait, fleet.DriftInSync},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy := fleet.Resolve([]fleet.Policy{{Drift: tc.drift}}, cm("a"), nil)
			got := Decide(Facts{Module: shop, Want: tc.want, Record: tc.record, Live: tc.live, Policy: policy, Hold: tc.hold})
			if got.Verb != tc.verb || got.Drift != tc.state {
				t.Errorf("%s, %s; want %s, %s", got.Verb, got.Drift, tc.verb, tc.state)
			}
		})
	}
}

func always(state KindState) func(Record) (KindState, string) {
	return func(Record) (KindState, string) { return state, "of a test" }
}

// input is a prune in which every rule holds: b is not wanted any more.
func input() PruneInput {
	return PruneInput{Module: shop, Age: fleet.Age{Lineage: 1, Generation: 2}, Lineage: 1, Desired: func(id fleet.ObjectID) bool { return id.Name == "a" },
		Complete: true, Applied: true, Ready: true, Records: []Record{owned(cm("a")), owned(cm("b"))},
		WantedBy:   func(fleet.ObjectID) (fleet.ModuleRef, bool) { return fleet.ModuleRef{}, false },
		AppliedUID: func(string) bool { return false }, Kind: always(KindServed),
		Dependent: func(map[string]bool) (Record, bool) { return Record{}, false }}
}

// without selects what does not have a label: whoever does not know the labels of an object would take it for selected.
func without(label string) *fleet.Selector {
	return &fleet.Selector{MatchExpressions: []fleet.Requirement{{Key: label, Operator: "DoesNotExist"}}}
}

// Scenario 27 is among them: while an apply fails, what the revision drops stays, unless pruneWhen says otherwise.
func TestPruneRules(t *testing.T) {
	pvc := func(in *PruneInput) {
		in.Records = []Record{owned(fleet.ObjectID{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "b"})}
	}
	kinds := []string{"PersistentVolumeClaim"}
	wanted := func(in *PruneInput) {
		in.WantedBy = func(fleet.ObjectID) (fleet.ModuleRef, bool) { return other, true }
	}
	for _, tc := range []struct {
		name   string
		change func(*PruneInput)
		rule   Rule   // of the object that stays
		goes   string // or: Delete, Release, Settle, Handover
	}{
		{"all rules hold", func(*PruneInput) {}, "", "Delete"},
		{"the same generation listed it", func(in *PruneInput) { in.Records[1].Generation = 2 }, RulePositiveIntent, ""},
		{"an older generation omits it", func(in *PruneInput) { in.Records[1].Generation = 3 }, RulePositiveIntent, ""},
		{"incomplete bundle", func(in *PruneInput) { in.Complete = false }, RuleCompleteness, ""},
		{"an apply failed", func(in *PruneInput) { in.Applied, in.Ready = false, false }, RuleApplyFirst, ""},
		{"not ready", func(in *PruneInput) { in.Ready = false }, RuleApplyFirst, ""},
		{"not ready, after apply", func(in *PruneInput) {
			in.Ready, in.Policies = false, []fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}
		}, "", "Delete"},
		{"old pods", func(in *PruneInput) { in.Old = "Deployment web has 2" }, RuleApplyFirst, ""},
		{"old pods, after apply", func(in *PruneInput) {
			in.Old, in.Policies = "Deployment web has 2", []fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}
		}, "", "Delete"},
		{"old pods, first", func(in *PruneInput) {
			in.Old, in.Policies = "Deployment web has 2", []fleet.Policy{{PruneWhen: fleet.PruneFirst}}
		}, "", "Delete"},
		{"old pods, delete: Orphan", func(in *PruneInput) {
			in.Old, in.Policies = "Deployment web has 2", []fleet.Policy{{Delete: fleet.DeleteOrphan}}
		}, RuleApplyFirst, ""},
		{"old pods, wanted by another module", func(in *PruneInput) { wanted(in); in.Old = "Deployment web has 2" }, "", "Handover"},
		{"pods of a workload that went to another module, tombstone", func(in *PruneInput) { in.Tombstone, in.Old = true, "Deployment web has 2" }, RuleOrder, ""},
		{"nothing applied, first", func(in *PruneInput) {
			in.Ready, in.Applied, in.Policies = false, false, []fleet.Policy{{PruneWhen: fleet.PruneFirst}}
		}, "", "Delete"},
		{"first, but it may be what is listed in another group", func(in *PruneInput) {
			in.Ready, in.Applied, in.Policies = false, false, []fleet.Policy{{PruneWhen: fleet.PruneFirst}}
			in.Alias = func(id fleet.ObjectID) bool { return id.Name == "b" }
		}, RuleApplyFirst, ""},
		{"intent", func(in *PruneInput) { in.Records[1].State = Intent }, "", "Settle"},
		{"intent, and an apply failed", func(in *PruneInput) {
			in.Records[1].State, in.Applied, in.Ready = Intent, false, false
		}, "", "Settle"},
		{"found by its marks", func(in *PruneInput) { in.Records[1].State, in.Records[1].Found = Intent, true }, RuleIntentIsNotOwned, ""},
		{"found by its marks, confirmed", func(in *PruneInput) {
			in.Records[1].Found, in.Records[1].Asked, in.Confirmed = true, true, true
		}, "", "Delete"},
		{"found by its marks after the confirm", func(in *PruneInput) { in.Records[1].Found, in.Confirmed = true, true }, RuleIntentIsNotOwned, ""},
		{"a node", func(in *PruneInput) { in.Records[1].ID = fleet.ObjectID{Kind: "Node", Name: "b"} }, "", "Release"},
		{"a node, by its kind", func(in *PruneInput) {
			in.Records[1].ID = fleet.ObjectID{Kind: "Node", Name: "b"}
			in.Policies = []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Node"}}, Prune: fleet.PruneOnUpdate}}
		}, "", "Delete"},
		{"what each namespace has", func(in *PruneInput) {
			in.Records[1].ID = fleet.ObjectID{Kind: "ServiceAccount", Namespace: "default", Name: "default"}
		}, "", "Release"},
		{"found by its marks, tombstone", func(in *PruneInput) { in.Records[1].Found, in.Tombstone = true, true }, "", "Delete"},
		{"wanted by another module", wanted, "", "Handover"},
		{"wanted by another module, prune: Never", func(in *PruneInput) { wanted(in); in.Policies = []fleet.Policy{{Prune: fleet.PruneNever}} }, "", "Handover"},
		{"wanted by another module, prune: OnModuleDelete", func(in *PruneInput) {
			wanted(in)
			in.Policies = []fleet.Policy{{Prune: fleet.PruneOnModuleDelete}}
		}, "", "Handover"},
		{"wanted by another module, a claim", func(in *PruneInput) { wanted(in); pvc(in) }, "", "Handover"},
		{"wanted by another module, not ready", func(in *PruneInput) { wanted(in); in.Applied, in.Ready = false, false }, "", "Handover"},
		{"wanted by another module, found by its marks", func(in *PruneInput) { wanted(in); in.Records[1].Found = true }, "", "Handover"},
		{"wanted by another module, tombstone that orphans", func(in *PruneInput) {
			wanted(in)
			in.Tombstone, in.Policy = true, fleet.DeleteOrphan
		}, "", "Handover"},
		{"wanted by another module, hold", func(in *PruneInput) { wanted(in); in.Hold = true }, RuleProtection, ""},
		{"wanted by another module, incomplete bundle", func(in *PruneInput) { wanted(in); in.Complete = false }, RuleCompleteness, ""},
		{"wanted by another module, the same generation listed it", func(in *PruneInput) { wanted(in); in.Records[1].Generation = 2 }, RulePositiveIntent, ""},
		{"another module's", func(in *PruneInput) { in.Records[1].Module = other }, RuleWantedElsewhere, ""},
		{"just applied under another group", func(in *PruneInput) { in.AppliedUID = func(uid string) bool { return uid == "u-b" } }, RuleWantedElsewhere, ""},
		{"prune: Never", func(in *PruneInput) { in.Policies = []fleet.Policy{{Prune: fleet.PruneNever}} }, RuleProtection, ""},
		{"prune: OnModuleDelete", func(in *PruneInput) { in.Policies = []fleet.Policy{{Prune: fleet.PruneOnModuleDelete}} }, RuleProtection, ""},
		{"delete: Orphan", func(in *PruneInput) { in.Policies = []fleet.Policy{{Delete: fleet.DeleteOrphan}} }, "", "Release"},
		{"used", func(in *PruneInput) { in.Records[1].State = Used }, "", "Unuse"},
		{"used, an apply failed", func(in *PruneInput) { in.Records[1].State, in.Applied, in.Ready = Used, false, false }, RuleApplyFirst, ""},
		{"used, tombstone", func(in *PruneInput) { in.Records[1].State, in.Tombstone = Used, true }, "", "Unuse"},
		{"used, wanted by another module", func(in *PruneInput) { wanted(in); in.Records[1].State = Used }, "", "Handover"},
		{"hold", func(in *PruneInput) { in.Hold = true }, RuleProtection, ""},
		{"hold of the object", func(in *PruneInput) { in.Held = only("b") }, RuleProtection, ""},
		{"hold of another object", func(in *PruneInput) { in.Held = only("a") }, "", "Delete"},
		{"hold of an object that the module shares, and another one wants", func(in *PruneInput) {
			wanted(in)
			in.Held, in.Records[1].Shared = only("b"), true
		}, RuleProtection, ""},
		{"hold of an object, used", func(in *PruneInput) { in.Held, in.Records[1].State = only("b"), Used }, RuleProtection, ""},
		{"hold of an object, delete: Orphan", func(in *PruneInput) {
			in.Held, in.Policies = only("b"), []fleet.Policy{{Delete: fleet.DeleteOrphan}}
		}, RuleProtection, ""},
		{"hold of an object, first", func(in *PruneInput) {
			in.Held, in.Policies = only("b"), []fleet.Policy{{PruneWhen: fleet.PruneFirst}}
		}, RuleProtection, ""},
		{"unknown kind", func(in *PruneInput) { in.Kind = always(KindUnknown) }, RuleUnknownKind, ""},
		{"kind that is gone", func(in *PruneInput) { in.Kind = always(KindGone) }, "", "Forget"},
		{"kind that is gone, tombstone", func(in *PruneInput) { in.Tombstone, in.Kind = true, always(KindGone) }, "", "Forget"},
		{"kind that is gone, an apply failed", func(in *PruneInput) { in.Applied, in.Kind = false, always(KindGone) }, RuleApplyFirst, ""},
		{"intent of an unknown kind", func(in *PruneInput) {
			in.Records[1].State, in.Kind = Intent, always(KindUnknown)
		}, "", "Settle"},
		{"a claim", pvc, RuleSensitiveKind, ""},
		{"a claim, prune for all", func(in *PruneInput) { pvc(in); in.Policies = []fleet.Policy{{Prune: fleet.PruneOnUpdate}} }, RuleSensitiveKind, ""},
		{"a claim, by its kind", func(in *PruneInput) {
			pvc(in)
			in.Policies = []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: kinds}, Prune: fleet.PruneOnUpdate}}
		}, "", "Delete"},
		{"a claim, by its kind and by labels that it may have", func(in *PruneInput) {
			pvc(in)
			in.Policies = []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: kinds, Labels: without("keep")}, Prune: fleet.PruneOnUpdate}}
		}, RuleSensitiveKind, ""},
		{"a claim of a dead module", func(in *PruneInput) { pvc(in); in.Tombstone = true }, "", "Release"},
		{"a claim of a dead module, by its kind", func(in *PruneInput) { pvc(in); in.Tombstone, in.Records[0].Named = true, true }, "", "Delete"},
		{"tombstone", func(in *PruneInput) { in.Tombstone = true }, "", "Delete"},
		{"tombstone before readiness", func(in *PruneInput) { in.Tombstone, in.Applied, in.Ready, in.Complete = true, false, false, false }, "", "Delete"},
		{"tombstone that orphans", func(in *PruneInput) { in.Tombstone, in.Policy = true, fleet.DeleteOrphan }, "", "Release"},
		{"tombstone older than our write", func(in *PruneInput) { in.Tombstone, in.Records[1].Generation = true, 3 }, RulePositiveIntent, ""},
		{"tombstone and prune: Never", func(in *PruneInput) { in.Tombstone, in.Records[1].Prune = true, fleet.PruneNever }, "", "Release"},
		{"tombstone and prune: OnModuleDelete", func(in *PruneInput) { in.Tombstone, in.Records[1].Prune = true, fleet.PruneOnModuleDelete }, "", "Delete"},
		{"tombstone and delete: Orphan", func(in *PruneInput) { in.Tombstone, in.Records[1].Delete = true, fleet.DeleteOrphan }, "", "Release"},
		{"tombstone under a hold", func(in *PruneInput) { in.Tombstone, in.Hold = true, true }, RuleProtection, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			tc.change(&in)
			out := Prune(in)
			is := func(r Record) bool { return r.ID.Name == "b" || OfEveryNamespace(r.ID) }
			got := ""
			switch {
			case slices.ContainsFunc(slices.Concat(out.Delete...), is):
				got = "Delete"
			case slices.ContainsFunc(out.Release, is):
				got = "Release"
			case slices.ContainsFunc(out.Unuse, is):
				got = "Unuse"
			case slices.ContainsFunc(out.Settle, is):
				got = "Settle"
			case slices.ContainsFunc(out.Forget, is):
				got = "Forget"
			case slices.ContainsFunc(out.Handover, func(h Handover) bool { return is(h.Record) && h.To == other }):
				got = "Handover"
			}
			var rule Rule
			for _, k := range out.Kept {
				if is(k.Record) {
					rule = k.Rule
				}
			}
			if got != tc.goes || rule != tc.rule {
				t.Errorf("goes %q, stays by %q; want %q, %q", got, rule, tc.goes, tc.rule)
			}
		})
	}
}

// only holds the object of a name.
func only(name string) func(fleet.ObjectID) string {
	return func(id fleet.ObjectID) string {
		if id.Name == name {
			return "held"
		}
		return ""
	}
}

func TestNamespaceStaysWithWhatStaysInIt(t *testing.T) {
	namespace := owned(fleet.ObjectID{Kind: "Namespace", Name: "ns"})
	claim := owned(fleet.ObjectID{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "data"})
	elsewhere := owned(fleet.ObjectID{Kind: "PersistentVolumeClaim", Namespace: "ns2", Name: "data"})
	for _, tc := range []struct {
		name    string
		records []Record
		holds   string // what the namespace holds; empty: it goes
	}{
		{"nothing else", []Record{namespace}, ""},
		{"what goes, too", []Record{namespace, owned(cm("b"))}, ""},
		{"what is kept", []Record{namespace, claim}, "PersistentVolumeClaim data"},
		{"what is kept in another one", []Record{namespace, elsewhere}, ""},
		{"what the sync lists", []Record{namespace, owned(cm("a"))}, "ConfigMap a"},
		{"both", []Record{namespace, claim, owned(cm("a")), owned(cm("b"))}, "ConfigMap a, PersistentVolumeClaim data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			in.Records = tc.records
			out := Prune(in)
			goes := slices.ContainsFunc(slices.Concat(out.Delete...), func(r Record) bool { return r.ID == namespace.ID })
			kept := ""
			for _, k := range out.Kept {
				if k.Record.ID == namespace.ID && k.Reason == ReasonNotEmpty {
					kept = strings.TrimPrefix(k.Message, "the namespace holds objects that stay: ")
				}
			}
			if goes != (tc.holds == "") || kept != tc.holds {
				t.Errorf("goes: %t, holds %q", goes, kept)
			}
		})
	}
}

var shopHere = Claimant{Module: shop, Hub: "h", ClusterUID: "c"}

func TestVerify(t *testing.T) {
	rec := owned(cm("b"))
	intent := rec
	intent.State, intent.UID = Intent, ""
	handed := rec
	handed.From = other
	found := rec
	found.Found = true
	mark := func(m fleet.ModuleRef, id fleet.ObjectID) func(*Seen) {
		return func(s *Seen) { s.Annotations = map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(m, "c", id)} }
	}
	keep := func(in *PruneInput, p fleet.Policy) {
		p.Match.Labels = &fleet.Selector{MatchLabels: map[string]string{fleet.HubLabel: "h"}}
		in.Policies = []fleet.Policy{p}
	}
	for _, tc := range []struct {
		name    string
		record  Record
		change  func(*Seen)
		policy  fleet.Policy
		verdict Verdict
	}{
		{"ours", rec, func(*Seen) {}, fleet.Policy{}, Delete},
		{"handed over, and never written since", handed, mark(other, rec.ID), fleet.Policy{}, Delete},
		{"handed over, with the marks of a third", handed, mark(fleet.ModuleRef{Project: "default", Name: "third"}, rec.ID), fleet.Policy{}, Foreign},
		{"handed over, without marks", handed, func(s *Seen) { s.Annotations = nil }, fleet.Policy{}, Foreign},
		{"not found", rec, func(s *Seen) { *s = Seen{} }, fleet.Policy{}, Gone},
		{"another UID, ours", rec, func(s *Seen) { s.UID = "x" }, fleet.Policy{}, Another},
		{"another UID, marks that somebody copied", rec, func(s *Seen) { s.UID, s.Proof.Marked = "x", false }, fleet.Policy{}, Gone},
		{"another UID, another module's", rec, func(s *Seen) { mark(other, rec.ID)(s); s.UID = "x" }, fleet.Policy{}, Gone},
		{"another owner", rec, mark(other, rec.ID), fleet.Policy{}, Foreign},
		{"another cluster", rec, func(s *Seen) {
			s.Annotations = map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, "x", rec.ID)}
		}, fleet.Policy{}, Foreign},
		{"another hub", rec, func(s *Seen) { s.Labels = nil }, fleet.Policy{}, Foreign},
		{"our UID and marks, managers taken away", rec, func(s *Seen) { s.Proof = Proof{} }, fleet.Policy{}, Delete},
		{"the same, mark of another object", rec, func(s *Seen) { s.Proof = Proof{}; mark(shop, cm("a"))(s) }, fleet.Policy{}, Foreign},
		{"the same, without the label", rec, func(s *Seen) { s.Proof, s.Labels = Proof{}, nil }, fleet.Policy{}, Foreign},
		{"the same, found by its marks only", found, func(s *Seen) { s.Proof = Proof{} }, fleet.Policy{}, Foreign},
		{"the same, without a UID", intent, func(s *Seen) { s.Proof = Proof{} }, fleet.Policy{}, Foreign},
		{"our UID, and a mark that somebody wrote again", rec, func(s *Seen) { s.Proof.Marked = false }, fleet.Policy{}, Delete},
		{"leaving", rec, func(s *Seen) { s.Terminating = true }, fleet.Policy{}, Leaving},
		{"kept by its labels", rec, func(*Seen) {}, fleet.Policy{Prune: fleet.PruneNever}, Stay},
		{"released by its labels", rec, func(*Seen) {}, fleet.Policy{Delete: fleet.DeleteOrphan}, Release},
		{"without a UID, ours", intent, func(*Seen) {}, fleet.Policy{}, Delete},
		{"without a UID, marks that somebody copied", intent, func(s *Seen) { s.Proof.Marked = false }, fleet.Policy{}, Foreign},
		{"without a UID, restored from a copy of another object", intent, mark(shop, cm("a")), fleet.Policy{}, Foreign},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			seen := Seen{Found: true, UID: "u-b", Labels: map[string]string{fleet.HubLabel: "h"}, Proof: Proof{Applied: true, Marked: true}}
			mark(shop, rec.ID)(&seen)
			tc.change(&seen)
			keep(&in, tc.policy)
			if got, _ := Verify(in, tc.record, seen, shopHere); got != tc.verdict {
				t.Errorf("%v, want %v", got, tc.verdict)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	id := func(group, kind, name string) fleet.ObjectID {
		return fleet.ObjectID{Group: group, Kind: kind, Name: name}
	}
	type entry struct {
		id   fleet.ObjectID
		wave int32
	}
	want := []entry{
		{id("", "Namespace", "n"), 9},
		{id("apiextensions.k8s.io", "CustomResourceDefinition", "c"), 5},
		{id("apps", "Deployment", "early"), -1},
		{id("", "ServiceAccount", "a"), 0},
		{id("", "ConfigMap", "a"), 0},
		{id("", "ConfigMap", "b"), 0},
		{id("apps", "Deployment", "a"), 0},
		{id("example.com", "Gadget", "a"), 0},
		{id("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "w"), 0},
		{id("", "Secret", "late"), 1},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, func(a, b entry) int { return CompareApply(a.id, a.wave, b.id, b.wave) })
	if !slices.Equal(got, want) {
		t.Errorf("order %v", got)
	}
}

func TestGuard(t *testing.T) {
	for _, tc := range []struct {
		name         string
		stays, drops int
		fresh        int // that the sync brings along: they do not count
		change       func(*PruneInput)
		held         bool
	}{
		{"more than half, and more than ten", 10, 11, 0, nil, true},
		{"half", 11, 11, 0, nil, false},
		{"half, in a new lineage", 11, 11, 0, func(in *PruneInput) { newLineage(in, 1) }, false},
		{"ten", 0, 10, 0, nil, false},
		{"all of many", 0, 11, 0, nil, true},
		{"replaced by new ones", 0, 11, 50, nil, true},
		{"confirmed", 0, 30, 0, func(in *PruneInput) { in.confirm(Prune(*in)) }, false},
		{"confirmed, of another list", 0, 30, 0, func(in *PruneInput) { in.Confirmed = true }, true},
		{"tombstone", 0, 30, 0, func(in *PruneInput) { in.Tombstone = true }, false},
		{"released counts, too", 0, 30, 0, func(in *PruneInput) { in.Policies = []fleet.Policy{{Delete: fleet.DeleteOrphan}} }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			in.Records = nil
			desired := map[fleet.ObjectID]bool{}
			for i := range tc.stays + tc.drops + tc.fresh {
				r := owned(cm(string(rune('a'+i%26)) + string(rune('a'+i/26))))
				desired[r.ID] = i >= tc.drops
				if i >= tc.drops+tc.stays {
					r.Born, r.Generation, r.Lineage = in.Age.Generation, in.Age.Generation, in.Age.Lineage
				}
				in.Records = append(in.Records, r)
			}
			in.Desired = func(id fleet.ObjectID) bool { return desired[id] }
			if tc.change != nil {
				tc.change(&in)
			}
			out := Prune(in)
			if goes := len(slices.Concat(out.Delete...)) + len(out.Release); (goes == 0) != tc.held || tc.held && len(out.Held) != tc.drops {
				t.Errorf("%d go, %d are held", goes, len(out.Held))
			}
		})
	}
}

func TestOutcomeOfEvents(t *testing.T) {
	for _, tc := range []struct {
		reasons []string
		want    Outcome
	}{
		{nil, OutcomeUnknown},
		{[]string{"SuccessfulCreate", "Completed"}, Completed},
		{[]string{"SuccessfulCreate", "SuccessfulDelete", "BackoffLimitExceeded"}, Failed},
		{[]string{"SuccessfulCreate"}, Interrupted},
	} {
		if got := OutcomeOfEvents(tc.reasons); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.reasons, got, tc.want)
		}
	}
}
