package hub_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// roles are clusters e1 and e2 with role=control, in which crds is, and w1 with role=work, in which shop is, which depends on crds in the
// others. Where crds is broken it is not ready.
type roles struct {
	*world
	mu     sync.Mutex
	broken map[string]bool
}

func newRoles(t *testing.T, memory bool, options func(*simagent.Options)) *roles {
	x := &roles{world: newWorld(t, memory), broken: map[string]bool{}}
	for name, role := range map[string]string{"e1": "control", "e2": "control", "w1": "work"} {
		x.enroll(name, map[string]string{"role": role})
		o := simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus { return x.report(name, s) },
			Features: slices.DeleteFunc(wire.Features(), func(f string) bool { return f == wire.FeatureDependsOn })} // agents of before
		if options != nil {
			options(&o)
		}
		x.connectWith(name, o)
	}
	return x
}

func (x *roles) report(cluster string, s fleet.Sync) fleet.SyncStatus {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := simagent.Ready(s)
	if s.Module.Name == "crds" && x.broken[cluster] {
		st.Phase, st.Ready, st.Reason, st.Message = fleet.PhaseApplying, false, "Progressing", "CustomResourceDefinition x: not established"
	}
	return st
}

// crds is broken in a cluster from now on, or not.
func (x *roles) breaks(cluster string, broken bool) {
	x.t.Helper()
	x.mu.Lock()
	x.broken[cluster] = broken
	x.mu.Unlock()
	x.awaitTracker("crds", cluster, "said", func(tr *towlinev1.Tracker) bool {
		_ = x.agents[cluster].Again()
		return tr.GetReady() == !broken
	})
}

func withRole(m *towlinev1.Module, role string) *towlinev1.Module {
	m.Spec.Placement.Selector.MatchLabels = map[string]string{"role": role}
	return m
}

func crdsModule(objects ...string) *towlinev1.Module {
	return withRole(listing("crds", objects...), "control")
}

// shopAfter is shop, with an object, after crds in clusters with a role.
func shopAfter(object, role string) *towlinev1.Module {
	m := withRole(listing("shop", object), "work")
	m.Spec.DependsOn = []*towlinev1.Dependency{{Module: "crds", Clusters: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": role}}}}
	return m
}

// waits waits until the newest rollout of shop waits for crds, as ok has it.
func (x *roles) waits(revision int64, ok func(f *towlinev1.Facts) bool) *towlinev1.Rollout {
	x.t.Helper()
	return x.until("shop", revision, func(r *towlinev1.Rollout) bool {
		s := r.GetStatus()
		f := s.GetFacts()
		return s.GetState() == "Waiting" && s.GetReason() == rollout.ReasonAwaitingDependency && slices.Equal(f.GetNames(), []string{"crds"}) &&
			f.GetSelector() != "" && ok(f)
	})
}

func waitsIn(total int32, clusters ...string) func(*towlinev1.Facts) bool {
	return func(f *towlinev1.Facts) bool {
		return f.GetCode() == "" && f.GetTotal() == total && int(f.GetCount()) == len(clusters) && slices.Equal(f.GetClusters(), clusters)
	}
}

func because(code string) func(*towlinev1.Facts) bool {
	return func(f *towlinev1.Facts) bool { return f.GetCode() == code }
}

// TestModuleWaitsForAnotherInOtherClusters: no cluster begins before the other module is there, is placed in clusters of the set, and is ready
// in all of them; it says who is waited for, goes on by itself, and what is begun is not asked again. Agents are told nothing.
func TestModuleWaitsForAnotherInOtherClusters(t *testing.T) {
	x := newRoles(t, false, nil)
	put := x.put(shopAfter("s1", "control"))
	if !warned(put, fleet.WarnNoDependency) || warned(put, fleet.WarnEmptySet) {
		t.Errorf("%v", put.GetWarnings())
	}
	x.waits(put.GetRevision(), because(rollout.SetNoModule))
	x.mu.Lock()
	x.broken["e2"] = true
	x.mu.Unlock()
	x.put(crdsModule("c1"))
	ro := x.waits(put.GetRevision(), waitsIn(2, "e2"))
	if tr := x.tracker("shop", "w1"); tr.GetRevision() != 0 {
		t.Errorf("it has begun: %v", tr)
	}
	for deadline := time.Now().Add(30 * time.Second); ; ro = x.waits(put.GetRevision(), waitsIn(2, "e2")) { // its agent may not have said it yet
		why := ro.GetStatus().GetWaitingFor()[0]
		c := why.GetCauses()
		if why.GetReason() == rollout.ReasonAwaitingDependency && len(c) == 1 && c[0].GetSubject().GetName() == "e2" && strings.Contains(c[0].GetFacts().GetDetail(), "not established") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
	}
	x.breaks("e2", false)
	x.await("shop", put.GetRevision())
	if s := x.held("w1", "shop"); s.Revision != 1 || len(s.DependsOn) > 0 {
		t.Errorf("%+v", s)
	}
	x.breaks("e1", true)
	put = x.put(shopAfter("s2", "control"))
	x.waits(put.GetRevision(), waitsIn(2, "e1"))
	if tr := x.tracker("shop", "w1"); tr.GetRevision() != 1 || !tr.GetReady() {
		t.Errorf("what is begun goes on: %v", tr)
	}
	x.restart()
	x.waits(put.GetRevision(), func(f *towlinev1.Facts) bool { return slices.Contains(f.GetClusters(), "e1") })
	x.breaks("e1", false)
	x.await("shop", put.GetRevision())
}

// TestSetOfClustersIsAsItIsNow: clusters come to the set and leave it by their labels while others wait; one that is away is waited for, and
// said so; a set without clusters is waited for, and warned of.
func TestSetOfClustersIsAsItIsNow(t *testing.T) {
	x := newRoles(t, true, nil)
	x.await("crds", x.put(crdsModule("c1")).GetRevision())
	for _, dry := range []bool{true, false} {
		put, err := x.Modules.PutModule(x.ctx, &towlinev1.PutModuleRequest{Module: shopAfter("s1", "misspelt"), DryRun: dry})
		must(t, err)
		if !warned(put, fleet.WarnEmptySet) {
			t.Errorf("dry run %v: %v", dry, put.GetWarnings())
		}
	}
	x.waits(0, because(rollout.SetNoCluster))
	if put := x.put(shopAfter("s1", "work")); !warned(put, fleet.WarnEmptySet) {
		t.Errorf("%v", put.GetWarnings())
	}
	x.waits(2, because(rollout.SetNotPlaced))
	x.leaves("e1")
	put := x.put(shopAfter("s1", "control"))
	ro := x.waits(put.GetRevision(), waitsIn(2, "e1"))
	if c := ro.GetStatus().GetWaitingFor()[0].GetCauses()[0]; c.GetReason() != rollout.ReasonDisconnected || c.GetSince() == nil {
		t.Errorf("%v", c)
	}
	x.labelled("e1", map[string]string{"role": "none"})
	x.await("shop", put.GetRevision())
	x.breaks("e2", true)
	put = x.put(shopAfter("s2", "control"))
	x.waits(put.GetRevision(), waitsIn(1, "e2"))
	_, err := x.Clusters.RemoveCluster(x.ctx, &towlinev1.RemoveClusterRequest{Name: "e2"})
	must(t, err)
	x.waits(put.GetRevision(), because(rollout.SetNoCluster))
}

// TestModuleWaitsUntilTheRolloutOfAnotherHasSettled: in the middle of its rollout the other module is ready at what was before, which is not what
// it is to have; a pin, and an abort, have it stay there.
func TestModuleWaitsUntilTheRolloutOfAnotherHasSettled(t *testing.T) {
	for name, settle := range map[string]func(x *roles){
		"promoted":    func(x *roles) { x.act(client.Word{Module: "crds", Verb: "promote", Reason: "sure"}) },
		"aborted":     func(x *roles) { x.act(client.Word{Module: "crds", Verb: "abort", Reason: "no"}) },
		"rolled back": func(x *roles) { x.act(client.Word{Module: "crds", Verb: "rollback", Reason: "no"}) },
		"pinned": func(x *roles) {
			x.act(client.Word{Module: "crds", Verb: "pin", Clusters: []string{"e2"}, Reason: "audit"})
		},
		"skipped": func(x *roles) {
			x.act(client.Word{Module: "crds", Verb: "skip", Clusters: []string{"e2"}, Reason: "audit"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRoles(t, true, nil)
			x.await("crds", x.put(crdsModule("c1")).GetRevision())
			x.labelled("e1", map[string]string{"role": "control", "ring": "first"})
			next := crdsModule("c1", "c2")
			next.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{
				{Name: "first", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "first"}}, Soak: "1h"}, {Name: "rest"}}}
			x.put(next)
			put := x.put(shopAfter("s1", "control"))
			x.until("crds", 0, func(r *towlinev1.Rollout) bool {
				return r.GetNumber() == 2 && r.GetStatus().GetReason() == rollout.ReasonSoak
			})
			ro := x.waits(put.GetRevision(), waitsIn(2, "e2"))
			if c := ro.GetStatus().GetWaitingFor()[0].GetCauses()[0]; c.GetReason() != rollout.ReasonNotReached || c.GetFacts().GetRevision() != 2 {
				t.Errorf("%v", c)
			}
			settle(x)
			x.await("shop", put.GetRevision())
		})
	}
}

// TestOrderOverSetsIsChecked: modules that would wait for each other are refused, with and without selectors, and so is a deletion of one that
// others need.
func TestOrderOverSetsIsChecked(t *testing.T) {
	x := newRoles(t, true, nil)
	refused := func(what string, m *towlinev1.Module, says string) {
		t.Helper()
		_, err := x.Modules.PutModule(x.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: true})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	itself := shopAfter("s", "control")
	itself.Spec.DependsOn[0].Module = "shop"
	refused("itself", itself, "spec.rollout.stages")
	twice := shopAfter("s", "control")
	twice.Spec.DependsOn = append(twice.Spec.DependsOn, twice.Spec.DependsOn[0])
	refused("twice", twice, "spec.dependsOn[1].module: crds is listed twice with the same clusters")
	bad := shopAfter("s", "control")
	bad.Spec.DependsOn[0].Clusters.MatchExpressions = []*towlinev1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	refused("a bad selector", bad, "spec.dependsOn[0].clusters.matchExpressions[0].operator")
	external := shopAfter("s", "control")
	external.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	refused("external", external, "have that wait")
	x.await("crds", x.put(crdsModule("c1")).GetRevision())
	both := shopAfter("s", "control")
	both.Spec.DependsOn = append(both.Spec.DependsOn, &towlinev1.Dependency{Module: "crds", Clusters: &towlinev1.LabelSelector{}})
	x.await("shop", x.put(both).GetRevision())
	circle := crdsModule("c1")
	circle.Spec.DependsOn = []*towlinev1.Dependency{{Module: "shop"}}
	refused("a circle", circle, "crds → shop → crds")
	_, err := x.Modules.DeleteModule(x.ctx, &towlinev1.DeleteModuleRequest{Name: "crds"})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "shop depends on it") {
		t.Errorf("%v", err)
	}
}

// TestModuleGoesAfterThoseOfOtherClusters: of modules that are deleted together the one that others need stays in its clusters of the set until
// those are gone everywhere.
func TestModuleGoesAfterThoseOfOtherClusters(t *testing.T) {
	may := make(chan struct{})
	x := newRoles(t, true, func(o *simagent.Options) {
		o.Remove = func(d fleet.Tombstone) fleet.SyncStatus {
			if d.Module.Name == "shop" {
				select {
				case <-may:
				default:
					return fleet.SyncStatus{Module: d.Module, Generation: d.Generation, Phase: fleet.PhaseRemoving, Reason: "Removing", Message: "a finalizer"}
				}
			}
			return simagent.Removed(d)
		}
	})
	x.await("crds", x.put(crdsModule("c1")).GetRevision())
	x.await("shop", x.put(shopAfter("s1", "control")).GetRevision())
	x.delete("shop", false)
	x.delete("crds", false)
	x.awaitTracker("shop", "w1", "going", func(tr *towlinev1.Tracker) bool { return strings.Contains(tr.GetMessage(), "finalizer") })
	x.moduleIs("crds", func(s *towlinev1.ModuleStatus) bool {
		return s.GetRolloutReason() == rollout.ReasonDependentsFirst && slices.Equal(s.GetRolloutFacts().GetNames(), []string{"shop"})
	})
	for _, c := range []string{"e1", "e2"} {
		if held := x.held(c, "crds"); held.Revision != 1 {
			t.Errorf("%s: %+v", c, held)
		}
	}
	close(may)
	_ = x.agents["w1"].Again()
	x.gone("shop")
	x.gone("crds")
}

// TestFailedRolloutOfASetIsWaitedFor: a module whose newest revision failed before it came anywhere is not ready in the set, however well it
// does with the one before.
func TestFailedRolloutOfASetIsWaitedFor(t *testing.T) {
	x := newRoles(t, true, nil)
	x.await("crds", x.put(crdsModule("c1")).GetRevision())
	failing := crdsModule("c2")
	failing.Spec.Rollout = &towlinev1.RolloutStrategy{Unmatched: rollout.UnmatchedFail, Stages: []*towlinev1.Stage{{Name: "nobody",
		Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": "none"}}}}}
	if ro := x.await("crds", x.put(failing).GetRevision()); ro.GetStatus().GetState() != "Failed" {
		t.Fatalf("%v", ro.GetStatus())
	}
	put := x.put(shopAfter("s1", "control"))
	x.waits(put.GetRevision(), because(rollout.SetFailed))
	x.await("crds", x.put(crdsModule("c3")).GetRevision())
	x.await("shop", put.GetRevision())
}
