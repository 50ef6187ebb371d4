package control

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
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
		w.Put(rolloutKey(shop, pending), pending)
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
		w.Put(rolloutKey(shop, pending(1)), pending(1))
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
	})
	l.must(l.resolve(t.Context(), shop))
	l.put(func(w store.Writer) {
		m := moduleRecord()
		w.Put(store.ModuleKey(shop), m)
		w.Put(rolloutKey(shop, pending(2)), pending(2))
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

// waiting makes the module's first rollouts, all of which wait for their revision.
func (l *leader) waiting(many int64) {
	for n := range many {
		pending := rolloutRecord(n+1, string(rollout.Pending))
		pending.Rollout.Revision = 0
		l.put(func(w store.Writer) { w.Put(rolloutKey(shop, pending), pending) })
	}
}

// A source may take long, and the module be put again and again meanwhile: more rollouts wait then than a transaction ends.
func TestManyPutsThatWaitAreSuperseded(t *testing.T) {
	l := newLeader(t)
	l.o.Source = oneFile{}
	const older, clusters = 200, 40
	m := moduleRecord()
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), m)
		for i := range clusters {
			name := fmt.Sprintf("c-%03d", i)
			w.Put(store.ClusterKey(fleet.ClusterName(name)), clusterRecord(name))
		}
	})
	l.waiting(older + 1)
	l.resolves()
	l.must(l.reconcileModule(t.Context(), shop))
	if l.desired("c-000") == nil || l.desired("c-039") == nil {
		t.Error("the clusters are not assigned")
	}
	l.read(func(r store.Reader) {
		for _, ro := range rollouts.List(r, shop)[:older] {
			if rollouts.StateOf(ro) != rollout.Superseded || ro.GetRollout().GetStatus().GetSupersededBy() != "shop/201" {
				t.Fatalf("an older one: %v", ro)
			}
		}
	})
}

// The same when the module is deleted before its source is there.
func TestManyPutsThatWaitEndWithTheirModule(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Deleting: fleet.DeleteDelete, Module: moduleRecord().GetModule()})
	})
	l.waiting(200)
	l.must(l.reconcileModule(t.Context(), shop))
	l.read(func(r store.Reader) {
		if _, there := r.Get(store.ModuleKey(shop)); there || len(rollouts.List(r, shop)) > 0 {
			t.Errorf("there %t, %d rollouts", there, len(rollouts.List(r, shop)))
		}
	})
}

// A source that fails fails the newest put, and no older one waits on for what nobody wants any more.
func TestSourceThatFailsLeavesNobodyWaiting(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), moduleRecord()) })
	l.waiting(2)
	l.state(shop).handOver(&resolved{put: moduleRecord(), number: 2, failed: &rollout.SourceFailed{Reason: "SourceFailed", Message: "no such host"}})
	l.must(l.reconcileModule(t.Context(), shop))
	l.read(func(r store.Reader) {
		first, second := rollouts.StateOf(rollouts.Get(r, shop, 1)), rollouts.StateOf(rollouts.Get(r, shop, 2))
		if first != rollout.Superseded || second != rollout.Failed || rollouts.Unresolved(r, shop) != nil {
			t.Errorf("the older one is %s, the newer one %s; %v waits", first, second, rollouts.Unresolved(r, shop))
		}
	})
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
				w.Put(rolloutKey(shop, pending), pending)
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
