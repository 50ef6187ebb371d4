package worker

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// unbound is what is known of a claim that has no volume yet.
type unbound struct {
	asked   time.Time // zero: never
	version uint64    // of the claim that was looked at
	idle    bool      // its storage class binds it to a volume when the first pod needs it, and none does
}

// firstPods looks which of the module's claims wait for their first pod, and says when to look again. The claims themselves do not
// tell: only their storage classes do.
func (w *worker) firstPods(ctx context.Context, now time.Time) time.Time {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTime)
	defer cancel()
	var again time.Time
	left := diagnoseAtOnce
	for _, it := range w.items {
		f := w.unboundClaim(it)
		if f == nil || it.awaitsPod(f) {
			continue
		}
		u := &it.makeRare().unbound
		at := it.since.Add(diagnoseAfter)
		if u.version == f.Version {
			at = u.asked.Add(diagnoseEvery)
		}
		if now.Before(at) {
			again = earliest(again, at)
			continue
		}
		if left == 0 {
			return now.Add(diagnoseAfter)
		}
		left--
		*u = unbound{asked: now, version: f.Version, idle: w.awaitsPod(ctx, it)}
		again = earliest(again, now.Add(diagnoseEvery))
		if u.idle {
			dirty.Poke(w.signal) // what waits for the module to be ready goes on
		}
	}
	return again
}

// unboundClaim is what was seen last of an item that is a claim without a volume; nil: it is none, or a rule of the module judges it.
func (w *worker) unboundClaim(it *item) *watch.Fingerprint {
	id := it.entry.ID
	if id.Group != "" || id.Kind != "PersistentVolumeClaim" {
		return nil
	}
	f, _ := w.print(it)
	if f == nil || f.JudgedBy != nil || f.Health != fleet.HealthProgressing || f.Reason != "Pending" {
		return nil
	}
	return f
}

// awaitsPod reports that the claim, as it was seen last, waits for its first pod.
func (it *item) awaitsPod(f *watch.Fingerprint) bool {
	return it.rare != nil && it.rare.unbound.idle && it.rare.unbound.version == f.Version
}

var storageClasses = apply.Resource{Kind: "StorageClass",
	GroupVersionResource: schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}}

// awaitsPod asks the claim and its storage class. What cannot be read waits for its volume.
func (w *worker) awaitsPod(ctx context.Context, it *item) bool {
	claim, err := w.m.client.Get(ctx, it.resource, it.liveNamespace(), it.entry.ID.Name)
	if err != nil {
		return false
	}
	name := classOfIdle(claim)
	if name == "" {
		return false
	}
	class, err := w.m.client.Get(ctx, storageClasses, "", name)
	mode, _, _ := unstructured.NestedString(class, "volumeBindingMode")
	return err == nil && mode == "WaitForFirstConsumer"
}

// selectedNode is how the scheduler says that a pod needs the claim, and where.
const selectedNode = "volume.kubernetes.io/selected-node"

// classOfIdle is the storage class of a claim that no pod needs and that names no volume; empty: it is none.
func classOfIdle(claim map[string]any) string {
	u := unstructured.Unstructured{Object: claim}
	volume, _, _ := unstructured.NestedString(claim, "spec", "volumeName")
	class, _, _ := unstructured.NestedString(claim, "spec", "storageClassName")
	if _, needed := u.GetAnnotations()[selectedNode]; needed || volume != "" {
		return ""
	}
	return class
}
