package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What was never written is not kept by what keeps the module's own: a look tells whether it is that.
func TestIntentIsSettledWhateverKeeps(t *testing.T) {
	for name, tc := range map[string]struct {
		id         fleet.ObjectID
		generation uint64
		policies   []fleet.Policy
		settled    bool
	}{
		"prune: Never":                 {cm("b"), 1, []fleet.Policy{{Prune: fleet.PruneNever}}, true},
		"prune: OnModuleDelete":        {cm("b"), 1, []fleet.Policy{{Prune: fleet.PruneOnModuleDelete}}, true},
		"a claim":                      {fleet.ObjectID{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "b"}, 1, nil, true},
		"the same generation wrote it": {cm("b"), 2, []fleet.Policy{{Prune: fleet.PruneNever}}, false},
	} {
		in := input()
		r := owned(tc.id)
		r.State, r.UID, r.Generation = Intent, "", tc.generation
		in.Records, in.Policies = []Record{r}, tc.policies
		if out := Prune(in); (len(out.Settle) == 1) != tc.settled || (len(out.Kept) == 1) == tc.settled {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// Of a mark that is gone nobody is told that it names somebody else.
func TestForeignTextOfAMarkThatIsGone(t *testing.T) {
	r := Record{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "a"}, State: Owned, UID: "u"}
	c := Claimant{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Hub: "hub", ClusterUID: "c"}
	said := ForeignText(Seen{Found: true, UID: "u", Labels: map[string]string{fleet.HubLabel: "hub"}}, c, r)
	if said != "somebody took the annotation towline.dev/owner from it" {
		t.Error(said)
	}
}
