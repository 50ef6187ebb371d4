package record

import (
	"encoding/hex"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// BatchPatience is how long a batch of puts waits for its next one.
const BatchPatience = 30 * time.Second

// BatchID names a batch by who puts it and the word that all of its puts have. Nobody else has part in it.
func BatchID(by, word string) string {
	d := fleet.DigestOf([]byte(by + "\x00" + word))
	return hex.EncodeToString(d[:16])
}

// Gathering is the batch that a module's newest rollout was put with, while not all of its puts are in: what the others are going to list is
// not known yet. Empty: it waits for none. No commit depends on what it reads.
func Gathering(r store.Reader, ref fleet.ModuleRef) string {
	r = store.Untracked(r)
	id := rollouts.Last(r, ref).GetBatch()
	if id == "" || !Gathers(r, id) {
		return ""
	}
	return id
}

// Gathers reports that not all puts of a batch are in.
func Gathers(r store.Reader, id string) bool {
	b, _, _ := store.Get[*storev1.BatchRecord](r, store.BatchKey(id))
	return Open(r, id) && !b.GetPut()
}

// Open reports that not all is in that belongs to a batch: puts, or what is deleted after them.
func Open(r store.Reader, id string) bool {
	_, open := r.Get(store.BatchKey(id))
	return open
}

// Unsettled is the batch that a module's newest rollout was put with, while it is open: what the others have may be let go, or deleted. Empty: it
// is of none. No commit depends on what it reads.
func Unsettled(r store.Reader, ref fleet.ModuleRef) string {
	r = store.Untracked(r)
	id := rollouts.Last(r, ref).GetBatch()
	if id == "" || !Open(r, id) {
		return ""
	}
	return id
}

// WaitIn are the newest rollouts of modules that have no revision because not all puts of a batch are in.
func WaitIn(r store.Reader, id string) (list []*storev1.RolloutRecord) {
	r = store.Untracked(r)
	if !Gathers(r, id) {
		return nil
	}
	store.Scan(r, store.StartPrefix, func(ro *storev1.RolloutRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if ok && ro.GetBatch() == id && rollouts.Unresolved(r, ref) == ro && mayWait(r, ref, ro.GetRollout().GetNumber()) {
			list = append(list, ro)
		}
		return true
	})
	return list
}

// BrokenOff reports that a batch ended without all of its puts, and that modules which it left as they were are so still: the rest comes too late.
func BrokenOff(r store.Reader, id string) (broken bool) {
	r = store.Untracked(r)
	store.Scan(r, store.RolloutPrefix, func(ro *storev1.RolloutRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		broken = ok && ro.GetBatch() == id && rollouts.PutsMissing(ro) && rollouts.Last(r, ref).GetRollout().GetNumber() == ro.GetRollout().GetNumber()
		return !broken
	})
	return broken
}

// AwaitsPuts is Gathering for a module whose rollout of a number has no revision yet: it gets none before. The first rollout of a module lets
// nothing go, and does not wait.
func AwaitsPuts(r store.Reader, ref fleet.ModuleRef, number int64) string {
	if !mayWait(r, ref, number) {
		return ""
	}
	return Gathering(r, ref)
}

// mayWait reports that a rollout is not the first one of its module.
func mayWait(r store.Reader, ref fleet.ModuleRef, number int64) bool {
	first, _ := rollouts.First(r, ref)
	return number > max(first, 1)
}
