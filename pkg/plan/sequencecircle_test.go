package plan_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestCircleByWayOfARemoval: what a module depends on goes, and waits for one that goes before it, of which that module has what may use
// the rest. It waits for neither.
func TestCircleByWayOfARemoval(t *testing.T) {
	all := standings(map[string]plan.Standing{"base": {Going: true}, "old": {Going: true, DependsOn: ofProject("base"), Uses: ofProject("new")},
		"new": {DependsOn: ofProject("base")}, "other": {DependsOn: ofProject("base")}})
	for name, want := range map[string]string{"new": "", "other": "waits for module base: is being removed from this cluster"} {
		if got := all.AwaitsDependency(ofProject(name)[0]); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	if got := all.AwaitsDependents(ofProject("base")[0]); got == "" {
		t.Error("base goes before what depends on it")
	}
}

// going are modules of which each does what it may.
type going struct {
	all   plan.Standings
	begun map[fleet.ModuleRef]bool // began to go: its workloads end
}

// TestNoWaitsInACircle: whatever modules depend on, whichever of them go, and whatever use what those leave: if each does what it waits for
// nobody to do, and what is gone comes again, all are ready in the end.
func TestNoWaitsInACircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "modules")
		name := func(i int) fleet.ModuleRef { return ofProject(fmt.Sprint(i))[0] }
		others := func(i int, what string) (out []fleet.ModuleRef) {
			for _, j := range rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, 2, rapid.ID).Draw(t, what) {
				if j != i {
					out = append(out, name(j))
				}
			}
			return out
		}
		g := going{plan.Standings{}, map[fleet.ModuleRef]bool{}}
		var order []fleet.ModuleRef
		for i := range n {
			s := plan.Standing{Listed: true, Going: rapid.Bool().Draw(t, "going"), DependsOn: others(i, "dependsOn")}
			if s.Going {
				s.Uses, s.Elsewhere = others(i, "uses"), rapid.IntRange(0, 3).Draw(t, "elsewhere") == 0
			}
			g.all[name(i)], order = s, append(order, name(i))
		}
		began := fmt.Sprintf("%+v", g.all)
		order = rapid.Permutation(order).Draw(t, "order")
		for range 4 * n { // more than there are steps to take
			for _, m := range order {
				g.step(m)
			}
		}
		for m, s := range g.all {
			if !s.Ready {
				t.Fatalf("%s waits for ever: %q %q\n%s", m.Name, g.all.AwaitsDependency(m), g.all.AwaitsDependents(m), began)
			}
		}
	})
}

// step does what a module may do now.
func (g going) step(m fleet.ModuleRef) {
	s := g.all[m]
	if !s.Going {
		s.Ready = s.Ready || g.all.AwaitsDependency(m) == ""
		g.all[m] = s
		return
	}
	g.begun[m] = g.begun[m] || g.all.AwaitsDependents(m) == ""
	var left []fleet.ModuleRef
	for _, user := range s.Uses {
		if u := g.all[user]; !u.Ready && !g.begun[user] && !(u.Going && g.all.AwaitsEnd(user, m)) {
			left = append(left, user)
		}
	}
	s.Uses = left
	if g.begun[m] && len(left) == 0 {
		s = plan.Standing{Listed: true, DependsOn: s.DependsOn}
	}
	g.all[m] = s
}
