package api

import (
	"context"
	"sync"

	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// overview is what modules and clusters are shown from: a view of the store, the sums of all trackers, which are as new as
// that or newer, and what keeps clusters where they are. What speaks of many is read once.
type overview struct {
	store.Reader
	sums  *counts.View
	holds record.Holds
	stops func() stops // read at the first call
}

// Peek implements store.Peeker, and Assigned store.Assigner: what wraps a reader hides what else that can.
func (o overview) Peek(key string) (store.Entry, bool) { return store.Untracked(o.Reader).Get(key) }

func (o overview) Assigned(m fleet.ModuleRef) ([]fleet.ClusterName, bool) {
	return store.Assigned(o.Reader, m)
}

// overview calls fn with what there is at the revision or later.
func (a *API) overview(ctx context.Context, minRevision int64, fn func(overview) error) error {
	return a.view(ctx, minRevision, func(r store.Reader) error {
		return a.counts.Read(ctx, func(v *counts.View) error {
			return fn(overview{Reader: r, sums: v, holds: record.ReadHolds(r, a.now()), stops: sync.OnceValue(func() stops { return readStops(r, v, a.now()) })})
		})
	})
}

// heldClusters is in how many of its clusters nothing is written for a module.
func (o overview) heldClusters(ref fleet.ModuleRef) int {
	if o.holds.None() {
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
