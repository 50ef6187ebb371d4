package api

import (
	"context"
	"sync"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// overview is what modules and clusters are shown from: a view of the store, the sums of all trackers, which are as new as
// that or newer, and what keeps clusters where they are. What speaks of many is read once.
type overview struct {
	store.Reader
	sums  *counts.View
	holds record.Holds
	stops func() stops // read at the first call
}

// overview calls fn with what there is at the revision or later.
func (a *API) overview(ctx context.Context, minRevision int64, fn func(overview) error) error {
	return a.view(ctx, minRevision, func(r store.Reader) error {
		return a.counts.Read(ctx, func(v *counts.View) error {
			return fn(overview{Reader: r, sums: v, holds: record.ReadHolds(r, a.now()), stops: sync.OnceValue(func() stops { return readStops(r, a.now()) })})
		})
	})
}

// heldClusters is in how many of its clusters nothing is written for a module.
func (o overview) heldClusters(ref fleet.ModuleRef) int {
	if len(o.holds) == 0 {
		return 0
	}
	n := 0
	for _, c := range o.sums.ClustersOf(ref) {
		if cell, _ := o.sums.Cell(c, ref); o.holds.Freezes(ref, c, cell.Hold) {
			n++
		}
	}
	return n
}

// unassigned are the clusters that have nothing of a module and are to have it: by its placement as it is now, or after a
// rollback by that of the revision that it went back to.
func (o overview) unassigned(ref fleet.ModuleRef, rec *storev1.ModuleRecord, s *towlinev1.ModuleStatus) counts.Unassigned {
	switch {
	case !s.GetRolledBack():
		return o.sums.Unassigned(ref)
	case rec.GetDeleting() != "":
		return counts.Unassigned{}
	}
	rev, _, ok := store.Get[*storev1.RevisionRecord](store.Untracked(o), store.RevisionKey(ref, s.GetSucceededRevision()))
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
	if !ok || err != nil {
		return counts.Unassigned{}
	}
	return o.sums.UnassignedUnder(ref, m.Placement)
}
