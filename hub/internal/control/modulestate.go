package control

import (
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
)

// maxDirty is how many clusters a module remembers one by one before it looks at all of them.
const maxDirty = 4096

// moduleState is what the controller keeps of a module between runs: which clusters changed, and the run it drives with
// what it observed. Losing it costs a reading of the store, never correctness.
type moduleState struct {
	mu    sync.Mutex
	dirty map[fleet.ClusterName]struct{}
	all   bool

	took    atomic.Int64 // nanoseconds of the last run
	awaited atomic.Int64 // clusters that may report soon

	// Only the one run of the module's key at a time touches these.
	run *record.Run
}

// How long reports are gathered before a run.
const (
	minGather = 2 * time.Millisecond
	maxGather = 20 * time.Millisecond
)

// rest is how long to gather reports before the next run: not at all when every cluster that is awaited has reported,
// else about as long as the last run took. So a burst of reports makes few runs, and a last or only one is not delayed.
func (s *moduleState) rest() time.Duration {
	s.mu.Lock()
	heard := len(s.dirty)
	s.mu.Unlock()
	if int64(heard) >= s.awaited.Load() {
		return 0
	}
	return min(max(time.Duration(s.took.Load()), minGather), maxGather)
}

// mark reports true, so that callers can mark and queue in one expression.
func (s *moduleState) mark(c fleet.ClusterName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all {
		return true
	}
	if s.dirty == nil {
		s.dirty = map[fleet.ClusterName]struct{}{}
	}
	s.dirty[c] = struct{}{}
	if len(s.dirty) > maxDirty {
		s.dirty, s.all = nil, true
	}
	return true
}

func (s *moduleState) markAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty, s.all = nil, true
}

// reset forgets everything but that everything must be looked at.
func (s *moduleState) reset() {
	s.markAll()
	s.run = nil
}

// take returns what is dirty and cleans it.
func (s *moduleState) take() (dirty map[fleet.ClusterName]struct{}, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty, all = s.dirty, s.all
	s.dirty, s.all = nil, false
	return dirty, all
}
