package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestPolicySetContent(t *testing.T) {
	policies := []fleet.Policy{{Prune: fleet.PruneNever, Health: fleet.HealthStrict}}
	rules := []fleet.HealthRule{{Group: "example.com", Kind: "Widget", Healthy: "object.status.ok"}}
	for name, tc := range map[string]struct {
		set  fleet.PolicySet
		text string
	}{
		"nothing":       {fleet.PolicySet{}, `[]`},
		"policies":      {fleet.PolicySet{Policies: policies}, `[{"prune":"Never","health":"Strict"}]`},
		"ignored":       {fleet.PolicySet{Policies: []fleet.Policy{{IgnoreFields: &fleet.IgnoreFields{JSONPointers: []string{"/a"}, Managers: []string{"m"}}}}}, `[{"ignoreFields":{"jsonPointers":["/a"],"managers":["m"]}}]`},
		"once":          {fleet.PolicySet{Policies: []fleet.Policy{{ApplyOnce: &fleet.ApplyOnce{Paths: []string{"*"}, When: "OnDrift"}}}}, `[{"applyOnce":{"paths":["*"],"when":"OnDrift"}}]`},
		"only read":     {fleet.PolicySet{Policies: []fleet.Policy{{ReadOnly: new(false)}, {ReadOnly: new(true)}}}, `[{"readOnly":false},{"readOnly":true}]`},
		"rules as well": {fleet.PolicySet{Policies: policies, HealthRules: rules}, `{"policies":[{"prune":"Never","health":"Strict"}],"healthRules":[{"group":"example.com","kind":"Widget","healthy":"object.status.ok"}]}`},
		"watched":       {fleet.PolicySet{Watch: []fleet.WatchedObject{{Group: "g", Version: "v1", Kind: "K", Name: "${N}"}}}, `{"watch":[{"group":"g","version":"v1","kind":"K","name":"${N}"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := PolicySetContent(tc.set)
			if err != nil || string(b) != tc.text {
				t.Fatalf("%s, %v; want %s", b, err, tc.text)
			}
			got, err := PolicySetFromContent(b)
			if err != nil || len(got.Policies) != len(tc.set.Policies) || !reflect.DeepEqual(got.HealthRules, tc.set.HealthRules) || !reflect.DeepEqual(got.Watch, tc.set.Watch) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	for _, bad := range []string{`[{"shape":"round"}]`, `{"colours":[]}`, `[{"ignoreFields":{"jsonPointers":["/kind"]}}]`, `{"healthRules":[{"kind":"A","healthy":"object."}]}`, ``} {
		if _, err := PolicySetFromContent([]byte(bad)); err == nil {
			t.Errorf("%s: was taken", bad)
		}
	}
}

// TestUnknownWordsOfPoliciesAreRefused: a word that a newer hub has for a treatment is not taken for the default, which may delete, or overwrite.
func TestUnknownWordsOfPoliciesAreRefused(t *testing.T) {
	for _, field := range []string{"prune", "drift", "adopt", "conflict", "recreate", "delete", "pruneWhen", "health"} {
		for _, content := range []string{`[{"` + field + `":"Levitate"}]`, `{"policies":[{},{"` + field + `":"Levitate"}]}`} {
			if _, err := PolicySetFromContent([]byte(content)); err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), `"Levitate"`) {
				t.Errorf("%s: %v", content, err)
			}
		}
	}
}

// A rule that does not compile is refused where it is written, with its place.
func TestHealthRulesAreChecked(t *testing.T) {
	_, err := HealthRulesFromProto([]*towlinev1.HealthRule{{Kind: "A", Healthy: "true"}, {Kind: "B", Degraded: "object.status.phase =="}})
	if err == nil || !strings.Contains(err.Error(), "healthRules[1].degraded") {
		t.Errorf("%v", err)
	}
}

func TestUnjudgedStatesTravel(t *testing.T) {
	s := fleet.SyncStatus{Module: fleet.ModuleRef{Project: "p", Name: "m"}, Generation: 1, Phase: fleet.PhaseApplied}
	for i := range 20 {
		x := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
		switch i {
		case 3, 9:
			x.Unjudged = fleet.NoStatus
		case 8, 19:
			x.Unjudged = fleet.NoRule
		case 10, 16:
			x.Used = true
		}
		s.States = append(s.States, x)
	}
	out := SyncStatusToProto(s)
	got, err := SyncStatusFromProto(out)
	if err != nil || !reflect.DeepEqual(got.States, s.States) {
		t.Errorf("%v, %v", got.States, err)
	}
	out.NoRule = []byte{0xff, 0xff, 0xff, 0xff} // more than there are, and one that is NoStatus
	if _, err := SyncStatusFromProto(out); err != nil {
		t.Error(err)
	}
}

// A field that cannot be ignored is refused where it is written, with its place.
func TestIgnoredFieldsAreChecked(t *testing.T) {
	for want, in := range map[string]*towlinev1.IgnoreFields{
		"[1].ignoreFields.jsonPointers[1]: \"/metadata/name\" holds metadata.name": {JsonPointers: []string{"/spec/replicas", "/metadata/name"}},
		"[1].ignoreFields.jsonPointers[0]: \"spec\" is no JSON pointer":            {JsonPointers: []string{"spec"}},
		"[1].ignoreFields.managers[0]: \"towline\" is Towline's own":               {Managers: []string{"towline"}},
		"[1].ignoreFields.managers[0]: is a name of 1 to 128 characters":           {Managers: []string{""}},
		"[1].ignoreFields: has 65 entries, more than 64":                           {Managers: make([]string, 65)},
	} {
		_, err := policies([]*towlinev1.Policy{{}, {IgnoreFields: in}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	list, err := policies([]*towlinev1.Policy{{IgnoreFields: &towlinev1.IgnoreFields{}}, {IgnoreFields: &towlinev1.IgnoreFields{Managers: []string{"m"}}}})
	if err != nil || fleet.Resolve(list, fleet.ObjectID{Kind: "A"}, nil).IgnoreFields.Managers != nil {
		t.Errorf("an empty entry is no exception from those behind it: %v, %v", list, err)
	}
}

// So is a path that cannot be applied once.
func TestApplyOnceIsChecked(t *testing.T) {
	for want, in := range map[string]*towlinev1.ApplyOnce{
		"[0].applyOnce.paths[0]: \"/kind\" holds kind":                {Paths: []string{"/kind"}},
		"[0].applyOnce.paths: is required":                            {When: "OnDrift"},
		"[0].applyOnce.paths: \"*\" is the whole object":              {Paths: []string{"*", "/spec"}},
		"[0].applyOnce.when: \"Never\" is unknown; use OnUpdate, OnD": {Paths: []string{"*"}, When: "Never"},
	} {
		_, err := policies([]*towlinev1.Policy{{ApplyOnce: in}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if got := Needs(fleet.PolicySet{Policies: []fleet.Policy{{}, {ApplyOnce: &fleet.ApplyOnce{Paths: []string{"*"}}}}}); !slices.Equal(got, []string{FeatureApplyOnce}) {
		t.Errorf("an agent needs %v", got)
	}
}

// An agent that does not know readOnly is not to have it, not even as an exception; what a tombstone tells of the policies has it.
func TestReadOnlyTravels(t *testing.T) {
	list, err := policies([]*towlinev1.Policy{{ReadOnly: new(false)}, {ReadOnly: new(true)}, {}})
	if err != nil || list[0].Reads() || list[0].ReadOnly == nil || !list[1].Reads() || list[2].ReadOnly != nil {
		t.Errorf("%+v, %v", list, err)
	}
	set := fleet.PolicySet{Policies: list[:1]}
	if needs := Needs(set); !slices.Equal(needs, []string{FeatureReadOnly}) || len(Missing(needs, Features())) != 0 {
		t.Errorf("needs %v", needs)
	}
	kept, err := Keeping(fleet.PolicySet{Policies: list})
	if back, _ := PolicySetFromContent(kept); err != nil || len(back.Policies) != 2 || !back.Policies[1].Reads() {
		t.Errorf("%s, %v", kept, err)
	}
}

// takeFrom is refused where it is written if it says nothing, and where an agent would not know a tool.
func TestTakeFromIsChecked(t *testing.T) {
	for want, in := range map[string]*towlinev1.Policy{
		`[0].takeFrom[0]: "Argo" is unknown; use ArgoCD, Flux, Helm, kubectl`: {Adopt: "Always", TakeFrom: []string{"Argo"}},
		"[0].takeFrom[1]: names each tool once":                               {Adopt: "Always", TakeFrom: []string{"Helm", "Helm"}},
		"[0].takeFrom[0]: names each tool once":                               {Adopt: "Always", TakeFrom: []string{""}},
		"[0].takeFrom: says from whom adopt: Always takes":                    {TakeFrom: []string{"Helm"}},
	} {
		if _, err := policies([]*towlinev1.Policy{in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	list, err := policies([]*towlinev1.Policy{{Adopt: "Always", TakeFrom: fleet.Tools()}})
	if needs := Needs(fleet.PolicySet{Policies: list}); err != nil || !slices.Equal(needs, []string{FeatureTakeFrom}) || len(Missing(needs, Features())) != 0 {
		t.Errorf("needs %v, %v", needs, err)
	}
	content, err := PolicySetContent(fleet.PolicySet{Policies: list})
	if back, bad := PolicySetFromContent(content); err != nil || bad != nil || !slices.Equal(back.Policies[0].TakeFrom, fleet.Tools()) {
		t.Errorf("%s, %v, %v", content, err, bad)
	}
}

func TestSharedTravels(t *testing.T) {
	list, err := policies([]*towlinev1.Policy{{Shared: new(false)}, {Shared: new(true)}})
	if err != nil || list[0].Shares() || !list[1].Shares() {
		t.Errorf("%+v, %v", list, err)
	}
	set := fleet.PolicySet{Policies: list[:1]}
	content, err := PolicySetContent(set)
	if back, bad := PolicySetFromContent(content); err != nil || bad != nil || back.Policies[0].Shared == nil || !slices.Equal(Needs(back), []string{FeatureShared}) {
		t.Errorf("%s, %v, %v", content, err, bad)
	}
}
