package watch

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestLateEventLeavesThePrintAsItWas: the event of an answer may come after the wait for a word on it, as when the watch was away. Whoever has the print
// of the answer has it as it was: nobody locks a print to read it.
func TestLateEventLeavesThePrintAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		k := graceful(&changes)
		k.w.ctx = t.Context()
		born := time.Now()
		pass(time.Hour)
		object := till("9", 3, born, time.Now(), born)
		f := decodeItem(t, k, object).print
		k.observe(f)
		got := held(k) // as a job has it
		pass(11 * time.Second)
		if err := k.Update(decodeItem(t, k, object)); err != nil {
			t.Fatal(err)
		}
		if got.Health != fleet.HealthProgressing {
			t.Errorf("%s: it was changed in place", got.Health)
		}
	})
}
