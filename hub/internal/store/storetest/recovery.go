package storetest

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// trouble is what happens to the first sending of a commit, and what others do around it.
type trouble struct {
	sent   bool               // else it never arrives
	late   bool               // it arrives just before the second sending
	last   bool               // it arrives when the call has returned, after what others do then
	before func(store.Writer) // committed by others just before it
	after  func(store.Writer) // by others, just after it
	fence  bool               // another session replaces the fence then
}

// suffer has the next commit's answer lost, as the trouble says.
func (f *faulty) suffer(t testing.TB, s *Store, x trouble) {
	ctx := timeout(t)
	others := func(change func(store.Writer)) {
		if change == nil {
			return
		}
		if _, err := s.Barrier(ctx); err != nil { // they know what was committed
			t.Errorf("others: %v", err)
		}
		if _, err := s.Update(ctx, func(w store.Writer) error { change(w); return nil }); err != nil {
			t.Errorf("others: %v", err)
		}
	}
	arrive := func(parts []backend.Part) {
		others(x.before)
		if x.sent || x.late {
			if _, _, err := f.Backend.Commit(ctx, parts); err != nil {
				t.Errorf("the first sending: %v", err)
			}
		}
		others(x.after)
		if x.fence {
			others(func(w store.Writer) { w.Put(key("fence"), counter(99)) })
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = func(first []backend.Part) (int64, []bool, error) {
		if x.last {
			f.straggler = func() {
				others(x.after)
				if _, _, err := f.Backend.Commit(ctx, first); err != nil {
					t.Errorf("the first sending: %v", err)
				}
			}
			return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: no answer yet")
		}
		if !x.late {
			arrive(first)
			return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: answer lost")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.script = func(second []backend.Part) (int64, []bool, error) {
			arrive(first)
			return f.Backend.Commit(ctx, second)
		}
		return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: no answer yet")
	}
}

// testRecovery loses the answers of commits. What happened is found out, whatever others did meanwhile: it is not done a
// second time, and what they did is not undone.
func testRecovery(t *testing.T, open Opener) {
	set := func(k string, n uint64) func(store.Writer) {
		return func(w store.Writer) { w.Put(key("%s", k), counter(n)) }
	}
	drop := func(keys ...string) func(store.Writer) {
		return func(w store.Writer) {
			for _, k := range keys {
				w.Delete(key("%s", k))
			}
		}
	}
	add := func(k string) func(store.Writer) {
		return func(w store.Writer) {
			c, _, _ := store.Get[*storev1.Counter](w, key("%s", k))
			w.Put(key("%s", k), counter(c.GetValue()+1))
		}
	}
	puts := func(k string, n uint64) store.Op { return store.Op{Key: key("%s", k), Value: counter(n)} }
	dels := func(k string) store.Op { return store.Op{Key: key("%s", k), Delete: true} }
	for _, c := range []struct {
		name   string
		x      trouble
		update func(store.Writer)
		batch  []store.Op
		want   map[string]uint64 // 0: not there; a and b are 5 before
		stale  bool
	}{
		{name: "update: committed", x: trouble{sent: true}, update: add("a"), want: map[string]uint64{"a": 6}},
		{name: "update: never sent", x: trouble{}, update: add("a"), want: map[string]uint64{"a": 6}},
		{name: "update: lost the race", x: trouble{sent: true, before: set("a", 10)}, update: add("a"), want: map[string]uint64{"a": 11}},
		{name: "update: overwritten", x: trouble{sent: true, after: set("a", 10)}, update: add("a"), want: map[string]uint64{"a": 10}},
		{name: "update: deleted after", x: trouble{sent: true, after: drop("a")}, update: add("a"), want: map[string]uint64{"a": 0}},
		{name: "update: deletes, committed", x: trouble{sent: true}, update: drop("a", "b"), want: map[string]uint64{"a": 0, "b": 0}},
		{name: "update: deletes, made anew", x: trouble{sent: true, after: set("a", 7)}, update: drop("a", "b"), want: map[string]uint64{"a": 7, "b": 0}},
		{name: "update: deletes, never sent, one deleted by others", x: trouble{after: drop("a")}, update: drop("a", "b"),
			want: map[string]uint64{"a": 0, "b": 0}},

		{name: "update: late", x: trouble{late: true}, update: add("a"), want: map[string]uint64{"a": 6}},
		{name: "update: late, overwritten", x: trouble{late: true, after: set("a", 10)}, update: add("a"), want: map[string]uint64{"a": 10}},
		{name: "update: late, deleted after", x: trouble{late: true, after: drop("a")}, update: add("a"), want: map[string]uint64{"a": 0}},
		{name: "update: late, lost the race", x: trouble{late: true, before: set("a", 10)}, update: add("a"), want: map[string]uint64{"a": 11}},
		{name: "update: made and deleted after", x: trouble{sent: true, after: drop("c")}, update: add("c"), want: map[string]uint64{"c": 0}},
		{name: "update: late deletes, made anew", x: trouble{late: true, after: set("a", 7)}, update: drop("a", "b"), want: map[string]uint64{"a": 7, "b": 0}},
		{name: "update: late, made and deleted after", x: trouble{late: true, after: drop("c")}, update: add("c"), want: map[string]uint64{"c": 0}},
		{name: "update: last, made and deleted before", x: trouble{last: true, after: drop("c")}, update: add("c"), want: map[string]uint64{"c": 0}},
		{name: "update: last", x: trouble{last: true}, update: add("c"), want: map[string]uint64{"c": 1}},

		{name: "batch: late, made and deleted after", x: trouble{late: true, after: drop("c")}, batch: []store.Op{puts("c", 1)}, want: map[string]uint64{"c": 0}},
		{name: "batch: last, made and deleted before", x: trouble{last: true, after: drop("c")}, batch: []store.Op{puts("c", 1)}, want: map[string]uint64{"c": 0}},
		{name: "batch: late", x: trouble{late: true}, batch: []store.Op{puts("a", 1), dels("b")}, want: map[string]uint64{"a": 1, "b": 0}},
		{name: "batch: late, overwritten", x: trouble{late: true, after: set("a", 10)}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 10}},
		{name: "batch: late, deleted after", x: trouble{late: true, after: drop("a")}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 0}},
		{name: "batch: late, then fenced", x: trouble{late: true, fence: true}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 1}},
		{name: "batch: late deletes, made anew", x: trouble{late: true, after: set("a", 7)}, batch: []store.Op{dels("a"), dels("none")},
			want: map[string]uint64{"a": 7}},
		{name: "batch: made and deleted after", x: trouble{sent: true, after: drop("c")}, batch: []store.Op{puts("c", 1)}, want: map[string]uint64{"c": 0}},
		{name: "batch: committed", x: trouble{sent: true}, batch: []store.Op{puts("a", 1), dels("b")}, want: map[string]uint64{"a": 1, "b": 0}},
		{name: "batch: never sent", x: trouble{}, batch: []store.Op{puts("a", 1), dels("b")}, want: map[string]uint64{"a": 1, "b": 0}},
		{name: "batch: lost the race", x: trouble{sent: true, before: set("a", 10)}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 1}},
		{name: "batch: overwritten", x: trouble{sent: true, after: set("a", 10)}, batch: []store.Op{puts("a", 1), dels("b")},
			want: map[string]uint64{"a": 10, "b": 0}},
		{name: "batch: deleted after", x: trouble{sent: true, after: drop("a")}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 0}},
		{name: "batch: committed, then fenced", x: trouble{sent: true, fence: true}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 1}},
		{name: "batch: fenced", x: trouble{fence: true}, batch: []store.Op{puts("a", 1)}, want: map[string]uint64{"a": 5}, stale: true},
		{name: "batch: deletes, committed", x: trouble{sent: true}, batch: []store.Op{dels("a"), dels("none")}, want: map[string]uint64{"a": 0}},
		{name: "batch: deletes, never sent", x: trouble{}, batch: []store.Op{dels("a"), dels("none")}, want: map[string]uint64{"a": 0}},
		{name: "batch: deletes, made anew", x: trouble{sent: true, after: set("a", 7)}, batch: []store.Op{dels("a"), dels("none")},
			want: map[string]uint64{"a": 7}},
		{name: "batch: deletes, another key made", x: trouble{sent: true, after: set("none", 7)}, batch: []store.Op{dels("a"), dels("none")},
			want: map[string]uint64{"a": 0, "none": 7}},
		{name: "batch: deletes, never sent, one deleted by others", x: trouble{after: drop("a")}, batch: []store.Op{dels("a"), dels("b")},
			want: map[string]uint64{"a": 0, "b": 0}},
		{name: "batch: deletes, committed, then fenced", x: trouble{sent: true, fence: true}, batch: []store.Op{dels("a")}, want: map[string]uint64{"a": 0}},
		{name: "batch: deletes, fenced", x: trouble{fence: true}, batch: []store.Op{dels("a")}, want: map[string]uint64{"a": 5}, stale: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := openFaulty(t, open)
			for _, k := range []string{"a", "b"} {
				put(t, s, key("%s", k), counter(5))
			}
			fence := store.Fence{Key: key("fence"), ModRevision: put(t, s, key("fence"), counter(1))}
			if _, err := s.Barrier(timeout(t)); err != nil {
				t.Fatal(err)
			}
			f.suffer(t, s, c.x)
			var err error
			if c.update != nil {
				_, err = s.Update(timeout(t), func(w store.Writer) error { c.update(w); return nil })
			} else {
				_, err = s.Batch(timeout(t), fence, c.batch)
			}
			if c.stale != errors.Is(err, fleet.ErrStale) || err != nil && !c.stale {
				t.Errorf("it says: %v", err)
			}
			if f.straggler != nil {
				f.straggler()
			}
			rev, err := s.Barrier(timeout(t))
			if err != nil {
				t.Fatal(err)
			}
			for k, want := range c.want {
				if got, there := read(t, s, rev, key("%s", k)); got != want || there != (want != 0) {
					t.Errorf("%s is %d (there: %v), want %d", k, got, there, want)
				}
			}
		})
	}
}

// testForgotten loses an answer while the watch is broken, and what it has missed is compacted: a list shows only what is
// there now. Where that does not tell what happened, the caller is told so, and nothing is done a second time.
func testForgotten(t *testing.T, open Opener) {
	for _, overwritten := range []bool{false, true} {
		for name, write := range map[string]func(*Store, store.Fence) error{
			"update": func(s *Store, _ store.Fence) error {
				_, err := s.Update(timeout(t), increment(key("a")))
				return err
			},
			"batch": func(s *Store, fence store.Fence) error {
				_, err := s.Batch(timeout(t), fence, []store.Op{{Key: key("a"), Value: counter(6)}})
				return err
			},
		} {
			s, f := openFaulty(t, open)
			put(t, s, key("a"), counter(5))
			put(t, s, key("b"), counter(10))
			fence := store.Fence{Key: key("fence"), ModRevision: put(t, s, key("fence"), counter(1))}
			if _, err := s.Barrier(timeout(t)); err != nil {
				t.Fatal(err)
			}
			a, b := raw(t, f, key("a")), raw(t, f, key("b"))
			resume := make(chan struct{})
			<-f.cutWatch(resume, backend.ErrCompacted)
			f.mu.Lock()
			f.script = func(parts []backend.Part) (int64, []bool, error) {
				_, happened, err := f.Backend.Commit(timeout(t), parts)
				if err != nil || !happened[0] {
					t.Errorf("%s: %v, %v", name, happened, err)
				}
				if overwritten {
					if _, _, err := f.Backend.Commit(timeout(t), []backend.Part{{Then: []backend.Op{{Key: a, Value: mustGet(t, f, b)}}}}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				close(resume)
				return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "test: answer lost")
			}
			f.mu.Unlock()
			err := write(s, fence)
			if overwritten != errors.Is(err, fleet.ErrConflict) || err != nil && !overwritten {
				t.Errorf("%s, overwritten %v: %v", name, overwritten, err)
			}
			want := uint64(6)
			if overwritten {
				want = 10
			}
			rev, err := s.Barrier(timeout(t))
			if err != nil {
				t.Fatal(err)
			}
			expect(t, s, rev, key("a"), want)
		}
	}
}
