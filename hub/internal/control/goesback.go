package control

import (
	"context"
	"fmt"
	"path"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// goesBack is how the source goes back with a revision, though the module names the same ref as in the one before: a signature is of a commit, or of
// a digest, and says nothing of what a branch or a tag is to have now, so that whoever may write there can put an older one back under it, and a
// server that is behind has it still. A person may do so as well, and it is no error; that it goes back is said. A revert that is a commit of its
// own goes forward. Why is empty where it does not go back.
func goesBack(r store.Reader, ref fleet.ModuleRef, next, before *towlinev1.Revision) (b follow.Back) {
	by := filesIn
	if by(next) == by(before) { // its charts may depend on others, which another server has
		by = (*towlinev1.Revision).GetArtifact
	}
	if by(next) == "" || by(next) == by(before) || !sameRef(next.GetSpec().GetSource(), before.GetSpec().GetSource()) {
		return b
	}
	var had int64
	for _, x := range revisionsWith(r, ref, by, next) {
		if x.GetNumber() >= before.GetNumber() {
			continue
		}
		had = x.GetNumber()
		if x.GetGoesBack() != "" {
			b.Before = x.GetMetadata().GetCreationTimestamp().AsTime()
		}
	}
	then, now := before.GetSourceTime(), next.GetSourceTime()
	dated, lower := then != nil && now != nil, lowerChart(next, before)
	switch {
	case had != 0:
		b.Why = goesTo(by(next), had)
		b.Newer = dated && now.AsTime().After(then.AsTime()) && lower == ""
	case follow.Lower(next.GetResolvedRef(), before.GetResolvedRef(), ranged(next.GetSpec().GetSource())):
		b.Why = fmt.Sprintf("the source goes back to %s, which is a lower version than that of r%d, %s", filesIn(next), before.GetNumber(), filesIn(before))
	case dated && now.AsTime().Before(then.AsTime()):
		b.Why = fmt.Sprintf("the source goes back to %s of %s, which is older than that of r%d, of %s", filesIn(next), now.AsTime().UTC().Format(time.RFC3339),
			before.GetNumber(), then.AsTime().UTC().Format(time.RFC3339))
	case lower != "":
		b.Why = lower
	}
	return b
}

// ranged reports that what the ref of a source comes to is found by a range of versions.
func ranged(s *towlinev1.Source) bool {
	return s.GetHelm() != nil || s.GetGit().GetRef().GetSemver() != "" || s.GetOci().GetRef().GetSemver() != ""
}

// lowerChart is how what a chart depends on goes back to a lower version, by the same range as before: its server may be behind, whatever the chart
// itself is of. Empty: nothing does, or a hub of before has noted no versions.
func lowerChart(next, before *towlinev1.Revision) string {
	for _, was := range before.GetCharts() {
		for _, is := range next.GetCharts() {
			same := is.GetIn() == was.GetIn() && is.GetName() == was.GetName() && is.GetRange() == was.GetRange() && is.GetRepository() == was.GetRepository()
			if same && follow.LowerVersion(is.GetVersion(), was.GetVersion()) {
				return fmt.Sprintf("the source goes back to version %s of chart %s, on which it depends, and which is lower than that of r%d, %s",
					is.GetVersion(), path.Join(is.GetIn(), is.GetName()), before.GetNumber(), was.GetVersion())
			}
		}
	}
	return ""
}

func goesTo(files string, had int64) string {
	return fmt.Sprintf("the source goes back to %s, which r%d had", files, had)
}

// revisionsWith are the revisions that have the same as one, by what names that, in their order.
func revisionsWith(r store.Reader, ref fleet.ModuleRef, by func(*towlinev1.Revision) string, next *towlinev1.Revision) (out []*towlinev1.Revision) {
	store.Scan(store.Untracked(r), store.RevisionPrefix+ref.String()+"/", func(rec *storev1.RevisionRecord, _ store.Entry) bool {
		if x := rec.GetRevision(); by(x) != "" && by(x) == by(next) {
			out = append(out, x)
		}
		return true
	})
	return out
}

// hadBefore is why something is no other thing than what was aborted, but what the module had before that; empty: it had not.
func hadBefore(r store.Reader, ref fleet.ModuleRef, next *towlinev1.Revision) string {
	had := revisionsWith(r, ref, filesIn, next)
	if len(had) == 0 {
		return ""
	}
	return goesTo(filesIn(next), had[len(had)-1].GetNumber())
}

// undoneBefore is that the source has once more what an older revision of the same manifest had, and that this one was rolled back or aborted; empty: none
// was. Something else may have come in between because a server was behind.
func undoneBefore(r store.Reader, ref fleet.ModuleRef, next *towlinev1.Revision) (why string) {
	for _, x := range revisionsWith(r, ref, filesIn, next) {
		if x.GetArtifact() != next.GetArtifact() || !proto.Equal(x.GetSpec(), next.GetSpec()) {
			continue
		}
		why = ""
		switch state := lastStateOf(r, ref, x.GetNumber()); state {
		case rollout.RolledBack, rollout.RollingBack, rollout.Aborted:
			why = fmt.Sprintf("the source has again what r%d had, whose rollout is %s", x.GetNumber(), state)
		}
	}
	return why
}

// lastStateOf is that of the newest rollout that led to a revision; empty: none is kept.
func lastStateOf(r store.Reader, ref fleet.ModuleRef, revision int64) (state rollout.RunState) {
	for _, ro := range rollouts.List(r, ref) {
		if ro.GetRollout().GetRevision() == revision {
			state = rollouts.StateOf(ro)
		}
	}
	return state
}

// filesIn names what a revision was rendered from: what its source's ref was, or by themselves the files of a source that has none, as one of http.
func filesIn(rev *towlinev1.Revision) string {
	if ref := rev.GetResolvedRef(); ref != "" || rev.GetArtifact() == "" {
		return ref
	}
	return "sha256:" + rev.GetArtifact()
}

// revisionFrom is what a revision of the module says of its source, as far as goesBack goes by it.
func revisionFrom(m *storev1.ModuleRecord, a source.Artifact) *towlinev1.Revision {
	rev := &towlinev1.Revision{Spec: m.GetModule().GetSpec(), ResolvedRef: a.Ref, Artifact: a.Digest.String(), Charts: a.Charts}
	if !a.Made.IsZero() {
		rev.SourceTime = timestamppb.New(a.Made)
	}
	return rev
}

// steady is an error where the source goes back with what was fetched and nobody asked for it, until it does so for good (see follow.Back). What a
// person has put is taken as it comes, and so is what another module of the source goes back to.
func (c *Controller) steady(ctx context.Context, v *verdict) error {
	if v.s.found.Uncut && !v.s.aborted {
		return nil
	}
	var b follow.Back
	undone := ""
	if err := c.view(ctx, func(r store.Reader) error {
		next := revisionFrom(v.s.rec, v.artifact)
		if b = goesBack(r, v.s.ref, next, v.s.newest.GetRevision()); v.s.aborted && b.Why == "" {
			b.Why = hadBefore(r, v.s.ref, next)
		}
		if len(v.asks) == 0 && !v.s.found.Uncut {
			undone = undoneBefore(r, v.s.ref, next)
		}
		return nil
	}); err != nil {
		return err
	}
	if undone != "" {
		return &lookError{fleet.Errorf(fleet.ErrPrecondition, "module %s: %s; to roll it out nevertheless: towline resync %s", v.s.ref.Display(), undone, v.s.ref.Display()), follow.ReasonRolledBack}
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
	b := goesBack(r, ref, revisionFrom(m, source.Artifact{Ref: made.ref, Digest: made.artifact, Made: made.sourceTime, Charts: made.charts}), newest.GetRevision())
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
