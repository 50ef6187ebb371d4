package worker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestExtrasOfASyncThatCannotBeRead: of a sync that cannot be read it is not said that nothing else is left, nor what goes, also by an agent
// that has just started.
func TestExtrasOfASyncThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	next := r.bundle("one", nil, configMap("a", "by: one"))
	r.store.mu.Lock()
	kept := r.store.bundles[next.Bundle]
	delete(r.store.bundles, next.Bundle)
	r.store.mu.Unlock()
	r.set([]fleet.Sync{next})
	r.wait("one", "not read", func(s fleet.SyncStatus) bool {
		return s.Generation == next.Generation && s.Phase == fleet.PhaseFailed && s.MoreExtras
	})
	r.restart()
	next = r.again(next)
	r.set([]fleet.Sync{next})
	if s := r.wait("one", "not read", func(s fleet.SyncStatus) bool { return s.Generation == next.Generation && s.Phase == fleet.PhaseFailed }); len(s.Extras) != 0 || !s.MoreExtras {
		t.Errorf("after a start: %+v", s)
	}
	r.store.mu.Lock()
	r.store.bundles[next.Bundle] = kept
	r.store.mu.Unlock()
	r.eventually("m is gone", func() bool { return r.get("v1", "configmaps", "m") == nil })
	r.wait("one", "all said", func(s fleet.SyncStatus) bool { return s.Ready && len(s.Extras) == 0 && !s.MoreExtras })
}

// withRecords is a worker of a module with n objects, of which the sync lists the first.
func withRecords(t *testing.T, kind targetKind, n, listed int) *worker {
	t.Helper()
	inventory, err := apply.Open(context.Background(), newMemory(), newVault(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(&Manager{o: Options{Log: slog.New(slog.DiscardHandler)}, inventory: inventory, watcher: &watch.Watcher{}}, fleet.ModuleRef{Project: "default", Name: "shop"})
	w.cur.kind = kind
	for i := range n {
		id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprintf("cm-%05d", i)}
		inventory.Put(&apply.Record{Record: plan.Record{ID: id, Version: "v1", Module: w.ref, State: plan.Owned, UID: id.Name}})
		if i < listed {
			it := &item{entry: fleet.BundleEntry{ID: id}}
			w.items = append(w.items, it)
			w.byID[id] = it
		}
	}
	return w
}

// TestAllLeftoversAreReported: each object that is there and not wanted, whatever keeps it, and no other.
func TestAllLeftoversAreReported(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kind   targetKind
		listed int
		reason string
	}{
		{"tombstone", targetTombstone, 0, plan.ReasonRemoving},
		{"sync", targetSync, 1000, plan.ReasonAwaitingApply},
		{"stray", targetStray, 1000, plan.ReasonKept},
		{"unlisted", targetUnlisted, 0, plan.ReasonKept},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := withRecords(t, tc.kind, 5000, tc.listed)
			all, _ := w.extras()
			if len(all) != 5000-tc.listed || !slices.IsSortedFunc(all, func(a, b fleet.ExtraObject) int { return a.ID.Compare(b.ID) }) {
				t.Fatalf("%d are listed", len(all))
			}
			if all[0].Reason != tc.reason || all[0].Held {
				t.Errorf("%+v", all[0])
			}
			first, second, gone := all[0].ID, all[1].ID, all[2].ID
			w.pruning.kept = []plan.Kept{{Record: plan.Record{ID: first}, Reason: plan.ReasonAwaitingConfirm, Message: "waits"}}
			w.pruning.held = []fleet.ObjectID{first}
			w.pruning.leaving = []leaving{{record: plan.Record{ID: second}, reason: plan.ReasonTerminating, message: "is being deleted"}, {record: plan.Record{ID: gone}, reason: plan.ReasonTerminating}}
			w.m.inventory.Drop(w.ref, gone)
			next, _ := w.extras()
			if len(next) != len(all)-1 || next[0].Reason != plan.ReasonAwaitingConfirm || !next[0].Held || next[0].Message != "waits" ||
				next[1].State.Health != fleet.HealthTerminating || next[2].ID == gone {
				t.Errorf("%d: %+v", len(next), next[:3])
			}
			w.status.removed = true
			if left, more := w.extras(); len(left) != 0 || more {
				t.Errorf("%d are left when all is removed", len(left))
			}
		})
	}
}

// TestExtraDeletedWhileTheAgentWasAway: an object that a revision in conflict has dropped is deleted by a person while the agent
// is down. A write of the process before may still bring it back for a while, which is said; after that it is forgotten.
func TestExtraDeletedWhileTheAgentWasAway(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("s", "k: v"))
	other := r.bundle("other", nil, configMap("m", "by: other"))
	r.set([]fleet.Sync{s, other})
	r.ready(s)
	r.ready(other)
	conflict := r.bundle("shop", nil, configMap("a", "k: v"), configMap("m", "by: shop"))
	r.set([]fleet.Sync{other, conflict})
	r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && slices.Equal(names(x.Extras, plan.ReasonAwaitingApply), []string{"s"})
	})
	r.stop()
	r.delete("v1", "configmaps", "s")
	r.landing = time.Hour
	r.start()
	conflict = r.again(conflict)
	r.set([]fleet.Sync{other, conflict})
	r.wait("shop", "told to be away", func(x fleet.SyncStatus) bool {
		return x.Generation == conflict.Generation && len(x.Extras) == 1 && x.Extras[0].Message == lateText
	})
	r.landing = 2 * time.Second
	r.landsAnew()
	r.wait("shop", "without the object", func(x fleet.SyncStatus) bool { return len(x.Extras) == 0 })
}

// landsAnew starts the agent again with another time for writes to land. Whoever waits for what is said while it goes on gives it one that
// does not end.
func (r *rig) landsAnew() {
	r.t.Helper()
	r.stop()
	r.start()
	r.m.Set(r.current, nil)
}

// dropsInConflict has a module that cannot be applied drop an object, which stays for that.
func (r *rig) dropsInConflict(object, name string) []fleet.Sync {
	r.t.Helper()
	s := r.bundle("shop", nil, configMap("a", "k: v"), object)
	other := r.bundle("other", nil, configMap("m", "by: other"))
	r.set([]fleet.Sync{s, other})
	r.ready(s)
	r.ready(other)
	conflict := r.bundle("shop", nil, configMap("a", "k: v"), configMap("m", "by: shop"))
	r.set([]fleet.Sync{other, conflict})
	r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && slices.Equal(names(x.Extras, plan.ReasonAwaitingApply), []string{name})
	})
	return []fleet.Sync{other, conflict}
}

// TestExtraWhoseKindIsGone: the kind of an object that a revision in conflict has dropped goes while the agent is down.
func TestExtraWhoseKindIsGone(t *testing.T) {
	r := newRig(t)
	r.define("widgets", "Widget", "v1")
	syncs := r.dropsInConflict("apiVersion: $NS.example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: $NS}\n", "w")
	r.stop()
	r.undefine("widgets")
	r.eventually("the kind is gone", func() bool { return !r.lists("v1", "widgets") })
	r.landing = time.Second
	r.start()
	r.set(syncs)
	r.wait("shop", "without the object", func(x fleet.SyncStatus) bool { return x.Generation != 0 && len(x.Extras) == 0 })
}

// TestExtraThatCannotBeLookedAt: an object that a revision in conflict has dropped is deleted by a person, and the look at it is
// refused, as it is while the API server makes a kind anew.
func TestExtraThatCannotBeLookedAt(t *testing.T) {
	r := newRig(t)
	var looks atomic.Int64
	r.answers(func(q *http.Request) *http.Response {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps/s") && looks.Add(1) <= 2 {
			return unavailable(q)
		}
		return nil
	})
	r.stop()
	r.start()
	r.dropsInConflict(configMap("s", "k: v"), "s")
	r.delete("v1", "configmaps", "s")
	r.wait("shop", "without the object", func(x fleet.SyncStatus) bool { return len(x.Extras) == 0 })
	if looks.Load() < 3 {
		t.Errorf("%d looks", looks.Load())
	}
}

// TestRemovedWhileTheAgentWasAway: objects of a module that is to go are deleted by a person while the agent is down. Of each it is
// said that it is not there, also of those whose turn has not come.
func TestRemovedWhileTheAgentWasAway(t *testing.T) {
	r := newRig(t)
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: $NS}\nspec: {ports: [{port: 80}], selector: {a: b}}\n"
	s := r.bundle("shop", nil, configMap("a", "k: v"), service)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.delete("v1", "configmaps", "a")
	r.delete("v1", "services", "s")
	r.landing = time.Hour
	r.forget()
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "told to be away", func(x fleet.SyncStatus) bool {
		return len(x.Extras) == 2 && x.Extras[0].Message == lateText && x.Extras[1].Message == lateText
	})
	r.landing = 2 * time.Second
	r.landsAnew()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}
