package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// sequence is how all modules stand, for those that wait for others.
type sequence struct {
	mu  sync.Mutex
	all plan.Standings
	of  map[fleet.ModuleRef]fleet.Age // whose target it is that a module stands at
}

// want notes the targets of all modules, before any of them is handed out: none may take what it depends on for ready that is about to
// get another target.
func (s *sequence) want(targets map[fleet.ModuleRef]target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, of := s.all, s.of
	s.all, s.of = make(plan.Standings, len(targets)), make(map[fleet.ModuleRef]fleet.Age, len(targets))
	for ref, t := range targets {
		if t.kind == targetUnlisted {
			continue
		}
		next := plan.Standing{Listed: true, Going: t.kind == targetTombstone, DependsOn: t.dependsOn()}
		if t.kind == targetSync && slices.Contains(t.untaken, ref) {
			next.Why = "the agent could not take its newest revision"
			s.all[ref], s.of[ref] = next, fleet.Age{} // what is said of the one before counts for nothing
			continue
		}
		if old := before[ref]; of[ref] == t.age() && old.Going == next.Going {
			next.Ready, next.Gone, next.Elsewhere, next.Uses, next.Why = old.Ready, old.Gone, old.Elsewhere, old.Uses, old.Why
		}
		s.all[ref], s.of[ref] = next, t.age()
	}
}

// stands notes how a module stands at a target, and names those that may have waited for it: if it goes, by way of any other that goes. What
// is said of another target than the newest counts for nothing.
func (s *sequence) stands(ref fleet.ModuleRef, at fleet.Age, is plan.Standing) (wake []fleet.ModuleRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.all[ref]
	waits := was.Gone == is.Gone && was.Elsewhere == is.Elsewhere && slices.Equal(was.Uses, is.Uses)
	same := was.Ready == is.Ready && was.Why == is.Why && waits
	if same || !was.Listed || was.Going != is.Going || s.of[ref] != at {
		return nil
	}
	is.Listed, is.DependsOn = true, was.DependsOn
	s.all[ref] = is
	switch {
	case !is.Going:
		return s.dependOn(func(on fleet.ModuleRef) bool { return on == ref })
	case waits:
		return was.DependsOn
	}
	return slices.Concat(was.DependsOn, s.dependOn(func(on fleet.ModuleRef) bool { return s.all[on].Going }), s.use())
}

// dependOn are the modules that depend on such a one. s.mu is held.
func (s *sequence) dependOn(such func(fleet.ModuleRef) bool) (out []fleet.ModuleRef) {
	for ref, is := range s.all {
		if slices.ContainsFunc(is.DependsOn, such) {
			out = append(out, ref)
		}
	}
	return out
}

// use are the modules that go and wait for what others have. s.mu is held.
func (s *sequence) use() (out []fleet.ModuleRef) {
	for ref, is := range s.all {
		if len(is.Uses) > 0 {
			out = append(out, ref)
		}
	}
	return out
}

func (s *sequence) awaitsDependency(ref fleet.ModuleRef) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.AwaitsDependency(ref)
}

func (s *sequence) awaitsDependents(ref fleet.ModuleRef) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.AwaitsDependents(ref)
}

// needs reports that another module comes before one, at once or by way of others.
func (s *sequence) needs(ref, other fleet.ModuleRef) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Needs(ref, other)
}

// awaitsEnd reports that of two modules that go one does not begin to before the other one is gone.
func (s *sequence) awaitsEnd(ref, other fleet.ModuleRef) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.AwaitsEnd(ref, other)
}

func (t *target) dependsOn() []fleet.ModuleRef {
	if t.kind == targetTombstone {
		return t.tombstone.DependsOn
	}
	return t.sync.DependsOn
}

func (t *target) age() fleet.Age {
	if t.kind == targetTombstone {
		return t.tombstone.Age()
	}
	return t.sync.Age()
}

// takeTurn begins the revision, if all that the module depends on is ready.
func (w *worker) takeTurn(ctx context.Context) {
	s := w.cur.sync
	if len(s.DependsOn) == 0 || w.m.begun.is(w.ref, begunOf(s)) {
		w.started = true
		return
	}
	if !w.started {
		if w.awaits = w.m.sequence.awaitsDependency(w.ref); w.awaits != "" {
			return
		}
		w.binder.again = true
		w.log.Info("all that comes first is ready", "revision", s.Revision, "generation", s.Generation)
	}
	if err := w.m.begun.note(ctx, w.m.o.State, w.ref, begunOf(s)); err != nil && ctx.Err() == nil {
		w.log.Warn("that the revision is begun cannot be noted; after a restart it would wait again", "revision", s.Revision, "error", err)
	}
	w.started = true
}

// end forgets what was begun of the module: should it come again, it begins anew.
func (w *worker) end(ctx context.Context) {
	err := errors.Join(w.m.begun.forget(ctx, w.m.o.State, w.ref), w.m.waves.forget(ctx, w.m.o.State, w.ref))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("that the module ends cannot be noted; should it come again as it was after a restart, it would wait for nobody", "error", err)
	}
}

// inReach are the jobs whose objects the module may claim now. Before its turn it says what it waits for that others have, so that they
// hand it over, and takes nothing that nobody has: what it depends on may list that, too.
func (w *worker) inReach(jobs []*item) (now []*item, later []fleet.ObjectID) {
	if w.started {
		return jobs, nil
	}
	now = slices.DeleteFunc(jobs, func(it *item) bool {
		it.look = w.m.inventory.Get(it.entry.ID) == nil && !w.neededFirst(it) && it.action.Verb != plan.Read && it.action.Verb != plan.Look
		if it.look {
			later = append(later, it.entry.ID)
		}
		return it.look
	})
	return now, later
}

// stopped are objects that the module does not claim, as a hold or the cluster's policy keeps it from making them, and that it makes when
// that ends.
func (w *worker) stopped() (out []fleet.ObjectID) {
	for _, it := range w.items {
		held := it.action.Verb == plan.Leave && it.action.Drift == fleet.DriftHeld
		if (held || it.denied) && w.m.inventory.Get(it.entry.ID) == nil {
			out = append(out, it.entry.ID)
		}
	}
	return out
}

// inTurn is what may be done now of the jobs. Before its turn that is to keep what the module has as the revision says, and what one that
// comes first waits for itself.
func (w *worker) inTurn(jobs []*item) []*item {
	if w.started {
		return jobs
	}
	return slices.DeleteFunc(jobs, func(it *item) bool {
		it.look = (it.action.Verb.Writes() || it.action.Verb == plan.Use) && !w.wroteAlready(it) && !w.neededFirst(it)
		return it.look
	})
}

// neededFirst reports that a module which comes first lists the object as well, and waits for this one to make it.
func (w *worker) neededFirst(it *item) bool {
	return slices.ContainsFunc(w.m.inventory.Wishes(it.entry.ID), func(x apply.Wish) bool { return w.m.sequence.needs(w.ref, x.Module) })
}

// wroteAlready reports that the module has written the object as its target says.
func (w *worker) wroteAlready(it *item) bool {
	rec := w.m.inventory.Get(it.entry.ID)
	return rec != nil && rec.Module == w.ref && rec.Written() && rec.Want == it.want
}

// continues reports that a target is one that is begun already, or in which there is nothing to begin, because of what was begun. same says
// that both have the same objects.
func (w *worker) continues(old, now target, same bool) bool {
	syncs := (old.kind == targetSync || old.kind == targetStray) && (now.kind == targetSync || now.kind == targetStray)
	return w.started && syncs && (same || old.sync.Revision == now.sync.Revision && old.sync.Bundle == now.sync.Bundle)
}

// stand tells those that wait for the module how it stands, by its newest status.
func (w *worker) stand(s fleet.SyncStatus) {
	is := plan.Standing{Going: w.cur.kind == targetTombstone, Ready: s.Ready, Why: cmp.Or(s.Message, s.Reason)}
	if is.Ready {
		is.Why = ""
	}
	if is.Going {
		is.Gone, is.Elsewhere, is.Uses, is.Why = w.status.removed, w.leftToOthers(), w.users(), cmp.Or(s.Message, w.slowest())
	}
	for _, ref := range w.m.sequence.stands(w.ref, w.cur.age(), is) {
		w.m.touch(ref, fleet.ObjectID{})
	}
}

// slowest says of one of the objects that are on their way out what holds it up; empty: nothing is known of any.
func (w *worker) slowest() string {
	var of *leaving
	for i, l := range w.pruning.leaving {
		if l.message != "" && (of == nil || l.record.ID.Compare(of.record.ID) < 0) {
			of = &w.pruning.leaving[i]
		}
	}
	if of == nil {
		return ""
	}
	return clip(of.record.ID.String() + ": " + of.message)
}

// leftToOthers reports that all that is left of a module that goes waits for other modules: what that depends on must not wait for it,
// for it may be among those.
func (w *worker) leftToOthers() bool {
	said, any, own := w.pruning.said(), false, false
	w.m.inventory.Each(w.ref, func(r *apply.Record) {
		l := said[r.ID]
		any = true
		own = own || !l.others && l.reason != plan.ReasonAwaitingHeir && l.reason != plan.ReasonNotEmpty
	})
	return any && !own
}

// first says what goes before what the module lets go: modules that depend on it, if it goes itself, or what it depends on, as long as
// its revision is not begun. What is left in the cluster waits for nobody.
func (w *worker) first() (reason, why string) {
	switch {
	case w.cur.kind != targetTombstone && !w.started:
		return plan.ReasonAwaitingDependency, w.awaits
	case w.cur.kind == targetTombstone && w.cur.tombstone.Policy == fleet.DeleteDelete:
		return plan.ReasonDependentsFirst, w.m.sequence.awaitsDependents(w.ref)
	}
	return "", ""
}
