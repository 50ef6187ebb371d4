package control

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/rollout"
)

// startAgain makes a new rollout of a revision on a person's word, in the transaction that answers that word.
func startAgain(w store.Writer, run *record.Run, s rollout.Start) {
	m, _, ok := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(run.Module))
	if !ok || m.GetDeleting() != "" || m.GetLastRollout() != run.Number {
		return
	}
	next := proto.CloneOf(m)
	next.LastRollout++
	old, now := run.Record.GetRollout(), time.Now()
	w.Put(store.RolloutKey(run.Module, next.LastRollout), record.NewRollout(run.Module, next.LastRollout, now, &towlinev1.Rollout{
		Revision: s.Revision, FromRevision: record.Standing(w, run.Module), ModuleGeneration: old.GetModuleGeneration(), Strategy: old.GetStrategy(),
		Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing), StartedBy: s.By, StartReason: s.Why, Started: timestamppb.New(now)}}))
	w.Put(store.ModuleKey(run.Module), next)
}
