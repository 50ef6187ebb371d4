package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/rollout"
)

// everywhere is a module that stays in all clusters, so that no other one is the last there.
func (w *world) everywhere() {
	w.t.Helper()
	w.await("base", w.put(listing("base", "b")).GetRevision())
}

// applied applies shop, whose rollout has to succeed.
func (w *world) applied(towline func(string, ...string) (string, error)) {
	w.t.Helper()
	if out, err := towline(found, "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

// TestModuleThatMovesHasArrived: a module that has left its cluster, and is to come to one that has not joined yet, is nowhere. The
// rollout waits for that one, and whoever waits is told so.
func TestModuleThatMovesHasArrived(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	w.join("old", nil, map[string]string{"env": "dev"})
	w.everywhere()
	w.applied(towline)
	w.enroll("new", map[string]string{"env": "next"})
	moved := strings.NewReplacer("env: dev", "env: next", "name: web", "name: other").Replace(found)
	out, err := towline(moved, "apply", "-f", "-", "--wait", "--fail-on-wait", "--timeout", "30s")
	if exits(t, err) != 3 || !strings.Contains(out, "no cluster of stage all has shown that r2 works: new deferred") {
		t.Errorf("shop is in no cluster: %v\n%s", err, out)
	}
	if w.held("old", "shop").Revision != 0 {
		t.Error("it did not wait for what leaves")
	}
	w.connect("new", nil)
	s := w.await("shop", 0).GetStatus()
	if s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetTotal() != 2 || s.GetPassedOver() != 1 {
		t.Errorf("when it has joined: %v", s)
	}
}

// TestPutThatOnlyTakesAwayIsNotDelivered: a placement that is misspelt, so that the module leaves the clusters that have it, and one
// whose clusters are all pinned, reach nobody. The rollout ends, and whoever waits for it hears that it went nowhere.
func TestPutThatOnlyTakesAwayIsNotDelivered(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	w.join("old", nil, map[string]string{"env": "dev"})
	w.everywhere()
	w.applied(towline)
	if out, err := towline("", "rollout", "pin", "shop", "--cluster", "old"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := towline(strings.Replace(found, "name: web", "name: other", 1), "apply", "-f", "-", "--wait", "--timeout", "30s")
	if exits(t, err) != 1 || !strings.Contains(out, "but such as are skipped or pinned") || w.held("old", "shop").Revision != 1 {
		t.Errorf("the only cluster is pinned: %v\n%s", err, out)
	}
	if out, err := towline("", "rollout", "unpin", "shop", "--cluster", "old"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = towline(strings.Replace(found, "env: dev", "env: dve", 1), "apply", "-f", "-", "--wait", "--timeout", "30s")
	if exits(t, err) != 1 || !strings.Contains(out, "the placement selects no cluster, so it went to none") {
		t.Errorf("shop is in no cluster: %v\n%s", err, out)
	}
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "Succeeded" || w.held("old", "shop").Revision != 0 {
		t.Errorf("what only takes away does not end: %v", s)
	}
}

// TestOnlyCanaryLeaves: a put drops the only canary from the placement. What the others would get ran in no canary, so a person is
// asked, and the canary keeps the module until then.
func TestOnlyCanaryLeaves(t *testing.T) {
	w := newWorld(t, true)
	w.join("canary", nil, map[string]string{"ring": "canary"})
	w.join("prod", nil, nil)
	w.everywhere()
	staged := func(value string, clusters ...string) *towlinev1.Module {
		m := module("shop", configMap(value))
		m.Spec.Placement = &towlinev1.Placement{Clusters: clusters}
		m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{
			{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}}
		return m
	}
	w.await("shop", w.put(staged("1", "canary", "prod")).GetRevision())
	put := w.put(staged("2", "prod"))
	s := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetState() == "Waiting" || r.GetStatus().GetEnded() != nil
	}).GetStatus()
	if s.GetReason() != rollout.ReasonEmptyStage || w.held("prod", "shop").Revision != 1 || w.held("canary", "shop").Revision != 1 {
		t.Errorf("%s %s: prod has r%d, canary r%d", s.GetState(), s.GetReason(), w.held("prod", "shop").Revision, w.held("canary", "shop").Revision)
	}
	w.act(client.Word{Module: "shop", Verb: rollout.VerbPromote})
	if s := w.await("shop", put.GetRevision()).GetStatus(); s.GetState() != "Succeeded" || w.held("prod", "shop").Revision != 2 || w.held("canary", "shop").Revision != 0 {
		t.Errorf("a person has promoted it: %v", s)
	}
}

// TestForgottenClusterShowsNothing: of two clusters that are away one is removed from the hub. The rollout still waits for the other.
func TestForgottenClusterShowsNothing(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.enroll("b", nil)
	put := w.put(module("shop", configMap("1")))
	deferred := func(n int32) func(*towlinev1.Rollout) bool {
		return func(r *towlinev1.Rollout) bool {
			s := r.GetStatus()
			return s.GetEnded() != nil || s.GetReason() == rollout.ReasonAllDeferred && s.GetFacts().GetCount() == n
		}
	}
	w.until("shop", put.GetRevision(), deferred(2))
	removed, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "keep", Force: true})
	must(t, err)
	if s := w.until("shop", removed.GetRevision(), deferred(1)).GetStatus(); s.GetState() != "Waiting" {
		t.Errorf("%s: %d of %d succeeded, %d deferred", s.GetState(), s.GetSucceeded(), s.GetTotal(), s.GetDeferred())
	}
	w.connect("b", nil)
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Errorf("when the other has joined: %v", s)
	}
}
