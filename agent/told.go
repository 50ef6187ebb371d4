package agent

import (
	"sync"
	"time"

	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/pkg/fleet"
)

// toldFor tells a condition for a time after it was seen last.
type toldFor struct {
	conditions *report.Conditions
	time       time.Duration

	mu    sync.Mutex
	until time.Time
}

// tell says the condition, and clears it when it was not said again for as long as it is told.
func (f *toldFor) tell(x fleet.Condition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conditions.Set(x)
	first := f.until.IsZero()
	f.until = time.Now().Add(f.time)
	if first {
		time.AfterFunc(f.time, func() { f.clear(x.Type) })
	}
}

// clear ends what is told, or waits for as long as it is to be told still.
func (f *toldFor) clear(t fleet.ConditionType) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if left := time.Until(f.until); left > 0 {
		time.AfterFunc(left, func() { f.clear(t) })
		return
	}
	f.until = time.Time{}
	f.conditions.Clear(t)
}
