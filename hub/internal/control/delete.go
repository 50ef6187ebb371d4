package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/audit"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// reconcileDeleting takes a deleted module from every cluster and forgets it when all have confirmed. Where nothing may be
// written it stays until the freeze ends, and what was begun stands still.
func (c *Controller) reconcileDeleting(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord) error {
	if err := c.abortActive(ctx, ref); err != nil {
		return err
	}
	left, stands := remains{noted: c.state(ref).noted}, false
	err := c.view(ctx, func(r store.Reader) error {
		stands = record.Stands(r)
		look := c.newRefresher(r, nil)
		look.deleting = rec
		for _, cl := range record.ClustersOf(r, ref) {
			if t, ok := record.Track(r, record.Cluster(cl).Name, ref, true); ok {
				if err := left.add(ctx, look, t, cl); err != nil {
					return err
				}
			}
		}
		left.waits += len(record.Unreadable(r, ref))
		if rec.GetDeleting() != fleet.DeleteOrphan {
			left.afterDependents(r, ref)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer c.touchDependencies(ref, rec)
	if left.later > 0 {
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(againDependents))
	}
	if err := c.refresh(ctx, ref, left.stale); err != nil {
		return err
	}
	if stands {
		return nil
	}
	if _, err := c.leave(ctx, ref, left.have, leaving{deleted: true}); err != nil {
		return err
	}
	c.noteKept(ctx, ref, rec, left)
	if err := c.forget(ctx, ref, left.done); err != nil {
		return err
	}
	if left.waits > 0 || len(left.have) > 0 {
		return nil
	}
	return c.forgetModule(ctx, ref, uidOf(rec))
}

// remains are what clusters still have of a deleted module.
type remains struct {
	have  []fleet.ClusterName // its removal is to be ordered, or to be made final
	done  []gone
	stale []refresh
	kept  map[string][]string // the clusters of those that are done, by what is said that they left
	noted map[gone]bool       // those of which the audit has that already
	waits int                 // for an agent, or the end of a freeze
	later int                 // of the clusters that wait, those where modules that depend on it were not told to go yet
}

func (x *remains) add(ctx context.Context, look *refresher, t record.Tracked, cluster *storev1.ClusterRecord) error {
	dead := t.Desired.GetTombstone()
	if record.Elsewhere(t.Desired, look.deleting.DeletedTakes, cluster) {
		x.ended(gone{t.Cluster, record.GivenGeneration(t.Desired)}, "nothing was removed, for another Kubernetes cluster has the name since: what the one before has stays there")
		return nil
	}
	if dead == nil && look.holds.StopsRemoval(t.Module, t.Cluster, stopped(t.Desired)) {
		x.waits++
		return nil
	}
	if !record.Leaves(t.Desired, true) {
		x.have = append(x.have, t.Cluster)
	}
	switch {
	case dead == nil:
	case t.Tracker.Removed || neverJoined(cluster):
		said := ""
		if t.Tracker.Removed {
			said = t.Observed.GetStatus().GetMessage()
		}
		x.ended(gone{t.Cluster, dead.GetGeneration()}, said)
	default:
		x.waits++
		s, needed, err := look.removal(ctx, t, record.Cluster(cluster))
		if err != nil {
			return err
		}
		if needed {
			x.stale = append(x.stale, s.in(cluster))
		}
	}
	return nil
}

// ended notes that a cluster is done, and what is to be said of what it has still; empty: nothing.
func (x *remains) ended(done gone, said string) {
	x.done = append(x.done, done)
	if said == "" || x.noted[done] {
		return
	}
	if x.kept == nil {
		x.kept = map[string][]string{}
	}
	x.kept[said] = append(x.kept[said], string(done.cluster))
}

// noteKept has the audit tell what agents left of a deleted module, as a Namespace in which others have something, before the hub forgets that they
// said so. What cannot be forgotten then is not told once more, but by a hub that leads after this one.
func (c *Controller) noteKept(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord, left remains) {
	if c.o.Audit == nil || len(left.kept) == 0 {
		return
	}
	kept, st := left.kept, c.state(ref)
	if st.noted == nil {
		st.noted = map[gone]bool{}
	}
	for _, x := range left.done {
		st.noted[x] = true
	}
	meta := rec.GetModule().GetMetadata()
	for _, said := range slices.Sorted(maps.Keys(kept)) {
		c.o.Audit(ctx, &towlinev1.AuditEntry{Caller: meta.GetChangedBy(), Method: fleet.DidRemoveModule, Subject: ref.String(), Reason: meta.GetChangeReason(),
			Result: codes.OK.String(), Detail: audit.In(kept[said], said)})
	}
}

func (c *Controller) abortActive(ctx context.Context, ref fleet.ModuleRef) error {
	var waiting []int64
	err := c.view(ctx, func(r store.Reader) error {
		waiting = rollouts.Waiting(r, ref)
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.endWaiting(ctx, ref, waiting, rollout.Module{Deleted: true}); err != nil {
		return err
	}
	now := time.Now()
	return c.update(ctx, func(w store.Writer) error {
		if !isDeleted(w, ref) {
			return nil
		}
		return rollouts.Close(w, ref, func(int64) bool { return true }, rollout.Module{Deleted: true}, now)
	})
}

// historyPrefixes are of what is kept of a module by the number of a rollout or a revision, in the order in which it is forgotten.
// The rollouts go last: the next number is above those that are there, and nothing else may be left of a number that is given out
// again.
var historyPrefixes = []string{store.VerbPrefix, store.StepPrefix, store.ChunkPrefix, store.RevisionPrefix, store.StartPrefix, store.RolloutPrefix}

// forgetModule deletes what is stored of the module, its own record last. If another module takes the name meanwhile, that
// forgets the rest, even if it is deleted at once: it may have records that were not there at the look. If a person puts a hold meanwhile, it is
// looked at again: one of this module that stayed would hold the next one of the name.
func (c *Controller) forgetModule(ctx context.Context, ref fleet.ModuleRef, uid string) error {
	for again := true; again; {
		keys, held, err := c.keysOfModule(ctx, ref)
		if err != nil {
			return err
		}
		forgotten := false
		if forgotten, again, err = c.forgetKeys(ctx, ref, uid, append(keys, store.ModuleKey(ref)), held); err != nil || !forgotten {
			return err
		}
	}
	c.o.Log.Info("module gone", "module", ref.String())
	c.dropState(ref)
	return nil
}

// forgetKeys deletes what is stored of a module that is deleted; forgotten is false of any other. again: a hold was put since held.
func (c *Controller) forgetKeys(ctx context.Context, ref fleet.ModuleRef, uid string, keys []string, held int64) (forgotten, again bool, err error) {
	for chunk := range slices.Chunk(keys, store.MaxOps) {
		err = c.update(ctx, func(w store.Writer) error {
			m := deletedModule(w, ref)
			last, _ := w.Get(store.HeldKey)
			forgotten, again = m != nil && uidOf(m) == uid, last.ModRevision != held
			if !forgotten || again {
				return nil
			}
			for _, k := range chunk {
				w.Delete(k)
			}
			return nil
		})
		if err != nil || !forgotten || again {
			return forgotten, again, err
		}
	}
	return forgotten, again, nil
}

// keysOfModule are those of what is stored of a module beside its own record, and the revision of the last hold that a person put before that look.
func (c *Controller) keysOfModule(ctx context.Context, ref fleet.ModuleRef) (keys []string, held int64, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		for _, prefix := range append(slices.Clone(historyPrefixes), store.RequestPrefix, store.AnswerPrefix) {
			r.Scan(prefix+ref.String()+"/", func(e store.Entry) bool {
				keys = append(keys, e.Key)
				return true
			})
			for _, d := range r.Damaged(prefix + ref.String() + "/") {
				keys = append(keys, d.Key)
			}
		}
		keys = append(keys, store.FollowKey(ref), store.WantedKey(ref))
		keys = append(keys, recycleKeys(r, ref)...)
		keys = append(keys, record.HoldKeys(r, func(h *towlinev1.Hold) bool { return record.HoldModule(h) == ref.String() })...)
		last, _ := r.Get(store.HeldKey)
		held = last.ModRevision
		return nil
	})
	return keys, held, err
}
