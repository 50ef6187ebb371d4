package hub_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/testkit/simagent"
)

// legacyAgent keeps what revisions drop under the one that listed it last, until the tracker is deleted.
type legacyAgent struct {
	mu   sync.Mutex
	left map[string]int64 // revision by name
	kept string           // why what is ordered to go stays
	told []fleet.Recycle  // the newest
}

func (a *legacyAgent) report(s fleet.Sync) fleet.SyncStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := simagent.Ready(s)
	a.told = s.Recycles
	for name, revision := range a.left {
		id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: name}
		ordered := slices.ContainsFunc(s.Recycles, func(r fleet.Recycle) bool {
			return r.Revision == revision && slices.Contains(r.Keys, assemble.HeirKey(id))
		})
		if ordered && a.kept == "" {
			delete(a.left, name)
			continue
		}
		reason, message := plan.ReasonLegacy, ""
		if ordered {
			reason, message = plan.ReasonKept, a.kept
		}
		out.Extras = append(out.Extras, fleet.ExtraObject{ID: id, Version: "v1", Reason: reason, Message: message, Revision: revision,
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}})
	}
	slices.SortFunc(out.Extras, func(x, y fleet.ExtraObject) int { return x.ID.Compare(y.ID) })
	return out
}

func (a *legacyAgent) has(left map[string]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = left
}

func (a *legacyAgent) is() (left []string, orders int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.left {
		left = append(left, name)
	}
	slices.Sort(left)
	return left, len(a.told)
}

// Scenario 25: the trackers of older revisions are shown with what keepLegacy keeps; who deletes one has exactly what was shown deleted,
// also where the cluster is away, and the order ends when it is carried out.
func TestDeleteTracker(t *testing.T) {
	w := newWorld(t, true)
	agent := &legacyAgent{}
	w.join("a", agent.report, nil)
	yes := true
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{KeepLegacy: &yes}}
	w.await("shop", w.put(m).GetRevision())
	agent.has(map[string]int64{"old": 1, "older": 1, "other": 2})
	m.Spec.Source.Inline.Files = configMap("2")
	w.await("shop", w.put(m).GetRevision())
	w.eventually(func() bool { return w.extraCount("shop") == 3 })

	cli := w.cli()
	towline := func(args ...string) string {
		t.Helper()
		out, err := cli("", args...)
		if err != nil {
			t.Errorf("towline %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	for _, want := range []string{"r2 (current)", "towline delete tracker shop@a --revision 1", "2 objects kept", "ConfigMap default/older"} {
		if out := towline("describe", "tracker", "shop@a"); !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := towline("get", "trackers", "-o", "wide"); !strings.Contains(out, "r2:1 r2:1 r1:2") {
		t.Errorf("%s", out)
	}
	if out := towline("get", "objects", "--revision", "1"); !strings.Contains(out, "older") || strings.Contains(out, "other") {
		t.Errorf("%s", out)
	}
	if out := towline("explain", "object", "ConfigMap/default/older", "--cluster", "a"); !strings.Contains(out, "the last that did here was r1") || !strings.Contains(out, "keepLegacy") {
		t.Errorf("%s", out)
	}

	del := func(revision int64, digest string) error {
		_, err := w.Trackers.DeleteTracker(w.ctx, &towlinev1.DeleteTrackerRequest{Module: "shop", Cluster: "a", Revision: revision, Digest: digest})
		return err
	}
	got, err := w.Trackers.GetTracker(w.ctx, &towlinev1.GetTrackerRequest{Module: "shop", Cluster: "a"})
	must(t, err)
	parts := got.GetTracker().GetRevisions()
	for what, c := range map[string]struct {
		revision int64
		digest   string
		code     codes.Code
	}{
		"without having looked": {1, "", codes.InvalidArgument},
		"what was not shown":    {1, parts[1].GetDigest(), codes.Aborted},
		"that is not there":     {7, "sha256:00", codes.NotFound},
	} {
		if err := del(c.revision, c.digest); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
	if out, err := cli("", "delete", "tracker", "shop@a", "--revision", "1"); err == nil || !strings.Contains(err.Error()+out, "deletes 2 objects: ConfigMap default/old, ConfigMap default/older") {
		t.Errorf("%v\n%s", err, out)
	}

	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	if out := towline("delete", "tracker", "shop@a", "--revision", "r1", "--yes", "-m", "looked at"); !strings.Contains(out, "2 objects to be deleted; the cluster is away") {
		t.Errorf("%s", out)
	}
	if out := towline("describe", "tracker", "shop@a"); !strings.Contains(out, "2 objects to be deleted") {
		t.Errorf("%s", out)
	}
	w.reconnect("a")
	w.eventually(func() bool {
		left, orders := agent.is()
		return slices.Equal(left, []string{"other"}) && orders == 0 && w.extraCount("shop") == 1
	})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
}

// An agent that does not know keepLegacy has it said, and orders of before end: it could not read what it is told.
func TestKeepLegacyNeedsAnAgentThatKnowsIt(t *testing.T) {
	w := newWorld(t, true)
	agent := &legacyAgent{}
	w.join("a", agent.report, nil)
	yes := true
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{KeepLegacy: &yes}}
	w.await("shop", w.put(m).GetRevision())
	agent.has(map[string]int64{"old": 1})
	m.Spec.Source.Inline.Files = configMap("2")
	w.await("shop", w.put(m).GetRevision())
	w.eventually(func() bool { return w.extraCount("shop") == 1 })
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	if out, err := w.cli()("", "delete", "tracker", "shop@a", "--revision", "1", "--yes"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.agents["a"] = simagent.New(simagent.Options{Hub: w.listen, Identity: w.ids["a"], Report: agent.report, Features: []string{"status-seen"}})
	w.reconnect("a")
	w.awaitTracker("shop", "a", "too old", func(x *towlinev1.Tracker) bool { return strings.Contains(x.GetMessage(), "keep-legacy") })
	w.eventually(func() bool { _, orders := agent.is(); return orders == 0 })
}

// An order to delete the tracker of a revision ends when the cluster is to have that revision again, carried out or not: what the
// next one drops is kept as anything else, until somebody says so.
func TestOrderOfATrackerEndsWithARollback(t *testing.T) {
	w := newWorld(t, true)
	var mu sync.Mutex
	told := map[int64][]fleet.Recycle{} // the orders that came with a revision
	stuck := false                      // the objects that are to go do not, such as for their finalizers
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		mu.Lock()
		defer mu.Unlock()
		told[s.Revision] = s.Recycles
		out := simagent.Ready(s)
		switch {
		case stuck && s.Revision == 1:
			return fleet.SyncStatus{} // its answer is late
		case s.Revision == 2:
			x := fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "old"}, Version: "v1", Reason: "KeptLegacy", Revision: 1,
				State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}
			if len(s.Recycles) > 0 {
				x.Reason, stuck = "Removing", true
			}
			out.Extras = []fleet.ExtraObject{x}
		}
		return out
	}, nil)
	yes := true
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{KeepLegacy: &yes}}
	for i := range 2 {
		m.Spec.Source.Inline.Files = configMap(strings.Repeat("x", i))
		w.await("shop", w.put(m).GetRevision())
	}
	w.eventually(func() bool { return w.extraCount("shop") == 1 })
	if out, err := w.cli()("", "delete", "tracker", "shop@a", "--revision", "1", "--yes", "-m", "over"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	came := func(revision int64) (orders int, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		list, ok := told[revision]
		return len(list), ok
	}
	w.eventually(func() bool { n, _ := came(2); return n == 1 })
	mu.Lock()
	delete(told, 1)
	mu.Unlock()
	_, err := w.Rollouts.RollBackRollout(w.ctx, &towlinev1.RollBackRolloutRequest{Module: "shop", Revision: 1})
	must(t, err)
	w.eventually(func() bool { _, ok := came(1); return ok })
	if n, _ := came(1); n != 0 {
		t.Errorf("r1 came with %d orders to delete what r1 lists", n)
	}
	var said []*towlinev1.AuditEntry
	w.eventually(func() bool { // it is told after the commit, which the agent hears of, too
		got, err := w.Audit.ListAuditEntries(w.ctx, &towlinev1.ListAuditEntriesRequest{Subject: "default/shop", Method: fleet.DidRecycleTracker})
		must(t, err)
		said = got.GetEntries()
		return len(said) > 0
	})
	if len(said) != 1 || said[0].GetCaller() == "" ||
		said[0].GetDetail() != "in a; tracker of r1: the order ended, and what of it was not carried out stays: the cluster is given r1 again" {
		t.Errorf("the audit has %v of the order that ended", said)
	}
	m.Spec.Source.Inline.Files = configMap("3")
	w.await("shop", w.put(m).GetRevision())
	if n, ok := came(3); n != 0 || !ok {
		t.Errorf("r3 came with %d orders to delete what r1 listed", n)
	}
}

// Scenario 22: what lives as long as the module, or longer, is counted as the root of its tracker, while it is listed and afterwards; a
// removal keeps all in the tracker, as leaving, until the agent has confirmed it.
func TestRootOfATracker(t *testing.T) {
	w := newWorld(t, true)
	left := false
	var mu sync.Mutex
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		mu.Lock()
		defer mu.Unlock()
		out := simagent.Ready(s)
		if left {
			out.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "lifelong"}, Version: "v1", Reason: "Kept", Revision: 1, Root: true,
				State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}}
		}
		return out
	}, nil)
	of := func(names ...string) map[string]string {
		var b strings.Builder
		for _, n := range names {
			b.WriteString("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + n + ", namespace: default}\n")
		}
		return map[string]string{"a.yaml": b.String()}
	}
	m := module("shop", of("versioned", "lifelong", "eternal"))
	m.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{Names: []string{"lifelong"}}, Prune: "OnModuleDelete"},
		{Match: &towlinev1.PolicyMatch{Names: []string{"eternal"}}, Prune: "Never"}}
	w.await("shop", w.put(m).GetRevision())
	parts := func() []*towlinev1.TrackerRevision {
		t.Helper()
		got, err := w.Trackers.GetTracker(w.ctx, &towlinev1.GetTrackerRequest{Module: "shop", Cluster: "a"})
		must(t, err)
		return got.GetTracker().GetRevisions()
	}
	if p := parts(); len(p) != 1 || !p[0].GetCurrent() || p[0].GetObjects() != 3 || p[0].GetRoot() != 2 {
		t.Errorf("%v", p)
	}
	mu.Lock()
	left = true
	mu.Unlock()
	m.Spec.Source.Inline.Files = of("versioned", "eternal")
	w.await("shop", w.put(m).GetRevision())
	w.eventually(func() bool { return w.extraCount("shop") == 1 })
	if p := parts(); len(p) != 2 || p[0].GetObjects() != 2 || p[0].GetRoot() != 1 || p[1].GetRevision() != 1 || p[1].GetRoot() != 1 || p[1].GetLeaving() != 0 {
		t.Errorf("%v", p)
	}
	w.leaves("a")
	w.delete("shop", false)
	w.eventually(func() bool {
		p := parts()
		return len(p) == 2 && p[1].GetRevision() == 0 && p[1].GetLeaving() == 2 || len(p) == 1 && p[0].GetLeaving() == 2
	})
}

// TestDeleteTrackerOfWhatStays: an order that its agent does not carry out, as one that is of a store which was put back, ends, and the
// audit says what stays and why, by who gave the order.
func TestDeleteTrackerOfWhatStays(t *testing.T) {
	w := newWorld(t, true)
	const why = "policy keepLegacy: stays; order it again"
	agent := &legacyAgent{kept: why}
	w.join("a", agent.report, nil)
	yes := true
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{KeepLegacy: &yes}}
	w.await("shop", w.put(m).GetRevision())
	agent.has(map[string]int64{"old": 1, "older": 1})
	m.Spec.Source.Inline.Files = configMap("2")
	w.await("shop", w.put(m).GetRevision())
	w.eventually(func() bool { return w.extraCount("shop") == 2 })

	if out, err := w.cli()("", "delete", "tracker", "shop@a", "--revision", "1", "--yes", "-m", "over"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var said []*towlinev1.AuditEntry
	w.eventually(func() bool {
		got, err := w.Audit.ListAuditEntries(w.ctx, &towlinev1.ListAuditEntriesRequest{Subject: "default/shop", Method: fleet.DidRecycleTracker})
		must(t, err)
		said = got.GetEntries()
		_, orders := agent.is()
		return len(said) > 0 && orders == 0
	})
	if e := said[0]; len(said) != 1 || e.GetCaller() == "" || e.GetReason() != "over" ||
		e.GetDetail() != "in a; ConfigMap default/old, ConfigMap default/older of r1: "+why {
		t.Errorf("%v", said)
	}
}
