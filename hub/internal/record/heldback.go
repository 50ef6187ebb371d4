package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// heldBack reports that a module is of the catalog or the set that the one is of, too, and that what the files say of it has come to nothing at
// its source, or is not put for now. What the files move from the one to the other may be listed by that: what it is to list is not known until its
// source can be had, or it is put. The same holds, of a catalog, a set or neither, where what it was put together with never came: the one may be
// of that, in their project.
func (l *letting) heldBack(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if ref == l.ref {
		return false
	}
	r = store.Untracked(r)
	if ref.Project == l.ref.Project && rollouts.PutsMissing(rollouts.Last(r, ref)) {
		return true
	}
	return l.together(ref, rec) && (Stalled(r, ref, rec) || leftOut(r, ref, rec))
}

// together reports that a module is of the catalog that the one is of, or of its set, which is one of a project.
func (l *letting) together(ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if rec.GetOriginUid() != "" || l.rec.GetOriginUid() != "" {
		return rec.GetOriginUid() == l.rec.GetOriginUid()
	}
	of := rec.GetModule().GetMetadata().GetOrigin()
	return of != "" && ref.Project == l.ref.Project && of == l.rec.GetModule().GetMetadata().GetOrigin()
}

// leftOut reports that the catalog of a module has something of it in its files that is put later.
func leftOut(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	name, _ := fleet.OfCatalog(rec.GetModule().GetMetadata().GetOrigin())
	state, _, _ := store.Get[*storev1.CatalogState](r, store.CatalogStateKey(fleet.ModuleRef{Project: ref.Project, Name: name}))
	return state.GetCatalogUid() == rec.GetOriginUid() && LeavesOut(state.GetStatus(), ref.Name)
}

// LeavesOut reports that a catalog says that it puts a module later: something is in the way for now.
func LeavesOut(s *towlinev1.CatalogStatus, module string) bool {
	for _, c := range s.GetConflicts() {
		if c.GetModule() == module && (c.GetReason() == catalog.Paused || c.GetReason() == catalog.Stopped) {
			return true
		}
	}
	for _, w := range s.GetWaits() {
		if w.GetModule() == module && w.GetFile() != "" {
			return true
		}
	}
	return false
}
