package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// An object is held by the hub's word, or by an annotation that somebody set on it in the cluster. Both count alike, and each by itself:
// what both hold is free when both have ended. The annotation is read on the live object: from the watch before anything is
// decided and sent, and from the answer to a look wherever one comes before a request, which then is for the version that was seen.

// errAnnotated is of a write that the object's own annotation stops: the watch did not know of it when it was decided.
var errAnnotated = errors.New("held by its annotation")

// hold is the hold that an object's annotation puts, as far as is known; nil: none does.
func (m *Manager) hold(id fleet.ObjectID) *fleet.ObjectHold {
	if !m.watcher.Holds() {
		return nil
	}
	return m.watcher.Hold(id, m.clock.Now())
}

// hold is the hold that an object's annotation puts. Whatever is decided by it is decided again when it ends.
func (w *worker) hold(id fleet.ObjectID) *fleet.ObjectHold {
	h := w.m.hold(id)
	w.ends.note(h)
	return h
}

// heldThere says that its annotation holds an object; empty: none does.
func (w *worker) heldThere(id fleet.ObjectID) string {
	if h := w.hold(id); h != nil {
		return h.Text()
	}
	return ""
}

// holdEnds is when the first of the holds by annotations that something was decided by ends by itself, in the API server's time. It is
// noted where the hold is read: one may have ended before the pass that it stopped something in makes its status.
type holdEnds struct {
	mu sync.Mutex
	at time.Time // zero: none does
}

func (e *holdEnds) note(h *fleet.ObjectHold) {
	if h == nil || h.Until.IsZero() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = earliest(e.at, h.Until)
}

// reached reports that a hold has ended, and forgets its end.
func (e *holdEnds) reached(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() || now.Before(e.at) {
		return false
	}
	e.at = time.Time{}
	return true
}

// wake is when to look again, in the machine's time; zero: no hold ends by itself. A machine that sleeps does not let a timer run, so that
// the API server's time is looked at each minute.
func (e *holdEnds) wake(now time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() {
		return time.Time{}
	}
	return time.Now().Add(min(max(e.at.Sub(now), time.Millisecond), clockStep))
}

// holdText says that an object is held by itself, and by whom; empty: it is not.
func (w *worker) holdText(id fleet.ObjectID) string {
	if assemble.Holds(w.cur.held, id) {
		return heldText
	}
	return w.heldThere(id)
}

// recordHeld is holdText of what the sync does not list, or a tombstone takes away. An annotation on what was never proven to be the
// module's keeps nobody from finding out whether it is.
func (w *worker) recordHeld(id fleet.ObjectID) string {
	if assemble.Holds(w.cur.held, id) {
		return heldText
	}
	if rec := w.m.inventory.Get(id); rec == nil || !rec.Written() {
		return ""
	}
	return w.heldThere(id)
}

// removalHeld says that an object of a module which goes is held by its annotation; empty: none is. The removal waits as a whole, as
// it does where the hub says so.
func (w *worker) removalHeld() string {
	for _, h := range w.holdsThere() {
		return h.ID.String() + ": " + h.Text()
	}
	return ""
}

// holdsThere are the holds that annotations put on what the module has, or is about to have, in the order of the objects.
func (w *worker) holdsThere() (out []fleet.ObjectHold) {
	if !w.m.watcher.Holds() {
		return nil
	}
	for _, r := range w.m.inventory.Module(w.ref) {
		listed := w.cur.kind != targetTombstone && w.byID[r.ID] != nil
		if !r.Written() && !listed || listed && w.reads(r.ID) {
			continue
		}
		if h := w.hold(r.ID); h != nil {
			out = append(out, *h)
		}
	}
	slices.SortFunc(out, func(a, b fleet.ObjectHold) int { return a.ID.Compare(b.ID) })
	return out
}

// annotated is what a status says of them.
func (w *worker) annotated() []fleet.ObjectHold {
	out := w.holdsThere()
	if w.status.removed {
		return nil
	}
	return out[:min(len(out), wire.MaxHolds)]
}

// endHolds has all looked at again when a hold has ended by itself: no event tells of that.
func (w *worker) endHolds() {
	if !w.ends.reached(w.m.clock.Now()) {
		return
	}
	for _, it := range w.items {
		it.look = true
	}
	w.pruning.touched = true
}

// unlessAnnotated is an error if the annotation of the object that was just read holds it. The watch is told, so that the next decision
// knows.
func (a *writer) unlessAnnotated(live map[string]any) error {
	u := &unstructured.Unstructured{Object: live}
	h := a.w.holdOn(u)
	if h == nil {
		return nil
	}
	a.w.m.watcher.Observe(a.resource, live, a.w.m.inventory.Get(a.id))
	return &apply.Failure{Reason: plan.ReasonHeld, Message: a.id.String() + ": " + h.Text(), Transient: true, Kind: errAnnotated}
}

// unlessNoted is unlessAnnotated for an object of which the metadata were read alone.
func (a *writer) unlessNoted(ctx context.Context, live *metav1.PartialObjectMetadata) error {
	if a.w.holdOn(live) == nil {
		return nil
	}
	whole, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if err != nil {
		return err
	}
	return a.unlessAnnotated(whole)
}

// unlessUnseen is unlessAnnotated for an object that the module has and no watch shows: yet, as right after the agent's start, or any more, as
// it has lost its label.
func (a *writer) unlessUnseen(ctx context.Context) error {
	if a.print != nil && !a.print.Unwatched || a.record == nil || !a.record.Written() || a.verb == plan.Create || a.verb == plan.Restore {
		return nil // what is made meets what is there
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if a.isGone(ctx, err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.unlessServed(ctx, live); err != nil {
		return err
	}
	return a.unlessAnnotated(live)
}

// annotation says that the annotation of an object that was just read holds it; empty: none does.
func (w *worker) annotation(live *metav1.PartialObjectMetadata) string {
	if live == nil {
		return ""
	}
	if h := w.holdOn(live); h != nil {
		return h.Text()
	}
	return ""
}

// holdOn is the hold that the annotation of an object that was just read puts; nil: none does. What is being deleted is not to be had
// back.
func (w *worker) holdOn(live metav1.Object) *fleet.ObjectHold {
	h := apply.HoldOn(live.GetAnnotations(), live.GetManagedFields())
	if h == nil || live.GetDeletionTimestamp() != nil || !h.Lasts(w.m.clock.Now()) {
		return nil
	}
	w.ends.note(h)
	return h
}
