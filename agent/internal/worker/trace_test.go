package worker

import (
	"testing"

	"towline.dev/towline/pkg/tracing"
)

// A sync that waits for days, and tries a wave every few seconds, has no more spans for that than one that waits for an hour; those of its
// objects still have a parent that is sent.
func TestWavesThatAreTriedForDays(t *testing.T) {
	x := &traced{id: tracing.NewID()}
	sent := 0
	for range 10 * waveSpans {
		w := x.wave([]*item{{}})
		if !w.silent {
			sent++
		} else if w.id != x.id {
			t.Fatal("objects of a wave without a span belong to it")
		}
		w.end()
	}
	if sent != waveSpans {
		t.Errorf("%d spans of waves", sent)
	}
}
