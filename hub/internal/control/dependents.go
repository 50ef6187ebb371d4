package control

import (
	"slices"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// againDependents is how soon it is looked again whether modules that depend on a deleted one, and are deleted too, were told to go. They
// say so themselves when they are; this is for those that are deleted no more.
const againDependents = 5 * time.Second

// afterDependents leaves the removal for later in clusters where modules that depend on the deleted one are to be deleted, too, and were
// not told to go yet: from then on the agent keeps the order.
func (x *remains) afterDependents(r store.Reader, ref fleet.ModuleRef) {
	deleting := deletingIn(r, ref.Project)
	if len(deleting) < 2 {
		return
	}
	elsewhere := dependentsElsewhere(r, ref, deleting)
	now := x.have[:0]
	for _, cluster := range x.have {
		if waitsForDependents(r, cluster, ref, deleting) || elsewhere.concern(r, cluster) {
			x.waits, x.later = x.waits+1, x.later+1
			continue
		}
		now = append(now, cluster)
	}
	x.have = now
}

// waitsForDependents reports that a deleted module has a sync in the cluster that depends on another one. In a circle none waits.
func waitsForDependents(r store.Reader, cluster fleet.ClusterName, ref fleet.ModuleRef, deleting []fleet.ModuleRef) bool {
	of := func(m fleet.ModuleRef) []fleet.ModuleRef {
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(cluster, m))
		if !slices.Contains(deleting, m) || d.GetSync() == nil {
			return nil
		}
		s, err := wire.SyncFromProto(d.GetSync())
		if err != nil {
			return nil
		}
		return s.DependsOn
	}
	return slices.ContainsFunc(deleting, func(m fleet.ModuleRef) bool {
		return slices.Contains(of(m), ref) && !assemble.Reaches(ref, m, of)
	})
}

// setSelectors are clusters in which a deleted module stays until modules are gone everywhere that depend on it there.
type setSelectors []*fleet.Selector

// dependentsElsewhere are the clusters in which modules depend on a deleted one that are deleted, too, and are not gone yet. In a circle
// none waits.
func dependentsElsewhere(r store.Reader, ref fleet.ModuleRef, deleting []fleet.ModuleRef) (out setSelectors) {
	specOf := func(m fleet.ModuleRef) *towlinev1.ModuleSpec {
		rec, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(r), store.ModuleKey(m))
		return rec.GetModule().GetSpec()
	}
	of := func(m fleet.ModuleRef) []fleet.ModuleRef {
		if !slices.Contains(deleting, m) {
			return nil
		}
		return wire.DependenciesOf(m, specOf(m))
	}
	for _, m := range deleting {
		for _, d := range wire.SetsOf(m, specOf(m)) {
			if d.Module == ref && !assemble.Reaches(ref, m, of) {
				out = append(out, d.Clusters)
			}
		}
	}
	return out
}

func (x setSelectors) concern(r store.Reader, cluster fleet.ClusterName) bool {
	if len(x) == 0 {
		return false
	}
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(cluster))
	return ok && slices.ContainsFunc(x, func(s *fleet.Selector) bool { return s.Matches(record.Cluster(rec).Labels) })
}

// deletingIn are the modules of a project that are being deleted.
func deletingIn(r store.Reader, project string) (out []fleet.ModuleRef) {
	store.Scan(store.Untracked(r), store.ModulePrefix+project+"/", func(rec *storev1.ModuleRecord, e store.Entry) bool {
		if ref, ok := store.SplitModule(e.Key); ok && rec.GetDeleting() != "" {
			out = append(out, ref)
		}
		return true
	})
	return out
}

// touchDependencies has what a deleted module depends on looked at: it may have waited for this one.
func (c *Controller) touchDependencies(ref fleet.ModuleRef, rec *storev1.ModuleRecord) {
	for _, m := range wire.DependenciesOf(ref, rec.GetModule().GetSpec()) {
		c.modules.add(store.ModuleKey(m))
	}
}
