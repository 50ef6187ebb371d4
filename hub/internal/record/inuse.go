package record

import (
	"maps"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Assigned are the revisions of modules that clusters are assigned, or have while what they are assigned cannot be made; and the modules that
// leave some cluster for good: they were deleted, or had the name of a module before.
func Assigned(r store.Reader) (revisions map[fleet.ModuleRef]map[int64]bool, leaving map[fleet.ModuleRef]bool) {
	revisions, leaving = map[fleet.ModuleRef]map[int64]bool{}, map[fleet.ModuleRef]bool{}
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		_, ref, ok := store.SplitClusterModule(e.Key)
		if !ok {
			return true
		}
		if revisions[ref] == nil {
			revisions[ref] = map[int64]bool{}
		}
		revisions[ref][d.GetSync().GetRevision()], revisions[ref][d.GetProblemRevision()], revisions[ref][d.GetNextRevision()] = true, true, true
		if d.GetFinal() {
			leaving[ref] = true
		}
		return true
	})
	return revisions, leaving
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
// that are being deleted have none; one whose record is damaged has. No commit depends on what it reads.
func InUse(r store.Reader, project string, fn func(fleet.ModuleRef, *storev1.RevisionRecord)) {
	r = store.Untracked(r)
	prefix := store.ModulePrefix
	if project != "" {
		prefix += project + "/"
	}
	assigned, _ := Assigned(r)
	of := func(key string) {
		if ref, ok := store.SplitModule(key); ok {
			used := LedTo(r, ref)
			maps.Copy(used, assigned[ref])
			eachOf(r, ref, used, fn)
		}
	}
	store.Scan(r, prefix, func(m *storev1.ModuleRecord, e store.Entry) bool {
		if m.GetDeleting() == "" {
			of(e.Key)
		}
		return true
	})
	for _, d := range r.Damaged(prefix) {
		of(d.Key)
	}
}

// eachOf calls fn for those of these revisions of a module that are there.
func eachOf(r store.Reader, ref fleet.ModuleRef, used map[int64]bool, fn func(fleet.ModuleRef, *storev1.RevisionRecord)) {
	for _, n := range rollouts.Revisions(r, ref) {
		if used[n] {
			fn(ref, Revision(r, ref, n))
		}
	}
}

// Needed are what the revisions in use of each of a project's modules depend on.
func Needed(r store.Reader, project string) map[fleet.ModuleRef][]fleet.ModuleRef {
	out := map[fleet.ModuleRef][]fleet.ModuleRef{}
	InUse(r, project, func(ref fleet.ModuleRef, rev *storev1.RevisionRecord) {
		out[ref] = append(out[ref], wire.DependenciesOf(ref, rev.GetRevision().GetSpec())...)
	})
	return out
}

// Needs reports that a module depends on another as it was put last, or by a revision in use.
func Needs(r store.Reader, ref, on fleet.ModuleRef) bool {
	r = store.Untracked(r)
	m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if m.GetDeleting() != "" || !ok && store.DamageOf(r, store.ModuleKey(ref)) == nil {
		return false
	}
	needs := slices.Contains(wire.DependenciesOf(ref, m.GetModule().GetSpec()), on)
	look := func(_ fleet.ModuleRef, rev *storev1.RevisionRecord) {
		needs = needs || slices.Contains(wire.DependenciesOf(ref, rev.GetRevision().GetSpec()), on)
	}
	if eachOf(r, ref, LedTo(r, ref), look); !needs { // what all clusters are assigned is asked for last: there may be many
		assigned, _ := Assigned(r)
		eachOf(r, ref, assigned[ref], look)
	}
	return needs
}

// Unreadable are the clusters where the module is assigned and whose own records cannot be read, so that nobody knows their labels, or what they are to
// be given.
func Unreadable(r store.Reader, ref fleet.ModuleRef) (clusters []fleet.ClusterName) {
	for _, d := range r.Damaged(store.ClusterPrefix) {
		name := fleet.ClusterName(strings.TrimPrefix(d.Key, store.ClusterPrefix))
		if _, ok := r.Get(store.DesiredKey(name, ref)); ok {
			clusters = append(clusters, name)
		}
	}
	return clusters
}
