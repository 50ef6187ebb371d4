package watch

import (
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Hold is the hold that the annotation of a live object puts, by the newest that is known of it, also while its kind cannot be
// watched; nil: none is known, or it has ended.
func (w *Watcher) Hold(id fleet.ObjectID, now time.Time) *fleet.ObjectHold {
	for _, k := range w.versions(id) {
		at := Key{id.Namespace, id.Name}
		if !k.resource.Namespaced {
			at.Namespace = ""
		}
		if h := k.holdOf(at); h != nil && h.Lasts(now) {
			out := *h
			out.ID, out.Version = id, k.resource.Version
			return &out
		}
	}
	return nil
}

// versions are the watches of an object's kind: mostly one.
func (w *Watcher) versions(id fleet.ObjectID) (out []*kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r, k := range w.kinds {
		if r.Group == id.Group && r.Kind == id.Kind {
			out = append(out, k)
		}
	}
	return out
}

func (k *kind) holdOf(at Key) *fleet.ObjectHold {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.prints[at]
	if f == nil || f.Terminating { // what is being deleted is not to be had back
		return nil
	}
	return f.Hold
}

// Holds reports that some live object may be held by its annotation.
func (w *Watcher) Holds() bool { return w.held.Load() }
