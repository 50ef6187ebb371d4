package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
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

// TestQuestionSaysHowManyItemsItHas: an agent lists some of what it waits with, and the hub keeps some of that list. A person reads how many there are
// of all.
func TestQuestionSaysHowManyItemsItHas(t *testing.T) {
	for name, tt := range map[string]struct {
		names, bytes int
		cut          bool // by the hub, too
	}{"the agent's list": {3, 1, false}, "cut by the hub, too": {2000, 200, true}} {
		t.Run(name, func(t *testing.T) {
			l, look := newAssigned(t)
			var names []string
			for i := range tt.names {
				names = append(names, fmt.Sprintf("%04d-%s", i, strings.Repeat("x", tt.bytes)))
			}
			l.waitsWith("a", names...)
			l.cutList("a", 40_000)
			look()
			asked := l.asked()
			if len(asked) != 1 {
				t.Fatalf("asked %v", asked)
			}
			items, count := asked[0].GetItems(), asked[0].GetCount()
			shown := len(items) - 1
			if last, want := items[shown], fmt.Sprintf("and %d more", 40_000-shown); count != 40_000 || last != want {
				t.Errorf("%d items are shown, the last says %q, want %q; %d are counted", shown, last, want, count)
			}
			if (shown < tt.names) != tt.cut {
				t.Errorf("%d of %d items are shown", shown, tt.names)
			}
		})
	}
}

// cutList has the agent of a cluster say that it waits with more than it lists.
func (l *leader) cutList(c fleet.ClusterName, count int) {
	l.amendStatus(c, func(st *fleet.SyncStatus) { st.HeldCount, st.ExtraCount = count, count })
}

// starts has what the agent of a cluster waits with be what it has when it has just started, and has not looked yet at what goes.
func (l *leader) starts(c fleet.ClusterName) {
	l.amendStatus(c, func(st *fleet.SyncStatus) {
		for i := range st.Extras {
			st.Extras[i].Held, st.Extras[i].Reason = false, plan.ReasonAwaitingApply
		}
		st.HeldCount = 0
	})
}

func (l *leader) amendStatus(c fleet.ClusterName, amend func(*fleet.SyncStatus)) {
	l.put(func(w store.Writer) {
		o, _, _ := store.Get[*storev1.ObservedRecord](w, store.ObservedKey(c, shop))
		st, err := wire.SyncStatusFromProto(o.GetStatus())
		l.must(err)
		amend(&st)
		w.Put(store.ObservedKey(c, shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
	})
}
