package control

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A run of the module that is deciding on an older rollout, and a cut that begins the next one, go one after the other:
// each would assign clusters without knowing of the other.
func TestCutWaitsForTheRunOfTheModule(t *testing.T) {
	l := newLeader(t)
	l.o.Source = oneFile{}
	pending := rolloutRecord(1, string(rollout.Pending))
	pending.Rollout.Revision = 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), pending)
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
	})
	st := l.state(shop)
	st.driving.Lock()
	done := make(chan error, 1)
	go func() { done <- l.resolve(t.Context(), shop) }()
	for l.cuts.Load() == 0 {
		runtime.Gosched()
	}
	if l.desired("a") != nil {
		t.Error("assigned beside a run of the module")
	}
	st.driving.Unlock()
	l.must(<-done)
	if l.desired("a") == nil {
		t.Error("not assigned after the run of the module")
	}
}

// What a cut does beside beginning may fill its transaction: then it begins later, rather than never.
func TestCutThatSupersedesManyBeginsLater(t *testing.T) {
	l := newLeader(t)
	l.o.Source = oneFile{}
	const older, clusters = 90, 40
	m := moduleRecord()
	m.LastRollout = older + 1
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), m)
		for n := range int64(older + 1) {
			pending := rolloutRecord(n+1, string(rollout.Pending))
			pending.Rollout.Revision = 0
			w.Put(store.RolloutKey(shop, n+1), pending)
		}
	})
	l.put(func(w store.Writer) {
		for i := range clusters {
			name := fmt.Sprintf("c-%03d", i)
			w.Put(store.ClusterKey(fleet.ClusterName(name)), clusterRecord(name))
		}
	})
	l.must(l.resolve(t.Context(), shop))
	l.must(l.reconcileModule(t.Context(), shop))
	if l.desired("c-000") == nil || l.desired("c-039") == nil {
		t.Error("the clusters are not assigned")
	}
}

// A small rollout begins in the commit that cuts its revision. What is too large for that commit, or cannot be written in
// it, begins in the run that follows, with the same result.
func TestRolloutBeginsWithItsRevision(t *testing.T) {
	for _, tc := range []struct {
		name     string
		clusters int
		value    int // bytes of a value that each cluster gets
		at       int // clusters assigned by the cut itself
	}{
		{"small", 3, 0, 3},
		{"none", 0, 0, 0},
		{"more than a transaction moves", inlineDesired + 1, 0, 0},
		{"more bytes than a transaction takes", 20, 60 << 10, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLeader(t)
			l.o.Source = oneFile{}
			pending := rolloutRecord(1, string(rollout.Pending))
			pending.Rollout.Revision = 0
			m := moduleRecord()
			if tc.value > 0 {
				m.Module.Spec.Bindings = []*towlinev1.Binding{{Name: "LONG", Value: proto.String(strings.Repeat("v", tc.value))}}
			}
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), m)
				w.Put(store.RolloutKey(shop, 1), pending)
				for i := range tc.clusters {
					name := fmt.Sprintf("c-%03d", i)
					w.Put(store.ClusterKey(fleet.ClusterName(name)), clusterRecord(name))
				}
			})
			assigned := func() (n int) {
				l.read(func(r store.Reader) {
					_, cut, _ := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(shop, 1))
					for i := range tc.clusters {
						d, e, ok := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(fleet.ClusterName(fmt.Sprintf("c-%03d", i)), shop))
						if ok && d.GetSync().GetRevision() == 1 {
							n++
						}
						if ok && tc.at > 0 && e.ModRevision != cut.ModRevision {
							t.Errorf("assigned at %d, cut at %d", e.ModRevision, cut.ModRevision)
						}
					}
				})
				return n
			}
			l.must(l.resolve(t.Context(), shop))
			if got := assigned(); got != tc.at {
				t.Errorf("%d clusters are assigned by the cut, want %d", got, tc.at)
			}
			l.must(l.reconcileModule(t.Context(), shop))
			if got := assigned(); got != tc.clusters {
				t.Errorf("%d clusters are assigned after the run that follows, want %d", got, tc.clusters)
			}
		})
	}
}
