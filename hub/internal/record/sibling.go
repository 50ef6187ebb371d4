package record

import (
	"context"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// Behind reports that a module follows the source that another one has, too, and does not take up what that has there: it cannot be fetched
// or rendered, or may not begin, or failed before it had a revision, or has not been looked at since. What it is going to list is not known
// until it does. While its put waits for its revision it is not behind.
func Behind(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, other fleet.ModuleRef) bool {
	r = store.Untracked(r)
	m := sibling(r, ref, rec, other)
	if m == nil || rollouts.Unresolved(r, ref) != nil {
		return false
	}
	if SourceFailed(r, ref) {
		return true
	}
	f := said(r, ref, rec)
	switch reason := f.GetReason(); {
	case reason == "":
		return unseen(r, ref, rec, f, other)
	case follow.OfServer(reason):
		// A server that is away is so for both: what both have seen, and taken up, is known.
		seen := seenRef(r, other, m)
		return seen == "" || seen != f.GetResolvedRef()
	}
	return true
}

// sibling is the other module, if the module follows the source that it has, too; nil: it does not.
func sibling(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, other fleet.ModuleRef) *storev1.ModuleRecord {
	src := rec.GetModule().GetSpec().GetSource()
	upstream := wire.Upstream(src)
	if src.GetFollow() == nil || ref == other || upstream == "" {
		return nil
	}
	if m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(other)); ok && wire.Upstream(m.GetModule().GetSpec().GetSource()) == upstream {
		return m
	}
	return nil
}

// unlooked reports that a module is behind another one (see Behind) only because nobody has looked for it at what the other's newest
// revision has: a look ends that.
func unlooked(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, other fleet.ModuleRef) bool {
	r = store.Untracked(r)
	if sibling(r, ref, rec, other) == nil || SourceFailed(r, ref) {
		return false
	}
	f := said(r, ref, rec)
	return f.GetReason() == "" && unseen(r, ref, rec, f, other)
}

// said is what came of the last look at the source of a module; nil: nothing that still holds.
func said(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) *storev1.FollowRecord {
	if f := Followed(r, ref, rec); !Mended(r, ref, f) {
		return f
	}
	return nil
}

// unseen reports that the other's newest revision is of something in their source that was fetched for the module neither by a look nor for
// a revision. A look after that revision has seen that, or what is there instead.
func unseen(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, f *storev1.FollowRecord, other fleet.ModuleRef) bool {
	has := took(r, rec, other)
	if has == nil {
		return false
	}
	if f != nil && f.GetLooked().AsTime().After(has.GetRevision().GetMetadata().GetCreationTimestamp().AsTime()) {
		return false
	}
	if to := has.GetRevision().GetResolvedRef(); to != "" {
		return seenRef(r, ref, rec) != to && NewestRevision(r, ref).GetRevision().GetResolvedRef() != to
	}
	files := Digest(has.GetArtifact()) // of what has no ref it is all that there is
	return Digest(f.GetFetched()) != files && Digest(NewestRevision(r, ref).GetArtifact()) != files
}

// took is the newest revision of the other module, if that is of the source that the module has; nil: it is not, or not yet.
func took(r store.Reader, rec *storev1.ModuleRecord, other fleet.ModuleRef) *storev1.RevisionRecord {
	has := NewestRevision(r, other)
	if has == nil || wire.Upstream(has.GetRevision().GetSpec().GetSource()) != wire.Upstream(rec.GetModule().GetSpec().GetSource()) {
		return nil
	}
	return has
}

// behind reports that a module follows the source that another one has, too, and that its draft is broken, or of something that was there
// before what the other's newest revision is of.
func (d Draft) behind(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, other fleet.ModuleRef) bool {
	r = store.Untracked(r)
	if !d.Failed && !d.Known || sibling(r, ref, rec, other) == nil {
		return false
	}
	return d.Failed || d.outdated(took(r, rec, other))
}

func (d Draft) outdated(has *storev1.RevisionRecord) bool {
	if has == nil || d.At.After(has.GetRevision().GetMetadata().GetCreationTimestamp().AsTime()) {
		return false
	}
	if to := has.GetRevision().GetResolvedRef(); to != "" {
		return d.Ref != to
	}
	return d.Files != Digest(has.GetArtifact())
}

// Unlooked reports that a module may be anything's heir only because nobody has looked for it at what the newest revision of the one has that
// lets go: a look ends that, or the source of its put, which is queued, is fetched again.
func (x *Succession) Unlooked(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	ro, queued := comes(r, ref)
	if ro == nil {
		return unlooked(r, ref, rec, x.ref)
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil || !queued || x.Drafts == nil {
		return false
	}
	d := x.Drafts(ctx, m, rec, ro.GetRollout().GetNumber())
	return d.Known && !d.Failed && d.behind(r, ref, rec, x.ref)
}

// seenRef is what the ref of a module's source came to when that was fetched last; empty: that is not known, or it has none.
func seenRef(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) string {
	f, newest := Followed(r, ref, m), NewestRevision(r, ref)
	if cut := newest.GetRevision().GetMetadata().GetCreationTimestamp(); f == nil || cut.AsTime().After(f.GetLooked().AsTime()) {
		return newest.GetRevision().GetResolvedRef()
	}
	return f.GetResolvedRef()
}
