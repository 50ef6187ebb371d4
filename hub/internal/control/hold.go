package control

import (
	"context"
	"strings"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// touchHold looks again at what a changed hold speaks of. Of one that is gone only the key is known: the end of a freeze
// may concern everything, that of a wait for a person nothing, because the leader ends it by itself.
func (c *Controller) touchHold(key string) {
	var h *storev1.HoldRecord
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		h, _, _ = store.Get[*storev1.HoldRecord](r, key)
		return nil
	})
	ref := fleet.ModuleRef{Project: h.GetHold().GetProject(), Name: h.GetHold().GetModule()}
	cluster := fleet.ClusterName(h.GetHold().GetCluster())
	switch {
	case h.GetHold().GetCatalog() != "":
		c.cataloguer.add(store.CatalogKey(fleet.ModuleRef{Project: h.GetHold().GetProject(), Name: h.GetHold().GetCatalog()}))
	case h == nil && !strings.HasPrefix(key, store.FreezePrefix):
	case h == nil:
		c.touchAll()
		_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
			c.touchHeld(r)
			return nil
		})
	case ref.Name == "":
		c.touchCluster(cluster)
		c.modules.add(store.ClusterKey(cluster))
	case cluster == "":
		c.state(ref).markAll()
		c.modules.add(store.ModuleKey(ref))
	default:
		c.state(ref).mark(cluster)
		c.modules.add(store.ModuleKey(ref))
	}
}

// touchHeld looks again at the clusters where the record of the hold is not as the hold is.
func (c *Controller) touchHeld(r store.Reader) {
	holds := record.ReadHolds(r, time.Now())
	for _, cl := range record.Clusters(r) {
		if name := record.Cluster(cl).Name; held(r, name) != holds.Freezes(fleet.ModuleRef{}, name, held(r, name)) {
			c.modules.add(store.ClusterKey(name))
		}
	}
}

// held reports that the cluster's next assemblage says that nothing is to be written.
func held(r store.Reader, name fleet.ClusterName) bool {
	f, _, _ := store.Get[*storev1.FloorRecord](r, store.FloorKey(name))
	return f.GetHold()
}

// holdCluster has a cluster's assemblage say whether nothing is to be written: that stops at once, in one record,
// whatever the cluster has, also what no module of the hub speaks of. A hold that ends between the look and the commit is not
// seen by either, and its end found the record as it was before: so every change is looked at once more.
func (c *Controller) holdCluster(ctx context.Context, name fleet.ClusterName) error {
	right := true
	err := c.view(ctx, func(r store.Reader) error {
		_, known := r.Get(store.ClusterKey(name))
		right = !known || held(r, name) == record.ReadHolds(r, time.Now()).Freezes(fleet.ModuleRef{}, name, held(r, name))
		return nil
	})
	if err != nil || right {
		return err
	}
	defer c.modules.add(store.ClusterKey(name))
	now := time.Now()
	return c.update(ctx, func(w store.Writer) error {
		if _, known := w.Get(store.ClusterKey(name)); !known {
			return nil
		}
		frozen := record.ReadHolds(w, now).Freezes(fleet.ModuleRef{}, name, held(w, name))
		if held(w, name) != frozen {
			w.Put(store.FloorKey(name), &storev1.FloorRecord{Generation: record.NextGeneration(w), Hold: frozen})
		}
		return nil
	})
}

// freezeLoop ends freezes when their time is over: their end is a change like any other.
func (c *Controller) freezeLoop(ctx context.Context) {
	sub := c.o.Store.Subscribe(nil, store.FreezePrefix)
	defer sub.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-sub.C():
			if !ok {
				return
			}
			sub.Take()
		case <-timer.C:
		}
		var next time.Duration
		err := guarded(func() (err error) {
			next, err = c.endFreezes(ctx, time.Now())
			return err
		})
		if again := c.outcome(ctx, "end of freezes", err); again > 0 {
			next = again
		}
		timer.Reset(next)
	}
}

// endFreezes forgets freezes whose time is over and returns how long none will be.
func (c *Controller) endFreezes(ctx context.Context, now time.Time) (time.Duration, error) {
	next := time.Hour
	var over []string
	err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.FreezePrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
			left, ends := freezeLeft(h, now)
			switch {
			case ends && left <= 0:
				over = append(over, e.Key)
			case ends:
				next = min(next, left)
			}
			return true
		})
		return nil
	})
	if err != nil {
		return next, err
	}
	for _, key := range over {
		if err := c.update(ctx, func(w store.Writer) error {
			h, _, ok := store.Get[*storev1.HoldRecord](w, key)
			if left, ends := freezeLeft(h, now); ok && ends && left <= 0 {
				w.Delete(key)
			}
			return nil
		}); err != nil {
			return next, err
		}
	}
	return next, nil
}

func freezeLeft(h *storev1.HoldRecord, now time.Time) (left time.Duration, ends bool) {
	x := h.GetHold()
	if x.GetKind() != record.HoldFreeze || x.GetUntil() == nil {
		return 0, false
	}
	return x.GetUntil().AsTime().Sub(now), true
}
