package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// second is the rig of another hub's agent in the same cluster: it lives in a namespace of its own.
func second(t *testing.T) *rig {
	t.Helper()
	r := aloneRig(t)
	r.home = "towline-two"
	r.restart(func(*Options) {})
	return r
}

// shared makes a Namespace that is nobody's of Towline.
func (r *rig) shared() string {
	r.t.Helper()
	name := r.ns + "-shared"
	r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	r.t.Cleanup(func() {
		_ = r.client.Resource(gvr("v1", "namespaces")).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return name
}

// Agents of two hubs may use one Namespace, which carries no mark of either: neither takes away what the other one applied,
// what both want otherwise is said, and what one lets go is gone.
func TestTwoAgentsUseOneNamespace(t *testing.T) {
	ours := aloneRig(t)
	theirs := second(t)
	shared := ours.shared()
	labels := func(want map[string]string) bool {
		have := ours.namespace(shared).GetLabels()
		for _, key := range []string{"a", "b", "team"} {
			if have[key] != want[key] {
				return false
			}
		}
		return true
	}
	a := ours.bundle("shop", nil, namespace(shared, "a: ours, team: ours"))
	ours.set([]fleet.Sync{a})
	ours.ready(a)
	b := theirs.bundle("shop", nil, namespace(shared, "b: theirs, team: theirs"))
	theirs.set([]fleet.Sync{b})
	theirs.wait("shop", "said what it leaves", leaves(fleet.FieldManager))
	for _, r := range []*rig{ours, theirs} { // each sees what the other one wrote, and leaves it
		r.label(shared, "ana", `{"a":"x","b":"x"}`)
		r.eventually("both labels are back", func() bool { return labels(map[string]string{"a": "ours", "b": "theirs", "team": "ours"}) })
	}
	ours.wait("shop", "two corrections", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 2 })

	version := ours.namespace(shared).GetResourceVersion()
	for _, r := range []*rig{ours, theirs} {
		r.stop()
		r.count.take()
		r.start()
		r.set(r.current.Syncs)
		r.wait("shop", "applied after a restart", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied && x.Corrections == 0 })
		if counts, paths := r.count.take(); counts["PATCH"] != 0 || r.namespace(shared).GetResourceVersion() != version {
			t.Errorf("requests after a restart: %v", paths)
		}
	}

	ours.set(nil, ours.tombstone("shop", fleet.DeleteDelete))
	ours.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	theirs.wait("shop", "all applied", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Exceptions) == 0 })
	if !labels(map[string]string{"b": "theirs", "team": "theirs"}) {
		t.Errorf("labels %v when one has let go", ours.namespace(shared).GetLabels())
	}
	theirs.set(nil, theirs.tombstone("shop", fleet.DeleteDelete))
	theirs.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !labels(nil) {
		t.Errorf("labels %v when both have", ours.namespace(shared).GetLabels())
	}
}

// What an agent had applied to a Namespace that it used goes when the Namespace becomes its own and the revision drops it.
func TestUsedNamespaceBecomesOwn(t *testing.T) {
	r := second(t)
	shared := r.shared()
	s := r.bundle("shop", nil, namespace(shared, "a: used"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, namespace(shared, "b: owned"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	if l := r.namespace(shared).GetLabels(); l["a"] != "" || l["b"] != "owned" || l[fleet.HubLabel] != r.hub {
		t.Errorf("labels %v", l)
	}
}

// An agent that uses a Namespace which another one adopts lets go of all that it had applied there when the two want a label
// otherwise.
func TestUsedNamespaceIsAdoptedByAnother(t *testing.T) {
	ours, theirs := aloneRig(t), second(t)
	shared := ours.shared()
	used := theirs.bundle("shop", nil, namespace(shared, "a: used, c: used"))
	theirs.set([]fleet.Sync{used})
	theirs.ready(used)
	s := ours.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, namespace(shared, "a: owned"))
	ours.set([]fleet.Sync{s})
	ours.ready(s)
	theirs.wait("shop", "said", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Phase == fleet.PhaseApplied })
	ours.eventually("what was applied beside it is taken back", func() bool { return ours.namespace(shared).GetLabels()["c"] == "" })
	if l := ours.namespace(shared).GetLabels(); l["a"] != "owned" || l[fleet.HubLabel] != ours.hub {
		t.Errorf("labels %v", l)
	}
}

// An agent whose module uses a Namespace and is held hears nothing of another one that adopts it. When the module goes, that one's labels
// and marks stay, which have the same field manager.
func TestUsedNamespaceIsAdoptedByAnotherInAHold(t *testing.T) {
	ours, theirs := aloneRig(t), second(t)
	shared := ours.shared()
	used := ours.bundle("shop", nil, namespace(shared, "a: used"))
	ours.set([]fleet.Sync{used})
	ours.ready(used)
	used.Hold = true
	ours.set([]fleet.Sync{used})
	ours.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	s := theirs.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, namespace(shared, enforce+": restricted"))
	theirs.set([]fleet.Sync{s})
	theirs.ready(s)
	theirs.stop()
	ours.set(nil, ours.tombstone("shop", fleet.DeleteDelete))
	ours.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if l := ours.namespace(shared).GetLabels(); l[enforce] != "restricted" || l[fleet.HubLabel] != theirs.hub {
		t.Errorf("labels %v", l)
	}
}

// An agent that lives in a namespace of its own applied as any other before it had a field manager of its own: what that one has
// noted goes as well, with the revision that drops it and with the module.
func TestUsedNamespaceKeepsNothingOfAnOlderAgent(t *testing.T) {
	for name, drops := range map[string]bool{"a revision drops it": true, "the module goes": false} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			shared := r.shared()
			s := r.bundle("shop", nil, namespace(shared, "a: used, b: used"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.home = "towline-two"
			r.restart()
			if drops {
				s = r.bundle("shop", nil, namespace(shared, "b: used"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				if l := r.namespace(shared).GetLabels(); l["a"] != "" || l["b"] != "used" {
					t.Errorf("labels %v", l)
				}
			}
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if l := r.namespace(shared).GetLabels(); l["a"]+l["b"] != "" {
				t.Errorf("labels %v when it is removed", l)
			}
		})
	}
}
