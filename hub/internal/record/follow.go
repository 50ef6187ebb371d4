package record

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// ByFollow is who starts a rollout when nobody does: the source has changed, and the module follows it.
const ByFollow = "follow"

// ByWebhook is who starts one that a signed call has asked for.
const ByWebhook = "webhook"

// Ask is who asks for a look at a source, and why.
type Ask struct{ By, Reason string }

// Resynced is what came of a look that a person asked for.
type Resynced struct {
	// Number of the rollout that was started, or waits for its source; 0: nothing has changed.
	Number int64
	// Waits says that the rollout waits for its source.
	Waits bool
	// Ref is what the ref came to.
	Ref string
	// Others are the numbers of the rollouts that were started with it, by their modules.
	Others map[fleet.ModuleRef]int64
}

// News is that the source of a module has something else, as it was looked at.
type News struct {
	Module     fleet.ModuleRef
	UID        string
	Generation int64
	// Rollout is the number of the newest one that there was.
	Rollout int64
	// Ref is what the ref came to, and Fetched the digest of the files.
	Ref     string
	Fetched fleet.Digest
	Ask     Ask
	// Person says that a person asks for it.
	Person bool
}

// StartError is that one of several rollouts may not begin that begin together, so that none of them did.
type StartError struct {
	Module fleet.ModuleRef
	Err    error
}

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap yields the cause.
func (e *StartError) Unwrap() error { return e.Err }

// PausedError is that nothing takes the place of a rollout by itself because a person paused that.
type PausedError struct{ error }

// Unwrap yields the cause.
func (e *PausedError) Unwrap() error { return e.error }

// IsPaused is that error, about a module whose source has something new.
func IsPaused(ref fleet.ModuleRef) error {
	return &PausedError{fleet.Errorf(fleet.ErrPrecondition, "module %s: it has something new, and somebody paused the rollout that runs: towline rollout resume %s, or towline resync %s to begin the new one",
		ref.Display(), ref.Display(), ref.Display())}
}

// Followed is what is known of the looks at the source of a module as it is put; nil: nothing.
func Followed(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) *storev1.FollowRecord {
	f, _, _ := store.Get[*storev1.FollowRecord](store.Untracked(r), store.FollowKey(ref))
	if !SpeaksOf(f, m) {
		return nil
	}
	return f
}

// SpeaksOf reports that what came of a look is about the module as it is put.
func SpeaksOf(f *storev1.FollowRecord, m *storev1.ModuleRecord) bool {
	meta := m.GetModule().GetMetadata()
	return f != nil && f.GetModuleUid() == meta.GetUid() && f.GetGeneration() == meta.GetGeneration()
}

// Mended reports that the last look came to nothing, and that the source was fetched for a revision since: what was wrong is not any more.
// A retry of a rollout that has ended begins its revision anew, and fetches nothing.
func Mended(r store.Reader, ref fleet.ModuleRef, f *storev1.FollowRecord) bool {
	r = store.Untracked(r)
	last := rollouts.Last(r, ref).GetRollout()
	if f.GetReason() == "" || last.GetRevision() == 0 || !begunSince(r, ref, last, f) {
		return false
	}
	before := rollouts.Get(r, ref, last.GetNumber()-1)
	if before == nil && rollouts.Kept(r, ref, last.GetNumber()-1) { // it cannot be read: it may be what was begun anew
		return false
	}
	return before.GetRollout().GetRevision() != last.GetRevision()
}

// begunSince reports that a rollout was given its revision after a look began. While its source is fetched nobody looks. Of a look of before,
// or of before a restore, the clocks say so.
func begunSince(r store.Reader, ref fleet.ModuleRef, ro *towlinev1.Rollout, f *storev1.FollowRecord) bool {
	at := began(r, f)
	if at == 0 {
		return ro.GetMetadata().GetCreationTimestamp().AsTime().After(f.GetLooked().AsTime())
	}
	e, _ := r.Get(store.RolloutKey(ref, ro.GetNumber()))
	return e.CreateRevision == 0 || e.CreateRevision > at
}

// SourceFailed reports that the newest rollout has no revision and waits for none, or that nobody knows what it got: the same spec
// put again is another try.
func SourceFailed(r store.Reader, ref fleet.ModuleRef) bool {
	if damaged, _ := rollouts.Damaged(r, ref); damaged != 0 {
		return true
	}
	ro := rollouts.Get(r, ref, rollouts.Newest(r, ref))
	if rev := ro.GetRollout().GetRevision(); rev != 0 {
		return DamagedRevision(r, ref, rev) != nil
	}
	return ro != nil && rollouts.Unresolved(r, ref) == nil
}

// Stalled reports that the source of a module has failed (see SourceFailed), and that it may have something else than its newest revision:
// a look that began since, and found what that has, shows that nothing is left to be taken up, as where a push was reverted.
func Stalled(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	return SourceFailed(r, ref) && !caughtUp(store.Untracked(r), ref, rec)
}

// caughtUp counts for what the module is put as: of another spec the newest revision does not say what that lists. What cannot be read may be
// what its clusters have.
func caughtUp(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	f, newest, last := Followed(r, ref, rec), NewestRevision(r, ref).GetRevision(), rollouts.Last(r, ref).GetRollout()
	if last == nil || last.GetRevision() != 0 || f.GetCaughtUp() != last.GetNumber() || f.GetReason() != "" || began(r, f) == 0 {
		return false
	}
	damaged, _ := rollouts.Damaged(r, ref)
	return damaged == 0 && newest.GetNumber() == NewestNumber(r, ref) && newest.GetNumber() == f.GetRevision() &&
		newest.GetModuleGeneration() == rec.GetModule().GetMetadata().GetGeneration()
}

// FetchedAt is when the source of a module was fetched for a put: for the newest revision, or in vain for the newest rollout.
func FetchedAt(r store.Reader, ref fleet.ModuleRef) time.Time {
	var at time.Time
	for _, t := range []*timestamppb.Timestamp{
		NewestRevision(r, ref).GetRevision().GetMetadata().GetCreationTimestamp(),
		rollouts.Last(r, ref).GetRollout().GetMetadata().GetCreationTimestamp(),
	} {
		if t != nil && t.AsTime().After(at) {
			at = t.AsTime()
		}
	}
	return at
}
