package rollouts

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// How is how a rollout comes to start.
type How struct {
	// Unasked says that no person asks for it.
	Unasked bool
	// Fetched is what a look at the source had fetched; zero: none starts it.
	Fetched fleet.Digest
	// ModuleUID is that of the module.
	ModuleUID string
	// Batch is that of the put; empty: it stands alone.
	Batch string
}

// Start puts the next rollout of a module on somebody's word, and returns its number. ro says what it is for, who started it and why.
// It waits for its revision to be cut, behind the rollout that runs if the strategy of that says so, and takes the place of those that
// wait, too: they have moved nothing.
func Start(w store.Writer, ref fleet.ModuleRef, ro *towlinev1.Rollout, how How, now time.Time) (number int64, err error) {
	if err := await(w, ref, ro); err != nil {
		return 0, err
	}
	number = Newest(w, ref) + 1
	rec := &storev1.RolloutRecord{Rollout: numbered(ref, number, ro, now), Unasked: how.Unasked, Batch: how.Batch, ModuleUid: how.ModuleUID}
	if !how.Fetched.IsZero() {
		rec.Fetched = how.Fetched.Bytes()
	}
	w.Put(store.StartKey(ref, number), rec)
	return number, nil
}

// numbered fills in which rollout it is.
func numbered(ref fleet.ModuleRef, number int64, ro *towlinev1.Rollout, now time.Time) *towlinev1.Rollout {
	ro.ApiVersion, ro.Kind, ro.Module, ro.Number, ro.Id = fleet.APIVersion, "Rollout", ref.Name, number, fleet.RolloutID{Module: ref, Number: number}.String()
	ro.Metadata = &towlinev1.Metadata{Name: fmt.Sprintf("%s-%d", ref.Name, number), Project: ref.Project, CreationTimestamp: timestamppb.New(now)}
	return ro
}

// begin has the rollout of a revision progress, from the one that it may go back to.
func begin(r store.Reader, ref fleet.ModuleRef, ro *towlinev1.Rollout, now time.Time) {
	ro.FromRevision = goesBackTo(r, ref)
	project(ro.Status, ref, rollout.Head{State: rollout.Progressing, Started: rollout.At(now)})
}

// await has a rollout wait for its revision.
func await(w store.Writer, ref fleet.ModuleRef, ro *towlinev1.Rollout) error {
	h := rollout.Head{State: rollout.Pending, Reason: rollout.ReasonResolving}
	first := running(w, ref, math.MaxInt64).GetRollout()
	switch rollout.Succeed(first.GetStrategy().GetOnSupersede()) {
	case rollout.StartLater:
		h.Reason, h.Facts = rollout.ReasonQueued, &rollout.Facts{Rollout: first.GetId()}
	case rollout.Refused:
		return fleet.Errorf(fleet.ErrPrecondition, "module %s: rollout %s is %s and onSupersede is Reject; wait for it or abort it: towline rollout abort %s",
			ref.Display(), first.GetId(), first.GetStatus().GetState(), ref.Display())
	}
	w.Grows()
	project(ro.Status, ref, h)
	return nil
}

// again puts a new rollout of a revision on a person's word, in the transaction that answers that word. If the module was put
// meanwhile, the word is to be answered anew.
func again(w store.Writer, run *Run, s rollout.Start, now time.Time) error {
	m, _, ok := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(run.Module))
	switch {
	case !ok || m.GetDeleting() != "":
		return nil
	case Newest(w, run.Module) != run.Number:
		return fleet.Errorf(fleet.ErrConflict, "rollout %s: module %s was put meanwhile", run.Plan.ID, run.Module.Display())
	}
	old := run.Record.GetRollout()
	ro := numbered(run.Module, run.Number+1, &towlinev1.Rollout{Revision: s.Revision, ModuleGeneration: old.GetModuleGeneration(), Strategy: old.GetStrategy(),
		Status: &towlinev1.RolloutStatus{StartedBy: s.By, StartReason: s.Why}}, now)
	begin(w, run.Module, ro, now)
	w.Put(store.RolloutKey(run.Module, ro.GetNumber()), &storev1.RolloutRecord{Rollout: ro, ModuleUid: m.GetModule().GetMetadata().GetUid()})
	return nil
}

// Begin gives a rollout the revision that was cut for it, and ends those before it: only here does a new rollout supersede
// an older one. It returns the record of the rollout, which has ended, too, when another program assigns the revision.
func Begin(w store.Writer, ref fleet.ModuleRef, rec *storev1.RolloutRecord, revision int64, now time.Time) (*storev1.RolloutRecord, error) {
	rec = proto.CloneOf(rec)
	rec.Rollout.Revision, rec.Fetched = revision, nil
	begin(w, ref, rec.Rollout, now)
	if rec.GetRollout().GetStrategy().GetExternal() != nil {
		var err error
		if rec, err = closed(ref, rec, rollout.Module{External: true}, now); err != nil {
			return nil, err
		}
	}
	number := rec.GetRollout().GetNumber()
	w.Delete(store.StartKey(ref, number))
	w.Put(store.RolloutKey(ref, number), rec)
	return rec, Close(w, ref, func(n int64) bool { return n < number }, rollout.Module{Successor: number}, now)
}

// Close ends those rollouts of a module that have not ended, by what happened to it.
func Close(w store.Writer, ref fleet.ModuleRef, which func(number int64) bool, m rollout.Module, now time.Time) error {
	for _, x := range List(w, ref) {
		n := x.GetRollout().GetNumber()
		if !which(n) || Ended(x) {
			continue
		}
		rec := Get(w, ref, n)
		if rec == nil || Ended(rec) {
			continue
		}
		next, err := closed(ref, rec, m, now)
		if err != nil {
			return err
		}
		w.Delete(store.StartKey(ref, n))
		w.Put(store.RolloutKey(ref, n), next)
	}
	return nil
}

// closed is the record of a rollout after what happened to its module: the head as pkg/rollout has it then, and the status
// that shows it. A rollout whose revision is not cut has no head, and gets none. A head that cannot be read is dropped:
// nobody can go on with it, and it must not keep its module from being deleted.
func closed(ref fleet.ModuleRef, rec *storev1.RolloutRecord, m rollout.Module, now time.Time) (*storev1.RolloutRecord, error) {
	next := proto.CloneOf(rec)
	plan := &rollout.Plan{ID: fleet.RolloutID{Module: ref, Number: rec.GetRollout().GetNumber()}, Revision: rec.GetRollout().GetRevision()}
	state := rollout.State{Head: rollout.Head{State: rollout.Pending}}
	if p, s, err := head(rec); err != nil {
		next.Head, next.Chunks = nil, 0
	} else if p != nil {
		plan, state = p, s
	}
	state.Head = rollout.Close(plan, state.Head, m, now)
	project(next.Rollout.Status, ref, state.Head)
	if len(next.GetHead()) == 0 {
		return next, nil
	}
	var err error
	if next.Head, err = rollout.EncodeHead(plan, &state); err != nil {
		return nil, fmt.Errorf("rollout %s: %w", plan.ID, err)
	}
	return next, nil
}
