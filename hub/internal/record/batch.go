package record

import (
	"encoding/hex"
	"time"

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
	if id == "" || !GathersBatch(r, id) {
		return ""
	}
	return id
}

// GathersBatch reports that not all puts of a batch are in.
func GathersBatch(r store.Reader, id string) bool {
	_, open := r.Get(store.BatchKey(id))
	return open
}

// AwaitsPuts is Gathering for a module whose rollout of a number has no revision yet: it gets none before. The first rollout of a module lets
// nothing go, and does not wait.
func AwaitsPuts(r store.Reader, ref fleet.ModuleRef, number int64) string {
	if first, _ := rollouts.First(r, ref); number <= max(first, 1) {
		return ""
	}
	return Gathering(r, ref)
}
