package api

import (
	"context"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// variantChange is what a cluster has of a module, and the bundle that other labels bring in its place.
type variantChange struct {
	has    record.Tracked
	bundle fleet.Digest // zero: it was not rendered for any cluster yet
}

// changesVariant is the change of what a cluster has of a module by labels that other overrides of the same revision match.
func changesVariant(r store.Reader, c fleet.Cluster, t record.Tracked) (variantChange, bool) {
	rev := record.Revision(store.Untracked(r), t.Module, t.Revision())
	if t.Desired.GetSync() == nil || record.Damaged(t.Desired) || !record.HasVariants(rev) {
		return variantChange{}, false
	}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(t.Module, rev))
	if err != nil {
		return variantChange{}, false
	}
	if old, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c.Name)); ok &&
		assemble.VariantOf(m.Overrides, record.Cluster(old)).Key() == assemble.VariantOf(m.Overrides, c).Key() {
		return variantChange{}, false // what comes of that, its labels of now bring already
	}
	v, err := record.VariantIn(rev, record.VariantFor(r, t.Module, rev, m.Overrides, c))
	if err != nil {
		return variantChange{has: t}, true
	}
	next := variantChange{has: t, bundle: record.Digest(v.GetBundle())}
	return next, next.bundle != record.Digest(t.Desired.GetSync().GetBundle())
}

// countDropped counts the objects that are not in the bundle that comes, and go by the policies of what the cluster has.
func (a *API) countDropped(ctx context.Context, x variantChange) (dropped int32, err error) {
	entries, err := a.entriesOf(ctx, x.has)
	if err != nil {
		return 0, err
	}
	next, err := a.o.Bundles.Get(ctx, x.bundle)
	if err != nil {
		return 0, err
	}
	policies, err := a.policiesOf(ctx, x.has)
	if err != nil {
		return 0, err
	}
	stays := map[fleet.ObjectID]bool{}
	for _, e := range assemble.Resolved(next.Entries, x.has.Desired.GetSync().GetValues()) {
		stays[e.ID] = true
	}
	for _, e := range entries {
		if stays[e.ID] {
			continue
		}
		labels, err := a.labelsOf(ctx, policies, x.has.Desired.GetSync().GetValues(), e)
		if err != nil {
			return 0, err
		}
		if plan.Drops(policies, e.ID, labels) {
			dropped++
		}
	}
	return dropped, nil
}
