package fleet

import (
	"slices"
	"testing"
)

func TestDecisions(t *testing.T) {
	policies := []Policy{
		{Match: PolicyMatch{Names: []string{"data"}}, Prune: PruneNever},
		{Match: PolicyMatch{Kinds: []string{"Secret"}}, Drift: DriftIgnore, Prune: PruneOnModuleDelete},
		{Match: PolicyMatch{Names: []string{"data"}}, Prune: PruneOnUpdate, IgnoreFields: &IgnoreFields{JSONPointers: []string{"/data"}}},
		{Drift: DriftReport},
	}
	of := func(kind, name string) (out []Decision) {
		id := ObjectID{Kind: kind, Namespace: "a", Name: name}
		rules := Resolve(policies, id, nil).Rules()
		for i, d := range Decisions(policies, id, nil) {
			if d.Field != PolicyFields[i] || d.Value != rules[i] {
				t.Errorf("%s %s: %+v, while %q holds", kind, name, d, rules[i])
			}
			if d.Entry >= 0 {
				out = append(out, d)
			}
		}
		return out
	}
	if got, want := of("ConfigMap", "data"), []Decision{{"prune", PruneNever, 0}, {"drift", DriftReport, 3}, {"ignoreFields", `{"jsonPointers":["/data"]}`, 2}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := of("Secret", "key"), []Decision{{"prune", PruneOnModuleDelete, 1}, {"drift", DriftIgnore, 1}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
