package control

import (
	"context"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// isRecycled reports that the orders to delete trackers of a module in a cluster are carried out.
func isRecycled(r store.Reader, t record.Tracked) bool {
	orders := record.Recycles(r, t.Cluster, t.Module)
	if len(orders) == 0 {
		return false
	}
	s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(t.Cluster))
	return t.Recycled(orders, s.GetFeatures())
}

// endRecycles forgets orders that are carried out; the next look takes them from what the clusters are told. What was ordered since the
// look stays.
func (c *Controller) endRecycles(ctx context.Context, ref fleet.ModuleRef, clusters []fleet.ClusterName) error {
	for _, name := range clusters {
		if err := c.update(ctx, func(w store.Writer) error {
			if t, ok := record.Track(w, name, ref, true); ok && isRecycled(w, t) {
				w.Delete(store.RecycleKey(name, ref))
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// recycleKeys are the keys of the orders of a module in all clusters.
func recycleKeys(r store.Reader, ref fleet.ModuleRef) (keys []string) {
	r.Scan(store.RecyclePrefix, func(e store.Entry) bool {
		if _, of, ok := store.SplitClusterModule(e.Key); ok && of == ref {
			keys = append(keys, e.Key)
		}
		return true
	})
	return keys
}
