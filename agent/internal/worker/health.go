package worker

import (
	"slices"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/wire"
)

// reasonJudging is of an object whose health is not known yet by the rules of now.
const reasonJudging = "HealthRulesChanged"

// healthRules are those of all modules. The watches ask for them as objects arrive.
type healthRules struct {
	mu sync.RWMutex
	of map[fleet.ModuleRef]*health.Rules
}

// forRecord are the rules of the module that owns the object; nil: there are none.
func (h *healthRules) forRecord(r *apply.Record) *health.Rules {
	if r == nil {
		return nil
	}
	return h.forModule(r.Module)
}

// forModule are the rules of a module; nil: there are none.
func (h *healthRules) forModule(ref fleet.ModuleRef) *health.Rules {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.of[ref]
}

func (h *healthRules) set(ref fleet.ModuleRef, rules *health.Rules) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rules == nil {
		delete(h.of, ref)
		return
	}
	h.of[ref] = rules
}

// judgeBy takes the health rules of the sync.
func (w *worker) judgeBy(rules []fleet.HealthRule) error {
	if slices.Equal(rules, w.healthRules) {
		return nil
	}
	now, err := wire.HealthRules(rules)
	if err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "policies: %v", err)
	}
	w.healthRules = rules
	w.m.rules.set(w.ref, now)
	return nil
}

// reread is when an object may be read that was judged by other rules, or that was read just now, and notes it if that is now. It may be as before
// after it was read: what was seen of it is newer than the answer, as where the store of the API server was put back and a list is on its way, or
// where one of several API servers of a group is behind the others.
func (w *worker) reread(it *item, again bool, now time.Time) time.Time {
	f, _ := w.print(it)
	if !again && !w.misjudged(w.m.inventory.Get(it.entry.ID), f) {
		return now
	}
	t := it.makeRare()
	if next := t.rereadAt.Add(readAgain); now.Before(next) {
		return next
	}
	t.rereadAt = now
	return now
}

// misjudged reports that the health of an object is by other rules than those of now, so that it has to be read once more: no
// event brings it again, and one that was on its way when the rules changed may have been judged by those of before.
func (w *worker) misjudged(rec *apply.Record, f *watch.Fingerprint) bool {
	if rec == nil || f == nil || f.UID != rec.UID || rec.Module != w.ref {
		return false
	}
	return f.JudgedBy != w.m.rules.forRecord(rec).For(rec.ID.Group, rec.ID.Kind)
}
