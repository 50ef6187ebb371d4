// Package meter holds what the parts of an agent count while they work, and how its objects stand. It owns names, labels and
// buckets of these metrics, which docs/operations.md lists; it must not know the parts. Labels have few values, and no names.
package meter

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
)

// Meter counts. A nil one counts nothing.
type Meter struct {
	connected      atomic.Bool
	connects       prometheus.Counter
	sent, received *prometheus.CounterVec
	acks           *prometheus.CounterVec
	applies        *prometheus.CounterVec
	applyTime      prometheus.Observer
	corrections    prometheus.Counter
	all            telemetry.Collectors

	mu      sync.Mutex
	modules map[fleet.ModuleRef]tally
}

// tally is how a module's objects stand.
type tally struct {
	phase  fleet.SyncPhase
	health map[fleet.Health]int
	drift  map[fleet.Drift]int
}

// New makes one, which is to be registered.
func New() *Meter {
	m := &Meter{modules: map[fleet.ModuleRef]tally{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := telemetry.Counter(name, help, labels...)
		m.all = append(m.all, c)
		return c
	}
	m.connects = counter("towline_agent_connects_total", "Sessions with a hub that began.").WithLabelValues()
	m.sent = counter("towline_agent_frames_sent_total", "Frames sent to the hub, by kind.", "kind")
	m.received = counter("towline_agent_frames_received_total", "Frames received from the hub, by kind.", "kind")
	m.acks = counter("towline_agent_acks_total", "Answers to what the hub sent: accepted, partly (some modules were refused) or refused.", "result")
	m.applies = counter("towline_agent_applies_total", "Work on one object, by how it ended: ok, or the reason that the object shows.", "result")
	took := telemetry.Durations("towline_agent_apply_seconds", "Time of the work on one object.")
	m.applyTime = took.WithLabelValues()
	m.corrections = counter("towline_agent_drift_corrections_total", "Objects that were written again because somebody had changed them.").WithLabelValues()
	m.all = append(m.all, took,
		telemetry.Flag("towline_agent_connected", "1 while the agent has a session with a hub.", m.connected.Load),
		telemetry.Gauges("towline_agent_modules", "Modules in the cluster, by phase.", "phase", m.phases),
		telemetry.Gauges("towline_agent_objects", "Objects of modules in the cluster, by health.", "health", m.health),
		telemetry.Gauges("towline_agent_objects_drift", "Objects of modules in the cluster, by drift.", "drift", m.drift))
	return m
}

// Describe is for a registry.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) { m.all.Describe(ch) }

// Collect is for a registry.
func (m *Meter) Collect(ch chan<- prometheus.Metric) { m.all.Collect(ch) }

// Connected counts a session, and returns what is to be called at its end.
func (m *Meter) Connected() (ended func()) {
	if m == nil {
		return func() {}
	}
	m.connects.Inc()
	m.connected.Store(true)
	return func() { m.connected.Store(false) }
}

// Sent counts a frame to the hub.
func (m *Meter) Sent(frame protoreflect.ProtoMessage) {
	if m != nil {
		m.sent.WithLabelValues(telemetry.KindOf(frame)).Inc()
	}
}

// Received counts a frame from the hub.
func (m *Meter) Received(frame protoreflect.ProtoMessage) {
	if m != nil {
		m.received.WithLabelValues(telemetry.KindOf(frame)).Inc()
	}
}

// Acked counts an answer to what the hub sent.
func (m *Meter) Acked(result telemetry.Answer) {
	if m != nil {
		m.acks.WithLabelValues(string(result)).Inc()
	}
}

// Applied counts work on an object; reason says why it failed.
func (m *Meter) Applied(took time.Duration, reason string) {
	if m != nil {
		m.applies.WithLabelValues(cmp.Or(reason, "ok")).Inc()
		m.applyTime.Observe(took.Seconds())
	}
}

// Corrected counts an object that was written again.
func (m *Meter) Corrected() {
	if m != nil {
		m.corrections.Inc()
	}
}

// Reported takes how a module stands.
func (m *Meter) Reported(s fleet.SyncStatus) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Phase == fleet.PhaseRemoved {
		delete(m.modules, s.Module)
		return
	}
	t := tally{phase: s.Phase, health: map[fleet.Health]int{}, drift: map[fleet.Drift]int{}}
	for _, o := range s.States {
		t.health[o.Health]++
		t.drift[o.Drift]++
	}
	m.modules[s.Module] = t
}

// Forget forgets how modules stand: the agent does not keep the cluster any more, or not yet.
func (m *Meter) Forget() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.modules)
}

func (m *Meter) phases() map[string]float64 {
	return m.sum(func(t tally, add func(string, int)) { add(string(t.phase), 1) })
}

func (m *Meter) health() map[string]float64 {
	return m.sum(func(t tally, add func(string, int)) {
		for k, n := range t.health {
			add(string(k), n)
		}
	})
}

func (m *Meter) drift() map[string]float64 {
	return m.sum(func(t tally, add func(string, int)) {
		for k, n := range t.drift {
			add(string(k), n)
		}
	})
}

func (m *Meter) sum(of func(tally, func(string, int))) map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]float64{}
	for _, t := range m.modules {
		of(t, func(k string, n int) { out[k] += float64(n) })
	}
	return out
}
