package record

import (
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
)

func TestCorrectionsOfDay(t *testing.T) {
	var rec *storev1.ObservedRecord
	start := time.Unix(1_800_000_000, 0).Truncate(time.Hour)
	for i, step := range []struct {
		after       time.Duration // since the start
		bundle      byte
		corrections uint64
		want        int64
	}{
		{0, 1, 0, 0},
		{time.Minute, 1, 3, 3},
		{2 * time.Minute, 1, 3, 3},                  // the same report again
		{time.Hour, 1, 5, 5},                        // two more, in another hour
		{time.Hour, 1, 1, 6},                        // the agent was started anew
		{2 * time.Hour, 2, 4, 10},                   // a new bundle is counted from zero
		{time.Hour, 2, 5, 11},                       // the clock went back
		{24*time.Hour + time.Minute, 2, 5, 8},       // the first hour is too long ago
		{24*time.Hour + 3*time.Minute, 2, 7, 10},    //
		{1000*time.Hour + 3*time.Minute, 2, 7, 0},   // all of it is
		{1000*time.Hour + 4*time.Minute, 2, 17, 10}, //
	} {
		now := start.Add(step.after)
		st := &agentv1.SyncStatus{Generation: uint64(i), Bundle: []byte{step.bundle}, Corrections: step.corrections}
		rec = &storev1.ObservedRecord{Status: st, Corrections: AddCorrections(rec, st, now)}
		if got := CorrectionsOfDay(rec, now); got != step.want {
			t.Errorf("step %d: %d corrections, want %d", i, got, step.want)
		}
	}
	if n := len(rec.GetCorrections()); n != 1 {
		t.Errorf("%d hours are kept", n)
	}
}
