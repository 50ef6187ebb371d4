package control

import (
	"log/slog"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracing"
)

// A span of a cluster has its id once in a trace: what comes to another end afterwards is another span.
func TestSpanHasItsIDOnce(t *testing.T) {
	var s moduleState
	a, b := tracing.ID{1}, tracing.ID{2}
	for i, x := range []struct {
		rollout int64
		id      tracing.ID
		before  bool
	}{{1, a, false}, {1, b, false}, {1, a, true}, {2, a, false}, {2, a, true}} {
		if got := s.spanned(x.rollout, x.id); got != x.before {
			t.Errorf("span %d: sent before: %t", i, got)
		}
	}
}

// What was noted of the spans of a rollout goes when that has ended: of many modules in many clusters it would be most of the memory.
func TestSpansOfWhatHasEndedAreForgotten(t *testing.T) {
	tracer, err := tracing.Start(t.Context(), tracing.Options{Endpoint: "http://127.0.0.1:1", Sample: 1}, tracing.Process{Service: "hub", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Stop()
	c := &Controller{o: Options{Tracer: tracer}, states: map[fleet.ModuleRef]*moduleState{}}
	run := &rollouts.Run{Module: shop, Number: 2, Plan: &rollout.Plan{}}
	for _, tc := range []struct {
		state rollout.RunState
		known bool
	}{{rollout.Progressing, true}, {rollout.Succeeded, false}} {
		c.state(shop).spanned(run.Number, tracing.ID{1})
		run.Record = &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 2, Status: &towlinev1.RolloutStatus{State: string(tc.state)}}}
		c.traceDecision(run, rollout.Decision{}, time.Now())
		if known := len(c.state(shop).spans.sent) > 0; known != tc.known {
			t.Errorf("%s: spans are known: %t", tc.state, known)
		}
	}
}
