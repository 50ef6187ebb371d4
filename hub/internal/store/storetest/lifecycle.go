package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

func testCampaign(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	first, err := s.Campaign(timeout(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	lead := func(l store.Leadership, n uint64) error {
		_, err := s.Update(timeout(t), func(w store.Writer) error {
			w.Fence(l.Fence())
			w.Put(key("led"), counter(n))
			return nil
		})
		return err
	}
	if err := lead(first, 1); err != nil {
		t.Fatalf("the leader writes: %v", err)
	}
	if _, err := s.Batch(timeout(t), first.Fence(), []store.Op{{Key: key("batch"), Value: counter(1)}}); err != nil {
		t.Fatalf("the leader batches: %v", err)
	}
	second := make(chan store.Leadership, 1)
	go func() {
		l, err := s.Campaign(timeout(t), store.Candidate{Instance: "control"})
		if err != nil {
			t.Errorf("second: %v", err)
		}
		second <- l
	}()
	waiting, cancel := context.WithTimeout(timeout(t), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Campaign(waiting, store.Candidate{Instance: "control"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a third that gives up: %v", err)
	}
	select {
	case <-second:
		t.Fatal("two lead at once")
	case <-first.Lost():
		t.Fatal("the first lost it")
	default:
	}
	if err := first.Resign(timeout(t)); err != nil {
		t.Fatal(err)
	}
	<-first.Lost()
	next := <-second
	if next == nil {
		t.FailNow()
	}
	if err := lead(first, 2); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the old leader writes: %v", err)
	}
	if _, err := s.Batch(timeout(t), first.Fence(), []store.Op{{Key: key("batch"), Value: counter(2)}}); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the old leader batches: %v", err)
	}
	if err := lead(next, 3); err != nil {
		t.Errorf("the new leader writes: %v", err)
	}
	expect(t, s, 0, key("batch"), 1)
}

func testClose(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	sub := s.Subscribe(nil, store.GuardPrefix)
	l, err := s.Campaign(timeout(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 1)
	go func() {
		blocked <- s.View(context.Background(), 1<<40, func(store.Reader) error { return nil })
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	for range sub.C() {
	}
	<-l.Lost()
	if err := <-blocked; !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a view that waited: %v", err)
	}
	for range s.Subscribe(nil, store.GuardPrefix).C() {
	}
	if _, err := s.Update(timeout(t), increment(key("n"))); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("an update after the close: %v", err)
	}
	if _, err := s.Batch(timeout(t), store.Fence{Key: key("n"), ModRevision: 1}, []store.Op{{Key: key("n"), Delete: true}}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a batch after the close: %v", err)
	}
}

// testModel does random updates, batches and restarts of the watch against a map.
func testModel(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	fence := store.Fence{Key: store.SessionPrefix + "m", ModRevision: put(t, s, store.SessionPrefix+"m", &storev1.SessionRecord{Epoch: 1})}
	model := make(map[string]uint64)
	keys := []string{"m/a", "m/a/b", "m/b", "m/b/c/d", "m/c", "m/d"}
	signalled := s.Subscribe(nil, key("m/"))
	defer signalled.Stop()
	mirror := make(map[string]uint64) // kept up to date by the subscription only
	var last int64
	rapid.Check(t, func(rt *rapid.T) {
		rt.Repeat(map[string]func(*rapid.T){
			"update": func(rt *rapid.T) {
				changes := rapid.MapOfN(rapid.SampledFrom(keys), rapid.Uint64Range(0, 3), 0, 4).Draw(rt, "changes")
				read := make(map[string]uint64)
				rev, err := s.Update(timeout(t), func(w store.Writer) error {
					for k, n := range changes {
						c, _, _ := store.Get[*storev1.Counter](w, key("%s", k))
						read[k] = c.GetValue()
						write(w, key("%s", k), n)
					}
					return nil
				})
				if err != nil || rev < last {
					rt.Fatalf("revision %d after %d: %v", rev, last, err)
				}
				for k, n := range read {
					if n != model[k] {
						rt.Fatalf("committed on %s = %d, but it was %d", k, n, model[k])
					}
				}
				last = rev
				merge(model, changes)
			},
			"batch": func(rt *rapid.T) {
				changes := rapid.MapOfN(rapid.SampledFrom(keys), rapid.Uint64Range(0, 3), 1, 4).Draw(rt, "changes")
				var ops []store.Op
				for k, n := range changes {
					ops = append(ops, store.Op{Key: key("%s", k), Value: counter(n), Delete: n == 0})
				}
				rev, err := s.Batch(timeout(t), fence, ops)
				if err != nil || rev < last {
					rt.Fatalf("revision %d after %d: %v", rev, last, err)
				}
				last = rev
				merge(model, changes)
			},
			"cut": func(rt *rapid.T) {
				if rapid.IntRange(0, 19).Draw(rt, "luck") == 13 {
					f.cutWatch(nil, rapid.SampledFrom([]error{nil, backend.ErrCompacted}).Draw(rt, "then"))
				}
			},
			"": func(rt *rapid.T) {
				if got := scanned(t, s, last); !maps.Equal(got, model) {
					rt.Fatalf("store %v, model %v", got, model)
				}
				for !maps.Equal(mirror, model) {
					keys, rev := await(t, signalled)
					for _, k := range keys {
						n, _ := read(t, s, rev, k)
						merge(mirror, map[string]uint64{strings.TrimPrefix(k, store.GuardPrefix): n})
					}
				}
			},
		})
	})
}

func write(w store.Writer, key string, n uint64) {
	if n == 0 {
		w.Delete(key)
		return
	}
	w.Put(key, counter(n))
}

func merge(model, changes map[string]uint64) {
	for k, n := range changes {
		if n == 0 {
			delete(model, k)
			continue
		}
		model[k] = n
	}
}

// scanned is what the store has under m/ at the revision or later.
func scanned(t testing.TB, s store.Store, rev int64) map[string]uint64 {
	t.Helper()
	got := make(map[string]uint64)
	var order []string
	if err := s.View(timeout(t), rev, func(r store.Reader) error {
		store.Scan(r, key("m/"), func(c *storev1.Counter, e store.Entry) bool {
			order = append(order, e.Key)
			got[strings.TrimPrefix(e.Key, store.GuardPrefix)] = c.GetValue()
			return true
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(order) {
		t.Fatalf("scanned in the order %v", order)
	}
	return got
}
