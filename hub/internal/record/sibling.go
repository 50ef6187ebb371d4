package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// Behind reports that a module follows the source that another one has, too, and does not take up what that has there: it cannot be fetched
// or rendered, or may not begin, or failed before it had a revision. What it is going to list is not known until it does. While its put
// waits for its revision it is not behind.
func Behind(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, other fleet.ModuleRef) bool {
	src := rec.GetModule().GetSpec().GetSource()
	if src.GetFollow() == nil || ref == other {
		return false
	}
	r = store.Untracked(r)
	m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(other))
	upstream := wire.Upstream(src)
	if !ok || upstream == "" || wire.Upstream(m.GetModule().GetSpec().GetSource()) != upstream || rollouts.Unresolved(r, ref) != nil {
		return false
	}
	if SourceFailed(r, ref) {
		return true
	}
	f := Followed(r, ref, rec)
	switch f.GetReason() {
	case "":
		return false
	case follow.ReasonUnavailable, follow.ReasonNotFound, follow.ReasonDenied, follow.ReasonNeedsSecret, follow.ReasonUnverified:
		// A server that is away is so for both: what both have seen is known.
		seen := seenRef(r, other, m)
		return seen == "" || seen != f.GetResolvedRef()
	}
	return true
}

// seenRef is what the ref of a module's source came to when that was fetched last; empty: that is not known, or it has none.
func seenRef(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) string {
	f, newest := Followed(r, ref, m), NewestRevision(r, ref)
	if cut := newest.GetRevision().GetMetadata().GetCreationTimestamp(); f == nil || cut.AsTime().After(f.GetLooked().AsTime()) {
		return newest.GetRevision().GetResolvedRef()
	}
	return f.GetResolvedRef()
}
