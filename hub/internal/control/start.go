package control

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
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
	id := fleet.RolloutID{Module: run.Module, Number: next.LastRollout}
	old := run.Record.GetRollout()
	ro := &towlinev1.Rollout{ApiVersion: fleet.APIVersion, Kind: "Rollout", Module: run.Module.Name, Number: next.LastRollout, Id: id.String(),
		Metadata: &towlinev1.Metadata{Name: run.Module.Name + "-" + id.String()[len(run.Module.Display())+1:], Project: run.Module.Project, CreationTimestamp: timestamppb.Now()},
		Revision: s.Revision, FromRevision: record.Standing(w, run.Module), ModuleGeneration: old.GetModuleGeneration(), Strategy: old.GetStrategy(),
		Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing), StartedBy: s.By, StartReason: s.Why, Started: timestamppb.Now()}}
	w.Put(store.RolloutKey(run.Module, next.LastRollout), &storev1.RolloutRecord{Rollout: ro})
	w.Put(store.ModuleKey(run.Module), next)
}
