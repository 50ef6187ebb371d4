package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// heirs say that a module is to have ConfigMaps of the rig.
func (r *rig) heirs(module string, names ...string) []fleet.Heir {
	h := fleet.Heir{Module: fleet.ModuleRef{Project: "default", Name: module}}
	for _, n := range names {
		h.Keys = append(h.Keys, assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: n}))
	}
	slices.Sort(h.Keys)
	return []fleet.Heir{h}
}

// awaitsHeir waits until a module keeps exactly one object for another one, and says so.
func (r *rig) awaitsHeir(module string, generation uint64, name, heir string) {
	r.t.Helper()
	r.wait(module, "waiting for "+heir, func(x fleet.SyncStatus) bool {
		return x.Generation == generation && len(x.Extras) == 1 && x.Extras[0].ID.Name == name && x.Extras[0].Reason == "AwaitingHeir" &&
			strings.Contains(x.Extras[0].Message, "module "+heir)
	})
}

// TestHeirGetsWhatIsDropped: what a module drops, or leaves behind when it is removed, is kept for the module that is about
// to list it, and goes over without a delete when that comes. What nobody is to have goes at once.
func TestHeirGetsWhatIsDropped(t *testing.T) {
	for name, letGo := range map[string]func(r *rig) uint64{
		"dropped": func(r *rig) uint64 {
			next := r.bundle("one", nil, configMap("a", "by: one"))
			next.Heirs = r.heirs("two", "m")
			r.set([]fleet.Sync{next})
			return next.Generation
		},
		"removed": func(r *rig) uint64 {
			dead := r.tombstone("one", fleet.DeleteDelete)
			dead.Heirs = r.heirs("two", "m")
			r.set(nil, dead)
			return dead.Generation
		},
		"orphaned": func(r *rig) uint64 {
			dead := r.tombstone("one", fleet.DeleteOrphan)
			dead.Heirs = r.heirs("two", "m")
			r.set(nil, dead)
			return dead.Generation
		},
		"dropped first": func(r *rig) uint64 {
			next := r.bundle("one", []fleet.Policy{{PruneWhen: fleet.PruneFirst}}, configMap("a", "by: one"))
			next.Heirs = r.heirs("two", "m")
			r.set([]fleet.Sync{next})
			return next.Generation
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"), configMap("x", "by: one"))
			r.set([]fleet.Sync{one})
			r.ready(one)
			uid := r.uid("m")
			generation := letGo(r)
			r.awaitsHeir("one", generation, "m", "two")
			if name != "orphaned" {
				r.eventually("x is gone", func() bool { return r.get("v1", "configmaps", "x") == nil })
			}
			r.count.take()
			two := r.bundle("two", nil, configMap("m", "by: two"))
			r.set(append(slices.Clone(r.current.Syncs), two), r.current.Tombstones...)
			r.kept("m", uid, "two")
			r.ready(two)
		})
	}
}

// TestRevisionThatListsItAgain: what one revision of a module drops and a later one lists again, which is not in the cluster yet,
// is kept in between, and said to be.
func TestRevisionThatListsItAgain(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uid("m")
	r.count.take()
	next := r.bundle("one", nil, configMap("a", "by: one"))
	next.Heirs = r.heirs("one", "m")
	r.set([]fleet.Sync{next})
	r.ready(next) // a rollout does not stand still for it
	r.wait("one", "keeping m", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Extras) == 1 && x.Extras[0].Reason == "AwaitingHeir" && strings.Contains(x.Extras[0].Message, "the revision that the module is going to lists it")
	})
	dead := r.tombstone("one", fleet.DeleteDelete)
	dead.Heirs = r.heirs("one", "a", "m")
	r.set(nil, dead)
	r.wait("one", "keeping both", func(x fleet.SyncStatus) bool {
		return x.Generation == dead.Generation && x.Phase == fleet.PhaseRemoving && len(x.Extras) == 2 && x.Reason == "AwaitingHeir"
	})
	again := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{again})
	r.ready(again)
	r.kept("m", uid, "one")
}

// TestNobodyInherits: when the hub does not expect the heir any more, what was dropped goes.
func TestNobodyInherits(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	next := r.bundle("one", nil, configMap("a", "by: one"))
	next.Heirs = r.heirs("two", "m")
	r.set([]fleet.Sync{next})
	r.awaitsHeir("one", next.Generation, "m", "two")
	r.stop()
	r.start()
	r.set(r.current.Syncs)
	r.awaitsHeir("one", next.Generation, "m", "two")
	next = r.renewed(next)
	next.Heirs = nil
	r.set([]fleet.Sync{next})
	r.eventually("m is gone", func() bool { return r.get("v1", "configmaps", "m") == nil })
}

// TestObjectMovesBetweenModulesThatAreThere: the word that another module lists what this one drops comes with, or after,
// the word that it is to.
func TestObjectMovesBetweenModulesThatAreThere(t *testing.T) {
	for _, promised := range []bool{true, false} {
		t.Run(fmt.Sprintf("promised %t", promised), func(t *testing.T) {
			r := newRig(t)
			one, two := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one")), r.bundle("two", nil, configMap("b", "by: two"))
			r.set([]fleet.Sync{one, two})
			r.ready(one)
			r.ready(two)
			uid := r.uid("m")
			one = r.bundle("one", nil, configMap("a", "by: one"))
			if promised {
				one.Heirs = r.heirs("two", "m")
				r.set([]fleet.Sync{one, two})
				r.awaitsHeir("one", one.Generation, "m", "two")
				one = r.renewed(one)
				one.Heirs = nil
			}
			two = r.bundle("two", nil, configMap("b", "by: two"), configMap("m", "by: two"))
			r.count.take()
			r.set([]fleet.Sync{one, two})
			r.kept("m", uid, "two")
			r.ready(two)
		})
	}
}

// TestRefusedModuleMayBeTheHeir: as long as the agent cannot take the newest sync of a module, nothing is deleted that it may
// list: the hub takes that module for one that is here and waits for its objects.
func TestRefusedModuleMayBeTheHeir(t *testing.T) {
	for name, letGo := range map[string]func(r *rig) uint64{
		"dropped": func(r *rig) uint64 {
			next := r.bundle("one", nil, configMap("a", "by: one"))
			r.set([]fleet.Sync{next})
			return next.Generation
		},
		"removed": func(r *rig) uint64 {
			dead := r.tombstone("one", fleet.DeleteDelete)
			r.set(nil, dead)
			return dead.Generation
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.refused = []fleet.ModuleRef{{Project: "default", Name: "two"}}
			one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
			r.set([]fleet.Sync{one})
			r.ready(one)
			uid := r.uid("m")
			generation := letGo(r)
			r.wait("one", "keeping m", func(x fleet.SyncStatus) bool {
				return x.Generation == generation && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
					return e.ID.Name == "m" && e.Reason == "AwaitingModules" && strings.Contains(e.Message, "two")
				})
			})
			r.refused = nil
			two := r.bundle("two", nil, configMap("m", "by: two"))
			r.set(append(slices.Clone(r.current.Syncs), two), r.current.Tombstones...)
			r.ready(two)
			if now := r.uid("m"); now != uid {
				t.Errorf("was deleted and made again: %s, then %s", uid, now)
			}
		})
	}
}
