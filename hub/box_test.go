package hub_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// box is a cluster of ConfigMaps in which a simulated agent does what it is told, as a real one would: it makes what its syncs
// list, hands over what another sync lists, keeps what has an heir, and deletes the rest.
type box struct {
	name    string
	names   func(fleet.Digest) []string // the letters of what a bundle lists, as its entries are sorted
	deleted func(cluster, object string, by fleet.ModuleRef, why string)
	fails   func(cluster string, module fleet.ModuleRef, revision int64) bool

	agent   *simagent.Agent
	mu      sync.Mutex
	held    fleet.Assemblage
	owner   map[string]fleet.ModuleRef // of the objects that there are; the zero one: of none
	told    string                     // what was reported to be left
	slow    bool                       // it has done nothing of what it was told last
	leaving *agentv1.Leave             // the fleet
}

func id(object string) fleet.ObjectID {
	return fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: object}
}

// options make the agent of the box.
func (b *box) options() simagent.Options {
	return simagent.Options{Took: b.took, Report: b.report, Remove: b.remove}
}

// took does what the agent is told.
func (b *box) took(a fleet.Assemblage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = a
	if !b.slow {
		b.work()
	}
}

// hurry has the agent be slow, or end that.
func (b *box) hurry(slow bool) {
	b.mu.Lock()
	b.slow = slow
	if !slow {
		b.work()
	}
	b.mu.Unlock()
	_ = b.agent.Again()
}

// work does what the agent was told last.
func (b *box) work() {
	if b.leaving != nil {
		return
	}
	a := b.held
	for _, o := range slices.Sorted(maps.Keys(b.owner)) {
		if !a.Hold {
			b.settle(o)
		}
	}
	for _, s := range a.Syncs {
		yields := yielded(s)
		for i, o := range b.resolved(s) {
			if has, there := b.owner[o]; !a.Hold && !s.Hold && !yields[i] && (!there || has == fleet.ModuleRef{}) {
				b.owner[o] = s.Module
			}
		}
	}
	left := ""
	for _, o := range slices.Sorted(maps.Keys(b.owner)) {
		if b.left(b.owner[o], o) {
			left += o + " "
		}
	}
	if left != b.told {
		b.told = left
		go func() { _ = b.agent.Again() }() // it holds the agent's lock
	}
}

func yielded(s fleet.Sync) map[int]bool {
	out := map[int]bool{}
	for _, y := range s.Yields {
		for _, o := range y.Ordinals {
			out[o] = true
		}
	}
	return out
}

// settle decides what becomes of an object.
func (b *box) settle(o string) {
	m := b.owner[o]
	if s := b.sync(m); s != nil {
		if !s.Hold && !b.lists(*s, o) {
			b.release(o, m, s.Heirs, fmt.Sprintf("r%d lists it no more", s.Revision))
		}
		return
	}
	i := slices.IndexFunc(b.held.Tombstones, func(t fleet.Tombstone) bool { return t.Module == m })
	switch {
	case i < 0 || b.held.Tombstones[i].Hold:
	case b.held.Tombstones[i].Policy == fleet.DeleteOrphan:
		b.owner[o] = fleet.ModuleRef{}
	default:
		b.release(o, m, b.held.Tombstones[i].Heirs, "the module goes")
	}
}

// release hands an object over, keeps it for its heir, or deletes it.
func (b *box) release(o string, m fleet.ModuleRef, heirs []fleet.Heir, why string) {
	for _, s := range b.held.Syncs {
		if s.Module != m && b.lists(s, o) {
			if !s.Hold {
				b.owner[o] = s.Module
			}
			return
		}
	}
	if _, found := assemble.HeirOf(heirs, id(o)); found {
		return
	}
	delete(b.owner, o)
	b.deleted(b.name, o, m, why)
}

func (b *box) sync(m fleet.ModuleRef) *fleet.Sync {
	if i := slices.IndexFunc(b.held.Syncs, func(s fleet.Sync) bool { return s.Module == m }); i >= 0 {
		return &b.held.Syncs[i]
	}
	return nil
}

func (b *box) lists(s fleet.Sync, o string) bool { return slices.Contains(b.resolved(s), o) }

// resolved is what a sync lists, as its entries are sorted.
func (b *box) resolved(s fleet.Sync) (out []string) {
	for _, letter := range b.names(s.Bundle) {
		out = append(out, nameOf(letter, s.Values["ZONE"]))
	}
	return out
}

// left reports that a module still has an object that it is not to have.
func (b *box) left(m fleet.ModuleRef, o string) bool {
	if b.owner[o] != m || m == (fleet.ModuleRef{}) {
		return false
	}
	s := b.sync(m)
	return s == nil || !b.lists(*s, o)
}

func (b *box) extras(m fleet.ModuleRef) (out []fleet.ExtraObject) {
	for _, o := range slices.Sorted(maps.Keys(b.owner)) {
		if b.left(m, o) {
			out = append(out, fleet.ExtraObject{ID: id(o), Version: "v1", Reason: "AwaitingHeir", State: fleet.ObjectState{
				Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}})
		}
	}
	return out
}

func (b *box) report(s fleet.Sync) fleet.SyncStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := simagent.Ready(s)
	if b.fails(b.name, s.Module, s.Revision) {
		st = simagent.Failing(s)
	}
	if b.slow {
		st.Ready, st.Phase, st.Reason = false, fleet.PhaseApplying, "Applying"
		for i := range st.States {
			st.States[i] = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing, Drift: fleet.DriftInSync}
		}
	}
	if b.gone(s.Module) {
		return simagent.Removed(fleet.Tombstone{Module: s.Module, Generation: s.Generation})
	}
	if s.Hold || b.held.Hold {
		st.Ready, st.Phase, st.Reason = false, fleet.PhaseHeld, "Held"
	}
	st.Extras = b.extras(s.Module)
	return st
}

func (b *box) remove(t fleet.Tombstone) fleet.SyncStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := simagent.Removed(t)
	if b.gone(t.Module) {
		return st
	}
	st.Extras = b.extras(t.Module)
	switch {
	case t.Hold || b.held.Hold:
		st.Phase, st.Reason = fleet.PhaseHeld, "Held"
	case b.slow || len(st.Extras) > 0:
		st.Phase = fleet.PhaseRemoving
	}
	return st
}

// has are the objects that a module has.
func (b *box) has() map[string]fleet.ModuleRef {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.owner)
}

func (b *box) String() string {
	var out []string
	for o, m := range b.has() {
		out = append(out, o+"="+m.Display())
	}
	slices.Sort(out)
	a := b.agent.Held()
	for _, s := range a.Syncs {
		out = append(out, fmt.Sprintf("%s:r%d%v, yields %v, heirs %v, hold %v", s.Module.Display(), s.Revision, b.resolved(s), s.Yields, s.Heirs, s.Hold))
	}
	for _, t := range a.Tombstones {
		out = append(out, fmt.Sprintf("%s:goes, heirs %v, hold %v", t.Module.Display(), t.Heirs, t.Hold))
	}
	return b.name + "{" + strings.Join(out, " ") + "}"
}
