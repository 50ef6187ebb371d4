package hub_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// depending is a module that depends on others.
func depending(name string, on ...string) *towlinev1.Module {
	m := listing(name, name+"-a")
	for _, o := range on {
		m.Spec.DependsOn = append(m.Spec.DependsOn, &towlinev1.Dependency{Module: o})
	}
	return m
}

// ordersOf is what modules that are put together say of their order.
func ordersOf(modules ...*towlinev1.Module) (out []*towlinev1.ModuleOrder) {
	for _, m := range modules {
		out = append(out, &towlinev1.ModuleOrder{Module: m.GetMetadata().GetName(), DependsOn: m.GetSpec().GetDependsOn()})
	}
	return out
}

// TestDependenciesReachTheAgent: a sync says what comes first, and so does the tombstone that takes its place; what the agent says of the
// wait is what people read, and the rollout takes it for progressing.
func TestDependenciesReachTheAgent(t *testing.T) {
	w := newWorld(t, true)
	var open atomic.Bool
	w.join("c", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Module.Name == "shop" && !open.Load() {
			st.Phase, st.Ready, st.Reason, st.Message = fleet.PhaseApplying, false, "AwaitingDependency", "waits for module base: not ready (Deployment base/x: 0 of 1)"
		}
		return st
	}, nil)
	put := w.put(depending("shop", "base"))
	if !warned(put, fleet.WarnNoDependency) {
		t.Errorf("no warning: %v", put.GetWarnings())
	}
	if again := w.put(depending("base")); warned(again, fleet.WarnNoDependency) {
		t.Errorf("%v", again.GetWarnings())
	}
	tr := w.awaitTracker("shop", "c", "waiting", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AwaitingDependency" })
	if tr.GetReady() || tr.GetHealth() == "Degraded" || !strings.Contains(tr.GetMessage(), "Deployment base/x: 0 of 1") {
		t.Errorf("%v", tr)
	}
	if s := w.held("c", "shop"); len(s.DependsOn) != 1 || s.DependsOn[0].Name != "base" {
		t.Errorf("held: %+v", s)
	}
	if ro, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"}); err != nil || ro.GetRollout().GetStatus().GetState() != "Progressing" {
		t.Errorf("%v %v", ro, err)
	}
	open.Store(true)
	w.awaitTracker("shop", "c", "ready", func(tr *towlinev1.Tracker) bool {
		_ = w.agents["c"].Again() // until it has the session
		return tr.GetReady()
	})
	w.await("shop", put.GetRevision())
}

// TestCirclesAreRefused: a module that would wait for itself is not put, and the circle is named; what is put together is judged as a
// whole, whatever is put first.
func TestCirclesAreRefused(t *testing.T) {
	w := newWorld(t, true)
	refused := func(what string, m *towlinev1.Module, says string, with ...*towlinev1.ModuleOrder) {
		t.Helper()
		for _, dry := range []bool{true, false} {
			_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: dry, With: with})
			if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	refused("itself", depending("shop", "shop"), "is the module itself")
	refused("twice", depending("shop", "a", "a"), "is listed twice")
	refused("a bad name", depending("shop", "A b"), "dependsOn")
	w.put(depending("base"))
	w.put(depending("shop", "base"))
	refused("two", depending("base", "shop"), "base → shop → base")
	w.put(depending("web", "shop"))
	refused("three", depending("base", "web"), "base → web → shop → base")

	turned := []*towlinev1.Module{depending("base", "shop"), depending("shop")}
	for _, m := range turned {
		for _, dry := range []bool{true, false} {
			if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: dry, With: ordersOf(turned...)}); err != nil {
				t.Errorf("turned round: %v", err)
			}
		}
	}
	both := []*towlinev1.Module{depending("x", "y"), depending("y", "x")}
	refused("new ones", both[0], "x → y → x", ordersOf(both...)...)
	later := []*towlinev1.Module{depending("p", "q"), depending("q")}
	got, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: later[0], With: ordersOf(later...)})
	must(t, err)
	if warned(got, fleet.WarnNoDependency) {
		t.Errorf("what comes with it is missing: %v", got.GetWarnings())
	}
}

// TestModuleThatOthersNeedStays: it is not deleted while modules that stay depend on it, unless a person insists. One that depends on
// nothing any more, or goes too, does not count.
func TestModuleThatOthersNeedStays(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.put(depending("base"))
	w.put(depending("shop", "base"))
	w.put(depending("web", "base"))
	for _, dry := range []bool{true, false} {
		_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "base", DryRun: dry})
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "shop, web depend on it") {
			t.Errorf("dry run %v: %v", dry, err)
		}
	}
	w.await("web", w.put(depending("web")).GetRevision())
	w.delete("shop", false)
	w.delete("base", false)
	w.gone("shop")
	w.gone("base")
	w.put(depending("base"))
	w.put(depending("shop", "base"))
	if _, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "base", Force: true}); err != nil {
		t.Errorf("a person insists: %v", err)
	}
	w.gone("base")
}

// TestModuleThatTheRevisionThatRunsNeedsStays: a put takes a dependency out, and its rollout has not come to the clusters yet, or was rolled
// back: what they run depends on the other module, whose deletion is refused without --force (docs/order.md).
func TestModuleThatTheRevisionThatRunsNeedsStays(t *testing.T) {
	for name, meanwhile := range map[string]func(*world){
		"the rollout waits for an approval": func(w *world) {
			w.put(waiting(listing("shop", "s", "s2")))
			w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetNumber() == 2 && r.GetStatus().GetReason() == "Approval" })
		},
		"it was rolled back": func(w *world) {
			w.await("shop", w.put(listing("shop", "s", "s2")).GetRevision())
			w.act(client.Word{Module: "shop", Verb: "rollback", Reason: "broken"})
			w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolledBack() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.await("base", w.put(listing("base", "b")).GetRevision())
			shop := listing("shop", "s")
			shop.Spec.DependsOn = []*towlinev1.Dependency{{Module: "base"}}
			w.await("shop", w.put(shop).GetRevision())
			meanwhile(w)
			if s := w.held("a", "shop"); s.Revision != 1 || len(s.DependsOn) != 1 {
				t.Fatalf("the cluster has r%d, which depends on %v", s.Revision, s.DependsOn)
			}
			if _, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "base"}); err == nil {
				w.awaitTracker("base", "a", "removed", func(tr *towlinev1.Tracker) bool { return true })
				t.Errorf("base is deleted, and the cluster runs shop r1, which depends on it: %v", w.agents["a"].Held().Tombstones)
			}
		})
	}
}

// TestTombstonesComeInOrder: of modules that are deleted together a cluster is not told that one goes before it was told so of what
// depends on that, and is told what that depended on.
func TestTombstonesComeInOrder(t *testing.T) {
	for range 5 {
		w := newWorld(t, true)
		var wrong atomic.Value
		w.enroll("c", nil)
		w.connectWith("c", simagent.Options{
			Took: func(a fleet.Assemblage) {
				has := func(name string) bool {
					return slices.ContainsFunc(a.Syncs, func(s fleet.Sync) bool { return s.Module.Name == name })
				}
				for _, d := range a.Tombstones {
					if d.Module.Name == "base" && has("shop") || d.Module.Name == "shop" && (has("web") || len(d.DependsOn) != 1) {
						wrong.Store(a)
					}
				}
			}})
		w.put(depending("base"))
		w.put(depending("shop", "base"))
		w.put(depending("web", "shop"))
		for _, m := range []string{"web", "shop", "base"} {
			w.awaitTracker(m, "c", "ready", ready)
		}
		for _, m := range []string{"web", "shop", "base"} {
			w.delete(m, false)
		}
		for _, m := range []string{"web", "shop", "base"} {
			w.gone(m)
		}
		if a := wrong.Load(); a != nil {
			t.Errorf("out of order: %+v", a)
		}
	}
}

// TestAgentWithoutOrder: an agent of before is sent no order, and takes what it is sent; of a module that has one it says nothing. Its
// tombstone is what it was.
func TestAgentWithoutOrder(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Features: slices.DeleteFunc(wire.Features(), func(f string) bool { return f == wire.FeatureDependsOn }),
		Remove: func(d fleet.Tombstone) fleet.SyncStatus {
			if len(d.DependsOn) > 0 {
				t.Errorf("tombstone: %+v", d)
			}
			return simagent.Removed(d)
		}})
	w.put(depending("base"))
	w.put(depending("shop", "base"))
	tr := w.awaitTracker("shop", "c", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureDependsOn) {
		t.Errorf("%v", tr)
	}
	if s := w.held("c", "shop"); len(s.DependsOn) > 0 || s.Generation == 0 {
		t.Errorf("%+v", s)
	}
	w.delete("shop", false)
	w.gone("shop")
}

// TestSeveralInOneCommand: `apply` judges the order over all of its files, and `delete` takes what depends on others first.
func TestSeveralInOneCommand(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	towline := w.cli()
	text := func(name string, on string) string {
		return "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: " + name + "}\nspec:\n  source: {inline: {files: {a.yaml: \"{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name +
			", namespace: default}}\"}}}\n  placement: {selector: {}}\n  dependsOn: [" + on + "]\n---\n"
	}
	if out, err := towline(text("shop", "{module: base}")+text("base", "{module: shop}"), "apply", "-f", "-"); err == nil || !strings.Contains(out, "shop → base → shop") {
		t.Errorf("%v\n%s", err, out)
	}
	if m, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "shop"}); err == nil {
		t.Errorf("put all the same: %v", m)
	}
	if out, err := towline(text("shop", "{module: base}")+text("base", ""), "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil || strings.Contains(out, "no module yet") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline(text("shop", "")+text("base", "{module: shop}"), "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
		t.Errorf("turned round: %v\n%s", err, out)
	}
	if out, err := towline("", "describe", "module", "base"); err != nil || !strings.Contains(out, "Depends on:") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline("", "delete", "module", "shop", "--yes"); err == nil || !strings.Contains(out, "base depends on it") || !strings.Contains(out, "--force") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline("", "delete", "module", "shop", "base", "--yes", "--timeout", "30s"); err != nil || strings.Index(out, "module/base deleted") > strings.Index(out, "module/shop deleted") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestModuleWaitsForSourcesAhead: base and shop are put together, and the source of base takes its time: shop does not begin on the revision
// that base has meanwhile, and says for what it waits. It begins when base has its revision, or comes to nothing.
func TestModuleWaitsForSourcesAhead(t *testing.T) {
	for name, end := range map[string]func(w *world, answer func()){
		"the source fails": func(_ *world, answer func()) { answer() },
		"it is put anew":   func(w *world, _ func()) { w.put(depending("base")) },
		"it is deleted with force": func(w *world, _ func()) {
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "base", Force: true})
			must(w.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("c", nil, nil)
			w.await("base", w.put(depending("base")).GetRevision())
			w.await("shop", w.put(depending("shop", "base")).GetRevision())
			url, answer := silentSource(t)
			slow, next := depending("base"), depending("shop", "base")
			slow.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: url}}
			next.Spec.Source = listing("shop", "shop-b").Spec.Source
			w.put(slow)
			put := w.put(next)
			w.until("shop", put.GetRevision(), func(ro *towlinev1.Rollout) bool {
				s := ro.GetStatus()
				return s.GetState() == "Pending" && s.GetReason() == rollout.ReasonSourcesAhead && slices.Equal(s.GetFacts().GetNames(), []string{"base"})
			})
			other := w.put(listing("other", "o"))
			w.await("other", other.GetRevision())
			if s := w.held("c", "shop"); s.Revision != 1 {
				t.Errorf("begun: %+v", s)
			}
			end(w, answer)
			if ro := w.await("shop", put.GetRevision()); ro.GetStatus().GetState() != "Succeeded" || ro.GetRevision() != 2 {
				t.Errorf("%v", ro)
			}
		})
	}
}
