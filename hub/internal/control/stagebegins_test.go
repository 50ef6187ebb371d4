package control

import (
	"context"
	"sync"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// lagging is a backend of which this hub's watches are behind while it lags, until it is asked for a revision, or has committed.
type lagging struct {
	backend.Backend
	mu   sync.Mutex
	lags bool
	late []func()
}

func (b *lagging) lag() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lags = true
}

func (b *lagging) catchUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tell := range b.late {
		tell()
	}
	b.lags, b.late = false, nil
}

func (b *lagging) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	return b.Backend.Watch(ctx, prefix, from, func(c backend.Changes) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.lags {
			b.late = append(b.late, func() { fn(c) })
			return
		}
		fn(c)
	})
}

func (b *lagging) Revision(ctx context.Context) (int64, error) {
	defer b.catchUp()
	return b.Backend.Revision(ctx)
}

func (b *lagging) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	defer b.catchUp()
	return b.Backend.Commit(ctx, parts)
}

// shared is a backend that another one closes.
type shared struct{ backend.Backend }

func (shared) Close() error { return nil }

// reports has the agent of a cluster report what it was given, by another hub.
func (l *leader) reports(hub store.Store, c fleet.ClusterName, says func(fleet.Sync) fleet.SyncStatus) {
	l.t.Helper()
	s, err := wire.SyncFromProto(l.desired(c).GetSync())
	l.must(err)
	_, err = hub.Update(l.t.Context(), func(w store.Writer) error {
		w.Put(store.ObservedKey(c, shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(says(s))})
		return nil
	})
	l.must(err)
}

// TestStageBeginsByWhatIsCommitted: the canary was ready, and has failed since by the word that another hub committed, of which the watches of the one
// that leads have not told yet. The next stage does not begin by what they told before.
func TestStageBeginsByWhatIsCommitted(t *testing.T) {
	under := memory.New()
	b := &lagging{Backend: under}
	l := newLeaderOn(t, b)
	l.o.Source = oneFile{}
	other := storetest.On(t, shared{under}, engine.Options{StandIn: record.StandIn}).As(store.Everyone)
	m, pending := moduleRecord(), rolloutRecord(1, string(rollout.Pending))
	m.Module.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{
		{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}}
	pending.Rollout.Revision, pending.Rollout.Strategy = 0, m.Module.Spec.Rollout
	canary := clusterRecord("a")
	canary.Cluster.Metadata.Labels = map[string]string{"ring": "canary"}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), m)
		w.Put(rolloutKey(shop, pending), pending)
		w.Put(store.ClusterKey("a"), canary)
		w.Put(store.ClusterKey("b"), clusterRecord("b"))
	})
	key := store.ModuleKey(shop)
	for deadline := time.Now().Add(time.Minute); l.desired("a").GetSync() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the canary is given nothing")
		}
		l.runModule(t.Context(), key)
		l.resolver.one(t.Context(), key)
	}
	l.reports(other, "a", simagent.Ready)
	_, err := l.o.Store.Barrier(t.Context())
	l.must(err)
	l.state(shop).mark("a") // it said that it was ready
	b.lag()
	l.reports(other, "a", simagent.Failing)
	l.runModule(t.Context(), key)
	b.catchUp()
	if d := l.desired("b"); d.GetSync() != nil {
		t.Errorf("b is given r%d though the canary has failed", d.GetSync().GetRevision())
	}
}
