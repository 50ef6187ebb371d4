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
