package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/audit"
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
	s, _, ok := store.Get[*storev1.SessionRecord](r, store.SessionKey(t.Cluster))
	if !ok || record.LostSession(s) { // nobody knows what its agent can do
		return false
	}
	return t.Recycled(orders, s.GetFeatures())
}

// recycles are the orders to delete trackers that stand in a cluster which is to have a revision; one that comes meanwhile is looked at
// again. What the cluster has again is in none.
func recycles(r store.Reader, cluster fleet.ClusterName, ref fleet.ModuleRef, revision int64) []*agentv1.Recycle {
	if orders := record.Recycles(store.Untracked(r), cluster, ref); !orderedAway(orders, revision) {
		return orders
	}
	return nil
}

func orderedAway(orders []*agentv1.Recycle, revision int64) bool {
	return slices.ContainsFunc(orders, func(o *agentv1.Recycle) bool { return o.GetRevision() == revision })
}

// putDesired writes what a cluster is to have. It ends an order to delete the tracker of that very revision, and others with it: carried
// out or not, it is not of what a later revision drops. Who gave them was told that these objects go: when it is committed, the audit tells.
func putDesired(w store.Writer, o outside, cluster fleet.ClusterName, ref fleet.ModuleRef, next *storev1.DesiredRecord) {
	w.Put(store.DesiredKey(cluster, ref), next)
	orders := record.Recycles(store.Untracked(w), cluster, ref)
	if next.GetProblem() != "" || next.GetSync() == nil || !orderedAway(orders, next.GetSync().GetRevision()) {
		return
	}
	rec, _, _ := store.Get[*storev1.RecycleRecord](store.Untracked(w), store.RecycleKey(cluster, ref))
	*o.voided = append(*o.voided, voided{cluster, ref, next.GetSync().GetRevision(), rec.GetOrders()})
	w.Delete(store.RecycleKey(cluster, ref))
}

// voided are orders to delete trackers that end before they are carried out, as the cluster is given the revision of one of them again.
type voided struct {
	cluster fleet.ClusterName
	module  fleet.ModuleRef
	again   int64
	orders  []*storev1.RecycleOrder
}

// noteVoided has the audit tell of orders that do not count any more.
func (c *Controller) noteVoided(ctx context.Context, list []voided) {
	for _, v := range list {
		for _, order := range v.orders {
			c.o.Log.Info("order to delete a tracker ended", "module", v.module.String(), "cluster", v.cluster, "revision", order.GetRecycle().GetRevision(), "given_again", v.again)
			c.auditOrder(ctx, v.module, v.cluster, order, fmt.Sprintf("tracker of r%d: the order ended, and what of it was not carried out stays: the cluster is given r%d again",
				order.GetRecycle().GetRevision(), v.again))
		}
	}
}

// auditOrder has the audit tell what became of an order, by who gave it.
func (c *Controller) auditOrder(ctx context.Context, ref fleet.ModuleRef, in fleet.ClusterName, order *storev1.RecycleOrder, detail string) {
	if c.o.Audit == nil {
		return
	}
	c.o.Audit(ctx, &towlinev1.AuditEntry{Caller: order.GetBy(), Method: fleet.DidRecycleTracker, Subject: ref.String(), Reason: order.GetReason(), Result: codes.OK.String(),
		Detail: audit.In([]string{string(in)}, detail)})
}

// endRecycles forgets orders that are carried out; the next look takes them from what the clusters are told. What was ordered since the
// look stays. Of what stays though it was to go, the audit tells.
func (c *Controller) endRecycles(ctx context.Context, ref fleet.ModuleRef, clusters []fleet.ClusterName) error {
	for _, name := range clusters {
		var ended []*storev1.RecycleOrder
		var t record.Tracked
		if err := c.update(ctx, func(w store.Writer) error {
			var there bool
			ended = nil
			if t, there = record.Track(w, name, ref, true); there && isRecycled(w, t) {
				rec, _, _ := store.Get[*storev1.RecycleRecord](w, store.RecycleKey(name, ref))
				ended = rec.GetOrders()
				w.Delete(store.RecycleKey(name, ref))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, order := range ended {
			c.noteUnrecycled(ctx, &t, order)
		}
	}
	return nil
}

// noteUnrecycled has the audit tell what an order left: the order is over, and who gave it was told that these objects go.
func (c *Controller) noteUnrecycled(ctx context.Context, t *record.Tracked, order *storev1.RecycleOrder) {
	left := t.Unrecycled(order.GetRecycle())
	for _, why := range slices.Sorted(maps.Keys(left)) {
		names := make([]string, len(left[why]))
		for i, id := range left[why] {
			names[i] = id.Short()
		}
		c.auditOrder(ctx, t.Module, t.Cluster, order, fmt.Sprintf("%s of r%d: %s", fleet.Some(names, maxLeft), order.GetRecycle().GetRevision(), why))
	}
}

// maxLeft is how many objects an entry names.
const maxLeft = 10

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
