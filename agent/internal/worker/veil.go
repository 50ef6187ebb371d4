package worker

import (
	"maps"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
)

// replacedFor is for how long a value is hidden that is not in force any more: Events and conditions that quote it stay for about as long.
const replacedFor = time.Hour

// veil is what nobody may be shown of what the agent knows: what the bindings of all modules read now, what our last writes put into objects,
// and what was replaced a short time ago. It is put together once for each change.
type veil struct {
	mu      sync.Mutex
	records map[string]bool // values in records; more than these until it is gathered anew
	since   time.Time       // when they were gathered
	version uint64          // of the last values
	made    time.Time
	changed bool
	hidden  *apply.Scrubber
}

// add takes values that a record is about to have.
func (v *veil) add(values []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range values {
		v.changed = v.changed || !v.records[x]
		if v.records == nil {
			v.records = map[string]bool{}
		}
		v.records[x] = true
	}
}

// of is what finds the values; nil: there are none.
func (v *veil) of(m *Manager, now time.Time) *apply.Scrubber {
	v.mu.Lock()
	defer v.mu.Unlock()
	version := m.lasts.hiddenVersion()
	if !v.made.IsZero() && !v.changed && version == v.version && now.Sub(v.made) < replacedFor {
		return v.hidden
	}
	if v.since.IsZero() || now.Sub(v.since) >= replacedFor {
		v.gather(m)
		v.since = now
	}
	values := union(slices.Collect(maps.Keys(v.records)), m.lasts.hidden(now))
	v.hidden, v.version, v.made, v.changed = nil, version, now, false
	if len(values) > 0 {
		v.hidden = apply.HiddenValues(values).Scrubber()
	}
	return v.hidden
}

func (v *veil) gather(m *Manager) {
	v.records = map[string]bool{}
	for _, ref := range m.inventory.Modules() {
		for _, rec := range m.inventory.Module(ref) {
			for _, x := range m.sealed.open(m, rec.Hidden).values {
				v.records[x] = true
			}
		}
	}
}
