package worker

import (
	"context"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// Somebody deletes one of the Secrets that the inventory is in, or a tool does that takes them for unused, and the agent starts
// anew: a module is not gone before what that Secret listed has been looked for.
func TestRemovalWithAPartOfTheInventoryMissing(t *testing.T) {
	for _, which := range []string{"base", "newest"} {
		t.Run(which, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.m.inventory.Rewrite()
			if err := r.m.inventory.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			s = r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), configMap("c", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.stop()
			r.store.mu.Lock()
			before := len(r.store.files)
			for n := range r.store.files {
				if base := strings.HasSuffix(n, "-base"); base && which == "base" || !base && which == "newest" && strings.HasPrefix(n, "inventory-") {
					delete(r.store.files, n)
				}
			}
			if len(r.store.files) == before {
				t.Fatalf("there were %d files, and there are still", before)
			}
			r.store.mu.Unlock()
			r.start()
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			for _, name := range []string{"a", "b", "c"} {
				if r.get("v1", "configmaps", name) != nil {
					t.Errorf("the module is called removed, and %s is there", name)
				}
			}
		})
	}
}
