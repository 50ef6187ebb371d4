package control

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

var shop = fleet.ModuleRef{Project: "default", Name: "shop"}

type noSessions struct{}

func (noSessions) Connected(fleet.ClusterName) bool { return true }
func (noSessions) Started() time.Time               { return time.Time{} }
func (noSessions) Lost(fleet.ClusterName) time.Time { return time.Time{} }

type noSource struct{}

func (noSource) Fetch(context.Context, string, *towlinev1.Source) (source.Artifact, error) {
	mustBeOutside()
	return source.Artifact{}, fleet.Errorf(fleet.ErrUnavailable, "no source in this test")
}

// leader is a controller that leads on a store in memory; its parts are called one by one, as if it had just been
// killed between two of them.
type leader struct {
	*Controller
	t      *testing.T
	bundle fleet.Digest
	all    store.Store // with every right: for what others would have written
}

func newLeader(t *testing.T) *leader {
	t.Helper()
	return newLeaderOn(t, memory.New())
}

func newLeaderOn(t *testing.T, b backend.Backend) *leader {
	t.Helper()
	s := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	campaign := func(ctx context.Context) (store.Leadership, error) {
		return s.Campaign(ctx, store.Candidate{Instance: "test"})
	}
	c, err := New(Options{Store: s.As(store.Leader), Bundles: bundle.New(outsideBlobs{s.Blobs(), t}), Source: noSource{}, Sessions: noSessions{}, Campaign: campaign,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if c.lead, err = campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.states, c.backoff, c.leaving = map[fleet.ModuleRef]*moduleState{}, map[string]time.Duration{}, map[fleet.ClusterName]bool{}
	c.dropping = map[fleet.ModuleRef]map[fleet.ClusterName]bool{}
	c.modules, c.resolver, c.fetcher = newRunner(1, c.runModule), newRunner(1, c.runResolve), newRunner(1, c.runFetch)
	c.origins = &origins{}
	c.looker, c.lookedAt = newRunner(1, c.runLook), &origins{}
	c.looks.begin(time.Now())
	l := &leader{Controller: c, t: t, all: s}
	digest, content := assemble.BundleDigest([]fleet.BundleEntry{{Digest: fleet.DigestOf([]byte("object")), Version: "v1",
		ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}}})
	if _, err := s.Blobs().Put(t.Context(), content, []byte("object")); err != nil {
		t.Fatal(err)
	}
	l.bundle = digest
	return l
}

func (l *leader) put(change func(w store.Writer)) {
	l.t.Helper()
	rev, err := l.all.Update(l.t.Context(), func(w store.Writer) error {
		change(w)
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.rev.Store(rev)
}

func (l *leader) read(fn func(store.Reader)) {
	l.t.Helper()
	if err := l.view(l.t.Context(), func(r store.Reader) error {
		fn(r)
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leader) desired(c fleet.ClusterName) (d *storev1.DesiredRecord) {
	l.t.Helper()
	l.read(func(r store.Reader) { d, _, _ = store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c, shop)) })
	return d
}

func (l *leader) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// finish materialises what steps of a run are open.
func (l *leader) finish(run *rollouts.Run) {
	l.t.Helper()
	_, err := l.finishSteps(l.t.Context(), run)
	l.must(err)
}

// leaves takes the module from a cluster.
func (l *leader) leaves(c fleet.ClusterName, why leaving) {
	l.t.Helper()
	_, err := l.leave(l.t.Context(), shop, []fleet.ClusterName{c}, why)
	l.must(err)
}

// rolloutKey is where a rollout is kept: with what people asked for while it waits for its revision.
func rolloutKey(ref fleet.ModuleRef, ro *storev1.RolloutRecord) string {
	if rollouts.StateOf(ro) == rollout.Pending {
		return store.StartKey(ref, ro.GetRollout().GetNumber())
	}
	return store.RolloutKey(ref, ro.GetRollout().GetNumber())
}

func clusterRecord(name string) *storev1.ClusterRecord {
	return &storev1.ClusterRecord{Joined: timestamppb.Now(), Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name}}}
}

func moduleRecord() *storev1.ModuleRecord {
	return &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: shop.Name, Project: shop.Project},
		Spec: moduleSpec()}}
}

func moduleSpec() *towlinev1.ModuleSpec {
	return &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
}

func (l *leader) revision(n int64) *storev1.RevisionRecord {
	return &storev1.RevisionRecord{Revision: &towlinev1.Revision{Number: n, Spec: moduleSpec()}, Bundle: l.bundle.Bytes()}
}

func (l *leader) sync(generation uint64) *agentv1.Sync {
	return &agentv1.Sync{Module: shop.String(), Generation: generation, Revision: 1, Bundle: l.bundle.Bytes(), Objects: 1}
}

func tomb(generation uint64) *agentv1.Tombstone {
	return &agentv1.Tombstone{Module: shop.String(), Generation: generation, Policy: fleet.DeleteDelete}
}

func rolloutRecord(n int64, state string) *storev1.RolloutRecord {
	return &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Module: shop.Name, Number: n, Id: fmt.Sprintf("shop/%d", n), Revision: n,
		Status: &towlinev1.RolloutStatus{State: state}}}
}
