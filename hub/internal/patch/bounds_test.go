package patch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/patch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

func configMaps(t *testing.T, n, size int) []manifest.Object {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\ndata: {a: %s}\n", i, strings.Repeat("x", size))
	}
	objects, err := manifest.ParseSet(map[string][]byte{"a.yaml": []byte(text.String())}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestCopiesThatGrow: what patches copy again and again is refused while it is not much more than an object may be.
func TestCopiesThatGrow(t *testing.T) {
	objects := configMaps(t, 1, 200<<10)
	var patches []fleet.Patch
	for i := range 100 {
		patches = append(patches, to("ConfigMap", "c0", fmt.Sprintf("[{op: copy, from: /data/a, path: /data/b%d}]", i)))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(patches...), []int32{0}, opts)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "overrides[0].patches[") || !strings.Contains(err.Error(), "ConfigMap shop/c0") {
		t.Errorf("got %v", err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<30 { // a seventh of it, more under the race detector; all hundred take 15 GiB
		t.Errorf("%d MiB were allocated", allocated>>20)
	}
}

// TestPatchesOfManyObjects: patches go through so many objects, however many of both there are, and end with their context.
func TestPatchesOfManyObjects(t *testing.T) {
	objects := configMaps(t, 200, 1000)
	var patches []fleet.Patch
	for i := range 100 {
		patches = append(patches, to("ConfigMap", ".*", fmt.Sprintf("[{op: add, path: /data/b, value: v%d}]", i)))
	}
	work := &patch.Work{Spent: patch.MaxWork - 5<<20}
	if _, err := patch.Apply(t.Context(), work, objects, override(patches...), []int32{0}, opts); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "patches[4]: ") {
		t.Errorf("got %v", err)
	}
	if _, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(patches[:4]...), []int32{0}, opts); err != nil {
		t.Error(err)
	}
	grows := []fleet.Patch{to("ConfigMap", "c0", "[{op: copy, from: /data/a, path: /data/b}]")}
	for i := range 9 {
		grows = append(grows, to("ConfigMap", "c0", fmt.Sprintf("[{op: copy, from: /data, path: /c%d}]", i)))
	}
	work = &patch.Work{Spent: patch.MaxWork - 220<<10}
	if _, err := patch.Apply(t.Context(), work, objects, override(grows...), []int32{0}, opts); err == nil || !strings.Contains(err.Error(), "go through more than") {
		t.Errorf("what has grown counts as it was: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := patch.Apply(ended, &patch.Work{}, objects, override(patches...), []int32{0}, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
