package worker

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/tracing"
)

// Of how many objects of a sync there are spans: of the first ones, and of some more that fail. The others are counted. A wave has one each
// time that it goes on, as often as it may: one that waits for days does so every few seconds.
const (
	objectSpans = 200
	failedSpans = 50
	waveSpans   = 200
)

// reasonSuperseded is why the work on a sync ended that a newer one took the place of.
const reasonSuperseded = "Superseded"

// traced is the work on a sync that belongs to a trace, from its beginning to its being ready, or its first failure. Of a nil one, which
// is in no trace, every method does nothing.
type traced struct {
	tracer  *tracing.Tracer
	mark    tracing.Mark
	id      tracing.ID // of the span of all of it
	named   []attribute.KeyValue
	began   time.Time
	applied time.Time // zero: not all objects are
	spans   atomic.Int64
	failed  atomic.Int64
	waves   int // of which there are spans
}

// beginTrace begins the trace of a target, if it belongs to one.
func (w *worker) beginTrace(t target, now time.Time) {
	mark, ok := w.m.o.Marks.Take(w.ref, t.sync.Generation)
	if !ok || t.kind != targetSync {
		return
	}
	w.traced = &traced{tracer: w.m.o.Tracer, mark: mark, id: tracing.NewID(), began: now, named: []attribute.KeyValue{tracing.ModuleKey.String(w.ref.String()),
		tracing.RevisionKey.Int64(t.sync.Revision), tracing.GenerationKey.Int64(int64(t.sync.Generation))}}
}

// emit sends a part of the work.
func (t *traced) emit(s tracing.Span, more ...attribute.KeyValue) {
	s.Trace, s.Of = t.mark.Trace, append(t.named[:len(t.named):len(t.named)], more...)
	if !s.Parent.IsValid() {
		s.Parent = t.id
	}
	t.tracer.Emit(s)
}

// loaded is the end of reading what the sync lists.
func (t *traced) loaded(began time.Time, fail *apply.Failure) {
	if t == nil {
		return
	}
	s := tracing.Span{Name: tracing.Load, Start: began, End: time.Now()}
	if fail != nil {
		s.Failed = fail.Reason
	}
	t.emit(s)
}

// reported ends what a status says has ended, and returns what goes on.
func (t *traced) reported(s *fleet.SyncStatus, objects int, now time.Time) *traced {
	switch {
	case t == nil:
		return nil
	case s.Phase == fleet.PhaseFailed:
		t.end(s.Reason, now)
		return nil
	case s.Phase != fleet.PhaseApplied:
		return t
	}
	if t.applied.IsZero() {
		t.applied = now
		t.emit(tracing.Span{ID: t.id, Parent: t.mark.Parent, Name: tracing.Apply, Start: t.began, End: now}, tracing.ObjectsKey.Int(objects))
	}
	if !s.Ready {
		return t
	}
	t.emit(tracing.Span{Parent: t.mark.Parent, Name: tracing.Ready, Start: t.applied, End: now}, tracing.ObjectsKey.Int(objects))
	return nil
}

// end ends what has not come to its end.
func (t *traced) end(reason string, now time.Time) {
	switch {
	case t == nil:
	case t.applied.IsZero():
		t.emit(tracing.Span{ID: t.id, Parent: t.mark.Parent, Name: tracing.Apply, Start: t.began, End: now, Failed: reason})
	default:
		t.emit(tracing.Span{Parent: t.mark.Parent, Name: tracing.Ready, Start: t.applied, End: now, Failed: reason})
	}
}

// tracedWave is the work on the objects of one wave, as far as it can be done now.
type tracedWave struct {
	*traced
	id       tracing.ID
	began    time.Time
	turn     plan.Turn
	objects  int
	silent   bool // it has no span itself; those of its objects are those of the whole
	spanless atomic.Int64
}

// wave begins one.
func (t *traced) wave(items []*item) *tracedWave {
	if t == nil || len(items) == 0 {
		return nil
	}
	w := &tracedWave{traced: t, id: tracing.NewID(), began: time.Now(), turn: items[0].turn(), objects: len(items)}
	if t.waves++; t.waves > waveSpans {
		w.id, w.silent = t.id, true
	}
	return w
}

// object is the end of the work on an object. Many are under way at a time.
func (w *tracedWave) object(j *job, began time.Time, out *outcome) {
	if w == nil || out.canceled {
		return
	}
	s := tracing.Span{Parent: w.id, Name: tracing.Object, Start: began, End: time.Now()}
	if out.fail != nil {
		s.Failed = out.fail.Reason
	}
	if w.spans.Add(1) > objectSpans && (s.Failed == "" || w.failed.Add(1) > failedSpans) {
		w.spanless.Add(1)
		return
	}
	id := &j.entry.ID
	w.emit(s, tracing.GroupKey.String(id.Group), tracing.KindKey.String(id.Kind), tracing.NamespaceKey.String(id.Namespace), tracing.NameKey.String(id.Name),
		tracing.VerbKey.String(string(j.verb)))
}

func (w *tracedWave) end() {
	if w == nil || w.silent {
		return
	}
	w.emit(tracing.Span{ID: w.id, Name: tracing.Wave, Start: w.began, End: time.Now()}, tracing.WaveKey.String(w.turn.String()), tracing.ObjectsKey.Int(w.objects),
		tracing.SpanlessKey.Int64(w.spanless.Load()))
}
