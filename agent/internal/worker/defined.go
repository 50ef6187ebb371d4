package worker

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// definedFor is for how long the API servers of a cluster may judge the objects of a kind by the definition before, after they have
// taken another one: each hears of it by a watch. That definition may lack a field, or refuse a value, that comes with the new one.
const definedFor = 3 * time.Second

// defined knows when this agent wrote definitions of kinds.
type defined struct {
	mu sync.Mutex
	at map[schema.GroupKind]time.Time
}

// note takes note that a definition was written just now.
func (d *defined) note(crd map[string]any, now time.Time) {
	kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[schema.GroupKind]time.Time{}
	}
	d.at[schema.GroupKind{Group: apply.GroupOfCRD(crd), Kind: kind}] = now
}

// lately reports that the kind of an object may be judged by another definition in a moment.
func (d *defined) lately(id fleet.ObjectID, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.at[schema.GroupKind{Group: id.Group, Kind: id.Kind}]
	return known && now.Sub(at) < definedFor
}

// mayPass reports that the API server finds an object invalid, or a field of it immutable, whose kind was defined anew just now.
func (a *writer) mayPass(err error) bool {
	if err == nil || !a.w.m.defined.lately(a.id, time.Now()) {
		return false
	}
	reason := apply.Explain(a.id, err).Reason
	return reason == apply.ReasonInvalid || reason == apply.ReasonImmutable
}

// mayBeDeclared reports that the object sets a field which its kind does not have, and may have in a moment: the definition may be
// another module's that comes in the same breath. A field that is misspelt looks the same, so that nobody waits for long.
func (it *item) mayBeDeclared(now time.Time) bool {
	return it.fail != nil && it.fail.Undeclared && plan.IsCustom(it.entry.ID) && now.Sub(it.fail.Since) < definedFor
}
