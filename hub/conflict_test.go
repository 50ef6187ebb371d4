package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// listing is a module of ConfigMaps.
func listing(name string, objects ...string) *towlinev1.Module {
	files := map[string]string{}
	for _, o := range objects {
		files[strings.Trim(o, "${}")+".yaml"] = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %q, namespace: default}\ndata: {by: %s}\n", o, name)
	}
	return module(name, files)
}

// tracker is what the hub says of a module in a cluster; nil: nothing.
func (w *world) tracker(name, cluster string) *towlinev1.Tracker {
	w.t.Helper()
	got, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Module: name, Cluster: cluster}})
	must(w.t, err)
	if len(got.GetTrackers()) == 0 {
		return nil
	}
	return got.GetTrackers()[0]
}

// awaitTracker waits until a module in a cluster is as asked for.
func (w *world) awaitTracker(name, cluster, what string, ok func(*towlinev1.Tracker) bool) *towlinev1.Tracker {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		tr := w.tracker(name, cluster)
		if ok(tr) {
			return tr
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s in %s is not %s, but: %v", name, cluster, what, tr)
		}
	}
}

func ready(tr *towlinev1.Tracker) bool { return tr.GetReady() }

func (w *world) conflicted(name, cluster, owner string) {
	w.t.Helper()
	tr := w.awaitTracker(name, cluster, "in conflict", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "Conflict" })
	if m := tr.GetMessage(); tr.GetReady() || !strings.Contains(m, "belongs to module "+owner) {
		w.t.Fatalf("%s in %s: %v", name, cluster, tr)
	}
}

// held is the newest sync of a module that the agent of a cluster has.
func (w *world) held(cluster, name string) fleet.Sync {
	for _, s := range w.agents[cluster].Held().Syncs {
		if s.Module.Name == name {
			return s
		}
	}
	return fleet.Sync{}
}

// TestObjectOfTwoModules: it stays with its first owner, the other module's other objects come all the same, and it goes
// over when the owner lets it go, whatever way.
func TestObjectOfTwoModules(t *testing.T) {
	for name, letGo := range map[string]func(*world){
		"dropped": func(w *world) { w.put(listing("one", "a")) },
		"deleted": func(w *world) {
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "one"})
			must(w.t, err)
		},
		"orphaned": func(w *world) {
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "one", Orphan: true})
			must(w.t, err)
		},
		"left the placement": func(w *world) {
			m := listing("one", "a", "m")
			m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"other"}}
			w.put(m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("c", nil, nil)
			w.await("one", w.put(listing("one", "a", "m")).GetRevision())
			w.put(listing("two", "b", "m"))
			w.conflicted("two", "c", "one")
			if s := w.held("c", "two"); s.Objects != 2 {
				t.Fatalf("the agent has %+v of two", s)
			}
			letGo(w)
			w.awaitTracker("two", "c", "ready", ready)
		})
	}
}

// TestNextOwnerWaitedLongest: of several that wait for an object, a newer revision does not put one behind the others.
func TestNextOwnerWaitedLongest(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.await("one", w.put(listing("one", "m")).GetRevision())
	w.put(listing("two", "b", "m"))
	w.conflicted("two", "c", "one")
	w.put(listing("three", "m"))
	w.conflicted("three", "c", "one")
	w.put(listing("two", "a", "b", "m"))
	w.awaitTracker("two", "c", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReason() == "Conflict" })
	w.put(listing("one", "a2"))
	w.awaitTracker("two", "c", "ready", ready)
	w.conflicted("three", "c", "two")
	w.put(listing("two", "b"))
	w.awaitTracker("three", "c", "ready", ready)
}

// TestConflictEndsWhileNobodyLooks: with the hub or the agent away in between, what is desired is the same in the end.
func TestConflictEndsWhileNobodyLooks(t *testing.T) {
	w := newWorld(t, false)
	w.join("c", nil, nil)
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	w.put(listing("two", "b", "m"))
	w.conflicted("two", "c", "one")
	w.stops["c"]()
	w.awaitCluster("c", "Disconnected")
	w.put(listing("one", "a"))
	w.stopHub()
	w.start()
	w.connect("c", nil)
	w.awaitTracker("one", "c", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
	w.awaitTracker("two", "c", "ready", ready)
	if s := w.held("c", "two"); len(s.Yields) != 0 {
		t.Errorf("the agent is told to yield: %+v", s)
	}
}

// TestConflictStaysInItsCluster: a module that owns an object in one cluster only holds no other cluster back.
func TestConflictStaysInItsCluster(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.join("d", nil, nil)
	one := listing("one", "a", "m")
	one.Spec.Placement = &towlinev1.Placement{Clusters: []string{"c"}}
	w.await("one", w.put(one).GetRevision())
	two := listing("two", "b", "m")
	two.Spec.Rollout = &towlinev1.RolloutStrategy{MaxFailures: "1"}
	ro := w.await("two", w.put(two).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetFailed() != 1 {
		t.Errorf("rollout: %v", s)
	}
	w.conflicted("two", "c", "one")
	if tr := w.tracker("two", "d"); !tr.GetReady() {
		t.Errorf("two in d: %v", tr)
	}
}

// TestAssignmentYields: a program that assigns by itself takes no object from another module, either.
func TestAssignmentYields(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	two := listing("two", "b", "m")
	two.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	w.await("two", w.put(two).GetRevision())
	_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "two", Revision: 1, Clusters: []string{"c"}})
	must(t, err)
	w.conflicted("two", "c", "one")
	w.put(listing("one", "a"))
	w.awaitTracker("two", "c", "ready", ready)
}

// TestAssignmentIsMadeWhenItCanBe: what could not be made for want of a label is made when the label is there.
func TestAssignmentIsMadeWhenItCanBe(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	m := listing("shop", "a")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	w.put(m)
	w.awaitTracker("shop", "c", "without a value", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"region": "eu"}}}})
	must(t, err)
	w.awaitTracker("shop", "c", "ready", ready)
}

// TestObjectOfTwoModulesByValues: which object a placeholder names is compared in each cluster.
func TestObjectOfTwoModulesByValues(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, map[string]string{"region": "eu"})
	w.join("d", nil, map[string]string{"region": "us"})
	w.await("one", w.put(listing("one", "m-eu")).GetRevision())
	two := listing("two", "b-${REGION}", "m-${REGION}")
	two.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	w.put(two)
	w.conflicted("two", "c", "one")
	w.awaitTracker("two", "d", "ready", ready)
	w.put(listing("one", "a"))
	w.awaitTracker("two", "c", "ready", ready)
	// Values that make two objects one are no assignment.
	two = listing("three", "x-eu", "x-${REGION}")
	two.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	w.put(two)
	tr := w.awaitTracker("three", "c", "refused", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	if m := tr.GetMessage(); !strings.Contains(m, "x-${REGION}") || !strings.Contains(m, "x-eu") {
		t.Errorf("the objects are not named: %s", m)
	}
	w.awaitTracker("three", "d", "ready", ready)
}

// TestAgentWithoutHealthRules: an agent that does not know health rules, ignored fields, what is only read, or what is shared, says nothing of a module that has some.
func TestAgentWithoutHealthRules(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Features: []string{wire.FeatureStatusSeen}})
	w.join("d", nil, nil)
	m := listing("shop", "a")
	m.Spec.HealthRules = []*towlinev1.HealthRule{{Kind: "ConfigMap", Healthy: "true"}}
	w.put(m)
	tr := w.awaitTracker("shop", "c", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureHealthRules) || !strings.Contains(tr.GetMessage(), "update it") {
		t.Errorf("%v", tr)
	}
	w.awaitTracker("shop", "d", "ready", ready)
	w.await("plain", w.put(listing("plain", "b")).GetRevision())
	w.awaitTracker("plain", "c", "ready", ready)
	ignoring := listing("ignoring", "x")
	ignoring.Spec.Policies = []*towlinev1.Policy{{IgnoreFields: &towlinev1.IgnoreFields{JsonPointers: []string{"/data/x"}}}}
	w.put(ignoring)
	tr = w.awaitTracker("ignoring", "c", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureIgnoreFields) {
		t.Errorf("%v", tr)
	}
	w.awaitTracker("ignoring", "d", "ready", ready)
	sharing := listing("sharing", "z")
	sharing.Spec.Policies = []*towlinev1.Policy{{Shared: new(true)}}
	w.put(sharing)
	w.awaitTracker("sharing", "c", "said", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "AgentTooOld" && !tr.GetReady() && strings.Contains(tr.GetMessage(), wire.FeatureShared)
	})
	reading := listing("reading", "y")
	reading.Spec.Policies = []*towlinev1.Policy{{ReadOnly: new(true)}}
	w.put(reading)
	tr = w.awaitTracker("reading", "c", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureReadOnly) {
		t.Errorf("%v", tr)
	}
	standing := listing("standing", "x-${ZONE:-a}")
	standing.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone", Optional: true}}
	w.put(standing)
	w.awaitTracker("standing", "c", "said", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "AgentTooOld" && !tr.GetReady() && strings.Contains(tr.GetMessage(), wire.FeatureSubstitution)
	})
	w.awaitTracker("standing", "d", "ready", ready)
	w.stops["c"]()
	w.awaitCluster("c", "Disconnected")
	w.connect("c", nil)
	w.awaitTracker("shop", "c", "ready", ready)
	w.awaitTracker("ignoring", "c", "ready", ready)
}

// TestReadObjectIsContestedByNobody: a module that only reads what another one has is in no conflict with it, whichever comes first, and
// waits for nothing that one lets go; one that wants to have it is, from the revision on that does.
func TestReadObjectIsContestedByNobody(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connect("c", nil)
	w.awaitCluster("c", "Ready")
	reading := func(name string) *towlinev1.Module {
		m := listing(name, "a")
		m.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{Names: []string{"a"}}, ReadOnly: new(true)}}
		return m
	}
	w.await("before", w.put(reading("before")).GetRevision())
	w.await("owner", w.put(listing("owner", "a", "b")).GetRevision())
	w.await("after", w.put(reading("after")).GetRevision())
	for _, name := range []string{"before", "owner", "after"} {
		w.awaitTracker(name, "c", "ready", ready)
	}
	w.put(listing("before", "a"))
	w.conflicted("before", "c", "owner")
	w.put(listing("owner", "b"))
	w.awaitTracker("before", "c", "ready", ready)
	w.awaitTracker("owner", "c", "ready", ready)
	w.awaitTracker("after", "c", "ready", ready)
	w.put(listing("owner", "a", "b"))
	w.conflicted("owner", "c", "before")
	w.put(reading("before"))
	w.awaitTracker("owner", "c", "ready", ready)
	w.awaitTracker("before", "c", "ready", ready)
}
