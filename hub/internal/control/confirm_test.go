package control

import (
	"fmt"
	"slices"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestConfirmTellsWhatWasShown: the agent is told which objects were on the list that a person confirmed, for as long as he confirms it, and none
// where the list was cut.
func TestConfirmTellsWhatWasShown(t *testing.T) {
	keys := func(names ...string) (out []uint64) {
		for _, n := range names {
			out = append(out, assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: n}))
		}
		slices.Sort(out)
		return out
	}
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut %t", cut), func(t *testing.T) {
			l, look := newAssigned(t)
			report := func(names ...string) {
				l.waitsWith("a", names...)
				if cut && len(names) > 0 {
					l.cutList("a", 40)
				}
				look()
			}
			want := keys("m", "n")
			if cut {
				want = nil
			}
			report("m", "n")
			asked := l.asked()
			if len(asked) != 1 {
				t.Fatalf("asked %v", asked)
			}
			l.put(func(w store.Writer) {
				w.Put(store.ConfirmPrefix+asked[0].GetId(), &storev1.ConfirmRecord{Digest: asked[0].GetDigest()})
			})
			look()
			if s := l.desired("a").GetSync(); !s.GetPruneConfirmed() || !slices.Equal(s.GetPruneShown(), want) {
				t.Fatalf("told %v, want %v", s, want)
			}
			report() // it is done, or goes on
			l.put(func(w store.Writer) {
				d := l.desired("a")
				d.Sync.Hold = true // which nobody asked for: it is taken back with another generation
				w.Put(store.DesiredKey("a", shop), d)
			})
			look()
			if s := l.desired("a").GetSync(); s.GetHold() || !s.GetPruneConfirmed() || !slices.Equal(s.GetPruneShown(), want) {
				t.Fatalf("told %v after another generation, want %v", s, want)
			}
			report("b")
			if s := l.desired("a").GetSync(); s.GetPruneConfirmed() || len(s.GetPruneShown()) > 0 {
				t.Errorf("told %v of what came later", s)
			}
		})
	}
}

// cutList has the agent of a cluster say that it waits with more than it lists.
func (l *leader) cutList(c fleet.ClusterName, count int) {
	l.put(func(w store.Writer) {
		o, _, _ := store.Get[*storev1.ObservedRecord](w, store.ObservedKey(c, shop))
		st, err := wire.SyncStatusFromProto(o.GetStatus())
		l.must(err)
		st.HeldCount, st.ExtraCount = count, count
		w.Put(store.ObservedKey(c, shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
	})
}
