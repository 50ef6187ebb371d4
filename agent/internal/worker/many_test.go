package worker

import (
	"fmt"
	"os"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestManyObjects applies KUBELAB_MANY ConfigMaps in one module, says the same again, drops four fifths of them, and has that
// confirmed.
func TestManyObjects(t *testing.T) {
	n := 0
	if _, err := fmt.Sscan(os.Getenv("KUBELAB_MANY"), &n); err != nil {
		t.Skip("set KUBELAB_MANY to a number of ConfigMaps")
	}
	r := aloneRig(t)
	t.Setenv("KUBELAB_SCALE", "many") // patience
	objects := make([]string, n)
	for i := range objects {
		objects[i] = configMap(fmt.Sprintf("cm-%05d", i), "k: v")
	}
	step := func(what string, most int, do func()) {
		t.Helper()
		r.count.take()
		began, used := time.Now(), cpu()
		do()
		counts, paths := r.count.take()
		t.Logf("%s: %v, %v CPU, %v, heap %d MB", what, time.Since(began).Round(time.Millisecond), cpu()-used, counts, heap())
		if total(counts) > most {
			t.Errorf("%s: %d requests, of which %.20s", what, total(counts), notPatches(paths))
		}
	}
	s := r.bundle("shop", nil, objects...)
	step("applied", n+20, func() { r.set([]fleet.Sync{s}); r.ready(s) })
	step("said again", 0, func() {
		r.gen++
		s.Generation = r.gen
		r.set([]fleet.Sync{s})
		r.ready(s)
	})
	next := r.bundle("shop", nil, objects[:n/5]...)
	step("asked", 20, func() {
		r.set([]fleet.Sync{next})
		r.wait("shop", "asking", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == n-n/5 })
	})
	if got := r.configMaps(); got < n {
		t.Fatalf("%d objects are left without a confirm", got)
	}
	step("pruned", 3*(n-n/5)+100, func() {
		r.gen++
		next.Generation, next.PruneConfirmed = r.gen, true
		r.set([]fleet.Sync{next})
		r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && len(x.Extras) == 0 })
	})
	if got := r.configMaps(); got < n/5 || got > n/5+1 {
		t.Errorf("%d objects are left", got)
	}
}
