package worker

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestHeldObject: nothing is written to an object that is held, be it a correction, another revision or the end of it, and all
// the while everything is to the others. When the hold ends, what was held back is done.
func TestHeldObject(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"), configMap("c", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	keys := assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}})
	hold := func(s fleet.Sync) fleet.Sync {
		s.Held = keys
		r.set([]fleet.Sync{s})
		return s
	}
	held := hold(r.again(s))
	r.wait("shop", "held and fine", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == held.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == plan.ReasonHeld
	})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	status := r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
	wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"one"`, Live: `"other"`, ChangedBy: "ana", Seen: 1})
	r.patch("v1", "configmaps", "b", "ana", `{"data":{"k":"other"}}`)
	r.eventually("the other one is corrected", func() bool { return r.data("b", "k") == "one" })

	next := hold(r.bundle("shop", nil, configMap("a", "k: two"), configMap("b", "k: two"), configMap("c", "k: two")))
	r.wait("shop", "waiting for the hold", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplying && x.Reason == plan.ReasonHeld && strings.Contains(x.Message, "a: held") &&
			x.States[0].Drift == fleet.DriftHeld && x.States[1].Sync == fleet.SyncSynced && x.States[2].Sync == fleet.SyncSynced
	})

	dropped := hold(r.bundle("shop", nil, configMap("b", "k: two")))
	r.eventually("the other one that is dropped goes", func() bool { return r.data("c", "k") == "<gone>" })
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == dropped.Generation && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool { return e.ID.Name == "a" && e.Reason == plan.ReasonHeld })
	})
	if got := r.data("a", "k"); got != "other" {
		t.Errorf("a is %q", got)
	}
	r.set([]fleet.Sync{r.again(s)})
	r.eventually("it is corrected when the hold has ended", func() bool { return r.data("a", "k") == "one" })
	hold(r.again(dropped))
	free := r.again(dropped)
	free.Held = nil
	r.set([]fleet.Sync{free})
	r.eventually("it goes when the hold has ended", func() bool { return r.data("a", "k") == "<gone>" })
}

// TestHeldObjectDeleted: what somebody deletes while it is held stays deleted until the hold ends.
func TestHeldObjectDeleted(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
	s.Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: "b"}})
	r.set([]fleet.Sync{s})
	r.wait("shop", "not made while it is held", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Reason == plan.ReasonHeld && x.States[0].Sync == fleet.SyncSynced
	})
	if r.data("b", "k") != "<gone>" {
		t.Error("made under a hold")
	}
	free := r.again(s)
	free.Held = nil
	r.set([]fleet.Sync{free})
	r.ready(free)
	held := r.again(s)
	r.set([]fleet.Sync{held})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == held.Generation && x.Ready })
	r.delete("v1", "configmaps", "b")
	r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[1].Drift == fleet.DriftHeld })
	r.set([]fleet.Sync{r.again(free)})
	r.eventually("it is back", func() bool { return r.data("b", "k") == "one" })
}
