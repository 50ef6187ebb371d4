package worker

import (
	"context"
	"slices"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Two modules that are new to a cluster may list one object, as two charts do one Namespace: both find that nobody has it, and one
// of them claims it first. The other one neither writes it nor counts as having it, whatever it had decided before.
func TestClaimThatComesSecond(t *testing.T) {
	for _, id := range []fleet.ObjectID{{Kind: "ConfigMap", Namespace: "ns", Name: "one"}, {Kind: "Namespace", Name: "one"}} {
		t.Run(id.Kind, func(t *testing.T) {
			w := withRecords(t, targetSync, 0, 0)
			first := fleet.ModuleRef{Project: "default", Name: "first"}
			it := &item{entry: fleet.BundleEntry{ID: id}, treatment: &treatment{policy: &fleet.Policy{}}}
			w.items, w.byID = []*item{it}, map[fleet.ObjectID]*item{id: it}
			if it.action = w.decide(it); it.action.Verb != plan.Create {
				t.Fatalf("of an object that nobody has: %+v", it.action)
			}
			w.m.inventory.Claim(&apply.Record{Record: plan.Record{ID: id, Module: first, State: plan.Intent}})
			jobs := w.claim([]*item{it})
			if slices.ContainsFunc(jobs, func(it *item) bool { return it.action.Verb.Writes() }) {
				t.Errorf("is to be written, though module first has it: %+v", it.action)
			}
			if next, waits := w.m.inventory.Next(id); !waits || next.Module != w.ref {
				t.Error("does not wait for it")
			}
		})
	}
}

// What a module could not do about an object before says nothing any more where another one has it: that it waits for the object is
// known at once, or the other one would delete it instead of handing it over. An object of a kind that came late may turn out to be
// that of another module, which found the kind first.
func TestWhatFailedWaitsForItsOwner(t *testing.T) {
	w := withRecords(t, targetSync, 0, 0)
	w.m.mapper, w.m.watcher = apply.NewMapper(nil), &watch.Watcher{}
	id, now := fleet.ObjectID{Group: "example.com", Kind: "Gadget", Name: "z"}, time.Now()
	it := &item{entry: fleet.BundleEntry{ID: id}, treatment: &treatment{policy: &fleet.Policy{}}, look: true}
	w.items, w.byID = []*item{it}, map[fleet.ObjectID]*item{id: it}
	w.failed(it, &apply.Failure{Reason: apply.ReasonNoKind, Transient: true, Kind: fleet.ErrNotFound}, now)
	w.m.inventory.Put(&apply.Record{Record: plan.Record{ID: id, Module: fleet.ModuleRef{Project: "default", Name: "first"}, State: plan.Owned, UID: "u"}})
	for range 2 {
		if jobs := w.claim(w.jobs(now)); len(jobs) > 0 {
			t.Errorf("is to be acted on: %+v", it.action)
		}
		if next, waits := w.m.inventory.Next(id); !waits || next.Module != w.ref {
			t.Error("does not wait for it")
		}
		if it.look = true; !it.ofAnother() {
			t.Errorf("fails with %+v", it.fail)
		}
	}
}

// What could not be made for one namespace that was not there is tried again together: one by one a Deployment would come long before its ServiceAccount.
func TestWhatLacksANamespaceIsTriedTogether(t *testing.T) {
	w := withRecords(t, targetSync, 0, 0)
	w.m.mapper, w.m.watcher = apply.NewMapper(nil), &watch.Watcher{}
	now := time.Now()
	lacks := func(kind, namespace string) *item {
		id := fleet.ObjectID{Kind: kind, Namespace: namespace, Name: "web"}
		it := &item{entry: fleet.BundleEntry{ID: id}, treatment: &treatment{policy: &fleet.Policy{}}}
		w.items = append(w.items, it)
		return it
	}
	w.items = nil
	account, workload, other := lacks("ServiceAccount", "late"), lacks("Pod", "late"), lacks("Pod", "other")
	for i, it := range w.items {
		for range 5 + i {
			w.failed(it, &apply.Failure{Reason: apply.ReasonNoNamespace, Transient: true, Kind: fleet.ErrNotFound}, now)
		}
	}
	account.next, workload.next, other.next = now.Add(20*time.Second), now.Add(10*time.Second), now.Add(15*time.Second)
	if jobs := w.jobs(now.Add(9 * time.Second)); len(jobs) > 0 {
		t.Errorf("%d are tried before any is due", len(jobs))
	}
	if jobs := w.jobs(now.Add(10 * time.Second)); !slices.Equal(jobs, []*item{account, workload}) {
		t.Errorf("%d are tried", len(jobs))
	}
	if !other.waiting || account.waiting || workload.waiting {
		t.Errorf("wait: %t, %t, %t", account.waiting, workload.waiting, other.waiting)
	}
}

// An object that two modules come to list at once, where the first has written it by the time at which the second comes to it, because what comes before it takes longer.
func TestObjectThatAnotherModuleClaimedFirst(t *testing.T) {
	r := newRig(t)
	first := r.bundle("first", nil, namespace("$NS-own", enforce+": restricted"), configMap("one", "k: first"))
	r.set([]fleet.Sync{first})
	r.ready(first)

	second := r.bundle("second", nil, namespace("$NS-own", "team: b"), configMap("one", "k: second"))
	w, ctx := newWorker(r.m, second.Module), context.Background()
	w.cur = target{kind: targetSync, sync: second}
	w.load(ctx, time.Now())
	if w.loadError != nil {
		t.Fatal(w.loadError)
	}
	defer w.releaseKinds(nil)
	for _, it := range w.items {
		it.action = plan.Action{Verb: plan.Create, Drift: fleet.DriftInSync} // which it found before the first one claimed them
	}
	w.execute(ctx, w.claim(slices.Clone(w.items)))

	if labels := r.namespace(r.ns + "-own").GetLabels(); labels[enforce] != "restricted" || labels["team"] != "" {
		t.Errorf("the namespace was overwritten: %v", labels)
	}
	if is := r.data("one", "k"); is != "first" {
		t.Errorf("the object was overwritten: %q", is)
	}
	for _, it := range w.items {
		if rec := r.m.inventory.Get(it.entry.ID); rec == nil || rec.Module != first.Module {
			t.Errorf("%s changed hands: %+v", it.entry.ID, rec)
		}
	}
}
