package worker

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// replacedFor is for how long a value is hidden that is not in force any more: Events and conditions that quote it stay for about as long.
const replacedFor = time.Hour

// veil is what nobody may be shown of what the agent knows: what the bindings of all modules read now, what our last writes put into objects,
// and what was replaced a short time ago. It is put together once for each change.
type veil struct {
	mu      sync.Mutex
	records map[string]map[string]bool // values in records, by module; more than these until it is gathered anew
	since   time.Time                  // when they were gathered
	version uint64                     // of the last values
	made    time.Time
	changed bool
	known   *known
}

// known finds values. Of its own ones a module is shown no part and no short one either. What one module brings an object of another one may
// use, and a controller quote; but there only long ones are found, and whole: a short one, or a part, is an ordinary word.
type known struct {
	own map[string]*apply.Scrubber // by module
	all *apply.Scrubber            // the long ones of all modules; nil: there are none
}

// add takes values that a record of a module is about to have.
func (v *veil) add(ref fleet.ModuleRef, values []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range values {
		v.note(ref, x)
	}
}

// note takes one. v.mu is held.
func (v *veil) note(ref fleet.ModuleRef, value string) {
	module := ref.String()
	if v.records[module][value] {
		return
	}
	if v.records == nil {
		v.records = map[string]map[string]bool{}
	}
	if v.records[module] == nil {
		v.records[module] = map[string]bool{}
	}
	v.records[module][value], v.changed = true, true
}

// of is what finds the values.
func (v *veil) of(m *Manager, now time.Time) *known {
	v.mu.Lock()
	defer v.mu.Unlock()
	version := m.lasts.hiddenVersion()
	if !v.made.IsZero() && !v.changed && version == v.version && now.Sub(v.made) < replacedFor {
		return v.known
	}
	if v.since.IsZero() || now.Sub(v.since) >= replacedFor {
		v.gather(m)
		v.since = now
	}
	values := m.lasts.hidden(now)
	for module, of := range v.records {
		values[module] = slices.AppendSeq(values[module], maps.Keys(of))
	}
	v.known, v.version, v.made, v.changed = knownOf(values), version, now, false
	return v.known
}

func (v *veil) gather(m *Manager) {
	v.records = nil
	for _, ref := range m.inventory.Modules() {
		for _, rec := range m.inventory.Module(ref) {
			for _, x := range m.sealed.open(m, rec.Hidden).values {
				v.note(ref, x)
			}
		}
	}
}

func knownOf(values map[string][]string) *known {
	k := &known{own: map[string]*apply.Scrubber{}}
	var long []string
	for module, of := range values {
		k.own[module] = apply.HiddenValues(of).Scrubber()
		for _, x := range of {
			if len(strings.TrimSpace(x)) >= apply.LongValue {
				long = append(long, x)
			}
		}
	}
	if len(long) > 0 {
		k.all = apply.HiddenValues(long).Scrubber()
	}
	return k
}
