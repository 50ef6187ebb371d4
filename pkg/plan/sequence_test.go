package plan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

func ofProject(names ...string) (out []fleet.ModuleRef) {
	for _, n := range names {
		out = append(out, fleet.ModuleRef{Project: "default", Name: n})
	}
	return out
}

func standings(list map[string]plan.Standing) plan.Standings {
	out := plan.Standings{}
	for n, s := range list {
		s.Listed = true
		out[ofProject(n)[0]] = s
	}
	return out
}

// TestAwaitsDependency: a revision is begun when each module that comes first is here, stays, and is ready; a circle holds nobody up.
func TestAwaitsDependency(t *testing.T) {
	shop := plan.Standing{DependsOn: ofProject("base")}
	for _, x := range []struct {
		all  map[string]plan.Standing
		want string
	}{
		{map[string]plan.Standing{"shop": {}}, ""},
		{map[string]plan.Standing{"shop": shop}, "waits for module base: is not in this cluster"},
		{map[string]plan.Standing{"shop": shop, "base": {Going: true}}, "waits for module base: is being removed from this cluster"},
		{map[string]plan.Standing{"shop": shop, "base": {Going: true, Uses: ofProject("shop")}}, ""},
		{map[string]plan.Standing{"shop": shop, "base": {Going: true, Gone: true, Uses: ofProject("shop")}}, "waits for module base: is being removed from this cluster"},
		{map[string]plan.Standing{"shop": shop, "base": {}}, "waits for module base: not ready"},
		{map[string]plan.Standing{"shop": shop, "base": {Why: "Deployment base/x: 0 of 1"}}, "waits for module base: not ready (Deployment base/x: 0 of 1)"},
		{map[string]plan.Standing{"shop": shop, "base": {Ready: true}}, ""},
		{map[string]plan.Standing{"shop": {DependsOn: ofProject("a", "b")}}, "waits for module a: is not in this cluster, and for 1 more"},
		{map[string]plan.Standing{"shop": {DependsOn: ofProject("a", "b")}, "a": {Ready: true}}, "waits for module b: is not in this cluster"},
		{map[string]plan.Standing{"shop": shop, "base": {DependsOn: ofProject("shop")}}, ""},
		{map[string]plan.Standing{"shop": shop, "base": {DependsOn: ofProject("x")}, "x": {DependsOn: ofProject("base")}}, "waits for module base: not ready"},
	} {
		if got := standings(x.all).AwaitsDependency(ofProject("shop")[0]); got != x.want {
			t.Errorf("%+v: %q, not %q", x.all, got, x.want)
		}
	}
}

// TestAwaitsDependents: a module that goes is waited for by what it depends on and goes as well, as long as it does something itself.
func TestAwaitsDependents(t *testing.T) {
	base := plan.Standing{Going: true}
	shop := func(change func(*plan.Standing)) plan.Standing {
		s := plan.Standing{Going: true, DependsOn: ofProject("base")}
		change(&s)
		return s
	}
	for _, x := range []struct {
		shop plan.Standing
		want string
	}{
		{shop(func(*plan.Standing) {}), "waits for module shop, which depends on it, to be gone"},
		{shop(func(s *plan.Standing) { s.Why = "ConfigMap a: held" }), "waits for module shop, which depends on it, to be gone (ConfigMap a: held)"},
		{shop(func(s *plan.Standing) { s.Gone = true }), ""},
		{shop(func(s *plan.Standing) { s.Elsewhere = true }), ""},
		{shop(func(s *plan.Standing) { s.Going = false }), ""},
		{shop(func(s *plan.Standing) { s.DependsOn = ofProject("other") }), ""},
	} {
		if got := standings(map[string]plan.Standing{"base": base, "shop": x.shop}).AwaitsDependents(ofProject("base")[0]); got != x.want {
			t.Errorf("%+v: %q, not %q", x.shop, got, x.want)
		}
	}
	circle := standings(map[string]plan.Standing{"base": {Going: true, DependsOn: ofProject("shop")}, "shop": shop(func(*plan.Standing) {})})
	if got := circle.AwaitsDependents(ofProject("base")[0]) + circle.AwaitsDependents(ofProject("shop")[0]); got != "" {
		t.Errorf("a circle holds up: %q", got)
	}
}

// TestNobodyWaitsForWhatWaitsForHim: a removal waits for a module that was given what may use the rest of it. That one, and who comes before it, do
// not wait for the removal; others do.
func TestNobodyWaitsForWhatWaitsForHim(t *testing.T) {
	all := standings(map[string]plan.Standing{"base": {Going: true, Uses: ofProject("shop")}, "shop": {DependsOn: ofProject("base", "mid")},
		"mid": {DependsOn: ofProject("base")}, "other": {DependsOn: ofProject("base")}})
	for name, want := range map[string]string{"mid": "", "other": "waits for module base: is being removed from this cluster", "shop": "waits for module mid: not ready"} {
		if got := all.AwaitsDependency(ofProject(name)[0]); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
}

// TestNobodyWaitsForEver: whatever modules depend on, if each that does not wait becomes ready, or is gone, all are in the end.
func TestNobodyWaitsForEver(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		going := r.IntN(2) == 0
		all := plan.Standings{}
		for i := range 7 {
			s := plan.Standing{Listed: true, Going: going}
			for range r.IntN(3) {
				s.DependsOn = append(s.DependsOn, ofProject(fmt.Sprint(r.IntN(7)))...)
			}
			all[ofProject(fmt.Sprint(i))[0]] = s
		}
		for range len(all) {
			for m, s := range all {
				if going {
					s.Gone = s.Gone || all.AwaitsDependents(m) == ""
				} else {
					s.Ready = s.Ready || all.AwaitsDependency(m) == ""
				}
				all[m] = s
			}
		}
		for m, s := range all {
			if !s.Ready && !s.Gone {
				t.Errorf("seed %d: %s waits for ever: %+v", seed, m.Name, all)
			}
		}
	}
}

// TestAwaitsEndOverNoWait: a module that goes does not wait for a user of what it leaves that waits for its end itself, so nobody waits for that user
// by way of it: what is gone by itself lets the next one begin.
func TestAwaitsEndOverNoWait(t *testing.T) {
	all := standings(map[string]plan.Standing{
		"a": {Going: true, DependsOn: ofProject("c"), Uses: ofProject("b")},
		"b": {Going: true},
		"c": {Going: true},
		"d": {Going: true, DependsOn: ofProject("b", "c"), Uses: ofProject("c")},
	})
	for _, tc := range []struct {
		of, other string
		want      bool
	}{
		{"c", "d", true}, {"c", "a", true}, {"b", "d", true},
		{"b", "a", false}, // b waits for the end of d only, and that for nobody: a keeps what the pods of b use
		{"a", "b", false}, {"d", "c", false},
	} {
		if got := all.AwaitsEnd(ofProject(tc.of)[0], ofProject(tc.other)[0]); got != tc.want {
			t.Errorf("%s waits for the end of %s: %t", tc.of, tc.other, got)
		}
	}
}

// TestAwaitsEndOverNoWaitByWayOfOthers: the same where the user waits for that end by way of a third one.
func TestAwaitsEndOverNoWaitByWayOfOthers(t *testing.T) {
	all := standings(map[string]plan.Standing{
		"a": {Going: true, DependsOn: ofProject("x"), Uses: ofProject("b")},
		"x": {Going: true, DependsOn: ofProject("b")},
		"b": {Going: true},
		"y": {Going: true, DependsOn: ofProject("b"), Uses: ofProject("x")},
	})
	for _, tc := range []struct {
		of, other string
		want      bool
	}{
		{"b", "a", true}, {"b", "x", true}, {"b", "y", true}, {"x", "a", true},
		{"x", "y", false}, // x waits for the end of a only, and that for nobody: y keeps what the pods of x use
		{"a", "b", false}, {"a", "y", false}, {"y", "x", false},
	} {
		if got := all.AwaitsEnd(ofProject(tc.of)[0], ofProject(tc.other)[0]); got != tc.want {
			t.Errorf("%s waits for the end of %s: %t", tc.of, tc.other, got)
		}
	}
}

// TestAwaitsEnd: of modules that go, one waits for the end of another one that depends on it by way of a third. That is not so over one that
// stays, and in a circle.
func TestAwaitsEnd(t *testing.T) {
	web, mid, base := fleet.ModuleRef{Name: "web"}, fleet.ModuleRef{Name: "mid"}, fleet.ModuleRef{Name: "base"}
	for name, tc := range map[string]struct {
		stays  bool // mid does
		circle bool
		first  bool
	}{
		"all go":      {first: true},
		"over a stay": {stays: true},
		"in a circle": {circle: true},
	} {
		all := plan.Standings{
			web:  {Listed: true, Going: true, DependsOn: []fleet.ModuleRef{mid}},
			mid:  {Listed: true, Going: !tc.stays, DependsOn: []fleet.ModuleRef{base}},
			base: {Listed: true, Going: true},
		}
		if tc.circle {
			all[base] = plan.Standing{Listed: true, Going: true, DependsOn: []fleet.ModuleRef{web}}
		}
		if got, back := all.AwaitsEnd(base, web), all.AwaitsEnd(web, base); got != tc.first || back {
			t.Errorf("%s: %v, and the other way round %v", name, got, back)
		}
	}
}
