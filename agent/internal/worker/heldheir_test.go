package worker

import (
	"slices"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// TestHeldObjectForAnHeir: a module lets go of an object that is held, for a module that is not there yet; the agent starts anew before that comes,
// and after it. Nothing is written to the object while it is held, and it goes to the heir as it is, whenever the hold ends.
func TestHeldObjectForAnHeir(t *testing.T) {
	for _, letGo := range []string{"dropped", fleet.DeleteDelete, fleet.DeleteOrphan} {
		for by, hub := range map[string]bool{"an annotation": false, "the hub": true} {
			for _, first := range []bool{true, false} {
				name := letGo + ", held by " + by + map[bool]string{true: ", ends before the heir comes", false: ", ends after that"}[first]
				t.Run(name, func(t *testing.T) { heldForAnHeir(newRig(t), letGo, hub, first) })
			}
		}
	}
}

// heldForAnHeir goes through it. first: the hold ends before the heir comes.
func heldForAnHeir(r *rig, letGo string, hub, first bool) {
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uid("m")
	r.setHolding("m", hub, true, []fleet.Sync{one}, nil)
	r.wait("one", "held", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })
	if letGo == "dropped" {
		next := r.bundle("one", nil, configMap("a", "by: nobody"))
		next.Heirs = r.heirs("two", "m")
		r.setHolding("m", hub, true, []fleet.Sync{next}, nil)
		r.eventually("the rest is written", func() bool { return r.data("a", "by") == "nobody" })
	} else {
		dead := r.tombstone("one", letGo)
		dead.Heirs = r.heirs("two", "m")
		r.setHolding("m", hub, true, nil, []fleet.Tombstone{dead})
		r.wait("one", "held as a whole", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	}
	anew := func() {
		r.stop()
		r.mu.Lock()
		clear(r.statuses) // what was said before
		r.mu.Unlock()
		r.start()
		r.m.Set(r.current, nil)
	}
	anew()
	two := r.bundle("two", nil, configMap("m", "by: two"))
	with := func() []fleet.Sync { return append(slices.Clone(r.current.Syncs), two) }
	if first {
		r.setHolding("m", hub, false, r.current.Syncs, r.current.Tombstones)
		r.wait("one", "waiting for the heir", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && x.Extras[0].Reason == "AwaitingHeir" })
		anew()
		r.set(with(), r.current.Tombstones...)
	} else {
		r.setHolding("m", hub, true, with(), r.current.Tombstones)
		said := func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 }
		r.wait("two", "waiting", said)
		anew()
		r.wait("two", "waiting still", said)
		if by := r.data("m", "by"); by != "one" {
			r.t.Errorf("it was written while it was held: %s", by)
		}
		r.setHolding("m", hub, false, r.current.Syncs, r.current.Tombstones)
	}
	r.eventually("the heir has it", func() bool { return r.data("m", "by") == "two" })
	if r.uid("m") != uid {
		r.t.Error("it was deleted and made again")
	}
	r.wait("two", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
}

// setHolding has the agent have these, with a ConfigMap held or not, by the hub or by its annotation.
func (r *rig) setHolding(name string, hub, held bool, syncs []fleet.Sync, dead []fleet.Tombstone) {
	r.t.Helper()
	syncs, dead = slices.Clone(syncs), slices.Clone(dead)
	for i := range syncs {
		syncs[i] = r.again(syncs[i])
		if syncs[i].Held = nil; held && hub {
			syncs[i].Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: name}})
		}
	}
	for i := range dead {
		dead[i].Hold = held && hub
	}
	if !hub {
		r.notes(name, fleet.HoldAnnotation, map[bool]string{true: "x", false: "null"}[held])
	}
	r.set(syncs, dead...)
}
