package control

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// Another program that assigns a module asks for it in requests, which the API records. The run of the module's key carries
// them out in the order in which they were recorded. What is done, its answer and the end of the request are one transaction:
// a leader that comes after a crash finds the request, or the answer. Everything that a request rests on is looked at there,
// for it may have changed since the request was recorded.

// answerRequests carries out what is asked for of a module, or refuses it. When the hub cannot do either now, what was asked
// for later waits, too: it must not be done first.
func (c *Controller) answerRequests(ctx context.Context, ref fleet.ModuleRef) error {
	var open []store.Entry
	var damaged []store.Damage
	err := c.view(ctx, func(r store.Reader) error {
		r.Scan(store.RequestsOf(ref), func(e store.Entry) bool {
			open = append(open, e)
			return true
		})
		damaged = r.Damaged(store.RequestsOf(ref))
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range damaged { // nobody knows what was asked for, and whoever waits is told that it was not done
		if err := c.write(ctx, map[string]proto.Message{d.Key: nil}); err != nil {
			return err
		}
	}
	slices.SortFunc(open, func(a, b store.Entry) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	for _, e := range open {
		if err := c.answerRequest(ctx, ref, e); err != nil {
			return err
		}
	}
	return nil
}

// answerRequest carries out one request, or refuses it. One whose time is over is not carried out: whoever asked was told so.
func (c *Controller) answerRequest(ctx context.Context, ref fleet.ModuleRef, e store.Entry) error {
	now := time.Now()
	asked, ok := e.Value.(*storev1.RequestRecord)
	if !ok || !now.Before(asked.GetExpires().AsTime()) {
		return c.update(ctx, func(w store.Writer) error {
			return whileAsked(w, e, func() error {
				w.Delete(e.Key)
				return nil
			})
		})
	}
	err := guarded(func() error {
		return c.updateWith(ctx, func(w store.Writer, o outside) error {
			return whileAsked(w, e, func() error {
				generation, err := c.carryOutRequest(ctx, w, o, ref, asked)
				if err == nil {
					endRequest(w, ref, e.Key, &storev1.AnswerRecord{Generation: generation}, asked, now)
				}
				return err
			})
		})
	})
	if err == nil || ctx.Err() != nil || passes(err) {
		return err
	}
	if stack := guard.Stack(err); stack != "" {
		c.o.Log.Error("a request panicked; it is refused", "key", e.Key, "stack", stack)
	}
	refusal, err := rpc.Pack(err)
	if err != nil {
		return err
	}
	return c.update(ctx, func(w store.Writer) error {
		return whileAsked(w, e, func() error {
			endRequest(w, ref, e.Key, &storev1.AnswerRecord{Refusal: refusal}, asked, now)
			return nil
		})
	})
}

// passes reports that what went wrong is the hub's own trouble of this moment, and no answer.
func passes(err error) bool {
	return errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, fleet.ErrStale) || errors.Is(err, fleet.ErrConflict)
}

// whileAsked does something about a request if it is still there: whoever asked may have taken it back.
func whileAsked(w store.Writer, e store.Entry, do func() error) error {
	if now, found := w.Get(e.Key); !found || now.CreateRevision != e.CreateRevision {
		return nil
	}
	return do()
}

// endRequest ends a request with its answer. If there is no module any more nobody would forget the answer, and that is all that there
// is to say.
func endRequest(w store.Writer, ref fleet.ModuleRef, key string, answer *storev1.AnswerRecord, asked *storev1.RequestRecord, now time.Time) {
	w.Delete(key)
	if _, found := store.Untracked(w).Get(store.ModuleKey(ref)); !found {
		return
	}
	answer.RequestId, answer.Said, answer.At = asked.GetRequestId(), asked.GetSaid(), timestamppb.New(now)
	w.Put(store.AnswerKey(ref, path.Base(key)), answer)
}

// carryOutRequest does all that is asked for, or nothing. generation is what clusters are given that are to have a revision.
func (c *Controller) carryOutRequest(ctx context.Context, w store.Writer, o outside, ref fleet.ModuleRef, asked *storev1.RequestRecord) (generation uint64, err error) {
	m, err := assignable(w, ref, asked.GetModuleUid())
	switch {
	case err != nil:
		return 0, err
	case record.Stands(store.Untracked(w)):
		return 0, fleet.Forbids(ref.Object(), "module %s: the hub's store was restored from a backup, and nothing is assigned before that is settled: %s", ref.Display(), record.SettleHint)
	case asked.GetLeave():
		return 0, takeFrom(ctx, w, o, ref, names(asked.GetClusters()))
	}
	return c.giveTo(ctx, w, o, m, asked.GetRevision(), names(asked.GetClusters()))
}

// assignable is the module of a UID, if another program assigns it now.
func assignable(r store.Reader, ref fleet.ModuleRef, uid string) (*wire.Module, error) {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok {
		return nil, fleet.NotFound(ref.Object(), "module %s not found", ref.Display())
	}
	if err := fleet.SameUID(ref.Object(), uidOf(rec), uid); err != nil {
		return nil, err
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	switch {
	case err != nil:
		return nil, err
	case rec.GetDeleting() != "":
		return nil, fleet.Forbids(ref.Object(), "module %s is being deleted", ref.Display())
	case !m.External:
		return nil, fleet.Forbids(ref.Object(), "module %s: its rollouts are made by the hub; set rollout: {external: {}} to assign by yourself", ref.Display())
	case !rollouts.External(r, ref, rec):
		return nil, fleet.Forbids(ref.Object(), "module %s: the hub goes on with rollout %s until what was put last has a revision; see towline rollout status %s",
			ref.Display(), fleet.RolloutID{Module: ref, Number: rollouts.Driven(r, ref).GetRollout().GetNumber()}, ref.Display())
	}
	return m, nil
}

// giveTo assigns a revision to clusters.
func (c *Controller) giveTo(ctx context.Context, w store.Writer, o outside, m *wire.Module, revision int64, clusters []fleet.ClusterName) (generation uint64, err error) {
	if err := record.DamagedRevision(w, m.Ref, revision); err != nil {
		return 0, err
	}
	if record.Revision(w, m.Ref, revision) == nil {
		return 0, record.NoRevision(m.Ref, revision)
	}
	if c.wantVariants(w, m.Ref, revision, clusters) {
		return 0, fleet.Errorf(fleet.ErrUnavailable, "module %s r%d: %v", m.Ref.Display(), revision, record.ErrNotRendered)
	}
	by := rollouts.Driven(store.Untracked(w), m.Ref).GetRollout().GetNumber() // tells the module from one that had its name before
	a, err := c.newAssigner(ctx, w, o, m.Ref, revision, by)
	if err != nil {
		return 0, err
	}
	w.Grows()
	generation = record.NextGeneration(w)
	for _, name := range clusters {
		to, err := taker(w, m, name)
		if err != nil {
			return 0, err
		}
		key := store.DesiredKey(name, m.Ref)
		old, _, _ := store.Get[*storev1.DesiredRecord](w, key)
		next, err := a.order(ctx, w, to, old, generation)
		if err != nil {
			return 0, err
		}
		putDesired(w, o, name, m.Ref, next)
	}
	return generation, nil
}

// taker is a cluster that may be given a module now. The commit depends on that.
func taker(r store.Reader, m *wire.Module, name fleet.ClusterName) (fleet.Cluster, error) {
	if err := record.ReadableCluster(r, name); err != nil {
		return fleet.Cluster{}, err
	}
	rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
	switch {
	case !ok || !record.Places(r, m.Placement, record.Cluster(rec), m.Ref):
		return fleet.Cluster{}, fleet.Forbids(name.Object(), "cluster %s is not selected by the placement of module %s", name, m.Ref.Display())
	case rec.GetRemoving() != "":
		return fleet.Cluster{}, fleet.Forbids(name.Object(), "cluster %s is being removed", name)
	case rec.GetCluster().GetSpec().GetCordoned():
		return fleet.Cluster{}, fleet.Forbids(name.Object(), "cluster %s is cordoned; it takes no new revision", name)
	}
	return record.Cluster(rec), nil
}

// takeFrom takes the module from clusters. From one that does not have it there is nothing to take.
func takeFrom(ctx context.Context, w store.Writer, o outside, ref fleet.ModuleRef, clusters []fleet.ClusterName) error {
	for _, name := range clusters {
		if err := record.ReadableCluster(store.Untracked(w), name); err != nil {
			return err
		}
	}
	_, err := leaveSome(ctx, w, o, ref, clusters, leaving{policy: fleet.DeleteDelete})
	return err
}
