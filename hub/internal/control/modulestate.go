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

	took atomic.Int64 // nanoseconds of the last run

	// Only the one run of the module's key at a time touches these.
	run *record.Run
}

// maxGather bounds how long reports are gathered before a run.
const maxGather = 5 * time.Millisecond

// rest is how long to gather reports before the next run: as long as the last one took, so that a burst of reports makes
// few runs and a single one is hardly delayed.
func (s *moduleState) rest() time.Duration { return min(time.Duration(s.took.Load()), maxGather) }

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
