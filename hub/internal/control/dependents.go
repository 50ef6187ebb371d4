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
	sets := setsOn(r, ref, deleting)
	now := x.have[:0]
	for _, cluster := range x.have {
		if waitsForDependents(r, cluster, ref, deleting, sets) {
			x.waits, x.later = x.waits+1, x.later+1
			continue
		}
		now = append(now, cluster)
	}
	x.have = now
}

// waitsForDependents reports that a deleted module depends on another one and is not gone: by the sync that it has in the cluster, or by its spec, as a
// set of clusters to which this one belongs. In a circle none waits, whatever it is made of: what is assigned may be of an older revision.
func waitsForDependents(r store.Reader, cluster fleet.ClusterName, ref fleet.ModuleRef, deleting []fleet.ModuleRef, sets map[fleet.ModuleRef]setSelectors) bool {
	of := func(m fleet.ModuleRef) []fleet.ModuleRef {
		if !slices.Contains(deleting, m) {
			return nil
		}
		return append(assignedOn(r, cluster, m), wire.DependenciesOf(m, specOf(r, m))...)
	}
	return slices.ContainsFunc(deleting, func(m fleet.ModuleRef) bool {
		return (slices.Contains(assignedOn(r, cluster, m), ref) || sets[m].concern(r, cluster)) && !assemble.Reaches(ref, m, of)
	})
}

// assignedOn are the modules on which one depends by the sync that it has in a cluster.
func assignedOn(r store.Reader, cluster fleet.ClusterName, m fleet.ModuleRef) []fleet.ModuleRef {
	d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(cluster, m))
	if d.GetSync() == nil {
		return nil
	}
	s, err := wire.SyncFromProto(d.GetSync())
	if err != nil {
		return nil
	}
	return s.DependsOn
}

func specOf(r store.Reader, m fleet.ModuleRef) *towlinev1.ModuleSpec {
	rec, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(r), store.ModuleKey(m))
	return rec.GetModule().GetSpec()
}

// setSelectors are clusters in which a deleted module stays until a module is gone everywhere that depends on it there.
type setSelectors []*fleet.Selector

// setsOn are the clusters in which deleted modules depend on one by their specs.
func setsOn(r store.Reader, ref fleet.ModuleRef, deleting []fleet.ModuleRef) map[fleet.ModuleRef]setSelectors {
	out := map[fleet.ModuleRef]setSelectors{}
	for _, m := range deleting {
		for _, d := range wire.SetsOf(m, specOf(r, m)) {
			if d.Module == ref {
				out[m] = append(out[m], d.Clusters)
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
