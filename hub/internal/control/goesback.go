package control

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// goesBack is how the source goes back with a revision, though the module names the same ref as in the one before: a signature is of a commit, or of
// a digest, and says nothing of what a branch or a tag is to have now, so that whoever may write there can put an older one back under it, and a
// server that is behind has it still. A person may do so as well, and it is no error; that it goes back is said. A revert that is a commit of its
// own goes forward. Why is empty where it does not go back.
func goesBack(r store.Reader, ref fleet.ModuleRef, next, before *towlinev1.Revision) (b follow.Back) {
	if filesIn(next) == "" || filesIn(next) == filesIn(before) || !sameRef(next.GetSpec().GetSource(), before.GetSpec().GetSource()) {
		return b
	}
	var had int64
	store.Scan(store.Untracked(r), store.RevisionPrefix+ref.String()+"/", func(rec *storev1.RevisionRecord, _ store.Entry) bool {
		if x := rec.GetRevision(); filesIn(x) == filesIn(next) && x.GetNumber() < before.GetNumber() {
			had = x.GetNumber()
			if x.GetGoesBack() != "" {
				b.Before = x.GetMetadata().GetCreationTimestamp().AsTime()
			}
		}
		return true
	})
	then, now := before.GetSourceTime(), next.GetSourceTime()
	dated := then != nil && now != nil
	switch {
	case had != 0:
		b.Why = fmt.Sprintf("the source goes back to %s, which r%d had", filesIn(next), had)
		b.Newer = dated && now.AsTime().After(then.AsTime())
	case dated && now.AsTime().Before(then.AsTime()):
		b.Why = fmt.Sprintf("the source goes back to %s of %s, which is older than that of r%d, of %s", filesIn(next), now.AsTime().UTC().Format(time.RFC3339),
			before.GetNumber(), then.AsTime().UTC().Format(time.RFC3339))
	}
	return b
}

// filesIn names what a revision was rendered from: what its source's ref was, or by themselves the files of a source that has none, as one of http.
func filesIn(rev *towlinev1.Revision) string {
	if ref := rev.GetResolvedRef(); ref != "" || rev.GetArtifact() == "" {
		return ref
	}
	return "sha256:" + rev.GetArtifact()
}

// revisionFrom is what a revision of the module says of its source, as far as goesBack goes by it.
func revisionFrom(m *storev1.ModuleRecord, ref string, artifact fleet.Digest, made time.Time) *towlinev1.Revision {
	rev := &towlinev1.Revision{Spec: m.GetModule().GetSpec(), ResolvedRef: ref, Artifact: artifact.String()}
	if !made.IsZero() {
		rev.SourceTime = timestamppb.New(made)
	}
	return rev
}

// steady is an error where the source goes back with what was fetched and nobody asked for it, until it does so for good (see follow.Back). What a
// person has put is taken as it comes, and so is what another module of the source goes back to.
func (c *Controller) steady(ctx context.Context, v *verdict) error {
	if v.s.found.Uncut {
		return nil
	}
	var b follow.Back
	if err := c.view(ctx, func(r store.Reader) error {
		b = goesBack(r, v.s.ref, revisionFrom(v.s.rec, v.artifact.Ref, v.artifact.Digest, v.artifact.Made), v.s.newest.GetRevision())
		return nil
	}); err != nil {
		return err
	}
	if !b.Goes() {
		return nil
	}
	if len(v.asks) > 0 {
		v.backs = true
		return nil
	}
	found, was := v.artifact.Digest.Bytes(), follow.Sightings{Files: string(v.s.memory.GetBack()), Seen: int(v.s.memory.GetBackSeen())}
	next, why, soon := b.Look(was, string(found), v.backs, time.Now(), "towline resync "+v.s.ref.Display())
	v.next.Back, v.next.BackSeen = found, int32(next.Seen) // also where a pause or another rollout is in the way: that ends, and this is not counted anew
	if v.backs = why == ""; v.backs {
		return nil
	}
	if v.s.called && soon { // something has changed just now: it need not take the interval to find out what
		c.looks.call(v.s.ref, time.Now().Add(calledAgain), true)
	}
	return &lookError{fleet.Errorf(fleet.ErrPrecondition, "module %s: %s", v.s.ref.Display(), why), follow.ReasonGoesBack}
}

// fellBack is why a rollout that a look began is not to have what was fetched for its revision; empty: it is. Between the two another server of the
// source may have answered, which is behind.
func fellBack(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord, ro *storev1.RolloutRecord, made rendered) string {
	by := ro.GetRollout().GetStatus().GetStartedBy()
	if by != record.ByFollow && by != record.ByWebhook || record.Digest(ro.GetFetched()) == made.artifact {
		return ""
	}
	newest := record.NewestRevision(r, ref)
	if newest.GetRevision().GetModuleGeneration() != m.GetModule().GetMetadata().GetGeneration() {
		return "" // a person has put it
	}
	b := goesBack(r, ref, revisionFrom(m, made.ref, made.artifact, made.sourceTime), newest.GetRevision())
	if !b.Goes() {
		return ""
	}
	return b.Why + ", and not to what a look at it found: it is looked at again"
}

// sameRef reports that two sources are the same place with the same ref, however it is looked at.
func sameRef(a, b *towlinev1.Source) bool {
	return a != nil && b != nil && proto.Equal(placeOf(a), placeOf(b))
}

// placeOf is a source without how often it is looked at, and how what is there is verified.
func placeOf(s *towlinev1.Source) *towlinev1.Source {
	s = proto.CloneOf(s)
	if s != nil {
		s.Follow, s.Verify = nil, nil
	}
	return s
}

// saysBack has a rollout say why it is, where its source goes back.
func saysBack(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord, number int64) *storev1.RolloutRecord {
	rev, _, _ := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(ref, number))
	back := rev.GetRevision().GetGoesBack()
	if back == "" {
		return ro
	}
	ro = proto.CloneOf(ro)
	s := ro.GetRollout().GetStatus()
	if s.GetStartReason() != "" {
		back = s.GetStartReason() + "; " + back
	}
	s.StartReason = back
	return ro
}
