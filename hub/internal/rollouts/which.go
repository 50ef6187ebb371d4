// Package rollouts owns the rollouts that the hub stores: which one counts for what, how one is started, loaded, committed
// and ended, and what people see of it. What a rollout decides is pkg/rollout's; what is observed of clusters, whom a step
// reaches and what they are to have is told by others, of which it must not know.
package rollouts

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// First are the numbers from which on rollouts and revisions are the module's own. Those below are of a module that had
// its name before.
func First(r store.Reader, ref fleet.ModuleRef) (rollout, revision int64) {
	if store.DamageOf(r, store.ModuleKey(ref)) != nil {
		return 0, 0
	}
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	return rec.GetFirstRollout(), rec.GetFirstRevision()
}

// prefixes are of the keys of rollouts: those that wait for their revision are what people asked for, and the API's; the leader makes
// them its own when it begins or ends them.
var prefixes = []string{store.RolloutPrefix, store.StartPrefix}

// All calls fn for the rollouts whose keys go on with rest behind the prefix of their class: empty for those of all modules.
func All(r store.Reader, rest string, fn func(*storev1.RolloutRecord, store.Entry)) {
	for _, prefix := range prefixes {
		store.Scan(r, prefix+rest, func(ro *storev1.RolloutRecord, e store.Entry) bool {
			fn(ro, e)
			return true
		})
	}
}

// List is the module's rollouts, oldest first.
func List(r store.Reader, ref fleet.ModuleRef) []*storev1.RolloutRecord {
	var all []*storev1.RolloutRecord
	first, _ := First(r, ref)
	All(r, ref.String()+"/", func(ro *storev1.RolloutRecord, _ store.Entry) {
		if ro.GetRollout().GetNumber() >= first {
			all = append(all, ro)
		}
	})
	slices.SortFunc(all, func(a, b *storev1.RolloutRecord) int {
		return cmp.Compare(a.GetRollout().GetNumber(), b.GetRollout().GetNumber())
	})
	return all
}

// Get is the record of a rollout; nil: there is none.
func Get(r store.Reader, ref fleet.ModuleRef, number int64) *storev1.RolloutRecord {
	for _, key := range []string{store.RolloutKey(ref, number), store.StartKey(ref, number)} {
		if ro, _, ok := store.Get[*storev1.RolloutRecord](r, key); ok {
			return ro
		}
	}
	return nil
}

// Kept reports that there is a record of a rollout, damaged or not.
func Kept(r store.Reader, ref fleet.ModuleRef, number int64) bool {
	for _, key := range []string{store.RolloutKey(ref, number), store.StartKey(ref, number)} {
		if _, found := store.Untracked(r).Get(key); found || store.DamageOf(r, key) != nil {
			return true
		}
	}
	return false
}

// Newest is the number of the module's newest rollout, its record damaged or not; below the first of its own: it has none. A commit
// that rests on it fails if another one is started meanwhile.
func Newest(r store.Reader, ref fleet.ModuleRef) int64 {
	number := newestNumber(r, ref)
	r.Get(store.StartKey(ref, number+1))
	r.Get(store.RolloutKey(ref, number+1))
	return number
}

func newestNumber(r store.Reader, ref fleet.ModuleRef) int64 {
	first, _ := First(r, ref)
	number := max(first-1, 0)
	for _, prefix := range prefixes {
		number = max(number, DamagedNumber(r, prefix, ref))
		r.Scan(prefix+ref.String()+"/", func(e store.Entry) bool {
			if n, ok := store.SplitNumber(e.Key); ok {
				number = max(number, n)
			}
			return true
		})
	}
	return number
}

// Last is the record of the module's newest rollout; nil: it has none, or it is damaged.
func Last(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	r = store.Untracked(r)
	return Get(r, ref, newestNumber(r, ref))
}

// newest is the module's newest rollout that fits; nil: none does.
func newest(r store.Reader, ref fleet.ModuleRef, fits func(*storev1.RolloutRecord) bool) *storev1.RolloutRecord {
	all := List(r, ref)
	slices.Reverse(all)
	if i := slices.IndexFunc(all, fits); i >= 0 {
		return all[i]
	}
	return nil
}

// Driven is the rollout that the leader drives: the newest that has a revision, after its end too, for clusters that come
// late; nil: none has, or its record is damaged: an older one must not take clusters back.
func Driven(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	if damaged, _ := Damaged(r, ref); damaged != 0 {
		return nil
	}
	return newest(r, ref, func(ro *storev1.RolloutRecord) bool {
		return ro.GetRollout().GetRevision() != 0 && StateOf(ro) != rollout.Superseded
	})
}

// OutlookOf is where a rollout leads its module (see rollout.Outlook).
func OutlookOf(ro *storev1.RolloutRecord) rollout.Outlook {
	x := ro.GetRollout()
	if ro == nil || x.GetRevision() == 0 {
		return rollout.Outlook{}
	}
	return rollout.OutlookOf(x.GetRevision(), x.GetFromRevision(), x.GetStrategy().GetLateJoiners(), StateOf(ro), ro.GetHead())
}

// RolledBack reports that the module's newest rollout was rolled back: what it went back to stays, whatever the spec says. A put that
// failed before it had a revision changes nothing of that.
func RolledBack(r store.Reader, ref fleet.ModuleRef, newest *storev1.RolloutRecord) bool {
	return StateOf(thatCounts(r, ref, newest)) == rollout.RolledBack
}

// WentBack is to which revision clusters went in a rollback that counts as in RolledBack, and whether only those that failed did; 0: there
// was none.
func WentBack(r store.Reader, ref fleet.ModuleRef, newest *storev1.RolloutRecord) (to int64, failed bool) {
	return rollout.WentBack(thatCounts(r, ref, newest).GetHead())
}

// thatCounts is the module's newest rollout, but for one that failed before it had a revision.
func thatCounts(r store.Reader, ref fleet.ModuleRef, newest *storev1.RolloutRecord) *storev1.RolloutRecord {
	if newest.GetRollout().GetRevision() == 0 && Ended(newest) {
		return Driven(r, ref)
	}
	return newest
}

// External reports that another program assigns the module: its put says so, and the hub has no rollout of it that decides. A put
// that has no revision, or never got one, ends none.
func External(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) bool {
	if m.GetModule().GetSpec().GetRollout().GetExternal() == nil {
		return false
	}
	driven := Driven(r, ref)
	return driven == nil || driven.GetRollout().GetStrategy().GetExternal() != nil
}

// Standing is the revision that the module's rollouts left behind, and that a newer one goes back to: that of the newest
// one that succeeded, or the one to which a newer one was rolled back; 0: none did.
func Standing(r store.Reader, ref fleet.ModuleRef) int64 {
	revision, _ := StandsBy(r, ref)
	return revision
}

// StandsBy is Standing, with the rollout that says so.
func StandsBy(r store.Reader, ref fleet.ModuleRef) (revision int64, by *storev1.RolloutRecord) {
	for _, ro := range slices.Backward(List(r, ref)) {
		switch StateOf(ro) {
		case rollout.Succeeded:
			return ro.GetRollout().GetRevision(), ro
		case rollout.RolledBack:
			if held := rollout.HeldAt(ro.GetHead()); held != 0 {
				return held, ro
			}
		}
	}
	return 0, nil
}

// goesBackTo is the revision that a rollout which begins now may go back to: the one that stands. 0: there is none; nor is the
// newest that was cut for another program, for which nobody knows whether that assigned it anywhere.
func goesBackTo(r store.Reader, ref fleet.ModuleRef) int64 {
	revision, by := StandsBy(r, ref)
	if by.GetRollout().GetStrategy().GetExternal() != nil {
		return 0
	}
	return revision
}

// Pins are those of the newest rollout below the number: they hold through any number of rollouts.
func Pins(r store.Reader, ref fleet.ModuleRef, number int64) []rollout.Pin {
	return rollout.PinsIn(planned(r, ref, number).GetHead())
}

// StandingPins are those that count at a time. One whose time is over stays in the head of a rollout that decides nothing any more.
func StandingPins(r store.Reader, ref fleet.ModuleRef, now time.Time) []rollout.Pin {
	return slices.DeleteFunc(Pins(r, ref, math.MaxInt64), func(p rollout.Pin) bool { return p.Until != 0 && !p.Until.Time().After(now) })
}

// Unheard is the key of the last verb of the rollout that decides which it has not taken in yet; empty: there is none. The commit depends on it that
// no other one is recorded until then.
func Unheard(w store.Writer, ref fleet.ModuleRef) (last string) {
	rec := Driven(w, ref)
	if rec == nil {
		return ""
	}
	number := rec.GetRollout().GetNumber()
	_, state, err := head(rec)
	if err != nil {
		return "" // it takes in nothing
	}
	for _, v := range Verbs(w, ref, number) {
		if !slices.ContainsFunc(state.Verbs, func(x rollout.VerbRecord) bool { return x.ID == v.ID }) {
			last = v.ID
		}
	}
	w.Get(NextVerb(w, ref, number))
	return last
}

// planned is the newest rollout below the number that has a head; nil: none has.
func planned(r store.Reader, ref fleet.ModuleRef, number int64) *storev1.RolloutRecord {
	return newest(r, ref, func(ro *storev1.RolloutRecord) bool {
		return ro.GetRollout().GetNumber() < number && len(ro.GetHead()) > 0
	})
}

// askedSince is since when clusters that were to leave waited for a person's confirm before a rollout. If the one before it is damaged, nobody
// knows whether any did: whoever is to leave waits as of now.
func askedSince(r store.Reader, ref fleet.ModuleRef, ro *towlinev1.Rollout) rollout.Instant {
	before := planned(r, ref, ro.GetNumber())
	first, _ := First(r, ref)
	if n := DamagedNumber(r, store.RolloutPrefix, ref); n >= first && n > before.GetRollout().GetNumber() {
		return rollout.At(ro.GetMetadata().GetCreationTimestamp().AsTime())
	}
	return rollout.AskedSince(before.GetHead())
}

// Waiting are the numbers of the module's rollouts that wait for their revision, oldest first. Only the newest gets one.
func Waiting(r store.Reader, ref fleet.ModuleRef) (numbers []int64) {
	first, _ := First(r, ref)
	r.Scan(store.StartPrefix+ref.String()+"/", func(e store.Entry) bool {
		if n, ok := store.SplitNumber(e.Key); ok && n >= first {
			numbers = append(numbers, n)
		}
		return true
	})
	return numbers
}

// Unresolved is the module's newest rollout while it waits for its revision; nil: it has one, or has ended without, or its record
// is damaged: that one waits for none. No commit depends on what it reads.
func Unresolved(r store.Reader, ref fleet.ModuleRef) *storev1.RolloutRecord {
	r = store.Untracked(r)
	waiting := Waiting(r, ref)
	if len(waiting) == 0 {
		return nil
	}
	n := waiting[len(waiting)-1]
	next := store.RolloutKey(ref, n+1) // numbers have no gaps
	if _, ended := r.Get(next); ended || store.DamageOf(r, next) != nil || n < DamagedNumber(r, store.StartPrefix, ref) {
		return nil
	}
	return Get(r, ref, n)
}

// Queued reports that the rollout waits for the running one (see Ahead).
func Queued(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) bool {
	return Ahead(r, ref, ro) != ""
}

// Ahead is the ID of the running rollout for which another one waits before it takes its place: until it has ended, if its own strategy
// says so, or until no person's pause holds it, if nobody asked for the other one. Empty: none is waited for.
func Ahead(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) string {
	first := running(r, ref, ro.GetRollout().GetNumber())
	if rollout.Succeed(first.GetRollout().GetStrategy().GetOnSupersede()) == rollout.StartLater || ro.GetUnasked() && pausedByPerson(first) {
		return first.GetRollout().GetId()
	}
	return ""
}

// pausedByPerson reports that a person paused a rollout.
func pausedByPerson(ro *storev1.RolloutRecord) bool {
	return StateOf(ro) == rollout.Paused && ro.GetRollout().GetStatus().GetReason() == rollout.ReasonPausedByUser
}

// PausedByPerson reports that a person paused the rollout that runs.
func PausedByPerson(r store.Reader, ref fleet.ModuleRef) bool { return PausedRollout(r, ref) != "" }

// PausedRollout is the ID of the rollout that runs if a person paused it; empty: nobody did.
func PausedRollout(r store.Reader, ref fleet.ModuleRef) string {
	ro := running(r, ref, math.MaxInt64)
	if !pausedByPerson(ro) {
		return ""
	}
	return ro.GetRollout().GetId()
}

// OfGeneration is the module's newest rollout of what it was at a generation; nil: there is none.
func OfGeneration(r store.Reader, ref fleet.ModuleRef, generation int64) *storev1.RolloutRecord {
	return newest(r, ref, func(o *storev1.RolloutRecord) bool { return o.GetRollout().GetModuleGeneration() == generation })
}

// Rejecting is the ID of the rollout that runs if it lets no other begin; empty: another one may.
func Rejecting(r store.Reader, ref fleet.ModuleRef) string {
	first := running(r, ref, math.MaxInt64).GetRollout()
	if rollout.Succeed(first.GetStrategy().GetOnSupersede()) != rollout.Refused {
		return ""
	}
	return first.GetId()
}

// running is the newest rollout below a number that has a revision and has not ended; nil: none has. What waits for its revision has
// no say in what comes after it.
func running(r store.Reader, ref fleet.ModuleRef, below int64) *storev1.RolloutRecord {
	return newest(r, ref, func(o *storev1.RolloutRecord) bool {
		return o.GetRollout().GetNumber() < below && o.GetRollout().GetRevision() != 0 && !Ended(o)
	})
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

// Damaged is the number of the module's newest rollout if its record is damaged, and says what to do; 0: it is not.
// Nothing older is driven in its place.
func Damaged(r store.Reader, ref fleet.ModuleRef) (number int64, what string) {
	number = DamagedNumber(r, store.ChunkPrefix, ref)
	for _, prefix := range prefixes {
		number = max(number, DamagedNumber(r, prefix, ref))
	}
	if first, _ := First(r, ref); number == 0 || number < first {
		return 0, ""
	}
	for _, ro := range List(r, ref) {
		if ro.GetRollout().GetNumber() > number && ro.GetRollout().GetRevision() != 0 {
			return 0, ""
		}
	}
	id := fleet.RolloutID{Module: ref, Number: number}
	return number, fmt.Sprintf("the hub's record of rollout %s is damaged: it moves nothing any more, and its clusters keep what they have. Put the module again (towline apply): that begins a new one; pins that were set since the one before have to be set again", id)
}

// DamagedNumber is the highest number of the module's records under the prefix that are damaged; 0: none is.
func DamagedNumber(r store.Reader, prefix string, ref fleet.ModuleRef) (number int64) {
	for _, d := range r.Damaged(prefix + ref.String() + "/") {
		if n, ok := store.SplitNumber(d.Key); ok {
			number = max(number, n)
		}
	}
	return number
}

// OfLook reports that a look at its source began a rollout that has no revision yet, or never got one.
func OfLook(ro *storev1.RolloutRecord) bool { return len(ro.GetFetched()) > 0 }

// ModuleOf is the module of a rollout.
func ModuleOf(ro *storev1.RolloutRecord) fleet.ModuleRef {
	x := ro.GetRollout()
	return fleet.ModuleRef{Project: x.GetMetadata().GetProject(), Name: x.GetModule()}
}

// PutsMissing reports that a rollout did not begin because the rest of what it was put with never came.
func PutsMissing(ro *storev1.RolloutRecord) bool {
	return StateOf(ro) == rollout.Failed && ro.GetRollout().GetStatus().GetReason() == rollout.ReasonPutsMissing
}

// Ended reports that a rollout decides nothing new for its plan.
func Ended(ro *storev1.RolloutRecord) bool { return StateOf(ro).Ended() }

// StateOf is the state in which a rollout is.
func StateOf(ro *storev1.RolloutRecord) rollout.RunState {
	return rollout.RunState(ro.GetRollout().GetStatus().GetState())
}
