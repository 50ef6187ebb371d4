package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Undone are the modules that are being deleted and of which the agent of a cluster has not said that it is through, each with the word that
// it is to carry out: Delete or Orphan. Those count, too, that go because their catalog does, and what is left of one whose name another has; not those of
// which the cluster is told nothing, for it has taken its name since.
func Undone(r store.Reader, c fleet.ClusterName) map[fleet.ModuleRef]string {
	out, still := map[fleet.ModuleRef]string{}, store.Untracked(r) // what an agent says does not bring a word that was not there
	place := At(still, c, false)
	for _, ref := range ModulesOf(still, c) {
		t, there := place.Track(ref)
		if !there || t.Tracker.Removed || GivenGeneration(t.Desired) == 0 && !Damaged(t.Desired) {
			continue
		}
		policy := deletion(r, ref, t.Desired)
		if policy == "" {
			continue
		}
		if !IsElsewhere(r, c, ref, t.Desired) {
			out[ref] = policy
		}
	}
	return out
}

// Delete notes in a module's record that it is deleted, and by which word it is to go. The first word tells as of when, among those who take names; that
// its catalog is deleted with its modules is one.
func Delete(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, policy string) {
	if rec.GetDeleting() == "" {
		if rec.DeletedTakes = DeletedTakes(store.Untracked(r), ref, rec); rec.DeletedTakes == nil {
			rec.DeletedTakes = new(takes(r))
		}
	}
	rec.Deleting = policy
}

// DeleteWithModules notes in a catalog's record that it is deleted with its modules.
func DeleteWithModules(r store.Reader, rec *storev1.CatalogRecord) {
	rec.Deleting, rec.DeletedTakes = true, new(takes(r))
}

// DeletedTakes is how many names had been taken in the fleet when a module was deleted, or the catalog with which it goes; nil: it is not deleted, or
// nobody noted that.
func DeletedTakes(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) *uint64 {
	if m.GetDeleting() != "" {
		return m.DeletedTakes
	}
	if by := goesWith(r, ref, m); by != nil {
		return by.DeletedTakes
	}
	return nil
}

// goesWith is the catalog that has a module and is being deleted with all that it has; nil: there is none, or nobody can read whether there is.
func goesWith(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) *storev1.CatalogRecord {
	name, is := fleet.OfCatalog(OwnerOf(r, ref, m))
	if !is {
		return nil
	}
	key := store.CatalogKey(fleet.ModuleRef{Project: ref.Project, Name: name})
	if store.DamageOf(r, key) != nil { // no write is to fail for it
		return nil
	}
	by, _, _ := store.Get[*storev1.CatalogRecord](r, key)
	if !by.GetDeleting() {
		return nil
	}
	return by
}

// Elsewhere reports that what a cluster is told of a module is of another Kubernetes cluster, which had the name before: a removal that was ordered
// there, or what the module had there when it was deleted. What is to go is in that one: nothing in this one goes for it, nor comes. deleted are the
// DeletedTakes of the module.
func Elsewhere(d *storev1.DesiredRecord, deleted *uint64, cluster *storev1.ClusterRecord) bool {
	if GivenGeneration(d) > cluster.GetAnewGeneration() {
		return false
	}
	return d.GetTombstone() != nil || d.GetSync() != nil && deleted != nil && *deleted < cluster.GetAnewTake()
}

// IsElsewhere is Elsewhere of a module and a cluster as they are stored. No commit depends on what it reads: whoever allots a generation has it that
// who has the name is the same until then.
func IsElsewhere(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, d *storev1.DesiredRecord) bool {
	r = store.Untracked(r)
	m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	return Elsewhere(d, DeletedTakes(r, ref, m), Anew(r, c))
}

// takes is how often another Kubernetes cluster has taken a name. The commit depends on it. When the record of that is damaged it is more than anything
// that was noted by it, so that nothing that is deleted, and no name that is taken, counts as before what was noted.
func takes(r store.Reader) uint64 {
	count, _, _ := store.Get[*storev1.Counter](r, store.TakenKey)
	if count.GetValue() != lostTakes {
		return count.GetValue()
	}
	var last uint64
	store.Scan(store.Untracked(r), store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
		last = max(last, c.GetAnewTake())
		return true
	})
	store.Scan(store.Untracked(r), store.ModulePrefix, func(m *storev1.ModuleRecord, _ store.Entry) bool {
		last = max(last, m.GetDeletedTakes())
		return true
	})
	store.Scan(store.Untracked(r), store.CatalogPrefix, func(c *storev1.CatalogRecord, _ store.Entry) bool {
		last = max(last, c.GetDeletedTakes())
		return true
	})
	return last + generationLeap
}

// deletion is the word by which what a cluster has of a module is to go there, or to stay, because the module is deleted; empty: it is not.
func deletion(r store.Reader, ref fleet.ModuleRef, d *storev1.DesiredRecord) string {
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	switch {
	case d.GetFinal() && d.GetTombstone() != nil && (rec.GetDeleting() == "" || ofEarlier(d)):
		return d.GetTombstone().GetPolicy()
	case rec.GetDeleting() != "":
		return rec.GetDeleting()
	}
	if goesWith(r, ref, rec) != nil {
		return fleet.DeleteDelete
	}
	return ""
}
