package worker

import (
	"sync"
	"time"
)

// A write that the API server is slow to answer, as one whose webhook does not answer, gives its slot back after slotTime:
// one module with such a webhook must not hold up the others. Of a server that is slow with all there are still so many
// writes in flight at most: the slots, and slowPerSlot times as many.
const (
	slotTime    = time.Second
	slowPerSlot = 3
)

// lend begins to count the time of who has just taken a slot. The function that it returns ends the use of the slot.
func (m *Manager) lend() (done func()) {
	var mu sync.Mutex
	back := m.slots
	t := time.AfterFunc(slotTime, func() {
		mu.Lock()
		defer mu.Unlock()
		if back == nil {
			return
		}
		select {
		case m.slow <- struct{}{}:
			<-m.slots
			back = m.slow
		default: // too many are slow already
		}
	})
	return func() {
		t.Stop()
		mu.Lock()
		defer mu.Unlock()
		<-back
		back = nil
	}
}

// Watches is how many watches of the cluster are in use, and how many of them nothing is seen by.
func (m *Manager) Watches() (open, blind int) { return m.watcher.Watches() }
