package worker

import (
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// A record that speaks of a version which the store does not have yet is of a write that a restored store has lost. What
// is live decides, not the number: nothing waits for that version to come.
func TestRecordOfAWriteThatTheStoreLost(t *testing.T) {
	r := newRig(t)
	var restored atomic.Int64
	r.restart(func(o *Options) { o.Restored = func() { restored.Add(1) } })
	s := r.bundle("shop", nil, configMap("as-wanted", "k: v"), configMap("older", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	const ahead = 1 << 60
	for _, name := range []string{"as-wanted", "older"} {
		rec := *r.m.inventory.Get(r.configMapID(name))
		rec.ResourceVersion = ahead
		if name == "older" { // the record is of the write after the one that is live
			rec.Base.Hash[0]++
		}
		r.m.inventory.Put(&rec)
	}
	r.stop()
	r.statuses = map[fleet.ModuleRef]fleet.SyncStatus{}
	r.count.take()
	r.start()
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("the restore is told", func() bool { return restored.Load() == 1 })
	if counts, paths := r.count.take(); counts["PATCH"] != 1 || counts["DELETE"] != 0 {
		t.Errorf("only what the store has older is to be applied again: %v", paths)
	}
	for _, name := range []string{"as-wanted", "older"} {
		if rec := r.m.inventory.Get(r.configMapID(name)); rec.ResourceVersion >= ahead || rec.State != plan.Owned {
			t.Errorf("record of %s: %+v", name, rec.Record)
		}
	}
}

// What came back with a restored store, and has no record, is said and stays; the module that lists it again has it.
func TestObjectThatCameBackIsListedAndStays(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("back", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	less := r.bundle("shop", nil, configMap("a", "k: v"))
	r.m.inventory.Drop(s.Module, r.configMapID("back")) // as after its delete
	r.set([]fleet.Sync{less})
	r.ready(less)
	r.m.WentBack()
	status := r.wait("shop", "told of what came back", func(x fleet.SyncStatus) bool { return x.Waiting() == 1 })
	if x := status.Extras[0]; x.ID != r.configMapID("back") || x.Reason != plan.ReasonAwaitingConfirm || status.Extra() != 1 {
		t.Errorf("extras %+v, held %v", status.Extras, status.Held())
	}
	if r.get("v1", "configmaps", "back") == nil {
		t.Error("what came back was deleted unasked")
	}
	again := r.bundle("shop", nil, configMap("a", "k: v"), configMap("back", "k: w"))
	r.set([]fleet.Sync{again})
	if status := r.ready(again); status.Extra() != 0 {
		t.Errorf("extras %+v, held %v", status.Extras, status.Held())
	}
}

func (r *rig) configMapID(name string) fleet.ObjectID {
	return fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: name}
}
