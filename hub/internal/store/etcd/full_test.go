package etcd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

const smallQuota = 16 << 20

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// fillBlobs puts contents until the store takes no more.
func fillBlobs(t *testing.T, s store.Store) {
	t.Helper()
	ctx := within(t)
	for {
		_, err := s.Blobs().Put(ctx, noise(400_000))
		switch {
		case errors.Is(err, fleet.ErrExhausted):
			for _, says := range []string{"full", "--store-quota"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the error does not say %q: %v", says, err)
				}
			}
			return
		case err != nil:
			t.Fatal(err)
		}
	}
}

// fillUp fills the store until it says of itself that it is full and takes no new module either: dropping history may make
// room once more.
func fillUp(t *testing.T, s store.Store) {
	t.Helper()
	ctx := within(t)
	for n := 0; ; n++ {
		fillBlobs(t, s)
		_, err := s.Update(ctx, func(w store.Writer) error {
			w.Grows()
			w.Put(fmt.Sprintf("modules/default/new%d", n), &storev1.ModuleRecord{})
			return nil
		})
		if err != nil && !errors.Is(err, fleet.ErrExhausted) {
			t.Fatalf("a new module: %v", err)
		}
		if full := s.Full(); err != nil && errors.Is(full, fleet.ErrExhausted) {
			return
		}
	}
}

// alarm fills the store with what must always be possible, until etcd itself takes no more.
func alarm(t *testing.T, s store.Store) {
	t.Helper()
	ctx := within(t)
	for i := 0; ; i++ {
		_, err := s.Update(ctx, func(w store.Writer) error {
			w.Put(fmt.Sprintf("%sp/m/%d", store.RevisionPrefix, i), &storev1.RevisionRecord{Artifact: noise(200_000)})
			return nil
		})
		if errors.Is(err, fleet.ErrExhausted) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func sit(t *testing.T, s *storetest.Store) error {
	t.Helper()
	_, err := s.Campaign(within(t), store.Candidate{Instance: "test"})
	return err
}

// collectAll collects until a sweep deletes something.
func collectAll(t *testing.T, s store.Store) {
	t.Helper()
	deleted := 0
	for range 2 {
		n, err := s.Blobs().Collect(within(t), func(func(fleet.Digest)) func([]byte) bool { return nil })
		if err != nil {
			t.Fatalf("collect in a full store: %v", err)
		}
		deleted += n
	}
	if deleted == 0 {
		t.Error("two collections delete nothing of what nobody refers to")
	}
}

// until tries until fn has no error that says that the store is full.
func untilFree(t *testing.T, fn func(context.Context) error) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, fleet.ErrExhausted) {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the store stays full: %v", err)
		case <-tick.C:
		}
	}
}

// What a full store must still do: say who leads, let agents in, take deletions, and free itself of garbage. Only what
// makes it larger is refused.
func TestFullStoreRecovers(t *testing.T) {
	dir := t.TempDir()
	open := func() *storetest.Store {
		return openDir(t, etcd.Options{Dir: dir, UnsafeNoFsync: true, QuotaBytes: smallQuota})
	}
	s := open()
	count(t, s, "meta/generation", 7)
	fillUp(t, s)
	for key, value := range map[string]func(store.Writer){
		"delete a module": func(w store.Writer) { w.Put("modules/default/shop", &storev1.ModuleRecord{Deleting: "Delete"}) },
		"open a session":  func(w store.Writer) { w.Put(store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 2}) },
	} {
		if _, err := s.Update(within(t), func(w store.Writer) error { value(w); return nil }); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	shut(t, s)
	s = open()
	defer shut(t, s)
	if err := sit(t, s); err != nil {
		t.Errorf("no hub leads a full store after a restart: %v", err)
	}
	if n := counted(t, s, 0, "meta/generation"); n != 7 {
		t.Errorf("it reads %d", n)
	}
	collectAll(t, s)
	untilFree(t, func(ctx context.Context) error { _, err := s.Blobs().Put(ctx, noise(400_000)); return err })
}

// etcd's own alarm, when even the reserve is used up: deletions, collections and reads go on, and a restart makes room
// for what must always be possible.
func TestStoreUnderTheAlarmRecovers(t *testing.T) {
	dir := t.TempDir()
	open := func() *storetest.Store {
		return openDir(t, etcd.Options{Dir: dir, UnsafeNoFsync: true, QuotaBytes: smallQuota})
	}
	s := open()
	count(t, s, "meta/generation", 7)
	if _, err := s.Blobs().Collect(within(t), func(func(fleet.Digest)) func([]byte) bool { return nil }); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := s.Blobs().Put(within(t), noise(400_000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Blobs().Collect(within(t), func(func(fleet.Digest)) func([]byte) bool { return nil }); err != nil {
		t.Fatal(err)
	}
	alarm(t, s)
	if n := counted(t, s, 0, "meta/generation"); n != 7 {
		t.Errorf("it reads %d", n)
	}
	if _, err := s.Update(within(t), func(w store.Writer) error { w.Delete(store.RevisionPrefix + "p/m/0"); return nil }); err != nil {
		t.Errorf("a deletion under the alarm: %v", err)
	}
	shut(t, s)
	s = open()
	defer func() { shut(t, s) }()
	if err := sit(t, s); err != nil {
		t.Errorf("no hub leads under the alarm: %v", err)
	}
	alarm(t, s)
	collectAll(t, s)
	untilFree(t, func(ctx context.Context) error {
		_, err := s.Update(ctx, func(w store.Writer) error {
			w.Put(store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 2})
			return nil
		})
		return err
	})
}

// What nobody refers to goes under the alarm, also if nothing was ever collected before, and without a restart.
func TestGarbageBeforeTheFirstCollection(t *testing.T) {
	s := openDir(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: smallQuota})
	defer shut(t, s)
	for range 10 {
		if _, err := s.Blobs().Put(within(t), noise(400_000)); err != nil {
			t.Fatal(err)
		}
	}
	alarm(t, s)
	collectAll(t, s)
}

// A large record that is written again and again takes no more room than a few of it, however few revisions that is.
func TestHistoryIsBoundedByItsBytes(t *testing.T) {
	s := openDir(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true, KeepBytes: 1 << 20})
	defer shut(t, s)
	ctx := within(t)
	for range 150 {
		if _, err := s.Update(ctx, func(w store.Writer) error {
			w.Put(store.RevisionPrefix+"p/m/1", &storev1.RevisionRecord{Artifact: noise(200_000)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.Usage().Bytes > 8<<20 {
		select {
		case <-ctx.Done():
			t.Fatalf("30 MB were written over one record, and %d are in use", s.Usage().Bytes)
		case <-tick.C:
		}
	}
}
