package control

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
)

// againStands is when it is looked again whether a restored store still stands.
const againStands = time.Second

// stands reports that nothing may begin, for the store was restored and that is not settled, or does not answer.
func (c *Controller) stands(ctx context.Context) (stands bool) {
	stands = true
	_ = c.view(ctx, func(r store.Reader) error {
		stands = record.Stands(r)
		return nil
	})
	return stands
}

// catalogStands reports that a catalog is not looked at for that. A person who asks for a look is answered: what it puts stands itself.
func (c *Controller) catalogStands(ctx context.Context, x *catalogue) bool {
	if !c.stands(ctx) {
		return false
	}
	if x.rec.GetDeleting() {
		asks, _ := c.catalogs.take(x.ref)
		refuseAsks(x.ref, asks)
	}
	return !c.catalogs.asked(x.ref)
}

// restoreLoop ends that a restored store stands still when every cluster of the backup was heard and none is ahead of it.
func (c *Controller) restoreLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		over := false
		err := guarded(func() (err error) {
			over, err = c.settleRestore(ctx)
			return err
		})
		if over {
			return
		}
		timer.Reset(max(c.outcome(ctx, "end of a restore", err), againStands))
	}
}

// settleRestore notes that the restore is settled, if it is. It is over when nothing stands still any more.
func (c *Controller) settleRestore(ctx context.Context) (over bool, err error) {
	settled := false
	if err := c.view(ctx, func(r store.Reader) error {
		if over = !record.Stands(r); over {
			return nil
		}
		settled = len(record.ReadRestored(r).Awaits()) == 0
		return nil
	}); err != nil || over || !settled {
		return over, err
	}
	err = c.update(ctx, func(w store.Writer) error {
		hub, _, _ := store.Get[*storev1.Hub](w, store.HubKey)
		w.Put(store.SettledKey, &storev1.Acceptance{Incarnation: hub.GetIncarnation(), At: timestamppb.Now()})
		return nil
	})
	if err == nil {
		c.o.Log.Info("the restore of the store is settled: every cluster was heard, or accepted; what was under way goes on")
	}
	return err == nil, err
}
