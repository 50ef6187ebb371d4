package rollout

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClock: however the clock of a process is set, nothing that it noted, in a decision or between two, has lasted for longer than by a clock that
// nobody sets. How often it is set has a bound, and two times between two decisions cannot be told from one.
func TestClock(t *testing.T) {
	t.Parallel()
	type note struct {
		ran   time.Duration // when it was, by the clock that nobody sets
		noted Instant
	}
	rapid.Check(t, func(t *rapid.T) {
		var (
			started  = time.Unix(1_800_000_000, 0)
			ran      time.Duration // how long the process has run
			off, was time.Duration // by how much its clock is, and was in the last decision
			sets     int
			notes    []note
		)
		now := func() time.Time { return started.Add(ran + off) }
		clock := Clock{}.At(now(), ran)
		set := func(t *rapid.T, to time.Duration) {
			if sets++; off != was || sets >= maxSpans {
				t.Skip("it is not told")
			}
			off = to
		}
		t.Repeat(map[string]func(*rapid.T){
			"goes on":        func(t *rapid.T) { ran += time.Duration(rapid.IntRange(1, 3600).Draw(t, "for")) * time.Second },
			"is set":         func(t *rapid.T) { set(t, time.Duration(rapid.IntRange(-120, 120).Draw(t, "to"))*time.Minute) },
			"is right again": func(t *rapid.T) { set(t, 0) },
			"notes":          func(*rapid.T) { notes = append(notes, note{ran: ran, noted: At(now())}) },
			"decides": func(t *rapid.T) {
				clock, was = clock.At(now(), ran), off
				in, d := Input{Now: now(), Clock: clock}, &Decision{}
				for _, n := range notes {
					began, behind := in.reckon(n.noted)
					d.Behind = d.Behind || behind
					if lasted, did := time.Duration(At(in.Now)-began), ran-n.ran; lasted > did+setBy {
						t.Fatalf("%v has lasted for %v", did, lasted)
					}
				}
				clock = clock.Decided(d)
			},
		})
	})
}
