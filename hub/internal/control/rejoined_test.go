package control

import (
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/rollout"
)

// A cluster is forgotten and joins again under its name between two looks of the module's rollout, as behind many other modules. It
// gets the module like one that joins.
func TestClusterThatJoinsAgainBetweenTwoLooks(t *testing.T) {
	for _, ended := range []bool{true, false} {
		l := newLeader(t)
		l.fleetOf("a", "b")
		l.reportReady("a")
		if ended {
			l.reportReady("b")
		}
		l.again()
		if s := l.rollout(2).State; s.State.Ended() != ended || s.Record(0).State != rollout.ClusterSucceeded {
			t.Fatalf("%+v", s.Head)
		}
		l.put(func(w store.Writer) {
			for _, key := range []string{store.DesiredKey("a", shop), store.ObservedKey("a", shop), store.SessionKey("a"), store.AckKey("a"), store.FloorKey("a")} {
				w.Delete(key)
			}
			w.Put(store.ClusterKey("a"), clusterRecord("a"))
		})
		l.again()
		l.again()
		if d := l.desired("a"); d.GetSync().GetRevision() != 2 {
			t.Errorf("ended %t: a has %v, want r2; it is said to be %s", ended, d, l.rollout(2).State.Record(0).State)
		}
	}
}
