package api

import (
	"context"
	"errors"
	"strings"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A module may be put under the name of one that is being deleted as soon as the removal of that is ordered in every
// cluster. It is another module: its history begins with it. Only numbers go on, so that an id never means two things.

// stillThere says that the removal of a deleted module is not ordered everywhere yet.
type stillThere struct{ error }

// Unwrap yields what is told when that lasts.
func (s *stillThere) Unwrap() error { return s.error }

// orderWait is how long a put waits for the leader to order the removal.
const orderWait = 10 * time.Second

// afterDeletion commits a put, once what is being deleted under the name has its removal ordered everywhere.
func (a *API) afterDeletion(ctx context.Context, ref fleet.ModuleRef, put func(store.Writer) error) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, orderWait)
	defer cancel()
	sub := a.o.Store.Subscribe(nil, store.ModuleKey(ref), store.DesiredPrefix)
	defer sub.Stop()
	for {
		rev, err := a.o.Store.Update(ctx, put)
		var waits *stillThere
		if !errors.As(err, &waits) {
			return rev, err
		}
		if errors.Is(err, fleet.ErrPrecondition) {
			return 0, waits.error // a person holds it: that may take long
		}
		select {
		case <-ctx.Done():
			return 0, waits.error
		case <-sub.C():
			sub.Take()
		}
	}
}

// mayTakeName checks that nothing of the deleted module is assigned any more: everywhere its removal is ordered, for good.
func mayTakeName(r store.Reader, ref fleet.ModuleRef) error {
	held := record.ReadHolds(r, time.Now())
	m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	for _, c := range record.ClustersOf(r, ref) {
		name := fleet.ClusterName(c.GetCluster().GetMetadata().GetName())
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(name, ref)) // no deleted module is assigned anew
		switch {
		case d == nil || record.Leaves(d, true) && !record.Unsaid(d, m.GetDeleting(), m.GetFirstRollout()):
		case d.GetTombstone() == nil && held.StopsRemoval(ref, name, d.GetSync().GetHold() || len(d.GetSync().GetHeld()) > 0):
			return &stillThere{fleet.Forbids(ref.Object(), "module %s is being deleted, and held in cluster %s, so that what is there stays; see: towline get holds", ref.Display(), name)}
		default:
			return &stillThere{later(fleet.Errorf(fleet.ErrUnavailable, "module %s is being deleted; its removal is not ordered in every cluster yet: try again", ref.Display()))}
		}
	}
	return nil
}

// beingDeleted is the word by which the module of a name is being deleted; empty: it is not. Where a put of the name is refused for that, not only for
// the moment, it says so as that does.
func beingDeleted(r store.Reader, ref fleet.ModuleRef) (string, error) {
	rec, _, _ := moduleRecord(r, ref)
	if rec.GetDeleting() == "" {
		return "", nil
	}
	if err := mayTakeName(r, ref); errors.Is(err, fleet.ErrPrecondition) {
		return "", err
	}
	return rec.GetDeleting(), nil
}

// succeedDeleted gives the record of a new module the numbers that follow those of the deleted one, and forgets what people
// answered about that; the leader ends the questions.
func succeedDeleted(w store.Writer, rec, deleted *storev1.ModuleRecord, ref fleet.ModuleRef) {
	rec.FirstRollout = rollouts.Newest(w, ref) + 1
	rec.FirstRevision = max(record.NewestNumber(w, ref)+1, deleted.GetFirstRevision(), 1)
	asked := record.HoldKeys(w, func(h *towlinev1.Hold) bool {
		return h.GetKind() == record.HoldConfirm && record.HoldModule(h) == ref.String()
	})
	for _, key := range asked[:min(len(asked), maxAssign)] {
		if strings.HasPrefix(key, store.ConfirmPrefix) {
			w.Delete(key)
		}
	}
	w.Put(store.ModuleKey(ref), rec) // so that what is read of its history in this transaction is its own
}

// describeDeleted warns of what a deleted module of the name has left.
func describeDeleted(r store.Reader, ref fleet.ModuleRef, connected func(fleet.ClusterName) bool) *towlinev1.Note {
	left, away := 0, 0
	for _, c := range record.ClustersOf(r, ref) {
		name := fleet.ClusterName(c.GetCluster().GetMetadata().GetName())
		if d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(name, ref)); !d.GetFinal() {
			continue
		}
		if left++; !connected(name) {
			away++
		}
	}
	if left == 0 {
		return nil
	}
	return note(fleet.WarnDeletedFirst, &towlinev1.Facts{Count: int32(away), Total: int32(left)})
}
