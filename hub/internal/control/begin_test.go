package control

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// resolves fetches and renders the source of the shop, and cuts what it came to, without all that the run of the key does after that.
func (l *leader) resolves() {
	l.t.Helper()
	l.must(l.resolve(l.t.Context(), shop))
	l.must(l.cutResolved(l.t.Context(), shop, l.state(shop)))
}

// Only the run of a module's key decides on its rollouts: a cut beside it would assign clusters without knowing of what the run
// assigns. While a source waits for its cut it is not fetched again.
func TestResolverLeavesTheCutToTheRunOfTheModule(t *testing.T) {
	l := newLeader(t)
	fetched := &counting{}
	l.o.Source = fetched
	pending := rolloutRecord(1, string(rollout.Pending))
	pending.Rollout.Revision = 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), pending)
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
	})
	before := l.rev.Load()
	for range 2 {
		l.must(l.resolve(t.Context(), shop))
	}
	if l.rev.Load() != before || l.desired("a") != nil || fetched.n != 1 {
		t.Errorf("the resolver has written, assigned %v, and fetched %d times", l.desired("a"), fetched.n)
	}
	l.must(l.reconcileModule(t.Context(), shop))
	if l.desired("a") == nil || l.resolver.entries[store.ModuleKey(shop)] != nil {
		t.Errorf("after the run of the module: %v", l.desired("a"))
	}
	l.must(l.resolve(t.Context(), shop))
	if fetched.n != 1 || l.state(shop).handedOver() != nil {
		t.Error("what is cut is fetched again")
	}
}

// What was made for a put that another one has replaced is not cut, and the newer one is made.
func TestWhatWasMadeForAnOlderPutIsNotCut(t *testing.T) {
	l := newLeader(t)
	l.o.Source = oneFile{}
	pending := func(n int64) *storev1.RolloutRecord {
		ro := rolloutRecord(n, string(rollout.Pending))
		ro.Rollout.Revision = 0
		return ro
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), pending(1))
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
	})
	l.must(l.resolve(t.Context(), shop))
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.LastRollout = 2
		w.Put(store.ModuleKey(shop), m)
		w.Put(store.RolloutKey(shop, 2), pending(2))
	})
	l.must(l.reconcileModule(t.Context(), shop))
	if l.desired("a") != nil || l.resolver.entries[store.ModuleKey(shop)] == nil {
		t.Errorf("assigned %v", l.desired("a"))
	}
	l.must(l.resolve(t.Context(), shop))
	l.must(l.reconcileModule(t.Context(), shop))
	if d := l.desired("a"); d.GetRollout() != 2 {
		t.Errorf("assigned %v", d)
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
	l.resolves()
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
			l.resolves()
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
