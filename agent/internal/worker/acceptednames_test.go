package worker

import (
	"context"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// TestNamesThatAnotherDefinitionHas: a revision gives a definition a short name that another one of its group has. It is never said to be ready, and
// the one before is again when it comes back, though the API server never takes its word on the names back.
func TestNamesThatAnotherDefinitionHas(t *testing.T) {
	r := newRig(t)
	names := "names: {kind: Gadget, plural: gadgets}"
	definition := strictCRD("color: {type: string}")
	short := strings.Replace(definition, names, "names: {kind: Gadget, plural: gadgets, shortNames: [gz]}", 1)
	other := strings.NewReplacer("gadgets.$NS", "gizmos.$NS", names, "names: {kind: Gizmo, plural: gizmos, shortNames: [gz]}").Replace(definition)
	t.Cleanup(func() {
		for _, name := range []string{"gadgets.", "gizmos."} {
			_ = r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "").Delete(context.Background(), name+r.ns+".example.com", metav1.DeleteOptions{})
		}
	})
	var mu sync.Mutex
	ready := map[uint64]bool{}
	r.stop()
	r.options = append(r.options, func(o *Options) {
		report := o.Report
		o.Report = func(s fleet.SyncStatus) {
			mu.Lock()
			ready[s.Generation] = ready[s.Generation] || s.Ready
			mu.Unlock()
			report(s)
		}
	})
	r.start()

	good := r.bundle("shop", nil, definition, other)
	r.set([]fleet.Sync{good})
	r.ready(good)
	bad := r.bundle("shop", nil, short, other)
	r.set([]fleet.Sync{bad})
	r.wait("shop", "told of the conflict", func(x fleet.SyncStatus) bool {
		return x.Generation == bad.Generation && strings.Contains(x.Message, "gz")
	})
	mu.Lock()
	if ready[bad.Generation] {
		t.Error("it was ready before anybody had looked at its names")
	}
	mu.Unlock()
	again := r.bundle("shop", nil, definition, other)
	r.set([]fleet.Sync{again})
	r.ready(again)
}
