package assemble

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
)

func text(s string) *string { return &s }

func TestValues(t *testing.T) {
	cluster := fleet.Cluster{Name: "eu-1", Labels: map[string]string{"region": "eu", "empty": ""}, Annotations: map[string]string{"x.io/note": "some text", "x.io/code": "${B} $${B} ${A}",
		"x.io/long": strings.Repeat("x", MaxValueBytes+1)}}
	for name, tc := range map[string]struct {
		bindings []fleet.Binding
		want     map[string]string
		says     string
	}{
		"none":            {nil, nil, ""},
		"literal":         {[]fleet.Binding{{Name: "A", Value: text("x")}}, map[string]string{"A": "x"}, ""},
		"empty literal":   {[]fleet.Binding{{Name: "A", Value: text("")}}, map[string]string{"A": ""}, ""},
		"name":            {[]fleet.Binding{{Name: "A", Field: "metadata.name"}}, map[string]string{"A": "eu-1"}, ""},
		"label":           {[]fleet.Binding{{Name: "A", Label: "region", Default: text("us")}}, map[string]string{"A": "eu"}, ""},
		"empty label":     {[]fleet.Binding{{Name: "A", Label: "empty", Default: text("us")}}, map[string]string{"A": ""}, ""},
		"default":         {[]fleet.Binding{{Name: "A", Label: "zone", Default: text("a")}}, map[string]string{"A": "a"}, ""},
		"empty default":   {[]fleet.Binding{{Name: "A", Label: "zone", Default: text("")}}, map[string]string{"A": ""}, ""},
		"no value":        {[]fleet.Binding{{Name: "A", Label: "zone"}}, nil, `A has no value in cluster eu-1: it has no label "zone"`},
		"nothing set":     {[]fleet.Binding{{Name: "A"}}, nil, "A has no value"},
		"refers forward":  {[]fleet.Binding{{Name: "A", Value: text("${B}-${B}")}, {Name: "B", Label: "region"}}, map[string]string{"A": "eu-eu", "B": "eu"}, ""},
		"through default": {[]fleet.Binding{{Name: "A", Label: "zone", Default: text("${B}1")}, {Name: "B", Value: text("b")}}, map[string]string{"A": "b1", "B": "b"}, ""},
		"deep":            {[]fleet.Binding{{Name: "A", Value: text("${B}")}, {Name: "B", Value: text("${C}")}, {Name: "C", Value: text("c")}}, map[string]string{"A": "c", "B": "c", "C": "c"}, ""},
		"other text":      {[]fleet.Binding{{Name: "A", Value: text("$A ${OTHER} ${ ${} $")}}, map[string]string{"A": "$A ${OTHER} ${ ${} $"}, ""},
		"undeclared, then declared": {[]fleet.Binding{{Name: "A", Value: text("${${B}}")}, {Name: "B", Value: text("b")}},
			map[string]string{"A": "${b}", "B": "b"}, ""},
		"itself":            {[]fleet.Binding{{Name: "A", Value: text("${A}")}}, nil, "A refers to itself: A → A"},
		"a cycle":           {[]fleet.Binding{{Name: "A", Value: text("${B}")}, {Name: "B", Value: text("${A}")}}, nil, "A refers to itself: A → B → A"},
		"missing, referred": {[]fleet.Binding{{Name: "A", Value: text("${B}")}, {Name: "B", Label: "zone"}}, nil, "B has no value"},
		"annotation":        {[]fleet.Binding{{Name: "A", Annotation: "x.io/note", Default: text("d")}}, map[string]string{"A": "some text"}, ""},
		"annotation with the text of a placeholder": {[]fleet.Binding{{Name: "A", Annotation: "x.io/code"}, {Name: "B", Value: text("b")}, {Name: "C", Value: text("<${A}>")}},
			map[string]string{"A": "${B} $${B} ${A}", "B": "b", "C": "<${B} $${B} ${A}>"}, ""},
		"annotation that is too long": {[]fleet.Binding{{Name: "A", Annotation: "x.io/long"}}, nil, "A has more than"},
		"no annotation":               {[]fleet.Binding{{Name: "A", Annotation: "region"}}, nil, `A has no value in cluster eu-1: it has no annotation "region"; set the annotation or a default`},
		"optional":                    {[]fleet.Binding{{Name: "A", Label: "zone", Optional: true}, {Name: "B", Value: text("b${A:-1}")}}, map[string]string{"A": "", "B": "b1"}, ""},
		"optional, there":             {[]fleet.Binding{{Name: "A", Label: "region", Optional: true}, {Name: "B", Value: text("${A:-us}")}}, map[string]string{"A": "eu", "B": "eu"}, ""},
		"escaped":                     {[]fleet.Binding{{Name: "A", Value: text("$${B} $${C}")}, {Name: "B", Value: text("b")}}, map[string]string{"A": "${B} $${C}", "B": "b"}, ""},
		"a number":                    {[]fleet.Binding{{Name: "A", Value: text("-3"), Type: fleet.BindingInteger}}, map[string]string{"A": "-3"}, ""},
		"no number":                   {[]fleet.Binding{{Name: "A", Label: "region", Type: fleet.BindingInteger}}, nil, "the value of A in cluster eu-1 is no whole number"},
		"no truth":                    {[]fleet.Binding{{Name: "A", Value: text("yes"), Type: fleet.BindingBoolean}}, nil, "the value of A in cluster eu-1 is neither true nor false"},
		"none of a type":              {[]fleet.Binding{{Name: "A", Label: "zone", Optional: true, Type: fleet.BindingNumber}}, map[string]string{"A": ""}, ""},
		"too long":                    {doubling(40), nil, "bytes in cluster eu-1"},
		"long enough":                 {[]fleet.Binding{{Name: "A", Value: text(strings.Repeat("x", MaxValueBytes))}}, map[string]string{"A": strings.Repeat("x", MaxValueBytes)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Values(tc.bindings, cluster)
			if tc.says != "" {
				if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %v, want one that says %q", err, tc.says)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("error %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// doubling is a list of bindings whose last value is 2^n bytes long.
func doubling(n int) []fleet.Binding {
	name := func(i int) string { return "A" + strings.Repeat("I", i) }
	out := []fleet.Binding{{Name: name(0), Value: text("x")}}
	for i := 1; i <= n; i++ {
		ref := "${" + name(i-1) + "}"
		out = append(out, fleet.Binding{Name: name(i), Value: text(ref + ref)})
	}
	return out
}

func TestSelects(t *testing.T) {
	cluster := fleet.Cluster{Name: "eu-1", Labels: map[string]string{"region": "eu"}}
	for name, tc := range map[string]struct {
		placement fleet.Placement
		want      bool
	}{
		"nothing":         {fleet.Placement{}, false},
		"everything":      {fleet.Placement{Selector: &fleet.Selector{}}, true},
		"by label":        {fleet.Placement{Selector: &fleet.Selector{MatchLabels: map[string]string{"region": "eu"}}}, true},
		"another label":   {fleet.Placement{Selector: &fleet.Selector{MatchLabels: map[string]string{"region": "us"}}}, false},
		"by name":         {fleet.Placement{Clusters: []fleet.ClusterName{"us-1", "eu-1"}}, true},
		"another name":    {fleet.Placement{Clusters: []fleet.ClusterName{"us-1"}}, false},
		"either":          {fleet.Placement{Clusters: []fleet.ClusterName{"eu-1"}, Selector: &fleet.Selector{MatchLabels: map[string]string{"region": "us"}}}, true},
		"does not parse":  {fleet.Placement{Selector: &fleet.Selector{MatchExpressions: []fleet.Requirement{{Key: "a", Operator: "Like"}}}}, false},
		"by what is not":  {fleet.Placement{Selector: &fleet.Selector{MatchExpressions: []fleet.Requirement{{Key: "gpu", Operator: "DoesNotExist"}}}}, true},
		"needs two match": {fleet.Placement{Selector: &fleet.Selector{MatchLabels: map[string]string{"region": "eu", "gpu": "yes"}}}, false},
	} {
		if got := Selects(tc.placement, cluster); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// A taint keeps a module away that does not tolerate it, and takes away none that is there.
func TestPlaces(t *testing.T) {
	gpu, any := "gpu", fleet.Placement{Selector: &fleet.Selector{}}
	tolerating := func(list ...fleet.Toleration) fleet.Placement {
		return fleet.Placement{Selector: &fleet.Selector{}, Tolerations: list}
	}
	tainted := fleet.Cluster{Name: "a", Taints: []fleet.Taint{{Key: "pool", Value: "gpu"}, {Key: "new"}}}
	for name, tc := range map[string]struct {
		p    fleet.Placement
		c    fleet.Cluster
		has  bool
		want bool
	}{
		"no taint":               {p: any, c: fleet.Cluster{Name: "a"}, want: true},
		"tainted":                {p: any, c: tainted},
		"it is there":            {p: any, c: tainted, has: true, want: true},
		"it is not for there":    {p: fleet.Placement{Clusters: []fleet.ClusterName{"b"}}, c: tainted, has: true},
		"named":                  {p: fleet.Placement{Clusters: []fleet.ClusterName{"a"}}, c: tainted, want: true},
		"one is tolerated":       {p: tolerating(fleet.Toleration{Key: "pool"}), c: tainted},
		"both are":               {p: tolerating(fleet.Toleration{Key: "pool", Value: &gpu}, fleet.Toleration{Key: "new"}), c: tainted, want: true},
		"another value is":       {p: tolerating(fleet.Toleration{Key: "pool", Value: new(string)}, fleet.Toleration{Key: "new"}), c: tainted},
		"everything is":          {p: tolerating(fleet.Toleration{}), c: tainted, want: true},
		"an empty value is":      {p: tolerating(fleet.Toleration{Key: "new", Value: new(string)}), c: fleet.Cluster{Name: "a", Taints: []fleet.Taint{{Key: "new"}}}, want: true},
		"the value is of no key": {p: tolerating(fleet.Toleration{Value: &gpu}), c: fleet.Cluster{Name: "a", Taints: []fleet.Taint{{Key: "x", Value: "gpu"}}}, want: true},
	} {
		if got := Places(tc.p, tc.c, tc.has); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Nothing is taken from where the placement has it, nor where nobody knows.
func TestMayLeave(t *testing.T) {
	tainted := fleet.Cluster{Name: "a", Taints: []fleet.Taint{{Key: "new"}}}
	for name, tc := range map[string]struct {
		p    *fleet.Placement
		c    *fleet.Cluster
		want bool
	}{
		"not placed":            {&fleet.Placement{Clusters: []fleet.ClusterName{"b"}}, &tainted, true},
		"placed":                {&fleet.Placement{Clusters: []fleet.ClusterName{"a"}}, &tainted, false},
		"tainted since":         {&fleet.Placement{Selector: &fleet.Selector{}}, &tainted, false},
		"placement not known":   {nil, &tainted, false},
		"cluster not known":     {&fleet.Placement{Clusters: []fleet.ClusterName{"b"}}, nil, false},
		"nothing known at all":  {nil, nil, false},
		"selects nothing":       {&fleet.Placement{}, &tainted, true},
		"selects by other name": {&fleet.Placement{Selector: &fleet.Selector{MatchLabels: map[string]string{"x": "y"}}}, &tainted, true},
	} {
		if got := MayLeave(tc.p, tc.c); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBuild(t *testing.T) {
	sync := func(name string, g uint64) fleet.Sync { return fleet.Sync{Module: module(name), Generation: g} }
	tomb := func(name string, g uint64) fleet.Tombstone {
		return fleet.Tombstone{Module: module(name), Generation: g}
	}
	for name, tc := range map[string]struct {
		syncs      []fleet.Sync
		tombstones []fleet.Tombstone
		floor      uint64
		want       uint64
	}{
		"empty":                 {nil, nil, 0, 0},
		"empty above a floor":   {nil, nil, 9, 9},
		"the highest sync":      {[]fleet.Sync{sync("web", 7), sync("api", 3)}, nil, 0, 7},
		"the highest tombstone": {[]fleet.Sync{sync("web", 7)}, []fleet.Tombstone{tomb("old", 8)}, 0, 8},
		"the floor":             {[]fleet.Sync{sync("web", 7)}, []fleet.Tombstone{tomb("old", 8)}, 12, 12},
		"above the floor":       {[]fleet.Sync{sync("web", 7)}, nil, 5, 7},
	} {
		a := Build(tc.syncs, tc.tombstones, false, tc.floor)
		if a.Generation != tc.want || a.Digest != Digest(a) {
			t.Errorf("%s: generation %d, want %d; digest %s", name, a.Generation, tc.want, a.Digest.Short())
		}
	}
	a := Build([]fleet.Sync{sync("web", 1), sync("api", 2)}, []fleet.Tombstone{tomb("z", 3), tomb("b", 4)}, true, 0)
	if a.Syncs[0].Module.Name != "api" || a.Tombstones[0].Module.Name != "b" || !a.Hold {
		t.Errorf("not sorted: %+v", a)
	}
	if Build(nil, nil, true, 0).Digest == Build(nil, nil, false, 0).Digest {
		t.Error("a hold does not change the digest")
	}
}

func TestWatchedObjects(t *testing.T) {
	list := []fleet.WatchedObject{{Version: "v1", Kind: "ConfigMap", Namespace: "n", Name: "of-${REGION}"}, {Version: "v1", Kind: "Node", Name: "n"}}
	own := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "of-eu"}}}
	got, err := Watched(list, own, map[string]string{"REGION": "us"})
	if err != nil || len(got) != 2 || got[0].ID.Name != "of-us" || got[1].ID != (fleet.ObjectID{Kind: "Node", Name: "n"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for region, want := range map[string]string{"eu": "of-eu is among the module's own objects", "E_U": "metadata.name", "": "metadata.name"} {
		if _, err := Watched(list, own, map[string]string{"REGION": region}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", region, err, want)
		}
	}
	twice := append(slices.Clone(list), fleet.WatchedObject{Version: "v1", Kind: "ConfigMap", Namespace: "n", Name: "of-us"})
	if _, err := Watched(twice, own, map[string]string{"REGION": "us"}); err == nil {
		t.Error("two of the list are the same object, and that was taken")
	}
	if err := WatchedApart(list, own); err != nil {
		t.Error(err)
	}
	if err := WatchedApart([]fleet.WatchedObject{{Kind: "ConfigMap", Namespace: "n", Name: "of-eu"}}, own); err == nil || !strings.HasPrefix(err.Error(), "spec.watch[0]: ") {
		t.Errorf("%v", err)
	}
}
