package api

import (
	"fmt"
	"log/slog"
	"testing"

	"golang.org/x/sync/errgroup"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// fleetSize is how many clusters there are, each with so many modules of so many objects.
type fleetSize struct{ clusters, modules, objects int }

func (s fleetSize) rows() int { return s.clusters * s.modules * s.objects }

// world is a store on the embedded etcd, with the records that a fleet's leader and agents would have written, and the API
// over it.
type world struct {
	size     fleetSize
	backend  backend.Backend
	store    *storetest.Store
	api      *API
	bundles  []fleet.Digest
	fence    store.Fence
	drifting int  // objects
	drift    bool // what change reported last
}

func newWorld(t *testing.T, size fleetSize) *world {
	t.Helper()
	b, err := etcd.Open(t.Context(), etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{size: size, backend: b, store: storetest.On(t, b, engine.Options{})}
	if w.api, err = New(Options{Store: w.store.As(store.API), Bundles: bundle.New(w.store.Blobs()), Sessions: everybody{}, Registry: newRegistry(t, w.store),
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if err := w.fill(t); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) fill(t *testing.T) error {
	if err := w.fillModules(t); err != nil {
		return err
	}
	return w.fillClusters(t, func(ops []store.Op) []store.Op { return ops })
}

func (w *world) fillModules(t *testing.T) error {
	rev, err := w.store.Update(t.Context(), func(x store.Writer) error {
		x.Put(store.HubKey, &storev1.Hub{HubId: "h"})
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.store.View(t.Context(), rev, func(r store.Reader) error {
		e, _ := r.Get(store.HubKey)
		w.fence = store.Fence{Key: store.HubKey, CreateRevision: e.CreateRevision}
		return nil
	}); err != nil {
		return err
	}
	for i := range w.size.modules {
		digest, content := assemble.BundleDigest(w.entries(i))
		if _, err := w.store.Blobs().Put(t.Context(), content); err != nil {
			return err
		}
		w.bundles = append(w.bundles, digest)
		ops, err := w.moduleRecords(i)
		if err != nil {
			return err
		}
		if _, err := w.store.Batch(t.Context(), w.fence, ops); err != nil {
			return err
		}
	}
	return nil
}

// fillClusters writes a part of the records of each cluster.
func (w *world) fillClusters(t *testing.T, part func([]store.Op) []store.Op) error {
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(16)
	for i := range w.size.clusters {
		for ops := range chunks(part(w.clusterRecords(i))) {
			g.Go(func() error {
				_, err := w.store.Batch(ctx, w.fence, ops)
				return err
			})
		}
	}
	return g.Wait()
}

func chunks(ops []store.Op) func(yield func([]store.Op) bool) {
	return func(yield func([]store.Op) bool) {
		for len(ops) > 0 {
			n := min(len(ops), store.MaxOps)
			if !yield(ops[:n]) {
				return
			}
			ops = ops[n:]
		}
	}
}

func (w *world) entries(module int) []fleet.BundleEntry {
	out := make([]fleet.BundleEntry, w.size.objects)
	for i := range out {
		name := fmt.Sprintf("m%03d-%03d", module, i)
		out[i] = fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}, Version: "v1", Digest: fleet.DigestOf([]byte(name))}
	}
	return out
}

// moduleRecords are a module with 2 KB of source, its revision, and three rollouts.
func (w *world) moduleRecords(i int) ([]store.Op, error) {
	ref := moduleName(i)
	text := make([]byte, 2048)
	for k := range text {
		text[k] = 'a' + byte(k%23)
	}
	spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"objects.yaml": string(text)}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
	meta := func() *towlinev1.Metadata {
		return &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: ref.Name, Generation: 1, CreationTimestamp: began}
	}
	ops := []store.Op{
		{Key: store.ModuleKey(ref), Value: &storev1.ModuleRecord{Module: &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: meta(), Spec: spec}}},
		{Key: store.RevisionKey(ref, 1), Value: &storev1.RevisionRecord{Bundle: w.bundles[i].Bytes(), Revision: &towlinev1.Revision{Metadata: meta(), Module: ref.Name,
			Number: 1, Spec: spec, Objects: int32(w.size.objects)}}},
	}
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: ref, Number: 1}, Revision: 1}
	for k := range w.size.clusters {
		in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: fleet.Cluster{Name: clusterName(k)}, Selected: true})
	}
	plan, state, err := rollout.NewPlan(rollout.Strategy{}, in)
	if err != nil {
		return nil, err
	}
	head, err := rollout.EncodeHead(plan, &state)
	if err != nil {
		return nil, err
	}
	for n := int64(1); n <= 3; n++ {
		ops = append(ops, store.Op{Key: store.RolloutKey(ref, n), Value: &storev1.RolloutRecord{Head: head, Rollout: &towlinev1.Rollout{ApiVersion: fleet.APIVersion, Kind: "Rollout",
			Metadata: meta(), Id: fleet.RolloutID{Module: ref, Number: n}.String(), Module: ref.Name, Number: n, Revision: 1,
			Status: &towlinev1.RolloutStatus{State: string(rollout.Succeeded), Started: began, Ended: began}}}})
	}
	return ops, nil
}

// noPolicies is what a revision says that has none.
var noPolicies = fleet.DigestOf([]byte("[]"))

// stepOf is the generation that a cluster was given everything with: a rollout moves some clusters at a time.
func stepOf(cluster int) uint64 { return 1 + uint64(cluster)/100 }

// clusterRecords are a cluster, its session, and what it was given and has reported. In every tenth of the first clusters
// one object drifts.
func (w *world) clusterRecords(i int) []store.Op {
	name := clusterName(i)
	ops := []store.Op{
		{Key: store.ClusterKey(name), Value: &storev1.ClusterRecord{Joined: began, Uid: string(name), Cluster: &towlinev1.Cluster{ApiVersion: fleet.APIVersion, Kind: "Cluster",
			Metadata: &towlinev1.Metadata{Name: string(name), Uid: string(name), CreationTimestamp: began, Labels: map[string]string{"region": fmt.Sprint("r", i%10), "env": "prod"}},
			Spec:     &towlinev1.ClusterSpec{}}}},
		{Key: store.SessionKey(name), Value: &storev1.SessionRecord{Epoch: 1, Started: began, AgentVersion: "v1", KubernetesVersion: "v1.37.2"}},
		{Key: store.AckKey(name), Value: &storev1.AckRecord{Epoch: 1, Generation: 1}},
	}
	for m := range w.size.modules {
		ref := moduleName(m)
		states := make([]fleet.ObjectState, w.size.objects)
		for k := range states {
			states[k] = fleet.UnpackState(packed(false))
		}
		if i%10 == 0 && m == 7 {
			states[0] = fleet.UnpackState(packed(true))
			w.drifting++
		}
		st := fleet.SyncStatus{Module: ref, Generation: stepOf(i), Bundle: w.bundles[m], Phase: fleet.PhaseApplied, Ready: true, States: states}
		ops = append(ops,
			store.Op{Key: store.DesiredKey(name, ref), Value: &storev1.DesiredRecord{Rollout: 3, Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: stepOf(i), Revision: 1,
				Bundle: w.bundles[m], Policies: noPolicies, Objects: w.size.objects})}},
			store.Op{Key: store.ObservedKey(name, ref), Value: &storev1.ObservedRecord{Epoch: 1, Since: began.AsTime().UnixMilli(), Status: wire.SyncStatusToProto(st)}})
	}
	return ops
}
