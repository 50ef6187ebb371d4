package control

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// goesBack is how the source goes back with a revision, though the module names the same ref as in the one before: a signature is of a commit, or of
// a digest, and says nothing of what a branch or a tag is to have now, so that whoever may write there can put an older one back under it. A person
// may do so as well, and it is no error; that it goes back is said. A revert that is a commit of its own goes forward.
func goesBack(r store.Reader, ref fleet.ModuleRef, next, before *towlinev1.Revision) string {
	if next.GetResolvedRef() == "" || next.GetResolvedRef() == before.GetResolvedRef() || !sameRef(next.GetSpec().GetSource(), before.GetSpec().GetSource()) {
		return ""
	}
	var had int64
	store.Scan(store.Untracked(r), store.RevisionPrefix+ref.String()+"/", func(rec *storev1.RevisionRecord, _ store.Entry) bool {
		if x := rec.GetRevision(); x.GetResolvedRef() == next.GetResolvedRef() && x.GetNumber() < before.GetNumber() {
			had = x.GetNumber()
		}
		return true
	})
	then, now := before.GetSourceTime(), next.GetSourceTime()
	switch {
	case had != 0:
		return fmt.Sprintf("the source goes back to %s, which r%d had", next.GetResolvedRef(), had)
	case then != nil && now != nil && now.AsTime().Before(then.AsTime()):
		return fmt.Sprintf("the source goes back to %s of %s, which is older than that of r%d, of %s", next.GetResolvedRef(), now.AsTime().UTC().Format(time.RFC3339),
			before.GetNumber(), then.AsTime().UTC().Format(time.RFC3339))
	}
	return ""
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
