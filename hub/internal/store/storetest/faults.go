package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// faulty is a backend that does what a network may do.
type faulty struct {
	backend.Backend
	mu      sync.Mutex
	commits int
	// lose says for the nth commit whether it happens and whether its answer is lost.
	lose      func(n int) (happens, lost bool)
	script    func(parts []backend.Part) (int64, []bool, error) // stands in for the next commit
	straggler func()                                            // delivers what a script has kept back
	cut       context.CancelFunc                                // ends the watch
	resume    <-chan struct{}                                   // what the next one waits for
	parked    chan struct{}                                     // closed when it has begun
	after     error                                             // what the next one ends with
}

// cutWatch ends the watch; the next one waits for resume and then ends with an error, if these are given. parked is closed
// when the watch that was cut has ended and the next one has begun.
func (f *faulty) cutWatch(resume <-chan struct{}, then error) (parked <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resume, f.after, f.parked = resume, then, make(chan struct{})
	if f.cut != nil {
		f.cut()
	}
	return f.parked
}

func (f *faulty) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	f.mu.Lock()
	n, lose, script := f.commits, f.lose, f.script
	f.commits++
	f.script = nil
	f.mu.Unlock()
	if script != nil {
		return script(parts)
	}
	send, lost := true, false
	if lose != nil {
		send, lost = lose(n)
	}
	if !send {
		return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: never sent")
	}
	rev, happened, err := f.Backend.Commit(ctx, parts)
	if lost {
		return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: answer lost")
	}
	return rev, happened, err
}

func (f *faulty) setLose(lose func(n int) (happens, lost bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commits, f.lose = 0, lose
}

func (f *faulty) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	f.mu.Lock()
	resume, after, parked := f.resume, f.after, f.parked
	f.after, f.parked = nil, nil
	ctx, f.cut = context.WithCancel(ctx)
	f.mu.Unlock()
	if parked != nil {
		close(parked)
	}
	if resume != nil {
		select {
		case <-resume:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if after != nil {
		return after
	}
	return f.Backend.Watch(ctx, prefix, from, fn)
}

func openFaulty(t testing.TB, open Opener) (*Store, *faulty) {
	f := &faulty{Backend: open(t)}
	return opened(t, f, engine.Options{}), f
}

// raw is where the store keeps a record in its backend.
func raw(t testing.TB, f *faulty, key string) string {
	t.Helper()
	k := "r/" + key
	if mustGet(t, f, k) == nil {
		t.Fatalf("%s is not in the backend", key)
	}
	return k
}

// Damage flips a bit of a stored record, and returns the revision at which it is damaged.
func Damage(t testing.TB, b backend.Backend, key string) int64 {
	t.Helper()
	at := "r/" + key
	found, _, err := b.Get(timeout(t), 0, at)
	if err != nil {
		t.Fatal(err)
	}
	if len(found[at].Value) == 0 {
		t.Fatalf("%s is not in the backend", key)
	}
	value := slices.Clone(found[at].Value)
	value[len(value)/2] ^= 0x10
	rev, _, err := b.Commit(timeout(t), []backend.Part{{Then: []backend.Op{{Key: at, Value: value}}}})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func testCorrupt(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	put(t, s, key("good"), counter(1))
	put(t, s, key("bad"), counter(1))
	rev := Damage(t, f, key("bad"))
	err := s.View(timeout(t), rev, func(r store.Reader) error {
		n := 0
		r.Scan(store.GuardPrefix, func(e store.Entry) bool { n++; return true })
		if n != 1 {
			t.Errorf("a scan shows %d records, want the good one", n)
		}
		return nil
	})
	if err != nil {
		t.Errorf("a view that does not ask for it: %v", err)
	}
	err = s.View(timeout(t), rev, func(r store.Reader) error {
		if _, ok := r.Get(key("bad")); ok {
			t.Error("a corrupt record was shown")
		}
		return fleet.Errorf(fleet.ErrNotFound, "bad: not found")
	})
	if !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a view that takes it for absent: %v", err)
	}
	if _, err := s.Update(timeout(t), increment(key("bad"))); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("an update that gets it: %v", err)
	}
	if st := s.Stats(); st.Corrupt != 1 {
		t.Errorf("%d corrupt records are counted", st.Corrupt)
	}
	if err := s.View(timeout(t), rev, func(r store.Reader) error {
		if all := r.Damaged(store.GuardPrefix); len(all) != 1 || all[0].Key != key("bad") || !errors.Is(all[0].Why, fleet.ErrCorrupt) {
			t.Errorf("damaged are said to be %v", all)
		}
		if store.DamageOf(r, key("ba")) != nil || store.DamageOf(r, key("good")) != nil {
			t.Error("a record that is sound, or none, is said to be damaged")
		}
		return nil
	}); err != nil {
		t.Errorf("a view that asks what is damaged: %v", err)
	}
	// Writing it without reading mends it, and asking whether it is damaged is no reading.
	rev, err = s.Update(timeout(t), func(w store.Writer) error {
		if store.DamageOf(w, key("bad")) == nil {
			t.Error("an update does not see that it is damaged")
		}
		w.Put(key("bad"), counter(5))
		if store.DamageOf(w, key("bad")) != nil {
			t.Error("an update does not see that it mends it")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s, rev, key("bad"), 5)
	if st := s.Stats(); st.Corrupt != 0 {
		t.Errorf("%d corrupt records are counted after the repair", st.Corrupt)
	}
}

// testLostAnswer loses answers before and after the commit: each increment must count once.
func testLostAnswer(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	fence := store.Fence{Key: key("session"), ModRevision: put(t, s, key("session"), counter(1))}
	f.setLose(func(n int) (bool, bool) { return n%3 != 1, n%3 == 0 })
	const times = 20
	for i := range times {
		if _, err := s.Update(timeout(t), increment(key("n"))); err != nil {
			t.Fatalf("increment %d: %v", i, err)
		}
	}
	rev, err := s.Batch(timeout(t), fence, []store.Op{{Key: key("report"), Value: counter(1)}, {Key: key("none"), Delete: true}})
	if err != nil {
		t.Fatalf("batch: %v", err)
	}
	expect(t, s, rev, key("report"), 1)
	content := []byte("some content")
	digests, err := s.Blobs().Put(timeout(t), content, make([]byte, 100))
	if err != nil {
		t.Fatalf("blob: %v", err)
	}
	if got, err := s.Blobs().Get(timeout(t), digests[0]); err != nil || string(got) != string(content) {
		t.Fatalf("blob: %q, %v", got, err)
	}
	f.setLose(nil)
	expect(t, s, 0, key("n"), times)

	// The answer of a commit is lost, and others overwrite the key meanwhile: the revision is that of the commit.
	f.suffer(t, s, trouble{sent: true, after: func(w store.Writer) { w.Put(key("n"), counter(times+4)) }})
	rev, err = s.Update(timeout(t), increment(key("n")))
	if err != nil {
		t.Fatal(err)
	}
	if last, err := s.Barrier(timeout(t)); err != nil || last <= rev {
		t.Errorf("the commit is said to be at %d, and another came after it, at %d (%v)", rev, last, err)
	}
	expect(t, s, 0, key("n"), times+4)

	// A batch whose answer is lost is not written a second time.
	before, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	f.setLose(func(n int) (bool, bool) { return true, n == 0 })
	rev, err = s.Batch(timeout(t), fence, []store.Op{{Key: key("report"), Value: counter(2)}})
	if err != nil || rev != before+1 {
		t.Errorf("the batch is at %d after %d, %v", rev, before, err)
	}
	expect(t, s, rev, key("report"), 2)

	// When nothing answers any more, the caller's patience counts, and the error says so.
	ctx, cancel := context.WithCancel(timeout(t))
	f.setLose(func(n int) (bool, bool) {
		if n == 2 {
			cancel()
		}
		return false, false
	})
	if _, err := s.Update(ctx, increment(key("n"))); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	f.setLose(nil)
}

// testGivenUp has a caller give up while it is looked up what became of its commit, when the answer to that is lost, too: whoever commits
// after it is not in its way.
func testGivenUp(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	fence := store.Fence{Key: key("session"), ModRevision: put(t, s, key("session"), counter(1))}
	for i, commit := range []func(ctx context.Context) error{
		func(ctx context.Context) error {
			_, err := s.Update(ctx, increment(key("given-up")))
			return err
		},
		func(ctx context.Context) error {
			_, err := s.Batch(ctx, fence, []store.Op{{Key: key("given-up"), Value: counter(100)}})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(timeout(t))
		f.setLose(func(n int) (bool, bool) {
			if n == 2 {
				cancel()
			}
			return n == 1, true // what ends the first sending happens, and nobody hears of it
		})
		if err := commit(ctx); err == nil {
			t.Errorf("commit %d: answered, and nobody waited for it", i)
		}
		f.setLose(nil)
		put(t, s, key("update"), counter(uint64(i)))
		rev, err := s.Batch(timeout(t), fence, []store.Op{{Key: key("batch"), Value: counter(uint64(i))}})
		if err != nil {
			t.Fatalf("batch after commit %d: %v", i, err)
		}
		expect(t, s, rev, key("update"), uint64(i))
		expect(t, s, rev, key("batch"), uint64(i))
	}
}

// testBrokenWatch cuts the watch, lets it miss changes and compacts them away: the list that follows must tell every
// change, and no more.
func testBrokenWatch(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	fence := store.Fence{Key: key("fence"), ModRevision: put(t, s, key("fence"), counter(1))}
	for i := range 5 {
		put(t, s, key("k/%d", i), counter(1))
	}
	if _, err := s.Barrier(timeout(t)); err != nil {
		t.Fatal(err)
	}
	sub := s.Subscribe(nil, key("k/"))
	defer sub.Stop()
	for n, after := range []error{nil, fmt.Errorf("test: %w", backend.ErrCompacted)} {
		resume := make(chan struct{})
		<-f.cutWatch(resume, after)
		where := raw(t, f, key("k/0"))
		change := []backend.Part{{Then: []backend.Op{
			{Key: where[:len(where)-1] + "1", Delete: true},
			{Key: where[:len(where)-1] + "9", Value: mustGet(t, f, where)},
		}}}
		rev, _, err := f.Backend.Commit(timeout(t), change)
		if err != nil {
			t.Fatal(err)
		}
		// A batch that does not know of the change yet is not taken for stale.
		if _, err := s.Batch(timeout(t), fence, []store.Op{{Key: key("k/9"), Value: counter(uint64(9 + n))}}); err != nil {
			t.Errorf("a batch behind its time: %v", err)
		}
		close(resume)
		if err := s.View(timeout(t), rev, func(r store.Reader) error {
			if _, ok := r.Get(key("k/1")); ok {
				t.Error("k/1 is still there")
			}
			if _, ok := r.Get(key("k/9")); !ok {
				t.Error("k/9 is not there")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{key("k/1"): true, key("k/9"): true}
		if after == nil {
			for len(want) > 0 {
				keys, _ := await(t, sub)
				for _, k := range keys {
					delete(want, k)
				}
			}
		} else {
			keys, _ := await(t, sub)
			for _, k := range keys {
				if !want[k] {
					t.Errorf("the list signalled %s, which did not change", k)
				}
			}
		}
	}
	if st := s.Stats(); st.Relists != 1 {
		t.Errorf("listed again %d times, want once", st.Relists)
	}
}

func mustGet(t testing.TB, f *faulty, k string) []byte {
	t.Helper()
	found, _, err := f.Get(timeout(t), 0, k)
	if err != nil {
		t.Fatal(err)
	}
	return found[k].Value
}
