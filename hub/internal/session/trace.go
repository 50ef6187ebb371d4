package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/tracing"
)

// traces are those of the rollouts whose syncs go to the agent.
type traces struct {
	told uint64 // up to which generation the agent has syncs, or was sent them; it is the sender's

	mu     sync.Mutex
	unsaid []traced                   // sent, and not answered yet
	open   map[fleet.ModuleRef]traced // sent, and not reported ready yet
}

// traced is a sync that is traced.
type traced struct {
	trace      tracing.Trace
	module     fleet.ModuleRef
	generation uint64
	parent     tracing.ID
	named      []attribute.KeyValue
	sent       time.Time
	reports    int
}

// traceFrame notes which syncs of a frame are traced that the agent has not had yet, and returns what it is to be told of that; nil: nothing.
// What is given out after the end of a rollout, to clusters that come late, belongs to no trace.
func (x *session) traceFrame(ctx context.Context, f *frame) *agentv1.Traces {
	t := x.server.o.Tracer
	if t == nil {
		return nil
	}
	told := x.traces.told
	x.traces.told = max(told, f.target.assemblage.Generation)
	var list []traced
	if err := x.server.o.Store.View(ctx, 0, func(r store.Reader) error {
		list = list[:0]
		for _, s := range f.index.GetSyncs() {
			if s.GetGeneration() > told {
				if of, ok := x.tracedSync(r, s); ok {
					list = append(list, of)
				}
			}
		}
		return nil
	}); err != nil || len(list) == 0 {
		return nil
	}
	x.traces.mu.Lock()
	defer x.traces.mu.Unlock()
	if x.traces.open == nil {
		x.traces.open = map[fleet.ModuleRef]traced{}
	}
	out := &agentv1.Traces{}
	for _, s := range list {
		x.traces.open[s.module] = s
		out.Traces = append(out.Traces, &agentv1.Trace{Module: s.module.String(), Generation: s.generation, TraceId: s.trace[:], Parent: s.parent[:]})
	}
	x.traces.unsaid = append(x.traces.unsaid, list...)
	return out
}

// tracedSync is a sync in the trace of the rollout that assigned it; false: it is in none.
func (x *session) tracedSync(r store.Reader, s *agentv1.Sync) (out traced, ok bool) {
	r = store.Untracked(r)
	ref, err := fleet.ParseModuleRef(s.GetModule())
	if err != nil {
		return out, false
	}
	d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(x.cluster, ref))
	if d.GetRollout() == 0 {
		return out, false
	}
	ro := rollouts.Get(r, ref, d.GetRollout())
	of, ok := rollouts.Trace(x.server.o.Tracer, ref, ro)
	if !ok || rollouts.Ended(ro) {
		return out, false
	}
	return traced{trace: of, module: ref, generation: s.GetGeneration(), parent: of.Cluster(x.cluster, s.GetGeneration()), sent: x.server.clock(),
		named: rollouts.Named(ref, d.GetRollout(), tracing.ClusterKey.String(string(x.cluster)), tracing.RevisionKey.Int64(s.GetRevision()), tracing.GenerationKey.Int64(int64(s.GetGeneration())))}, true
}

// traceAnswer sends how long what was sent was on its way, up to the agent's answer.
func (x *session) traceAnswer(a answer) {
	x.endSends(string(telemetry.AnswerOf(a.refused, !a.whole)), a.refused)
}

// traceEnd is the end of the session: what was sent and not answered is not known to have come.
func (x *session) traceEnd() { x.endSends("unanswered", true) }

func (x *session) endSends(result string, failed bool) {
	t := x.server.o.Tracer
	if t == nil {
		return
	}
	x.traces.mu.Lock()
	list := x.traces.unsaid
	x.traces.unsaid = nil
	x.traces.mu.Unlock()
	for _, s := range list {
		span := tracing.Span{Trace: s.trace, Parent: s.parent, Name: tracing.Send, Start: s.sent, End: x.server.clock(), Of: append(slices.Clip(s.named), tracing.ResultKey.String(result))}
		if failed {
			span.Failed = result
		}
		t.Emit(span)
	}
}

// maxReportSpans is how many reports of one sync have spans: one that never gets ready may report for ever.
const maxReportSpans = 16

// traceReports sends how long the commit of reports took, of those syncs that are traced, until they are ready or have failed.
func (x *session) traceReports(statuses map[fleet.ModuleRef]*agentv1.SyncStatus, took time.Duration) {
	t := x.server.o.Tracer
	if t == nil {
		return
	}
	now := x.server.clock()
	x.traces.mu.Lock()
	defer x.traces.mu.Unlock()
	for ref, st := range statuses {
		s, ok := x.traces.open[ref]
		if !ok || st.GetGeneration() != s.generation {
			continue
		}
		s.reports++
		x.traces.open[ref] = s
		failed := st.GetPhase() == string(fleet.PhaseFailed)
		if st.GetReady() || failed || s.reports == maxReportSpans {
			delete(x.traces.open, ref)
		}
		span := tracing.Span{Trace: s.trace, Parent: s.parent, Name: tracing.Report, Start: now.Add(-took), End: now,
			Of: append(slices.Clip(s.named), tracing.StateKey.String(st.GetPhase()), tracing.ReasonKey.String(st.GetReason()))}
		if failed {
			span.Failed = st.GetReason()
		}
		t.Emit(span)
	}
}
