package hub_test

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// files are the names of what is in a folder.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A disk that gets short is for the store. What is kept of sources is thrown away, by the next look that fetches something, and by a start before the
// store is opened, which may find no room; and a start removes what a backup has left whose program was killed.
func TestWhatMayBeLostLeavesTheDiskToTheStore(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	w := newWorldWith(t, func(o *hub.Options) {
		hub.FreeOf(o, func(string) (int64, bool) { return free.Load(), true })
	})
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	push := func(text string) {
		t.Helper()
		repo.Set("main", repo.Commit(deployed(configMap(text))).String())
	}
	kept := func() []string { return files(t, filepath.Join(w.dir, "sources")) }
	push("1")
	w.await("shop", w.put(following("shop", srv.URL)).GetRevision())
	push("2")
	came, err := w.resync("shop")
	must(t, err)
	w.await("shop", came.GetRevision())
	if len(kept()) == 0 {
		t.Fatal("nothing is kept of what the source has sent: the test looks in the wrong place")
	}
	free.Store(300 << 20) // the store takes what makes it larger
	push("3")
	came, err = w.resync("shop")
	must(t, err)
	w.await("shop", came.GetRevision())
	if got := kept(); len(got) > 0 {
		t.Errorf("on a disk that is short there is still %v", got)
	}

	free.Store(1 << 40)
	push("4")
	came, err = w.resync("shop")
	must(t, err)
	w.await("shop", came.GetRevision())
	if len(kept()) == 0 {
		t.Error("nothing is kept when there is room again")
	}
	w.stopHub()
	for _, name := range []string{"hub.db", "hub.db.part-1234567", "notes.part-two"} {
		must(t, os.WriteFile(filepath.Join(w.dir, name), []byte("x"), 0o600))
	}
	free.Store(100 << 20)
	w.start()
	got := files(t, w.dir)
	if slices.Contains(got, "hub.db.part-1234567") || slices.Contains(got, "sources") {
		t.Errorf("what may be lost is there after a start: %v", got)
	}
	if !slices.Contains(got, "hub.db") || !slices.Contains(got, "notes.part-two") {
		t.Errorf("what is no part of a backup is gone: %v", got)
	}
}

// A backup onto the disk of the store gives up before the hub has no room there, and leaves nothing.
func TestBackupLeavesTheDiskToTheStore(t *testing.T) {
	w := newWorld(t, false)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		w.put(bulky(name))
	}
	to := filepath.Join(w.dir, "hub.db")
	left := int64(162 << 20)
	free := func(string) (int64, bool) { left -= 1 << 20; return left, true } // each piece takes some
	err := hub.Backup(w.ctx, w.dir, to, free)
	if !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), to) || !strings.Contains(err.Error(), "another disk") {
		t.Errorf("a backup that takes the last of the disk: %v", err)
	}
	if got := files(t, w.dir); slices.ContainsFunc(got, func(name string) bool { return strings.HasPrefix(name, "hub.db") }) {
		t.Errorf("left behind: %v", got)
	}
	must(t, hub.Backup(w.ctx, w.dir, to, func(string) (int64, bool) { return 1 << 40, true }))
	must(t, hub.Backup(w.ctx, w.dir, to+"2", func(string) (int64, bool) { return 0, false }))
}
