package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Assigned are the revisions of modules that clusters are assigned, or have while what they are assigned cannot be made.
func Assigned(r store.Reader) map[fleet.ModuleRef]map[int64]bool {
	out := map[fleet.ModuleRef]map[int64]bool{}
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok {
			if out[ref] == nil {
				out[ref] = map[int64]bool{}
			}
			out[ref][d.GetSync().GetRevision()], out[ref][d.GetProblemRevision()], out[ref][d.GetNextRevision()] = true, true, true
		}
		return true
	})
	return out
}

// LedTo are the revisions of a module to which its rollouts lead clusters, also those that come late, or may go back.
func LedTo(r store.Reader, ref fleet.ModuleRef) map[int64]bool {
	out := map[int64]bool{rollouts.Standing(r, ref): true}
	for _, n := range rollouts.OutlookOf(rollouts.Driven(r, ref)).Revisions() {
		out[n] = true
	}
	for _, ro := range rollouts.List(r, ref) {
		if !rollouts.Ended(ro) {
			out[ro.GetRollout().GetRevision()], out[ro.GetRollout().GetFromRevision()] = true, true
		}
	}
	return out
}

// InUse calls fn for every revision of a project's modules, or of all, that clusters have or may come to have without another put. Modules
// that are being deleted have none. No commit depends on what it reads.
func InUse(r store.Reader, project string, fn func(fleet.ModuleRef, *storev1.RevisionRecord)) {
	r = store.Untracked(r)
	prefix := store.ModulePrefix
	if project != "" {
		prefix += project + "/"
	}
	assigned := Assigned(r)
	store.Scan(r, prefix, func(m *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if !ok || m.GetDeleting() != "" {
			return true
		}
		used := LedTo(r, ref)
		for n := range assigned[ref] {
			used[n] = true
		}
		for _, n := range rollouts.Revisions(r, ref) {
			if used[n] {
				fn(ref, Revision(r, ref, n))
			}
		}
		return true
	})
}
