package record

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

const (
	// WantedFor is how long a set that was refused a module keeps its owner from pruning it: over a weekend and some days.
	WantedFor = 7 * 24 * time.Hour
	// wantNoted is how often is noted that a set wants a module still.
	wantNoted = time.Hour
	// maxWants is how many sets may want a module: of more the last ones count.
	maxWants = 8
)

// Wants are the sets that want a module which is somebody else's, the one that was refused it last at the end.
func Wants(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord, now time.Time) (out []*storev1.Want) {
	rec, _, _ := store.Get[*storev1.WantedRecord](r, store.WantedKey(ref))
	uid, origin := m.GetModule().GetMetadata().GetUid(), m.GetModule().GetMetadata().GetOrigin()
	for _, x := range rec.GetWants() {
		if damagedWant(x) || rec.GetModuleUid() == uid && x.GetBy() != origin && now.Sub(x.GetAt().AsTime()) < WantedFor {
			out = append(out, x)
		}
	}
	return out
}

// damagedWant stands for all that a record which cannot be read says.
func damagedWant(x *storev1.Want) bool { return x.GetAt() == nil }

// WantedBy names who wants a module: the set that was refused it last.
func WantedBy(wants []*storev1.Want) string {
	last := wants[len(wants)-1]
	if damagedWant(last) {
		return "somebody whose word cannot be read"
	}
	return last.GetBy()
}

// Noted reports that it need not be noted again that a set wants a module.
func Noted(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord, set string, now time.Time) bool {
	return slices.ContainsFunc(Wants(r, ref, m, now), func(x *storev1.Want) bool {
		since := now.Sub(x.GetAt().AsTime())
		return x.GetBy() == set && since >= 0 && since < wantNoted
	})
}

// NoteWant notes that a set wants a module.
func NoteWant(w store.Writer, ref fleet.ModuleRef, m *storev1.ModuleRecord, want *storev1.Want) {
	now := want.GetAt().AsTime()
	list := slices.DeleteFunc(Wants(w, ref, m, now), func(x *storev1.Want) bool { return damagedWant(x) || x.GetBy() == want.GetBy() })
	if more := len(list) + 1 - maxWants; more > 0 {
		list = list[more:]
	}
	w.Put(store.WantedKey(ref), &storev1.WantedRecord{ModuleUid: m.GetModule().GetMetadata().GetUid(), Wants: append(list, want)})
}

// DropWant forgets that a set wants a module: it has it.
func DropWant(w store.Writer, ref fleet.ModuleRef, set string) {
	rec, _, ok := store.Get[*storev1.WantedRecord](w, store.WantedKey(ref))
	if !ok {
		return
	}
	next := proto.CloneOf(rec)
	next.Wants = slices.DeleteFunc(next.Wants, func(x *storev1.Want) bool { return x.GetBy() == set || damagedWant(x) })
	switch {
	case len(next.GetWants()) == 0:
		w.Delete(store.WantedKey(ref))
	case len(next.GetWants()) < len(rec.GetWants()):
		w.Put(store.WantedKey(ref), next)
	}
}

// damagedWanted stands in for a record that cannot be read: somebody wants the module, nobody knows who.
func damagedWanted() *storev1.WantedRecord {
	return &storev1.WantedRecord{Wants: []*storev1.Want{{}}}
}

// NewWant is the word of a set that was refused a module now.
func NewWant(set, user string, now time.Time) *storev1.Want {
	return &storev1.Want{By: set, User: user, At: timestamppb.New(now)}
}
