package record

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// ActiveRollout is the module's rollout that has not ended and has the highest number; nil: none.
func ActiveRollout(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	for _, ro := range slices.Backward(Rollouts(r, ref)) {
		if !Ended(ro) {
			return ro
		}
	}
	return nil
}

// NewRollout is the record of a rollout of a module with this number; ro says what it is for and how it stands.
func NewRollout(ref fleet.ModuleRef, number int64, now time.Time, ro *towlinev1.Rollout) *storev1.RolloutRecord {
	ro.ApiVersion, ro.Kind, ro.Module, ro.Number = fleet.APIVersion, "Rollout", ref.Name, number
	ro.Id = fleet.RolloutID{Module: ref, Number: number}.String()
	ro.Metadata = &towlinev1.Metadata{Name: fmt.Sprintf("%s-%d", ref.Name, number), Project: ref.Project, CreationTimestamp: timestamppb.New(now)}
	return &storev1.RolloutRecord{Rollout: ro}
}

// Driven is the rollout that the leader drives: the newest that has a revision, after its end too, for clusters that come
// late; nil: none has, or its record is damaged: an older one must not take clusters back.
func Driven(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	if damaged, _ := DamagedRollout(r, ref); damaged != 0 {
		return nil
	}
	for _, ro := range slices.Backward(Rollouts(r, ref)) {
		if ro.GetRollout().GetRevision() != 0 && state(ro) != rollout.Superseded {
			return ro
		}
	}
	return nil
}

// LastSucceeded is the newest rollout that succeeded: it says where to roll back to, however many failed since; nil: none.
func LastSucceeded(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	for _, ro := range slices.Backward(Rollouts(r, ref)) {
		if state(ro) == rollout.Succeeded {
			return ro
		}
	}
	return nil
}

// Rollouts are the module's rollouts, oldest first.
func Rollouts(r store.Reader, ref fleet.ModuleRef) []*storev1.RolloutRecord {
	var all []*storev1.RolloutRecord
	first, _ := First(r, ref)
	store.Scan(r, store.RolloutPrefix+ref.String()+"/", func(ro *storev1.RolloutRecord, _ store.Entry) bool {
		if ro.GetRollout().GetNumber() >= first {
			all = append(all, ro)
		}
		return true
	})
	return all
}

// Revisions are the numbers of the module's revisions, ascending; never nil.
func Revisions(r store.Reader, ref fleet.ModuleRef) []int64 {
	out := []int64{}
	_, first := First(r, ref)
	store.Scan(r, store.RevisionPrefix+ref.String()+"/", func(rev *storev1.RevisionRecord, _ store.Entry) bool {
		if n := rev.GetRevision().GetNumber(); n >= first {
			out = append(out, n)
		}
		return true
	})
	slices.Sort(out)
	return out
}

// Standing is the revision that the module's rollouts left behind: that of the newest one that succeeded, or the one to
// which a newer one was rolled back; 0: none did.
func Standing(r store.Reader, ref fleet.ModuleRef) int64 {
	for _, ro := range slices.Backward(Rollouts(r, ref)) {
		switch state(ro) {
		case rollout.Succeeded:
			return ro.GetRollout().GetRevision()
		case rollout.RolledBack:
			if held := rollout.HeldAt(ro.GetHead()); held != 0 {
				return held
			}
		}
	}
	return 0
}

// Pins are those of the newest rollout below the number: they hold through any number of rollouts.
func Pins(r store.Reader, ref fleet.ModuleRef, number int64) []rollout.Pin {
	for _, ro := range slices.Backward(Rollouts(r, ref)) {
		if ro.GetRollout().GetNumber() < number && len(ro.GetHead()) > 0 {
			return rollout.PinsIn(ro.GetHead())
		}
	}
	return nil
}

// Ended reports that a rollout decides nothing new for its plan.
func Ended(ro *storev1.RolloutRecord) bool { return state(ro).Ended() }

func state(ro *storev1.RolloutRecord) rollout.RunState {
	return rollout.RunState(ro.GetRollout().GetStatus().GetState())
}
