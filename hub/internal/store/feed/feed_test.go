package feed_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
)

var wide = feed.Limits{Changes: 100, Bytes: 1000}

func values(p feed.Page[string]) (all []string) {
	p.Each(func(_ int64, v string) bool { all = append(all, v); return true })
	return all
}

func TestSince(t *testing.T) {
	now := int64(10)
	f := feed.New[string](wide, 10, func() int64 { return now })
	ask := func(after int64, want ...string) feed.Page[string] {
		t.Helper()
		p, err := f.Since(after)
		got := values(p)
		if err != nil || len(got) != len(want) {
			t.Fatalf("after %d: %v, %v; want %v", after, got, err, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("after %d: %v, want %v", after, got, want)
			}
		}
		return p
	}
	refuse := func(after int64) {
		t.Helper()
		if p, err := f.Since(after); !errors.Is(err, feed.ErrTooOld) || !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("after %d: %v, %v", after, values(p), err)
		}
	}
	first := ask(10)
	refuse(9)
	refuse(11)
	for i, v := range []string{"a", "b", "c"} {
		f.Add(int64(11+i/2), 1, v) // two of them at one revision
	}
	now = 20 // other things have changed since
	select {
	case <-first.More:
		t.Error("woken before Wake")
	default:
	}
	f.Wake()
	<-first.More
	shared := ask(10, "a", "b", "c")
	if p := ask(11, "c"); p.Revision != 20 {
		t.Errorf("to go on from %d, want what the feed is complete up to", p.Revision)
	}
	quiet := ask(15)
	f.Wake() // nothing is new
	select {
	case <-quiet.More:
		t.Error("woken for nothing")
	default:
	}
	f.Add(21, 1, "d")
	if p := ask(20); p.Revision != 20 {
		t.Errorf("to go on from %d, before all of it is there", p.Revision)
	}
	now = 21
	ask(20, "d")
	if got := values(shared); len(got) != 3 {
		t.Errorf("a page that was read has become %v", got)
	}
	f.Close()
	if _, err := f.Since(21); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

// What is kept is bounded by number and by bytes; a change that is over them alone has everybody read anew.
func TestLimits(t *testing.T) {
	last := int64(0)
	f := feed.New[string](feed.Limits{Changes: 10, Bytes: 100}, 0, func() int64 { return last })
	add := func(bytes int) { last++; f.Add(last, bytes, "x") }
	kept := func() int64 {
		for back := int64(1); ; back++ {
			if _, err := f.Since(last - back); err != nil {
				return back - 1
			}
		}
	}
	for range 200 {
		add(1)
		if n := kept(); last > 10 && n < 10 || n > 20 {
			t.Fatalf("after %d small changes one can go %d back", last, n)
		}
	}
	for range 50 {
		add(30)
		if n := kept(); n > 20 || n < 3 {
			t.Fatalf("of changes of 30 bytes one can go %d back", n)
		}
	}
	before := last
	p, err := f.Since(before)
	if err != nil {
		t.Fatal(err)
	}
	add(1000)
	f.Wake()
	<-p.More
	if _, err := f.Since(before); !errors.Is(err, feed.ErrTooOld) {
		t.Errorf("a change over the limit is kept: %v", err)
	}
	if _, err := f.Since(last); err != nil {
		t.Errorf("nobody can go on: %v", err)
	}
}

// Whoever follows from any point on ends with what is, or is told that it cannot.
func TestFollowersEndWithWhatIs(t *testing.T) {
	type change struct {
		key   string
		value int // 0: deleted
	}
	rapid.Check(t, func(rt *rapid.T) {
		now := int64(0)
		f := feed.New[change](feed.Limits{Changes: rapid.IntRange(1, 20).Draw(rt, "limit"), Bytes: 1 << 20}, 0, func() int64 { return now })
		state := map[string]int{}
		type reader struct {
			at    int64
			state map[string]int
		}
		var readers []*reader
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				for key, value := range rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.IntRange(0, 5), 0, 3).Draw(rt, "changes") {
					f.Add(now+1, 1, change{key, value})
					set(state, key, value)
					for _, r := range readers { // they may ask at any time
						if p, err := f.Since(r.at); err == nil {
							p.Each(func(_ int64, c change) bool { set(r.state, c.key, c.value); return true })
							r.at = p.Revision
						}
					}
				}
				now++
				f.Wake()
			},
			"join": func(*rapid.T) { readers = append(readers, &reader{at: now, state: maps.Clone(state)}) },
			"read": func(rt *rapid.T) {
				if len(readers) == 0 {
					return
				}
				r := rapid.SampledFrom(readers).Draw(rt, "reader")
				p, err := f.Since(r.at)
				if errors.Is(err, feed.ErrTooOld) {
					r.at, r.state = now, maps.Clone(state)
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				p.Each(func(_ int64, c change) bool { set(r.state, c.key, c.value); return true })
				if r.at = p.Revision; !maps.Equal(r.state, state) {
					rt.Fatalf("a reader has %v, and it is %v", r.state, state)
				}
			},
		})
	})
}

func set(state map[string]int, key string, value int) {
	if value == 0 {
		delete(state, key)
		return
	}
	state[key] = value
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now := int64(0)
		f := feed.New[string](wide, 0, func() int64 { mu.Lock(); defer mu.Unlock(); return now })
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string, 10)
		ended := make(chan error, 2)
		follow := func(ctx context.Context) {
			ended <- f.Follow(ctx, 0, func(p feed.Page[string]) error {
				for _, v := range values(p) {
					got <- v
				}
				return nil
			})
		}
		go follow(ctx)
		go follow(context.WithoutCancel(ctx))
		for i, v := range []string{"a", "b"} {
			synctest.Wait()
			mu.Lock()
			now = int64(i + 1)
			mu.Unlock()
			f.Add(int64(i+1), 1, v)
			f.Wake()
			if x, y := <-got, <-got; x != v || y != v {
				t.Errorf("followers got %s and %s, want %s", x, y, v)
			}
		}
		synctest.Wait()
		if len(got) > 0 {
			t.Errorf("followers got %d changes more", len(got))
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		f.Close()
		if err := <-ended; !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("the other ended with %v", err)
		}
	})
}

// No wake is lost between the look and the wait: of two changes in a row, the second reaches all, though none follows it.
func TestNoWakeIsLost(t *testing.T) {
	const rounds, readers = 1000, 4
	var now atomic.Int64
	f := feed.New[string](wide, 0, func() int64 {
		n := now.Load()
		runtime.Gosched() // others go on between the look and what follows from it
		return n
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan int64, 2*readers)
	for range readers {
		go func() {
			_ = f.Follow(ctx, 0, func(p feed.Page[string]) error {
				p.Each(func(revision int64, _ string) bool { got <- revision; return true })
				return nil
			})
		}()
	}
	for rev := int64(1); rev <= 2*rounds; rev++ {
		for range rand.N(8) {
			runtime.Gosched()
		}
		f.Add(rev, 1, "x")
		now.Store(rev)
		f.Wake()
		for n := 0; rev%2 == 0 && n < 2*readers; n++ {
			select {
			case <-got:
			case <-ctx.Done():
				t.Fatalf("change %d never reached somebody", rev)
			}
		}
	}
}
