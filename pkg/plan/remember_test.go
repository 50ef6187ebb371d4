package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestRemember(t *testing.T) {
	labelled := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}}
	other := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": "cache"}}}
	never, orphan := fleet.Policy{Prune: fleet.PruneNever}, fleet.Policy{Delete: fleet.DeleteOrphan}
	with := func(p fleet.Policy, m fleet.PolicyMatch) fleet.Policy { p.Match = m; return p }
	for _, tc := range []struct {
		name                  string
		policies              []fleet.Policy
		prune, delete         string // noted
		wantPrune, wantDelete string
	}{
		{"no policy any more", nil, fleet.PruneNever, fleet.DeleteOrphan, fleet.PruneNever, fleet.DeleteOrphan},
		{"no policy, and none before", nil, "", "", fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"another word", []fleet.Policy{{Prune: fleet.PruneOnUpdate, Delete: fleet.DeleteDelete}}, fleet.PruneNever, fleet.DeleteOrphan, fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"a word for another kind", []fleet.Policy{with(fleet.Policy{Prune: fleet.PruneOnUpdate}, fleet.PolicyMatch{Kinds: []string{"Secret"}})}, fleet.PruneNever, "", fleet.PruneNever, fleet.DeleteDelete},
		{"the newest word counts", []fleet.Policy{never, orphan}, fleet.PruneOnModuleDelete, fleet.DeleteDelete, fleet.PruneNever, fleet.DeleteOrphan},
		{"for another kind", []fleet.Policy{with(never, fleet.PolicyMatch{Kinds: []string{"Secret"}})}, "", "", fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"by labels that it had", []fleet.Policy{with(never, labelled)}, fleet.PruneNever, fleet.DeleteDelete, fleet.PruneNever, fleet.DeleteDelete},
		{"by labels that it had not", []fleet.Policy{with(never, labelled)}, fleet.PruneOnUpdate, fleet.DeleteDelete, fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"by labels, and nothing is noted", []fleet.Policy{with(never, labelled), with(orphan, labelled)}, "", "", fleet.PruneNever, fleet.DeleteOrphan},
		{"by labels, and another word is noted", []fleet.Policy{with(never, labelled)}, fleet.PruneOnModuleDelete, fleet.DeleteOrphan, fleet.PruneNever, fleet.DeleteOrphan},
		{"by other labels, and by its own", []fleet.Policy{with(fleet.Policy{Prune: fleet.PruneOnModuleDelete}, other), with(never, labelled)}, fleet.PruneNever, fleet.DeleteDelete, fleet.PruneNever, fleet.DeleteDelete},
		{"by a label that it had, which the others have not", []fleet.Policy{with(fleet.Policy{Prune: fleet.PruneOnUpdate, Delete: fleet.DeleteDelete}, fleet.PolicyMatch{Labels: without("keep")}), never, orphan},
			fleet.PruneNever, fleet.DeleteOrphan, fleet.PruneNever, fleet.DeleteOrphan},
		{"by a label that it had not, which the others have", []fleet.Policy{with(fleet.Policy{Prune: fleet.PruneOnUpdate}, fleet.PolicyMatch{Labels: without("keep")}), never},
			fleet.PruneOnUpdate, fleet.DeleteDelete, fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"by other labels, and nothing is noted", []fleet.Policy{with(fleet.Policy{Delete: fleet.DeleteDelete}, other), with(orphan, labelled)}, "", "", fleet.PruneOnUpdate, fleet.DeleteOrphan},
	} {
		r := owned(cm("b"))
		r.Prune, r.Delete = tc.prune, tc.delete
		if got := Remember(tc.policies, r); got.Prune != tc.wantPrune || got.Delete != tc.wantDelete {
			t.Errorf("%s: %s %s, want %s %s", tc.name, got.Prune, got.Delete, tc.wantPrune, tc.wantDelete)
		}
	}
	claims := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"ConfigMap"}}, Prune: fleet.PruneOnUpdate}}
	if !Remember(claims, owned(cm("b"))).Named || Remember(nil, owned(cm("b"))).Named {
		t.Error("whether a policy names the kind is not noted")
	}
	claims[0].Match.Labels = without("keep")
	if Remember(claims, owned(cm("b"))).Named {
		t.Error("a policy that selects by labels counts as one that names the kind, whatever labels the object has")
	}
}

// TestWhatMayStay: which labels an object has is not known before a look at it, so that each policy by labels may speak of it.
func TestWhatMayStay(t *testing.T) {
	labelled := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}}
	for _, tc := range []struct {
		name       string
		policies   []fleet.Policy
		noted      Record
		stay, left bool
	}{
		{name: "no policy"},
		{name: "one by labels keeps it", policies: []fleet.Policy{{Match: labelled, Prune: fleet.PruneNever}}, stay: true},
		{name: "one by labels keeps it until its tracker goes", policies: []fleet.Policy{{Match: labelled, KeepLegacy: new(true)}}, stay: true},
		{name: "one by labels leaves it", policies: []fleet.Policy{{Match: labelled, Delete: fleet.DeleteOrphan}}, stay: true, left: true},
		{name: "one by labels reads it", policies: []fleet.Policy{{Match: labelled, ReadOnly: new(true)}}, stay: true, left: true},
		{name: "one lets go of those without a label, and the others are kept", policies: []fleet.Policy{{Match: fleet.PolicyMatch{Labels: without("keep")}, Prune: fleet.PruneOnUpdate}, {Prune: fleet.PruneNever}}, stay: true},
		{name: "one by labels that comes after one for all", policies: []fleet.Policy{{Prune: fleet.PruneOnUpdate}, {Match: labelled, Prune: fleet.PruneNever}}},
		{name: "one by labels of another kind", policies: []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}, Labels: labelled.Labels}, Prune: fleet.PruneNever}}},
		{name: "what was noted", noted: Record{Prune: fleet.PruneOnModuleDelete}, stay: true},
		{name: "what was noted, and another word", policies: []fleet.Policy{{Prune: fleet.PruneOnUpdate}}, noted: Record{Prune: fleet.PruneOnModuleDelete}},
	} {
		tc.noted.ID = cm("b")
		if stay, left := MayStay(tc.policies, tc.noted), MayBeLeft(tc.policies, tc.noted); stay != tc.stay || left != tc.left {
			t.Errorf("%s: may stay %v, may be left %v", tc.name, stay, left)
		}
	}
}

// TestPolicyByLabelsSpeaksForThoseOnly: what was said of an object while it was listed is undone only by a policy that is for it, by the labels
// that are seen on it.
func TestPolicyByLabelsSpeaksForThoseOnly(t *testing.T) {
	db := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": "db"}}}
	without, with := map[string]string{fleet.HubLabel: "h"}, map[string]string{fleet.HubLabel: "h", "tier": "db"}
	ordinary := owned(cm("b"))
	ordinary.Prune, ordinary.Delete = fleet.PruneOnUpdate, fleet.DeleteDelete
	never, legacy, orphan := ordinary, ordinary, ordinary
	never.Prune, legacy.Legacy, orphan.Delete = fleet.PruneNever, true, fleet.DeleteOrphan
	for _, tc := range []struct {
		name     string
		policies []fleet.Policy
		r        Record
		labels   map[string]string
		stays    bool
	}{
		{"kept, and others are kept by labels", []fleet.Policy{{Match: db, Prune: fleet.PruneNever}}, never, without, true},
		{"kept, and others go by labels", []fleet.Policy{{Match: db, Prune: fleet.PruneOnUpdate}}, never, without, true},
		{"kept, and goes by its labels", []fleet.Policy{{Match: db, Prune: fleet.PruneOnUpdate}}, never, with, false},
		{"kept until its tracker goes, and others by labels", []fleet.Policy{{Match: db, KeepLegacy: new(false)}}, legacy, without, true},
		{"left, and others are deleted by labels", []fleet.Policy{{Match: db, Delete: fleet.DeleteDelete}}, orphan, without, true},
		{"ordinary, and others are kept by labels", []fleet.Policy{{Match: db, Prune: fleet.PruneNever}}, ordinary, without, false},
		{"ordinary, and others are kept by labels until their tracker goes", []fleet.Policy{{Match: db, KeepLegacy: new(true)}}, ordinary, without, false},
	} {
		r := tc.r
		for range 3 { // a look notes what it comes to, for the next one
			r = Remember(tc.policies, r)
			if got := Stays(tc.policies, r, tc.labels); got != tc.stays {
				t.Errorf("%s: stays %v", tc.name, got)
			}
			if tc.stays && !MayStay(tc.policies, r) {
				t.Errorf("%s: it stays and may not stay", tc.name)
			}
			if !tc.stays {
				break
			}
			r = RememberSeen(tc.policies, r, tc.labels)
		}
	}
}

// TestLabelsThatWereSeenWereNone: an object whose labels somebody took off has none; that is not to say that they are not known.
func TestLabelsThatWereSeenWereNone(t *testing.T) {
	kept := owned(cm("b"))
	kept.Prune = fleet.PruneNever
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": "cache"}}}, Prune: fleet.PruneOnUpdate}}
	if !Stays(policies, kept, nil) || !Stays(policies, kept, map[string]string{}) {
		t.Error("a policy by labels undoes what was said of an object that has none")
	}
}

// TestRememberLabels: a module goes, and somebody put a label on an object of it that its policies keep; what they say of it without that
// label, its record says.
func TestRememberLabels(t *testing.T) {
	yes := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}}
	labels := map[string]string{fleet.HubLabel: "h", "keep": "yes"}
	for _, tc := range []struct {
		name          string
		policies      []fleet.Policy
		labels        map[string]string
		prune, delete string
	}{
		{"kept by it", []fleet.Policy{{Match: yes, Prune: fleet.PruneNever}}, labels, fleet.PruneNever, fleet.DeleteDelete},
		{"left by it", []fleet.Policy{{Match: yes, Delete: fleet.DeleteOrphan}}, labels, fleet.PruneOnUpdate, fleet.DeleteOrphan},
		{"read by it", []fleet.Policy{{Match: yes, ReadOnly: new(true)}}, labels, fleet.PruneOnUpdate, fleet.DeleteOrphan},
		{"those without it go", []fleet.Policy{{Match: fleet.PolicyMatch{Labels: without("keep")}, Prune: fleet.PruneOnUpdate}, {Prune: fleet.PruneNever}}, labels, fleet.PruneNever, fleet.DeleteDelete},
		{"it has another one", []fleet.Policy{{Match: yes, Prune: fleet.PruneNever}}, map[string]string{fleet.HubLabel: "h", "keep": "no"}, fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"until the module goes", []fleet.Policy{{Match: yes, Prune: fleet.PruneOnModuleDelete}}, labels, fleet.PruneOnUpdate, fleet.DeleteDelete},
		{"policies that cannot be read say nothing of labels", []fleet.Policy{{Prune: fleet.PruneNever}}, labels, fleet.PruneOnUpdate, fleet.DeleteDelete},
	} {
		r := owned(cm("b"))
		r.Prune, r.Delete = fleet.PruneOnUpdate, fleet.DeleteDelete
		got := RememberLabels(tc.policies, r, tc.labels)
		if got.Prune != tc.prune || got.Delete != tc.delete {
			t.Errorf("%s: %s %s", tc.name, got.Prune, got.Delete)
		}
		in := PruneInput{Module: shop, Tombstone: true, Policies: tc.policies, Age: fleet.Age{Lineage: 1, Generation: 3}, Lineage: 1, WantedBy: input().WantedBy}
		if got != r && !in.AsksLabels(r) {
			t.Errorf("%s: its labels are not asked for", tc.name)
		}
	}
}

// TestMayGoFirst: whoever asks before the labels are known has to reckon with any of them.
func TestMayGoFirst(t *testing.T) {
	first := fleet.PruneFirst
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		may      bool
	}{
		"no policy":                    {nil, false},
		"all do":                       {[]fleet.Policy{{PruneWhen: first}}, true},
		"by a label":                   {[]fleet.Policy{{Match: tier("front"), PruneWhen: first}}, true},
		"by a label, the others later": {[]fleet.Policy{{Match: tier("front"), PruneWhen: first}, {PruneWhen: fleet.PruneAfterReady}}, true},
		"all but those with a label":   {[]fleet.Policy{{Match: tier("db"), PruneWhen: fleet.PruneAfterReady}, {PruneWhen: first}}, true},
		"without a label":              {[]fleet.Policy{{Match: fleet.PolicyMatch{Labels: without("keep")}, PruneWhen: first}}, true},
		"another one":                  {[]fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"b"}, Labels: tier("front").Labels}, PruneWhen: first}}, false},
		"never":                        {[]fleet.Policy{{Match: tier("front"), PruneWhen: fleet.PruneAfterReady}}, false},
	} {
		if may := MayGoFirst(tc.policies, cm("a")); may != tc.may {
			t.Errorf("%s: %v", name, may)
		}
	}
}
