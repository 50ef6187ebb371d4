// Package meter holds what the parts of a hub count while they work. It owns names, labels and buckets of these metrics, which
// docs/operations.md lists; it must not know the parts. Labels have few values, never a name that people or agents chose.
package meter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/telemetry"
)

// Meter counts. A nil one counts nothing.
type Meter struct {
	opened, ended       prometheus.Counter
	refused             *prometheus.CounterVec
	sent, received      *prometheus.CounterVec
	sendTime            prometheus.Observer
	acks                *prometheus.CounterVec
	ackTime             prometheus.Observer
	reports, commits    prometheus.Observer
	commitFailed        prometheus.Counter
	decisions, assigned prometheus.Counter
	moves               *prometheus.CounterVec
	work                *prometheus.HistogramVec
	workFailed          prometheus.Counter
	all                 telemetry.Collectors
}

// New makes one, which is to be registered.
func New() *Meter {
	m := &Meter{}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := telemetry.Counter(name, help, labels...)
		m.all = append(m.all, c)
		return c
	}
	durations := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := telemetry.Durations(name, help, labels...)
		m.all = append(m.all, h)
		return h
	}
	m.opened = counter("towline_sessions_opened_total", "Sessions of agents that began.").WithLabelValues()
	m.ended = counter("towline_sessions_ended_total", "Sessions of agents that ended.").WithLabelValues()
	m.refused = counter("towline_sessions_refused_total", "Sessions that agents did not get, by gRPC code.", "code")
	m.sent = counter("towline_frames_sent_total", "Frames sent to agents, by kind.", "kind")
	m.received = counter("towline_frames_received_total", "Frames received from agents, by kind.", "kind")
	m.sendTime = durations("towline_frame_send_seconds", "Time that a frame to an agent waited for the agent to read.").WithLabelValues()
	m.acks = counter("towline_acks_total", "Answers of agents to what they were sent: accepted, partly (some modules were refused) or refused.", "result")
	m.ackTime = durations("towline_ack_seconds", "Time from when a set was sent to an agent to its answer.").WithLabelValues()
	m.reports = durations("towline_report_commit_seconds", "Time to commit what an agent reported.").WithLabelValues()
	m.commits = durations("towline_store_commit_seconds", "Time of a transaction of records.").WithLabelValues()
	m.commitFailed = counter("towline_store_commit_failures_total", "Transactions of records that failed, or of which it was not known; they are sent again.").WithLabelValues()
	m.decisions = counter("towline_decisions_total", "Decisions of rollouts that changed something.").WithLabelValues()
	m.assigned = counter("towline_assignments_total", "Clusters that rollouts gave a revision, or took a module from.").WithLabelValues()
	m.moves = counter("towline_rollout_moves_total", "Changes of the phase of rollouts, by the phase they came to.", "phase")
	m.work = durations("towline_work_seconds", "Time of one piece of work of the hub that leads, by queue.", "queue")
	m.workFailed = counter("towline_work_failures_total", "Pieces of work of the hub that leads that failed, and are tried again later and later.").WithLabelValues()
	return m
}

// Describe is for a registry.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) { m.all.Describe(ch) }

// Collect is for a registry.
func (m *Meter) Collect(ch chan<- prometheus.Metric) { m.all.Collect(ch) }

// SessionOpened counts a session, and returns what is to be called at its end.
func (m *Meter) SessionOpened() (ended func()) {
	if m == nil {
		return func() {}
	}
	m.opened.Inc()
	return m.ended.Inc
}

// SessionRefused counts a session that did not begin.
func (m *Meter) SessionRefused(code codes.Code) {
	if m != nil {
		m.refused.WithLabelValues(code.String()).Inc()
	}
}

// Sent counts a frame to an agent that took so long.
func (m *Meter) Sent(frame protoreflect.ProtoMessage, took time.Duration) {
	if m != nil {
		m.sent.WithLabelValues(telemetry.KindOf(frame)).Inc()
		m.sendTime.Observe(took.Seconds())
	}
}

// Received counts a frame from an agent.
func (m *Meter) Received(frame protoreflect.ProtoMessage) {
	if m != nil {
		m.received.WithLabelValues(telemetry.KindOf(frame)).Inc()
	}
}

// Acked counts an agent's answer to a set that was sent so long ago.
func (m *Meter) Acked(whole, refused bool, took time.Duration) {
	if m == nil {
		return
	}
	m.acks.WithLabelValues(string(telemetry.AnswerOf(refused, !whole))).Inc()
	m.ackTime.Observe(took.Seconds())
}

// Reported counts a commit of reports.
func (m *Meter) Reported(took time.Duration) {
	if m != nil {
		m.reports.Observe(took.Seconds())
	}
}

// Committed counts a transaction of the store.
func (m *Meter) Committed(took time.Duration, err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.commitFailed.Inc()
		return
	}
	m.commits.Observe(took.Seconds())
}

// Decided counts a decision, and how many clusters it moves.
func (m *Meter) Decided(assigned int) {
	if m != nil {
		m.decisions.Inc()
		m.assigned.Add(float64(assigned))
	}
}

// Moved counts a rollout that came to a phase.
func (m *Meter) Moved(phase string) {
	if m != nil {
		m.moves.WithLabelValues(phase).Inc()
	}
}

// Worked counts a piece of work.
func (m *Meter) Worked(queue string, took time.Duration) {
	if m != nil {
		m.work.WithLabelValues(queue).Observe(took.Seconds())
	}
}

// WorkFailed counts one that failed.
func (m *Meter) WorkFailed() {
	if m != nil {
		m.workFailed.Inc()
	}
}
