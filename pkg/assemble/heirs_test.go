package assemble

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

func key(name string) uint64 {
	return HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: name})
}

func keys(names ...string) map[uint64]bool {
	out := map[uint64]bool{}
	for _, n := range names {
		out[key(n)] = true
	}
	return out
}

func TestHeirs(t *testing.T) {
	two, three := fleet.ModuleRef{Project: "default", Name: "two"}, fleet.ModuleRef{Project: "default", Name: "three"}
	for _, tc := range []struct {
		name    string
		dropped map[uint64]bool
		others  []Claimant
		of      string // whose heir is asked for
		heir    string
		unknown bool
	}{
		{"nobody", keys("m"), nil, "m", "", false},
		{"lists it", keys("m"), []Claimant{{Module: two, Lists: keys("m")}}, "m", "two", false},
		{"lists another", keys("m", "x"), []Claimant{{Module: two, Lists: keys("x")}}, "m", "", false},
		{"has it already", keys("m"), []Claimant{{Module: two, Lists: keys("m"), Has: keys("m")}}, "m", "", false},
		{"is being made", keys("m"), []Claimant{{Module: two, Unknown: true}}, "m", "two", true},
		{"one lists it, one is being made", keys("m"), []Claimant{{Module: three, Unknown: true}, {Module: two, Lists: keys("m")}}, "m", "two", false},
		{"is about to list it later", keys("m"), []Claimant{{Module: two, Lists: keys("x")}, {Module: two, Lists: keys("m")}}, "m", "two", false},
		{"nothing is dropped", nil, []Claimant{{Module: two, Unknown: true}}, "m", "", false},
	} {
		got := Heirs(tc.dropped, tc.others)
		to, found := HeirOf(got, fleet.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: tc.of})
		if found != (tc.heir != "") || to.Module.Name != tc.heir || to.Unknown != tc.unknown {
			t.Errorf("%s: %+v of %+v", tc.name, to, got)
		}
	}
}

// Where only the cluster knows whether a kind has namespaces an object is found whichever is so, and none that has its name in
// another namespace is taken for it.
func TestHeirKeys(t *testing.T) {
	till := func(ns string) fleet.ObjectID {
		return fleet.ObjectID{Group: "x.io", Kind: "Till", Namespace: ns, Name: "t"}
	}
	list := func(namespaces ...string) (out []fleet.BundleEntry) {
		for _, ns := range namespaces {
			out = append(out, fleet.BundleEntry{ID: till(ns)})
		}
		return out
	}
	two := fleet.ModuleRef{Project: "default", Name: "two"}
	for name, tc := range map[string]struct {
		had, keeps, lists, has []fleet.BundleEntry
		live                   string
		want                   bool
	}{
		"with namespaces":                             {list("a"), nil, list("a"), nil, "a", true},
		"with namespaces, one more stays":             {list("a", "b"), list("b"), list("a"), nil, "a", true},
		"with namespaces, the heir has another":       {list("a"), nil, list("a", "b"), list("b"), "a", true},
		"with namespaces, the heir lists another":     {list("a"), nil, list("b"), nil, "a", false},
		"with namespaces, the heir has it":            {list("a"), nil, list("a"), list("a"), "a", false},
		"without, rendered into the same":             {list("a"), nil, list("a"), nil, "", true},
		"without, rendered into different ones":       {list("a"), nil, list("b"), nil, "", true},
		"without, rendered into none":                 {list("a"), nil, list(""), nil, "", true},
		"without, rendered into another from then on": {list("a"), list("b"), list("a"), nil, "", false},
	} {
		dropped := map[uint64]bool{}
		for _, k := range Dropped(tc.had, tc.keeps) {
			dropped[k] = true
		}
		for k := range HeirKeys(tc.keeps, nil) {
			delete(dropped, k)
		}
		got := Heirs(dropped, []Claimant{{Module: two, Lists: HeirKeys(tc.lists, nil), Has: HeirKeys(tc.has, nil)}})
		if _, found := HeirOf(got, till(tc.live)); found != tc.want {
			t.Errorf("%s: an heir %t of %+v", name, found, got)
		}
	}
	if key("a") == HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "other", Name: "a"}) {
		t.Error("a ConfigMap of another namespace is the same")
	}
	node := fleet.ObjectID{Kind: "PersistentVolume", Name: "a"}
	rendered := node
	if rendered.Namespace = "x"; HeirKey(node) != HeirKey(rendered) {
		t.Error("a kind without namespaces has one")
	}
}

// TestHeirOfACustomResourceAndItsDefinition: a CRD moves to another module and an object of its kind to a third, which does not know the scope
// that the first one knew by the CRD, nor has its namespace: each is kept for who is to have it, and for nobody else.
func TestHeirOfACustomResourceAndItsDefinition(t *testing.T) {
	crd := func(scope string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: tills.x.io}\nspec: {group: x.io, scope: " + scope +
			", names: {plural: tills, kind: Till}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n"
	}
	const till = "apiVersion: x.io/v1\nkind: Till\nmetadata: {name: t}\n"
	in := func(ns string) string {
		return "apiVersion: x.io/v1\nkind: Till\nmetadata: {name: t, namespace: " + ns + "}\n"
	}
	entries := func(namespace string, docs ...string) []fleet.BundleEntry {
		objects, err := manifest.ParseSet(map[string][]byte{"x.yaml": []byte(strings.Join(docs, "---\n"))}, manifest.Options{Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		return manifest.ToBundle(objects)
	}
	two, three := fleet.ModuleRef{Project: "default", Name: "two"}, fleet.ModuleRef{Project: "default", Name: "three"}
	defined := fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "tills.x.io"}
	for name, tc := range map[string]struct {
		scope, had, takes string // of the object: what the one wrote, and what the third does
		ns, to            string // the namespaces of the two modules
		live              string // the object's namespace in the cluster
		heir              bool
	}{
		"without namespaces":                            {"Cluster", till, till, "shop", "shop", "", true},
		"without namespaces, of other modules":          {"Cluster", till, till, "shop", "other", "", true},
		"without namespaces, the third has none":        {"Cluster", till, till, "shop", "", "", true},
		"without namespaces, the third names one":       {"Cluster", till, in("other"), "", "", "", true},
		"with namespaces":                               {"Namespaced", till, till, "shop", "shop", "shop", true},
		"with namespaces, written out":                  {"Namespaced", till, in("shop"), "shop", "other", "shop", true},
		"with namespaces, the third's is another":       {"Namespaced", till, till, "shop", "other", "shop", false},
		"with namespaces, the third has another, named": {"Namespaced", in("shop"), in("other"), "", "", "shop", false},
	} {
		for _, knows := range []bool{true, false} { // by the CRD beside it what the scope is
			had := entries(tc.ns, crd(tc.scope), tc.had)
			if !knows {
				had = slices.Concat(entries(tc.ns, crd(tc.scope)), entries(tc.ns, tc.had))
			}
			dropped := map[uint64]bool{}
			for _, k := range Dropped(had, nil) {
				dropped[k] = true
			}
			heirs := Heirs(dropped, []Claimant{{Module: two, Lists: HeirKeys(entries("crds", crd(tc.scope)), nil)}, {Module: three, Lists: HeirKeys(entries(tc.to, tc.takes), nil)}})
			if to, found := HeirOf(heirs, defined); !found || to.Module != two {
				t.Errorf("%s, %v: the CRD goes to %+v", name, knows, to)
			}
			to, found := HeirOf(heirs, fleet.ObjectID{Group: "x.io", Kind: "Till", Namespace: tc.live, Name: "t"})
			if found != tc.heir || found && to.Module != three {
				t.Errorf("%s, %v: the object goes to %+v (%v) of %+v", name, knows, to, found, heirs)
			}
		}
	}
}

// What an assemblage says of heirs, and of the policies of a removal, is in its digest.
func TestHeirsAreInTheDigest(t *testing.T) {
	heirs := []fleet.Heir{{Module: fleet.ModuleRef{Project: "default", Name: "two"}, Keys: []uint64{1, 2}}}
	other := []fleet.Heir{{Module: fleet.ModuleRef{Project: "default", Name: "two"}, Keys: []uint64{1, 3}}}
	seen := map[fleet.Digest]int{}
	for i, h := range [][]fleet.Heir{nil, heirs, other} {
		one := fleet.ModuleRef{Project: "default", Name: "one"}
		for _, a := range []fleet.Assemblage{
			{Syncs: []fleet.Sync{{Module: one, Generation: 1, Heirs: h}}},
			{Tombstones: []fleet.Tombstone{{Module: one, Generation: 1, Policy: fleet.DeleteDelete, Heirs: h}}},
			{Tombstones: []fleet.Tombstone{{Module: one, Generation: 1, Policy: fleet.DeleteDelete, Heirs: h, Hold: true}}},
			{Tombstones: []fleet.Tombstone{{Module: one, Generation: 1, Policy: fleet.DeleteDelete, Heirs: h, Policies: "[]"}}},
			{Tombstones: []fleet.Tombstone{{Module: one, Generation: 1, Policy: fleet.DeleteDelete, Heirs: h, Policies: "[{}]"}}},
		} {
			if was, again := seen[Digest(a)]; again {
				t.Errorf("%d and %d have one digest", was, i)
			}
			seen[Digest(a)] = i
		}
	}
}

// A module whose rollout lists one thing, while its next put is being made, is named once: an agent takes no list that names a
// module twice.
func TestHeirIsNamedOnce(t *testing.T) {
	two := fleet.ModuleRef{Project: "default", Name: "two"}
	got := Heirs(map[uint64]bool{1: true, 2: true}, []Claimant{{Module: two, Lists: map[uint64]bool{1: true}}, {Module: two, Unknown: true}})
	if len(got) != 1 || !got[0].Unknown || len(got[0].Keys) != 2 {
		t.Errorf("heirs %+v", got)
	}
}
