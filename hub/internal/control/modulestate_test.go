package control

import (
	"testing"

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
