package tracing

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"towline.dev/towline/pkg/fleet"
)

// Mark is in which trace the work on a sync belongs.
type Mark struct {
	Generation uint64
	Trace      Trace
	Parent     ID
	At         time.Time // when it came
}

// MarkOf reads the ids of one; false: they are none.
func MarkOf(generation uint64, traceID, parent []byte, at time.Time) (Mark, bool) {
	m := Mark{Generation: generation, At: at}
	if len(traceID) != len(m.Trace) || len(parent) != len(m.Parent) {
		return m, false
	}
	copy(m.Trace[:], traceID)
	copy(m.Parent[:], parent)
	return m, trace.TraceID(m.Trace).IsValid() && m.Parent.IsValid()
}

// maxMarks is of how many modules marks are kept. Nothing rests on them.
const maxMarks = 4096

// Marks are the newest of each module whose work has not begun. Nil ones have none.
type Marks struct {
	mu sync.Mutex
	of map[fleet.ModuleRef]Mark
}

// NewMarks has none yet.
func NewMarks() *Marks { return &Marks{of: map[fleet.ModuleRef]Mark{}} }

// Put takes a mark.
func (m *Marks) Put(ref fleet.ModuleRef, mark Mark) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.of[ref]; known || len(m.of) < maxMarks {
		m.of[ref] = mark
	}
}

// Get is the mark of a sync.
func (m *Marks) Get(ref fleet.ModuleRef, generation uint64) (Mark, bool) {
	if m == nil {
		return Mark{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, ok := m.of[ref]
	return mark, ok && mark.Generation == generation
}

// Take is Get for who begins the work: it is not begun again by it.
func (m *Marks) Take(ref fleet.ModuleRef, generation uint64) (Mark, bool) {
	mark, ok := m.Get(ref, generation)
	if ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.of, ref)
	}
	return mark, ok
}
