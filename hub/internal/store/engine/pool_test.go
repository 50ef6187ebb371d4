package engine

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
)

func read(t *testing.T, ps pools, key string, m proto.Message) proto.Message {
	t.Helper()
	payload, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ps.read(store.ClassOf(key), payload)
	if err != nil || !proto.Equal(got, m) {
		t.Fatalf("%v, %v; want %v", got, err, m)
	}
	return got
}

// What many clusters were given alike, or report alike, is in memory once; all else is as it was written.
func TestPoolKeepsWhatRecordsHaveAlikeOnce(t *testing.T) {
	ps := newPools()
	desired := func(generation uint64) *storev1.DesiredRecord {
		return &storev1.DesiredRecord{Rollout: 3, Sync: &agentv1.Sync{Module: "default/shop", Generation: generation, Values: map[string]string{"A": "b"}}}
	}
	a, b := read(t, ps, "desired/a/default/shop", desired(1)), read(t, ps, "desired/b/default/shop", desired(1))
	if a != b || read(t, ps, "desired/c/default/shop", desired(2)) == a {
		t.Error("what is equal is not one, or what differs is")
	}
	observed := func(epoch uint64, phase string) *storev1.ObservedRecord {
		return &storev1.ObservedRecord{Epoch: epoch, Since: int64(epoch), Status: &agentv1.SyncStatus{Module: "default/shop", Phase: phase, States: []byte{1, 2}},
			Corrections: []*storev1.HourCount{{Hour: 1, Count: epoch}}}
	}
	x := read(t, ps, "observed/a/default/shop", observed(1, "Applied")).(*storev1.ObservedRecord)
	y := read(t, ps, "observed/b/default/shop", observed(2, "Applied")).(*storev1.ObservedRecord)
	z := read(t, ps, "observed/c/default/shop", observed(2, "Failed")).(*storev1.ObservedRecord)
	if x.Status != y.Status || x.Status == z.Status || x == y {
		t.Error("what is equal is not one, or what differs is")
	}
	read(t, ps, "observed/d/default/shop", &storev1.ObservedRecord{Epoch: 3})
	read(t, ps, "observed/d/default/shop", &storev1.ObservedRecord{Status: &agentv1.SyncStatus{}})
	if one, two := read(t, ps, "clusters/a", &storev1.ClusterRecord{Uid: "u"}), read(t, ps, "clusters/b", &storev1.ClusterRecord{Uid: "u"}); one == two {
		t.Error("records of a class that shares nothing are one")
	}
}

// What comes twice in a payload is read as protobuf says, and what is no message is an error whatever is known already.
func TestPoolReadsWhatIsWrittenOtherwise(t *testing.T) {
	ps := newPools()
	read(t, ps, "observed/a/default/shop", &storev1.ObservedRecord{Status: &agentv1.SyncStatus{Phase: "Applied"}})
	first, _ := proto.Marshal(&storev1.ObservedRecord{Status: &agentv1.SyncStatus{Phase: "Applied"}})
	second, _ := proto.Marshal(&storev1.ObservedRecord{Status: &agentv1.SyncStatus{Ready: true}})
	class := store.ClassOf("observed/a/default/shop")
	got, err := ps.read(class, append(first, second...))
	if st := got.(*storev1.ObservedRecord).GetStatus(); err != nil || st.GetPhase() != "Applied" || !st.GetReady() {
		t.Errorf("%v, %v", got, err)
	}
	for _, broken := range [][]byte{{0x0a}, {0x0a, 0x02, 0xff, 0xff}, append([]byte{0xff}, first...), append(append([]byte{}, first...), 0x10)} {
		if got, err := ps.read(class, broken); err == nil {
			t.Errorf("% x is read as %v", broken, got)
		}
	}
}

// A pool remembers what came lately, and no more than that.
func TestPoolForgets(t *testing.T) {
	ps := newPools()
	class := store.ClassOf("desired/a/default/shop")
	for i := range 5 * poolSize {
		read(t, ps, "desired/a/default/shop", &storev1.DesiredRecord{Problem: fmt.Sprint(i)})
	}
	if p := ps[class]; len(p.young)+len(p.old) > 2*poolSize {
		t.Errorf("%d messages are remembered", len(p.young)+len(p.old))
	}
}
