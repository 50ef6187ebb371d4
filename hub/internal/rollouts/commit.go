package rollouts

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// Planned reports that the run's plan is stored: its head is readable, with all of its chunks.
func (run *Run) Planned() bool { return len(run.Record.GetHead()) > 0 }

// Chunks are the chunks that a decision has to write, ascending: of a run that is not stored yet all.
func (run *Run) Chunks(d rollout.Decision) []int {
	var out []int
	if !run.Planned() {
		for n := range d.State.Chunks {
			out = append(out, n)
		}
		return out
	}
	for _, m := range d.Changed {
		out = append(out, int(m)/rollout.ChunkSize)
	}
	return slices.Compact(out)
}

// Step records in the transaction of a decision whom it moves, and returns the generation that they get; nil: it moves
// nobody.
type Step func(next *storev1.RolloutRecord) (generation uint64, err error)

// Write puts a decision: the head, these chunks, the step, and the rollout that it starts. It returns the record as it will
// be. What only a decision before this one could have seen, an end from outside, is a conflict.
func (run *Run) Write(w store.Writer, d rollout.Decision, chunks []int, now time.Time, step Step) (*storev1.RolloutRecord, error) {
	rec, _, ok := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(run.Module, run.Number))
	if !ok || Ended(rec) && !Ended(run.Record) {
		return nil, fleet.Errorf(fleet.ErrConflict, "rollout %s ended meanwhile", run.Plan.ID)
	}
	next := proto.CloneOf(rec)
	if d.State.Back != nil && rec.GetBackSince() == 0 {
		next.BackSince = w.Revision() + 1
		w.Put(store.RolloutKey(run.Module, run.Number), proto.CloneOf(next)) // what the step lets go is by that already
	}
	if step != nil {
		if err := Stands(w, run.Module, run.Number); err != nil {
			return nil, err
		}
		generation, err := step(next)
		if err != nil {
			return nil, err
		}
		d.State.Stamp(d.Assign, generation)
	}
	if d.Start != nil {
		if err := again(w, run, *d.Start, now); err != nil {
			return nil, err
		}
	}
	var err error
	if next.Head, err = rollout.EncodeHead(run.Plan, &d.State); err != nil {
		return nil, fmt.Errorf("rollout %s: %w", run.Plan.ID, err)
	}
	next.Chunks = int32(len(d.State.Chunks))
	summarize(next.Rollout.Status, run, d)
	w.Put(store.RolloutKey(run.Module, run.Number), next)
	for key, chunk := range run.Encode(&d.State, chunks) {
		w.Put(key, chunk)
	}
	return next, nil
}

// Stands checks that the module whose rollout this is still has its name and is not being deleted: what a rollout gives to clusters,
// and takes from them, rests on an older look, and the last word about a deleted module is how it was deleted. The commit fails if
// that changes.
func Stands(w store.Writer, ref fleet.ModuleRef, number int64) error {
	m, _, ok := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
	if ok && (m.GetDeleting() != "" || number < m.GetFirstRollout()) {
		return fleet.Errorf(fleet.ErrConflict, "module %s was deleted meanwhile; its rollout %d moves nothing any more", ref.Display(), number)
	}
	return nil
}

// Encode is chunks of a state as they are stored, by key.
func (run *Run) Encode(s *rollout.State, chunks []int) map[string]proto.Message {
	puts := make(map[string]proto.Message, len(chunks))
	for _, n := range chunks {
		puts[store.ChunkKey(run.Module, run.Number, n)] = &storev1.RolloutChunk{Data: rollout.EncodeChunk(run.Plan, s, n)}
	}
	return puts
}
