package assemble_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

func module(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }

// needs reads "a: b c" lines.
func needs(lines ...string) func(fleet.ModuleRef) []fleet.ModuleRef {
	all := map[fleet.ModuleRef][]fleet.ModuleRef{}
	for _, l := range lines {
		name, rest, _ := strings.Cut(l, ":")
		for _, n := range strings.Fields(rest) {
			all[module(name)] = append(all[module(name)], module(n))
		}
	}
	return func(m fleet.ModuleRef) []fleet.ModuleRef { return all[m] }
}

// TestCircle: a circle is named from the module that was asked about; one that the module only leads to is not its own.
func TestCircle(t *testing.T) {
	for _, x := range []struct {
		of    string
		needs []string
		want  string
	}{
		{"a", nil, "[]"},
		{"a", []string{"a: b", "b: c"}, "[]"},
		{"a", []string{"a: b", "b: a"}, "[a b a]"},
		{"a", []string{"a: a"}, "[a a]"},
		{"a", []string{"a: b c", "b: d", "c: d", "d: a"}, "[a b d a]"},
		{"a", []string{"a: b", "b: c", "c: b"}, "[]"},
		{"a", []string{"a: b c", "b: d", "d: b", "c: a"}, "[a c a]"},
	} {
		var names []string
		for _, m := range assemble.Circle(module(x.of), needs(x.needs...)) {
			names = append(names, m.Name)
		}
		if got := fmt.Sprint(names); got != x.want {
			t.Errorf("%s of %v: %s, not %s", x.of, x.needs, got, x.want)
		}
	}
}

// TestCircleOfManyModules: what is found is a circle, and there is one wherever a module reaches itself.
func TestCircleOfManyModules(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		edges := map[fleet.ModuleRef][]fleet.ModuleRef{}
		var all []fleet.ModuleRef
		for i := range 8 {
			all = append(all, module(fmt.Sprint(i)))
		}
		for range r.IntN(14) {
			from := all[r.IntN(8)]
			edges[from] = append(edges[from], all[r.IntN(8)])
		}
		of := func(m fleet.ModuleRef) []fleet.ModuleRef { return edges[m] }
		for _, m := range all {
			c := assemble.Circle(m, of)
			if reached := closure(m, of)[m]; reached != (c != nil) {
				t.Fatalf("seed %d: %s: circle %v, reaches itself %v", seed, m.Name, c, reached)
			}
			for i := 1; i < len(c); i++ {
				if !slices.Contains(edges[c[i-1]], c[i]) || c[0] != m || c[len(c)-1] != m {
					t.Fatalf("seed %d: %v is no circle", seed, c)
				}
			}
		}
	}
}

// closure is all that a module depends on.
func closure(m fleet.ModuleRef, of func(fleet.ModuleRef) []fleet.ModuleRef) map[fleet.ModuleRef]bool {
	out, next := map[fleet.ModuleRef]bool{}, of(m)
	for len(next) > 0 {
		n := next[0]
		next = next[1:]
		if !out[n] {
			out[n] = true
			next = append(next, of(n)...)
		}
	}
	return out
}

// TestDependenciesAreInTheDigest: what is depended on is told apart by the digest, and where there is nothing of that the encoding is
// what agents of before make.
func TestDependenciesAreInTheDigest(t *testing.T) {
	s, dead := fleet.Sync{Module: module("shop"), Generation: 3}, fleet.Tombstone{Module: module("shop"), Generation: 3, Policy: fleet.DeleteDelete}
	plain := map[fleet.Digest]bool{}
	for _, list := range [][]fleet.ModuleRef{nil, {module("a")}, {module("b")}, {module("a"), module("b")}} {
		s.DependsOn, dead.DependsOn = list, list
		for _, d := range []fleet.Digest{assemble.Digest(fleet.Assemblage{Syncs: []fleet.Sync{s}}), assemble.Digest(fleet.Assemblage{Tombstones: []fleet.Tombstone{dead}})} {
			if plain[d] {
				t.Errorf("the digest with %v is that of another one", list)
			}
			plain[d] = true
		}
	}
}
