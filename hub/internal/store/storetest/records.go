package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

func testView(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	put(t, s, key("b"), counter(2))
	put(t, s, key("a"), counter(1))
	rev := put(t, s, key("c"), counter(3))
	err := s.View(timeout(t), rev, func(r store.Reader) error {
		if r.Revision() < rev {
			t.Errorf("a view from %d on is at %d", rev, r.Revision())
		}
		var keys []string
		store.Scan(r, store.GuardPrefix, func(_ *storev1.Counter, e store.Entry) bool {
			keys = append(keys, e.Key)
			return e.Key != key("b")
		})
		if want := []string{key("a"), key("b")}; !slices.Equal(keys, want) {
			t.Errorf("scanned %v, want %v", keys, want)
		}
		if _, e, ok := store.Get[*storev1.Counter](r, key("c")); !ok || e.ModRevision != rev || e.CreateRevision != rev {
			t.Errorf("c is %+v, %v; it was made at %d", e, ok, rev)
		}
		// A snapshot stays what it is while the store moves on.
		put(t, s, key("d"), counter(4))
		if _, ok := r.Get(key("d")); ok {
			t.Error("a snapshot changed")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(timeout(t))
	cancel()
	err = s.View(ctx, rev+1000, func(store.Reader) error { t.Error("ran on a revision that never came"); return nil })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a view that gave up says %v", err)
	}
}

func testUpdate(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	first := put(t, s, key("a"), counter(1))

	// What is there already makes no revision.
	same := put(t, s, key("a"), counter(1))
	barrier, err := s.Barrier(timeout(t))
	if err != nil || same > barrier || barrier != first {
		t.Errorf("a put of the same bytes: revision %d, barrier %d (%v), first %d", same, barrier, err, first)
	}
	if rev, err := s.Update(timeout(t), func(w store.Writer) error { w.Delete(key("none")); return nil }); err != nil || rev != first {
		t.Errorf("a delete of nothing: %d, %v", rev, err)
	}

	// A writer reads its own changes; keys commit together.
	rev, err := s.Update(timeout(t), func(w store.Writer) error {
		w.Put(key("b"), counter(2))
		w.Put(key("0"), counter(0))
		w.Delete(key("a"))
		var keys []string
		w.Scan(store.GuardPrefix, func(e store.Entry) bool { keys = append(keys, e.Key); return true })
		if want := []string{key("0"), key("b")}; !slices.Equal(keys, want) {
			t.Errorf("the writer scans %v, want %v", keys, want)
		}
		if _, ok := w.Get(key("a")); ok {
			t.Error("the writer sees what it deleted")
		}
		if c, _, ok := store.Get[*storev1.Counter](w, key("b")); !ok || c.GetValue() != 2 {
			t.Error("the writer does not see what it put")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, there := read(t, s, rev, key("a")); there {
		t.Error("a is still there")
	}
	expect(t, s, rev, key("b"), 2)

	// An error of the function changes nothing.
	mine := errors.New("mine")
	_, err = s.Update(timeout(t), func(w store.Writer) error { w.Put(key("b"), counter(9)); return mine })
	if !errors.Is(err, mine) {
		t.Errorf("the function's error came back as %v", err)
	}
	expect(t, s, 0, key("b"), 2)

	for name, misuse := range map[string]func(store.Writer) error{
		"a foreign type": func(w store.Writer) error { w.Put(key("x"), &storev1.Hub{}); return nil },
		"a foreign key":  func(w store.Writer) error { w.Put("nowhere/x", counter(1)); return nil },
		"a fence without revision": func(w store.Writer) error {
			w.Fence(store.Fence{Key: key("x")})
			w.Put(key("x"), counter(1))
			return nil
		},
	} {
		if _, err := s.Update(timeout(t), misuse); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = s.Update(timeout(t), func(w store.Writer) error {
		for i := range store.MaxOps + 1 {
			w.Put(key("%d", i), counter(1))
		}
		return nil
	})
	if !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("%d changes: %v", store.MaxOps+1, err)
	}
	rev, err = s.Update(timeout(t), func(w store.Writer) error {
		for i := range store.MaxOps {
			w.Get(key("%d", i))
			w.Put(key("%d", i), counter(uint64(i)))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%d changes: %v", store.MaxOps, err)
	}
	expect(t, s, rev, key("%d", store.MaxOps-1), store.MaxOps-1)
}

func testConflict(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	const writers, each = 8, 15
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := s.Update(timeout(t), increment(key("n"))); err != nil {
					t.Errorf("increment: %v", err)
				}
			}
		})
	}
	wg.Wait()
	rev, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s, rev, key("n"), writers*each)

	// A key that was read as missing must still be missing.
	other := put(t, s, key("other"), counter(1))
	runs := 0
	rev, err = s.Update(timeout(t), func(w store.Writer) error {
		runs++
		if _, ok := w.Get(key("late")); !ok && runs == 1 {
			put(t, s, key("late"), counter(7))
		}
		late, _, _ := store.Get[*storev1.Counter](w, key("late"))
		w.Put(key("sum"), counter(late.GetValue()+1))
		return nil
	})
	if err != nil || runs != 2 {
		t.Fatalf("after %d runs: %v", runs, err)
	}
	expect(t, s, rev, key("sum"), 8)

	// What is only scanned, or not looked at, does not count.
	runs = 0
	_, err = s.Update(timeout(t), func(w store.Writer) error {
		runs++
		w.Scan(store.GuardPrefix, func(store.Entry) bool { return true })
		put(t, s, key("other"), counter(uint64(other)+uint64(runs)))
		w.Put(key("sum"), counter(1))
		return nil
	})
	if err != nil || runs != 1 {
		t.Fatalf("after %d runs: %v", runs, err)
	}
}

// What is under a prefix is compared as a whole: a commit that depends on it is made anew when a record was made or changed there, by somebody
// else or by this hub, and is not held up by what is beside it, by what it writes there itself, or where nothing is.
func testUnchanged(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	put(t, s, key("all/a"), counter(1))
	put(t, s, key("alone"), counter(1))
	for _, c := range []struct {
		what, prefix string
		happens      func()
		runs         int
	}{
		{"one is changed", "all/", func() { put(t, s, key("all/a"), counter(2)) }, 2},
		{"one is made behind all", "all/", func() { put(t, s, key("all/z"), counter(1)) }, 2},
		{"one is made before all", "all/", func() { put(t, s, key("all/"), counter(1)) }, 2},
		{"the first is made", "none/", func() { put(t, s, key("none/a"), counter(1)) }, 2},
		{"one beside them is changed", "all/", func() { put(t, s, key("alone"), counter(2)) }, 1},
		{"nothing is there", "nothing/", func() {}, 1},
	} {
		runs := 0
		if _, err := s.Update(timeout(t), func(w store.Writer) error {
			if runs++; runs == 1 {
				c.happens()
			}
			w.Unchanged(key("%s", c.prefix))
			w.Put(key("all/own"), counter(uint64(w.Revision())))
			return nil
		}); err != nil || runs != c.runs {
			t.Errorf("%s: %d runs, want %d: %v", c.what, runs, c.runs, err)
		}
	}
}

// What a commit deletes is gone with it, also what was not there when the update ran, and was put before it was committed.
func testDeletesWhatComes(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	runs := 0
	if _, err := s.Update(timeout(t), func(w store.Writer) error {
		if runs++; runs == 1 {
			put(t, s, key("comes"), counter(1))
		}
		w.Delete(key("comes"))
		w.Delete(key("none"))
		w.Put(key("end"), counter(1))
		return nil
	}); err != nil || runs != 1 {
		t.Fatalf("after %d runs: %v", runs, err)
	}
	rev, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.View(timeout(t), rev, func(r store.Reader) error {
		if _, left := r.Get(key("comes")); left {
			t.Errorf("%s is left", key("comes"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if at, err := s.Update(timeout(t), func(w store.Writer) error { w.Delete(key("none")); return nil }); err != nil || at != rev {
		t.Errorf("a deletion of nothing was committed at %d after %d: %v", at, rev, err)
	}
}

func testFence(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	made := put(t, s, key("fence"), counter(1))
	fenced := func(f store.Fence, n uint64) error {
		_, err := s.Update(timeout(t), func(w store.Writer) error {
			w.Fence(f)
			w.Put(key("x"), counter(n))
			return nil
		})
		return err
	}
	mod := store.Fence{Key: key("fence"), ModRevision: made}
	created := store.Fence{Key: key("fence"), CreateRevision: made}
	for _, f := range []store.Fence{mod, created} {
		if err := fenced(f, uint64(f.ModRevision)); err != nil {
			t.Fatalf("%+v holds, but: %v", f, err)
		}
	}
	put(t, s, key("fence"), counter(2))
	if err := fenced(mod, 10); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("an old mod revision: %v", err)
	}
	if err := fenced(created, 11); err != nil {
		t.Errorf("the create revision still holds, but: %v", err)
	}
	if _, err := s.Update(timeout(t), func(w store.Writer) error { w.Delete(key("fence")); return nil }); err != nil {
		t.Fatal(err)
	}
	put(t, s, key("fence"), counter(2))
	if err := fenced(created, 12); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("a key made anew: %v", err)
	}
	expect(t, s, 0, key("x"), 11)
}

func testBatch(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	const sessions = 200
	fences := make([]store.Fence, sessions)
	for i := range sessions {
		k := store.SessionPrefix + key("s%03d", i)
		fences[i] = store.Fence{Key: k, ModRevision: put(t, s, k, &storev1.SessionRecord{Epoch: uint64(i + 1)})}
	}
	// Every fifth session is replaced: its reports, and only its, are stale.
	stale := func(i int) bool { return i%5 == 0 }
	for i := range sessions {
		if stale(i) {
			put(t, s, fences[i].Key, &storev1.SessionRecord{Epoch: uint64(1000 + i)})
		}
	}
	before, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	revs := make([]int64, sessions)
	for i := range sessions {
		wg.Go(func() {
			ops := []store.Op{{Key: key("report/%03d/a", i), Value: counter(uint64(i))}, {Key: key("report/%03d/b", i), Value: counter(1)}}
			rev, err := s.Batch(timeout(t), fences[i], ops)
			if stale(i) != errors.Is(err, fleet.ErrStale) || (err != nil && !stale(i)) {
				t.Errorf("session %d: %v", i, err)
			}
			revs[i] = rev
		})
	}
	wg.Wait()
	for i := range sessions {
		n, there := read(t, s, slices.Max(revs), key("report/%03d/a", i))
		if there == stale(i) || (there && n != uint64(i)) {
			t.Errorf("session %d: %d, %v", i, n, there)
		}
		if !stale(i) {
			expect(t, s, revs[i], key("report/%03d/b", i), 1)
		}
	}
	if made := slices.Max(revs) - before; made >= sessions {
		t.Errorf("%d batches made %d revisions: they share none", sessions, made)
	}

	// The same report again makes no revision; a delete does; the newest of two values wins.
	last, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	same := []store.Op{{Key: key("report/%03d/a", 1), Value: counter(1)}}
	if rev, err := s.Batch(timeout(t), fences[1], same); err != nil || rev != last {
		t.Errorf("the same report again: revision %d after %d, %v", rev, last, err)
	}
	if _, err := s.Batch(timeout(t), fences[5], same); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the same report from a stale session: %v", err)
	}
	rev, err := s.Batch(timeout(t), fences[1], []store.Op{
		{Key: key("report/%03d/a", 1), Delete: true}, {Key: key("report/%03d/b", 1), Value: counter(5)}, {Key: key("report/%03d/b", 1), Value: counter(6)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, there := read(t, s, rev, key("report/%03d/a", 1)); there {
		t.Error("a deleted report is there")
	}
	expect(t, s, rev, key("report/%03d/b", 1), 6)
	for range 50 { // many that change the same key at once: each of them counts, one after the other
		wg.Go(func() {
			if _, err := s.Batch(timeout(t), fences[1], []store.Op{{Key: key("same"), Value: counter(1)}}); err != nil {
				t.Errorf("the same key: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := s.Batch(timeout(t), store.Fence{}, same); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("no fence: %v", err)
	}
}

func testSubscribe(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	put(t, s, key("a/1"), counter(1))
	var seen uint64
	sub := s.Subscribe(func(r store.Reader) {
		c, _, _ := store.Get[*storev1.Counter](r, key("a/1"))
		seen = c.GetValue()
	}, key("a/"), key("exact"))
	defer sub.Stop()
	if seen > 1 {
		t.Fatalf("saw %d", seen)
	}
	if seen == 0 { // the snapshot is older than the put, so the put must be signalled
		await(t, sub)
	}
	put(t, s, key("b/1"), counter(1))
	put(t, s, key("exact"), counter(1))
	put(t, s, key("a/2"), counter(1))
	rev := put(t, s, key("a/2"), counter(2))
	if err := s.View(timeout(t), rev, func(store.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
	keys, at := await(t, sub)
	if want := []string{key("a/2"), key("exact")}; !slices.Equal(keys, want) || at < rev {
		t.Fatalf("took %v at %d, want %v at %d or later", keys, at, want, rev)
	}
	select {
	case <-sub.C():
		if again, _ := sub.Take(); len(again) > 0 {
			t.Errorf("took %v twice", again)
		}
	default:
	}
	sub.Stop()
	rev = put(t, s, key("a/3"), counter(1))
	if err := s.View(timeout(t), rev, func(store.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if keys, _ := sub.Take(); len(keys) > 0 {
		t.Errorf("a stopped subscription took %v", keys)
	}
	testNothingFallsBetween(t, s)
}

// testNothingFallsBetween subscribes while a writer counts: what the snapshot lacks must be signalled.
func testNothingFallsBetween(t *testing.T, s store.Store) {
	const upTo = 200
	var wg sync.WaitGroup
	wg.Go(func() {
		for range upTo {
			if _, err := s.Update(timeout(t), increment(key("count"))); err != nil {
				t.Errorf("increment: %v", err)
			}
		}
	})
	defer wg.Wait()
	for range 20 {
		var seen uint64
		look := func(r store.Reader) {
			c, _, _ := store.Get[*storev1.Counter](r, key("count"))
			seen = c.GetValue()
		}
		sub := s.Subscribe(look, key("count"))
		for seen < upTo/4 {
			if keys, rev := await(t, sub); len(keys) > 0 {
				if err := s.View(timeout(t), rev, func(r store.Reader) error { look(r); return nil }); err != nil {
					t.Fatal(err)
				}
			}
		}
		sub.Stop()
	}
}
