package worker

import (
	"context"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
)

// The hub cannot know whether a kind that is not Kubernetes' own lives in namespaces. So an entry of a bundle may name one
// for an object that has none. The identity of an object is the one that the API server knows it by (DESIGN §1.6); the
// functions here put it into the items, before anything looks an object up by it.

// bare is the identity of an object of a kind without namespaces.
func bare(id fleet.ObjectID) fleet.ObjectID {
	id.Namespace = ""
	return id
}

// place makes the item that of its object's identity, as far as its kind is known, and lists it. That the inventory has
// the object without a namespace proves what its kind is.
func (w *worker) place(it *item) {
	res, known := w.m.mapper.Known(it.entry.ID, it.entry.Version)
	switch {
	case known:
		it.resource = res
	case it.entry.ID.Namespace != "" && w.m.inventory.Get(bare(it.entry.ID)) != nil:
	default:
		w.enter(it)
		return
	}
	if !it.resource.Namespaced {
		w.unplace(it)
	}
	w.enter(it)
}

// situate notes where the objects of the item's kind are, which may change its identity.
func (w *worker) situate(it *item, res apply.Resource) {
	it.resource = res
	if res.Namespaced != (it.entry.ID.Namespace == "") {
		return
	}
	if w.byID[it.entry.ID] == it {
		delete(w.byID, it.entry.ID)
	}
	if res.Namespaced {
		w.replaceAt(it)
	} else {
		w.unplace(it)
	}
	w.enter(it)
}

// replaceAt gives an item the namespace back in which the module lists it: its kind was defined anew, and has namespaces now.
func (w *worker) replaceAt(it *item) {
	bundle, err := w.m.o.Contents.Bundle(w.cur.sync.Bundle)
	if err != nil || it.ordinal >= len(bundle.Entries) {
		return // that the object has no namespace is said when it is applied
	}
	from := it.entry.ID
	it.entry.ID.Namespace = manifest.ExpandID(bundle.Entries[it.ordinal].ID, w.cur.sync.Values).Namespace
	w.m.inventory.Rename(w.ref, from, it.entry.ID)
}

// moved has the item go on where its kind is served now.
func (w *worker) moved(it *item, to apply.Resource, now time.Time) {
	w.situate(it, to)
	w.acquire(to)
	it.clear()
	it.look = true
	w.search.retry = now // which ends the watch of what is not served any more
	dirty.Poke(w.signal)
}

// situateKnown is situate if it needs no request.
func (w *worker) situateKnown(it *item) {
	if it.resource.Resource != "" {
		return
	}
	if res, known := w.m.mapper.Known(it.entry.ID, it.entry.Version); known {
		w.situate(it, res)
	}
}

// unplace takes the namespace from the item, and from what is recorded of its object.
func (w *worker) unplace(it *item) {
	if from := it.entry.ID; from.Namespace != "" {
		it.entry.ID = bare(from)
		w.m.inventory.Rename(w.ref, from, it.entry.ID)
	}
}

// enter lists the item by its identity. Two entries that differ by their namespace alone may be one object.
func (w *worker) enter(it *item) {
	other := w.byID[it.entry.ID]
	it.twin = other != nil && other != it
	if !it.twin {
		w.byID[it.entry.ID] = it
	}
}

func twice(id fleet.ObjectID) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: id.String() +
		": the module lists it twice: in several namespaces, though objects of this kind have none, or by values that are alike; take one of them out"}
}

// desires reports whether the sync lists an object. Until a kind is known, an object of it without a namespace is
// desired if one of its name is, in any.
func (w *worker) desires(id fleet.ObjectID) bool { return w.byID[id] != nil || w.unsure[id] }

// noteUnsure collects the items whose namespace may be none.
func (w *worker) noteUnsure() { w.unsure = unsureOf(w.items) }

// unsureOf are the identities that the items have if their kinds, which are not known yet, have no namespaces.
func unsureOf(items []*item) (unsure map[fleet.ObjectID]bool) {
	for _, it := range items {
		if it.resource.Resource != "" || it.entry.ID.Namespace == "" || !custom(it.entry.ID) {
			continue
		}
		if unsure == nil {
			unsure = map[fleet.ObjectID]bool{}
		}
		unsure[bare(it.entry.ID)] = true
	}
	return unsure
}

// custom reports that the hub does not know whether objects of the kind have namespaces.
func custom(id fleet.ObjectID) bool {
	_, known := manifest.Namespaced(id.Group, id.Kind)
	return !known
}

// findScopes finds out of kinds whether they have namespaces, as far as that can be found now: before the first claim, so
// that two modules which list one object meet.
func (w *worker) findScopes(ctx context.Context) {
	wanted := w.scopesToFind()
	if len(wanted) == 0 {
		return
	}
	found, _ := w.resolveKinds(ctx, wanted) // what is not found now is found when its object is written
	for _, it := range w.items {
		if res, ok := found[kindOfEntry(it.entry)]; ok && it.resource.Resource == "" {
			w.situate(it, res)
		}
	}
}

// scopesToFind are the kinds for findScopes, without those that the module itself defines: they are not there yet, or will
// be known when their definitions are established.
func (w *worker) scopesToFind() map[kindKey]fleet.BundleEntry {
	out, defined := map[kindKey]fleet.BundleEntry{}, map[string]bool{}
	for _, it := range w.items {
		if plan.IsCRD(it.entry.ID) {
			_, group, _ := strings.Cut(it.entry.ID.Name, ".")
			defined[group] = true
		}
	}
	for _, it := range w.items {
		if id := it.entry.ID; it.resource.Resource == "" && id.Namespace != "" && custom(id) && !defined[id.Group] {
			out[kindOfEntry(it.entry)] = it.entry
		}
	}
	return out
}
