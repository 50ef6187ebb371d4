package control

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// closed is the record of a rollout after what happened to its module: the head as pkg/rollout has it then, and the status
// that shows it. A rollout whose revision is not cut has no head, and gets none. A head that cannot be read is dropped:
// nobody can go on with it, and it must not keep its module from being deleted.
func closed(ref fleet.ModuleRef, rec *storev1.RolloutRecord, m rollout.Module, now time.Time) (*storev1.RolloutRecord, error) {
	next := proto.CloneOf(rec)
	plan := &rollout.Plan{ID: fleet.RolloutID{Module: ref, Number: rec.GetRollout().GetNumber()}, Revision: rec.GetRollout().GetRevision()}
	state := rollout.State{Head: rollout.Head{State: rollout.Pending}}
	if p, s, err := planned(rec); err != nil {
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

// planned reads the head of a rollout; no plan: it has none yet.
func planned(rec *storev1.RolloutRecord) (*rollout.Plan, rollout.State, error) {
	if len(rec.GetHead()) == 0 {
		return nil, rollout.State{}, nil
	}
	strategy, err := wire.StrategyFromProto(rec.GetRollout().GetStrategy())
	if err != nil {
		return nil, rollout.State{}, err
	}
	return rollout.DecodeHead(rec.GetHead(), strategy)
}

// closeAll ends the rollouts of a module that have not ended and are older than before; 0: all of them.
func closeAll(w store.Writer, ref fleet.ModuleRef, before int64, m rollout.Module, now time.Time) error {
	for _, x := range record.Rollouts(w, ref) {
		n := x.GetRollout().GetNumber()
		if before != 0 && n >= before || record.Ended(x) {
			continue
		}
		key := store.RolloutKey(ref, n)
		o, _, ok := store.Get[*storev1.RolloutRecord](w, key)
		if !ok || record.Ended(o) {
			continue
		}
		next, err := closed(ref, o, m, now)
		if err != nil {
			return err
		}
		w.Put(key, next)
	}
	return nil
}

// project shows a head in what people read of a rollout. Nothing else writes these fields once there is a head, so that a
// list never says anything else than the head.
func project(s *towlinev1.RolloutStatus, ref fleet.ModuleRef, h rollout.Head) {
	s.State, s.Reason, s.Message = string(h.State), h.Reason, h.Message
	if h.Started != 0 {
		s.Started = stamp(h.Started)
	}
	s.Ended = stamp(h.Ended)
	if h.SupersededBy != 0 {
		s.SupersededBy = fleet.RolloutID{Module: ref, Number: h.SupersededBy}.String()
	}
	if h.State.Ended() {
		s.Position, s.NextLook = "", nil
	}
}

func stamp(i rollout.Instant) *timestamppb.Timestamp {
	if i == 0 {
		return nil
	}
	return timestamppb.New(i.Time())
}
