package record

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Count adds one to the counter of a key, on which others depend who only look at it.
func Count(w store.Writer, key string) {
	count, _, _ := store.Get[*storev1.Counter](w, key)
	w.Put(key, &storev1.Counter{Value: count.GetValue() + 1})
}

// NextGeneration allots the next generation of the fleet in the transaction that assigns with it. Who has which name is the same until the
// commit as the transaction finds it: else what is ordered of one cluster would be an order to another one that takes its name meanwhile.
func NextGeneration(w store.Writer) uint64 {
	w.Get(store.TakenKey)
	next := LastGeneration(w) + 1
	w.Put(store.GenerationKey, &storev1.Counter{Value: next})
	return next
}

// LastGeneration is the newest generation that was allotted. When the record of that is damaged it is one that is higher
// than any that an agent may hold: what is assigned tells most of them, and the leap covers those whose records are gone.
func LastGeneration(r store.Reader) uint64 {
	if store.DamageOf(r, store.GenerationKey) == nil {
		c, _, _ := store.Get[*storev1.Counter](r, store.GenerationKey)
		return c.GetValue()
	}
	var last uint64
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, _ store.Entry) bool {
		last = max(last, Generation(d))
		return true
	})
	store.Scan(r, store.FloorPrefix, func(f *storev1.FloorRecord, _ store.Entry) bool {
		last = max(last, f.GetGeneration())
		return true
	})
	return last + generationLeap
}

const generationLeap = 1 << 32

// The name of a deleted module may be taken by another while the tombstones of the first are not carried out everywhere.
// In each cluster the removal then goes first, as it was ordered: objects of the first module that are to be deleted, or
// left, must not become leftovers of the second.

// Assign is the record of an assignment that follows old. After a final tombstone it waits its turn.
func Assign(old, next *storev1.DesiredRecord) *storev1.DesiredRecord {
	if !old.GetFinal() {
		next.FirstGeneration = old.GetFirstGeneration()
		if GivenGeneration(old) == 0 {
			next.FirstGeneration = GivenGeneration(next)
		}
		return next
	}
	return &storev1.DesiredRecord{Rollout: next.GetRollout(), Tombstone: old.GetTombstone(), Final: true, FirstGeneration: old.GetFirstGeneration(),
		Before: old.GetBefore(), BeforeUnknown: old.GetBeforeUnknown(), LetGoAt: old.GetLetGoAt(), NextRevision: next.GetSync().GetRevision(), NextGeneration: next.GetSync().GetGeneration()}
}

// Leave is the record of a module that is to leave a cluster, by the tombstone, or by the one that stands there already.
// Nil: nothing was ever assigned there. final says that the module is deleted.
func Leave(old *storev1.DesiredRecord, tombstone *agentv1.Tombstone, final bool) *storev1.DesiredRecord {
	var assigned uint64
	switch {
	case old.GetTombstone() != nil:
		tombstone, final, assigned = old.GetTombstone(), final || old.GetFinal(), old.GetAssignedGeneration()
	case old.GetSync() == nil:
		return nil
	}
	rollout := old.GetRollout()
	if ofEarlier(old) {
		rollout = 0
	}
	return &storev1.DesiredRecord{Rollout: rollout, Tombstone: tombstone, Final: final, FirstGeneration: old.GetFirstGeneration(), AssignedGeneration: assigned,
		Before: old.GetBefore(), BeforeUnknown: old.GetBeforeUnknown(), LetGoAt: old.GetLetGoAt()}
}

// ofEarlier reports that the tombstone is that of a module which had the name before: the one that has it now waits.
func ofEarlier(d *storev1.DesiredRecord) bool {
	return d.GetFinal() && d.GetTombstone() != nil && (d.GetNextRevision() != 0 || d.GetProblemRevision() != 0)
}

// Leaves reports that the module leaves the cluster as it should already.
func Leaves(old *storev1.DesiredRecord, final bool) bool {
	return old.GetTombstone() != nil && proto.Equal(old, Leave(old, nil, final))
}

// Unsaid reports that the module, which is deleted under policy, leaves the cluster under another one: the last word is not
// said there yet. What a module that had the name before left behind goes by that one's word. first is the number of the
// module's own first rollout.
func Unsaid(old *storev1.DesiredRecord, policy string, first int64) bool {
	t := old.GetTombstone()
	return t != nil && t.GetPolicy() != policy && !ofEarlier(old) && old.GetRollout() >= first
}

// NewestRevision is the module's revision with the highest number; nil: it has none.
func NewestRevision(r store.Reader, ref fleet.ModuleRef) *storev1.RevisionRecord {
	var newest *storev1.RevisionRecord
	_, first := rollouts.First(r, ref)
	store.Scan(r, store.RevisionPrefix+ref.String()+"/", func(rec *storev1.RevisionRecord, _ store.Entry) bool {
		if rec.GetRevision().GetNumber() >= first {
			newest = rec
		}
		return true
	})
	return newest
}

// NewestNumber is the highest number that a revision of the module has, also one that is damaged; 0: it has none.
func NewestNumber(r store.Reader, ref fleet.ModuleRef) int64 {
	newest := NewestRevision(r, ref).GetRevision().GetNumber()
	if _, first := rollouts.First(r, ref); rollouts.DamagedNumber(r, store.RevisionPrefix, ref) >= first {
		newest = max(newest, rollouts.DamagedNumber(r, store.RevisionPrefix, ref))
	}
	return newest
}

// NoRevision says that a module has no revision of a number; 0: none at all.
func NoRevision(ref fleet.ModuleRef, number int64) error {
	about := fleet.Object{Kind: "Revision", Name: fmt.Sprintf("%s/%d", ref, number)}
	if number == 0 {
		return fleet.NotFound(about, "module %s has no revision yet", ref.Display())
	}
	return fleet.NotFound(about, "module %s has no revision r%d", ref.Display(), number)
}

// Revision is the module's revision of a number; nil: it has none.
func Revision(r store.Reader, ref fleet.ModuleRef, number int64) *storev1.RevisionRecord {
	if _, first := rollouts.First(r, ref); number < first {
		return nil
	}
	rec, _, _ := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(ref, number))
	return rec
}
