package plan

import (
	"reflect"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestExempts(t *testing.T) {
	at := func(steps ...fleet.FieldStep) []fleet.FieldPath { return []fleet.FieldPath{steps} }
	once := func(when string, paths ...string) fleet.Policy {
		return fleet.Policy{Drift: fleet.DriftCorrect, ApplyOnce: &fleet.ApplyOnce{Paths: paths, When: when}}
	}
	for name, tc := range map[string]struct {
		policy fleet.Policy
		drift  string
		want   *Exempt
	}{
		"nothing":             {fleet.Policy{Drift: fleet.DriftCorrect}, fleet.DriftCorrect, nil},
		"an exception":        {fleet.Policy{Drift: fleet.DriftCorrect, IgnoreFields: &fleet.IgnoreFields{}, ApplyOnce: &fleet.ApplyOnce{}}, fleet.DriftCorrect, nil},
		"ignored":             {fleet.Policy{IgnoreFields: &fleet.IgnoreFields{JSONPointers: []string{"/a/0"}, Managers: []string{"m"}}}, "", &Exempt{Always: at("a", "0"), Managers: []string{"m"}}},
		"once":                {once("", "/a"), fleet.DriftCorrect, &Exempt{Always: at("a")}},
		"always":              {once(fleet.OnceAlways, "/a"), fleet.DriftCorrect, &Exempt{Always: at("a")}},
		"on drift":            {once(fleet.OnceOnDrift, "/a"), fleet.DriftCorrect, &Exempt{OnDrift: at("a")}},
		"on update":           {once(fleet.OnceOnUpdate, "/a"), fleet.DriftCorrect, &Exempt{OnUpdate: at("a")}},
		"the whole":           {once("", "*"), fleet.DriftIgnore, &Exempt{Updates: true, Drifts: true, Left: true}},
		"the whole on drift":  {once(fleet.OnceOnDrift, "*"), fleet.DriftIgnore, &Exempt{Drifts: true, Left: true}},
		"the whole on update": {once(fleet.OnceOnUpdate, "*"), fleet.DriftCorrect, &Exempt{Updates: true}},
		"the whole, with drift told": {fleet.Policy{Drift: fleet.DriftReport, ApplyOnce: &fleet.ApplyOnce{Paths: []string{"*"}}}, fleet.DriftReport,
			&Exempt{Updates: true, Drifts: true, Left: true}},
	} {
		t.Run(name, func(t *testing.T) {
			policy, got, err := Exempts(tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Name() == "") != (tc.want == nil) {
				t.Errorf("its name is %q", got.Name())
			}
			if got != nil {
				got.Text = ""
			}
			if policy.Drift != tc.drift || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v with drift %s, want %+v with %s", got, policy.Drift, tc.want, tc.drift)
			}
		})
	}
}

// A revision does not write an object that is kept as a whole, and makes it where it is not there.
func TestDecideOfWhatIsAppliedOnce(t *testing.T) {
	was, is := fleet.DigestOf([]byte("was")), fleet.DigestOf([]byte("is"))
	here := Live{Known: true, Exists: true, UID: "u", Match: MatchYes}
	differs, unsettled, contested := here, here, here
	differs.Match, unsettled.Match, contested.Match = MatchNo, MatchUnsettled, MatchContested
	gone := Live{Known: true, Confirmed: true}
	for name, tc := range map[string]struct {
		when string
		want fleet.Digest
		live Live
		hold bool
		verb Verb
	}{
		"always, a revision":                    {fleet.OnceAlways, is, here, false, Keep},
		"always, a revision under a hold":       {fleet.OnceAlways, is, here, true, Keep},
		"always, a revision of what differs":    {fleet.OnceAlways, is, differs, false, Keep},
		"always, a revision of what is gone":    {fleet.OnceAlways, is, gone, false, Create},
		"always, what differs":                  {fleet.OnceAlways, was, differs, false, Leave},
		"always, what is gone":                  {fleet.OnceAlways, was, gone, false, Leave},
		"always, another write of ours":         {fleet.OnceAlways, was, unsettled, false, Skip},
		"on drift, a revision":                  {fleet.OnceOnDrift, is, here, false, Apply},
		"on drift, what differs":                {fleet.OnceOnDrift, was, differs, false, Leave},
		"on drift, what is gone":                {fleet.OnceOnDrift, was, gone, false, Leave},
		"on drift, another write of ours":       {fleet.OnceOnDrift, was, unsettled, false, Repeat},
		"on drift, what others may have freed":  {fleet.OnceOnDrift, was, contested, false, Skip},
		"on update, a revision":                 {fleet.OnceOnUpdate, is, here, false, Keep},
		"on update, a revision of what is gone": {fleet.OnceOnUpdate, is, gone, false, Create},
		"on update, what differs":               {fleet.OnceOnUpdate, was, differs, false, Correct},
		"on update, what is gone":               {fleet.OnceOnUpdate, was, gone, false, Restore},
		"on update, another write of ours":      {fleet.OnceOnUpdate, was, unsettled, false, Repeat},
	} {
		t.Run(name, func(t *testing.T) {
			policy, exempt, err := Exempts(fleet.Resolve([]fleet.Policy{{ApplyOnce: &fleet.ApplyOnce{Paths: []string{"*"}, When: tc.when}}}, fleet.ObjectID{}, nil))
			if err != nil {
				t.Fatal(err)
			}
			r := &Record{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, State: Owned, UID: "u", Want: was}
			got := Decide(Facts{Want: tc.want, Record: r, Live: tc.live, Policy: policy, Exempt: exempt, Hold: tc.hold})
			if got.Verb != tc.verb {
				t.Errorf("%s, want %s", got.Verb, tc.verb)
			}
			if tc.verb != Keep || tc.hold {
				return
			}
			facts := Facts{Want: tc.want, Record: r, Live: tc.live, Policy: policy, Exempt: exempt}
			if r.From = other; Decide(facts).Verb != Apply {
				t.Error("one that another module's marks are on is not marked anew")
			}
			r.From, r.Want = fleet.ModuleRef{}, fleet.Digest{}
			if Decide(facts).Verb != Apply {
				t.Error("one that is to be written again is not")
			}
		})
	}
}
