package session

import (
	"slices"
	"time"

	"towline.dev/towline/agent/internal/desired"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/tracing"
	"towline.dev/towline/pkg/wire"
)

// features are those of this agent.
func (s *session) features() []string {
	all := wire.Features()
	if s.l.o.Tracer != nil {
		all = append(all, wire.FeatureTraces)
	}
	return all
}

// receiveTraces notes in which traces the work belongs that comes next. What is no trace is left out: nothing rests on it.
func (s *session) receiveTraces(in *agentv1.Traces) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range in.GetTraces() {
		ref, err := fleet.ParseModuleRef(t.GetModule())
		mark, ok := tracing.MarkOf(t.GetGeneration(), t.GetTraceId(), t.GetParent(), now)
		if err != nil || !ok || s.l.o.Tracer == nil || len(s.marked) == maxMarked {
			continue
		}
		s.l.o.Marks.Put(ref, mark)
		s.marked = append(s.marked, marked{ref, mark})
	}
}

// maxMarked is of how many syncs it is told how long they took to be received.
const maxMarked = 4096

// marked is a sync that is on its way, and traced.
type marked struct {
	module fleet.ModuleRef
	mark   tracing.Mark
}

// traceReceived sends how long syncs took from their first word to their being kept, fetches included, and whether they were.
func (s *session) traceReceived(index *agentv1.Index, r desired.Result) {
	if s.l.o.Tracer == nil {
		return
	}
	listed := map[string]uint64{}
	for _, x := range index.GetSyncs() {
		listed[x.GetModule()] = x.GetGeneration()
	}
	s.mu.Lock()
	var done []marked
	s.marked = slices.DeleteFunc(s.marked, func(m marked) bool {
		generation, is := listed[m.module.String()]
		if is && generation == m.mark.Generation {
			done = append(done, m)
		}
		return is && generation >= m.mark.Generation
	})
	s.mu.Unlock()
	for _, m := range done {
		span := tracing.Span{Trace: m.mark.Trace, Parent: m.mark.Parent, Name: tracing.Receive, Start: m.mark.At, End: time.Now(), Failed: r.Code}
		if i := slices.IndexFunc(r.Refused, func(x desired.Refusal) bool { return x.Module == m.module }); i >= 0 {
			span.Failed = r.Refused[i].Code
		}
		span.Of = append(span.Of, tracing.ModuleKey.String(m.module.String()), tracing.GenerationKey.Int64(int64(m.mark.Generation)),
			tracing.ResultKey.String(string(telemetry.AnswerOf(r.Code != "", span.Failed != ""))))
		s.l.o.Tracer.Emit(span)
	}
}
