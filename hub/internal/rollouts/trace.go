package rollouts

import (
	"cmp"

	"go.opentelemetry.io/otel/attribute"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracing"
)

// Trace is the trace of a rollout; false: there is no such rollout, or it is not traced.
func Trace(t *tracing.Tracer, ref fleet.ModuleRef, ro *storev1.RolloutRecord) (tracing.Trace, bool) {
	if t == nil || ro == nil {
		return tracing.Trace{}, false
	}
	of := t.Of(fleet.RolloutID{Module: ref, Number: ro.GetRollout().GetNumber()}, ro.GetRollout().GetMetadata().GetCreationTimestamp().AsTime())
	return of, t.Samples(of)
}

// Named are the attributes that every span of a rollout has, before others.
func Named(ref fleet.ModuleRef, number int64, more ...attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{tracing.ModuleKey.String(ref.String()), tracing.RolloutKey.Int64(number)}, more...)
}

// Spans are those that end with a change of a rollout's record: the rollout itself, its way back, and its stages. A rollout ends for its trace when it
// ends first, or turns back.
func Spans(of tracing.Trace, ref fleet.ModuleRef, was, is *storev1.RolloutRecord) []tracing.Span {
	before, after := tracedHead(was), tracedHead(is)
	ro := is.GetRollout()
	number, created := ro.GetNumber(), ro.GetMetadata().GetCreationTimestamp().AsTime()
	over := after.Ended.Time()
	if over.IsZero() {
		over = after.Since.Time()
	}
	var out []tracing.Span
	if forward(before) && !forward(after) {
		named := Named(ref, number, tracing.RevisionKey.Int64(ro.GetRevision()), tracing.StateKey.String(string(after.State)))
		out = append(out, tracing.Span{Trace: of, ID: of.Root(), Name: tracing.Rollout, Start: created, End: over, Failed: whyNot(after), Of: named})
	}
	if before.Back != nil && !before.State.Ended() && after.Back != nil && after.State.Ended() {
		failed := whyNot(after)
		if after.State == rollout.RolledBack {
			failed = ""
		}
		out = append(out, tracing.Span{Trace: of, Parent: of.Root(), Name: tracing.Rollback, Start: after.Back.Started.Time(), End: over, Failed: failed,
			Of: Named(ref, number, tracing.RevisionKey.Int64(after.Back.To), tracing.StateKey.String(string(after.State)))})
	}
	for i := range after.Stages {
		s := tracing.Span{Trace: of, ID: of.Stage(i), Parent: of.Root(), Name: tracing.Stage, Start: after.Stages[i].Started.Time(), End: after.Stages[i].Ended.Time(),
			Of: Named(ref, number, tracing.StageKey.String(after.names[i]))}
		ended := i < len(before.Stages) && before.Stages[i].Ended != 0
		if s.End.IsZero() && forward(before) && !forward(after) { // it does not come to its end any more
			s.End, s.Failed = over, whyNot(after)
		}
		if !ended && !s.Start.IsZero() && !s.End.IsZero() {
			out = append(out, s)
		}
	}
	return out
}

// tracedState is what spans say of a rollout.
type tracedState struct {
	rollout.Head
	names []string // of the stages
}

// tracedHead is what a record says, as far as it can be read.
func tracedHead(rec *storev1.RolloutRecord) (out tracedState) {
	plan, state, err := head(rec)
	if err == nil && plan != nil {
		out.Head = state.Head
		for _, s := range plan.Stages {
			out.names = append(out.names, s.Name)
		}
		out.Stages = out.Stages[:min(len(out.Stages), len(out.names))]
		return out
	}
	status := rec.GetRollout().GetStatus()
	out.State, out.Reason, out.Ended = StateOf(rec), status.GetReason(), rollout.At(status.GetEnded().AsTime())
	if status.GetEnded() == nil {
		out.Ended = 0
	}
	return out
}

// forward reports that a rollout is on its way, and not back.
func forward(h tracedState) bool { return !h.State.Ended() && h.Back == nil }

// whyNot is the code of why a rollout does not come to its end; empty: it does, or another one takes its place.
func whyNot(h tracedState) string {
	switch h.State {
	case rollout.Succeeded, rollout.Superseded:
		return ""
	}
	return cmp.Or(h.Reason, string(h.State))
}
