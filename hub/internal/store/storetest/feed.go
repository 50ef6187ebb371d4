package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/feed"
)

// seen prints what a feed says, one word for each change.
func seen(p feed.Page[store.Change]) (words []string) {
	p.Each(func(_ int64, c store.Change) bool {
		was, is := "-", "-"
		if c.Was != nil {
			was = fmt.Sprint(c.Was.(*storev1.FloorRecord).GetGeneration())
		}
		if c.Value != nil {
			is = fmt.Sprint(c.Value.(*storev1.FloorRecord).GetGeneration())
		}
		words = append(words, c.Key+":"+was+">"+is)
		return true
	})
	return words
}

func testFeed(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	floor := func(c string, n uint64) int64 {
		return put(t, s, store.FloorPrefix+c, &storev1.FloorRecord{Generation: n})
	}
	floor("a", 1)
	start, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	changes := s.Feed(store.FloorPrefix)
	ask := func(after int64, want ...string) feed.Page[store.Change] {
		t.Helper()
		if _, err := s.Barrier(timeout(t)); err != nil {
			t.Fatal(err)
		}
		p, err := changes.Since(after)
		if got := fmt.Sprint(seen(p)); err != nil || got != fmt.Sprint(want) {
			t.Fatalf("after %d: %v, %v; want %v", after, got, err, want)
		}
		return p
	}
	if _, err := changes.Since(start - 1); !errors.Is(err, feed.ErrTooOld) {
		t.Errorf("from before the feed was asked for: %v", err)
	}
	idle := ask(start)
	other := put(t, s, key("n"), counter(1))
	if at := ask(start).Revision; at < other {
		t.Errorf("a quiet feed goes on from %d, and the store is at %d", at, other)
	}
	select {
	case <-idle.More:
		t.Error("woken by another class")
	default:
	}
	mid := floor("a", 2)
	<-idle.More
	if _, err := s.Update(timeout(t), func(w store.Writer) error {
		w.Put(store.FloorPrefix+"b", &storev1.FloorRecord{Generation: 3})
		w.Delete(store.FloorPrefix + "a")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ask(start, "floors/a:1>2", "floors/a:2>-", "floors/b:->3")
	last := ask(mid, "floors/a:2>-", "floors/b:->3")

	// The watch misses changes: what is found by the list is told, and those who follow go on.
	resume := make(chan struct{})
	<-f.cutWatch(resume, backend.ErrCompacted)
	where := raw(t, f, store.FloorPrefix+"b")
	if _, _, err := f.Backend.Commit(timeout(t), []backend.Part{{Then: []backend.Op{
		{Key: where, Delete: true}, {Key: where[:len(where)-1] + "c", Value: mustGet(t, f, where)},
	}}}); err != nil {
		t.Fatal(err)
	}
	close(resume)
	<-last.More
	after, err := changes.Since(last.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(seen(after)); got != "[floors/c:->3 floors/b:3>-]" {
		t.Errorf("after a list: %s", got)
	}
	testFollowers(t, s)
}

// testFollowers has many follow while others write: each ends with what is there.
func testFollowers(t *testing.T, s *Store) {
	const upTo, readers = 50, 20
	changes := s.Feed(store.GuardPrefix)
	ctx, cancel := context.WithCancel(timeout(t))
	defer cancel()
	mirrors := make(chan map[string]uint64, readers)
	for range readers {
		mirror, at := map[string]uint64{}, int64(0)
		if err := s.View(timeout(t), 0, func(r store.Reader) error {
			at = r.Revision()
			store.Scan(r, store.GuardPrefix, func(c *storev1.Counter, e store.Entry) bool { mirror[e.Key] = c.GetValue(); return true })
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = changes.Follow(ctx, at, func(p feed.Page[store.Change]) error {
				p.Each(func(_ int64, c store.Change) bool {
					if n, ok := c.Value.(*storev1.Counter); ok {
						mirror[c.Key] = n.GetValue()
					} else {
						delete(mirror, c.Key)
					}
					return true
				})
				if mirror[key("end")] == 1 {
					mirrors <- mirror
					return errors.New("done")
				}
				return nil
			})
		}()
	}
	for n := range uint64(upTo) {
		put(t, s, key("k%d", n%7), counter(n))
		if n%5 == 4 {
			if _, err := s.Update(timeout(t), func(w store.Writer) error { w.Delete(key("k%d", n%3)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	rev := put(t, s, key("end"), counter(1))
	want := map[string]uint64{}
	if err := s.View(timeout(t), rev, func(r store.Reader) error {
		store.Scan(r, store.GuardPrefix, func(c *storev1.Counter, e store.Entry) bool { want[e.Key] = c.GetValue(); return true })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range readers {
		select {
		case got := <-mirrors:
			if !maps.Equal(got, want) {
				t.Errorf("one who followed has %v, and it is %v", got, want)
			}
		case <-ctx.Done():
			t.Fatal("some never saw the end")
		}
	}
}
