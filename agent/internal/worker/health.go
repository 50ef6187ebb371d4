package worker

import (
	"slices"
	"sync"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/wire"
)

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
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.of[r.Module]
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

// judgeBy takes the health rules of the sync. What it returns tells which objects have to be looked at once more: those
// that rules of before or of now speak of, because no event brings them again.
func (w *worker) judgeBy(rules []fleet.HealthRule) (rejudge func(fleet.ObjectID) bool, err error) {
	if slices.Equal(rules, w.healthRules) {
		return func(fleet.ObjectID) bool { return false }, nil
	}
	now, err := wire.HealthRules(rules)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "policies: %v", err)
	}
	before := w.judging
	w.healthRules, w.judging = rules, now
	w.m.rules.set(w.ref, now)
	return func(id fleet.ObjectID) bool { return before.Match(id.Group, id.Kind) || now.Match(id.Group, id.Kind) }, nil
}
