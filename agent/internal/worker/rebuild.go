package worker

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

const (
	rebuildTime     = 30 * time.Second
	rebuildParallel = 8
)

// ledBefore reports that an agent has written to the cluster before, so that an empty inventory is a lost one.
func (m *Manager) ledBefore() bool { return m.o.Fence != nil && m.o.Fence.Epoch() > 1 }

// rebuild notes as intents what carries our marks and has no record, after the inventory was lost or the cluster's store
// went back. It reads as much as it may: what it does not see stays in the cluster, untouched.
func (m *Manager) rebuild(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTime)
	defer cancel()
	all, err := m.mapper.Everything(ctx)
	if err != nil {
		m.o.Log.Warn("objects that carry our marks cannot be searched for", "error", err)
		return
	}
	var found atomic.Int64
	var group errgroup.Group
	group.SetLimit(rebuildParallel)
	for _, f := range all.Failed {
		m.o.Log.Warn("objects that carry our marks cannot be searched for", "group", f.String(), "error", f.Err)
	}
	for _, res := range all.Resources {
		group.Go(func() error {
			err := m.client.EachMeta(ctx, res, "", fleet.HubLabel+"="+m.o.HubID, func(o *metav1.PartialObjectMetadata) bool {
				if m.refind(res, o) {
					found.Add(1)
				}
				return true
			})
			if err != nil {
				m.o.Log.Debug("objects that carry our marks cannot be searched for", "resource", res.String(), "error", err)
			}
			return nil
		})
	}
	_ = group.Wait()
	if n := found.Load(); n > 0 {
		m.o.Log.Warn("objects have our marks and no record; what their modules omit waits for a confirm", "objects", n)
	}
}

// refind notes one object, if it proves that we wrote it: a copy has the marks, too. It reports whether it did.
func (m *Manager) refind(res apply.Resource, o *metav1.PartialObjectMetadata) bool {
	id := fleet.ObjectID{Group: res.Group, Kind: res.Kind, Namespace: o.Namespace, Name: o.Name}
	ref, _, _ := fleet.ParseOwnerMark(o.Annotations[fleet.OwnerAnnotation])
	if !m.claimant(ref).Proven(id, o.Labels, o.Annotations, apply.ProofOf(o.ManagedFields)) {
		return false
	}
	return m.inventory.Note(&apply.Record{Record: plan.Record{ID: id, Version: res.Version, Module: ref, State: plan.Intent, Found: true}})
}
