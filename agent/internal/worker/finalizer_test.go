package worker

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

const finalizer = "example.com/operator"

// operator takes the finalizer from Gadgets that are deleted, a moment later, as long as its Deployment is there.
func (r *rig) operator(deployment string) {
	gadgets := r.res(r.group()+"/v1", "gadgets", r.ns)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := map[types.UID]int{}
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			list, err := gadgets.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, g := range list.Items {
				if g.GetDeletionTimestamp() == nil {
					continue
				}
				if seen[g.GetUID()]++; seen[g.GetUID()] > 10 && r.exists("apps/v1", "deployments", r.ns, deployment) {
					_, _ = gadgets.Patch(ctx, g.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				}
			}
		}
	}()
	r.t.Cleanup(func() {
		stop()
		<-done
		_, _ = gadgets.Patch(context.Background(), "g", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		r.undefine("gadgets")
	})
}

// TestOperatorOutlivesItsObjects: an operator takes its finalizers before it goes, also if its objects are another
// module's that goes at the same time.
func TestOperatorOutlivesItsObjects(t *testing.T) {
	finalized := strings.Replace(gadget, "namespace: $NS}", "namespace: $NS, finalizers: ["+finalizer+"], annotations: {towline.dev/wave: '-1'}}", 1)
	for _, tc := range []struct {
		name    string
		modules [][]string
	}{
		{"one module", [][]string{{crd, finalized, deployment("operator", 1)}}},
		{"two modules", [][]string{{crd, deployment("operator", 1)}, {finalized}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			var syncs []fleet.Sync
			names := []string{"shop", "user"}[:len(tc.modules)]
			for i, name := range names {
				syncs = append(syncs, r.bundle(name, nil, tc.modules[i]...))
			}
			r.set(syncs)
			for _, s := range syncs {
				r.ready(s)
			}
			r.operator("operator")
			var tombstones []fleet.Tombstone
			for _, name := range names {
				tombstones = append(tombstones, r.tombstone(name, fleet.DeleteDelete))
			}
			r.set(nil, tombstones...)
			for _, name := range names {
				r.wait(name, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			}
			if r.crdExists() || r.exists("apps/v1", "deployments", r.ns, "operator") {
				t.Error("called removed, and something is left")
			}
		})
	}
}
