package rollout_test

import (
	"testing"
	"time"
)

// TestApprovalExpiresWhereNobodyLooks: behind a pause, or while a restored store is not settled, no gate is looked at, and yet the approval counts no
// more when its time is over: what is said of the gate is said anew then.
func TestApprovalExpiresWhereNobodyLooks(t *testing.T) {
	for _, stop := range []string{"pause by=ana", "stands on"} {
		w := newWorld(t)
		for _, line := range []string{"fleet c1..c2 at=r1", "stage all", "gate all before approval expires=20s n=2", "start r2 from=r1 by=ana", stop, "approve by=bob"} {
			w.command(line)
		}
		if want := epoch.Add(20 * time.Second); !w.last.WakeAt.Equal(want) {
			t.Errorf("%s: the next look is at %s, want %s", stop, w.last.WakeAt, want)
		}
	}
}
