package follow

import (
	"fmt"
	"testing"
	"time"
)

var start = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// A source is looked at in its interval, give or take a tenth; two modules are not looked at together for ever.
func TestLooksComeInTheInterval(t *testing.T) {
	p := Plan{Interval: 5 * time.Minute}
	for _, key := range []string{"a", "b", "c"} {
		at := start
		for range 100 {
			next := p.Next(Memory{Looked: at}, key, start)
			if wait := next.Sub(at); wait < 4*time.Minute+30*time.Second || wait > 5*time.Minute+30*time.Second {
				t.Fatalf("%s waits for %s", key, wait)
			}
			at = next
		}
	}
	a, b := p.Next(Memory{Looked: start}, "a", start), p.Next(Memory{Looked: start}, "b", start)
	if a.Equal(b) {
		t.Error("two modules are looked at in the same moment")
	}
	if again := p.Next(Memory{Looked: start}, "a", start); !again.Equal(a) {
		t.Error("the same memory gives another time")
	}
}

// After a start nothing is looked at before its time, and what was due meanwhile is spread over the interval, at most five minutes.
func TestNoHerdAfterAStart(t *testing.T) {
	led := start.Add(time.Hour)
	for _, interval := range []time.Duration{time.Minute, 5 * time.Minute, 2 * time.Hour} {
		p, buckets := Plan{Interval: interval}, [10]int{}
		spread := min(interval, maxCatchUp)
		for i := range 1000 {
			next := p.Next(Memory{Looked: start}, fmt.Sprint("m", i), led)
			if interval > time.Hour {
				if next.Before(start.Add(interval * 9 / 10)) {
					t.Fatalf("interval %s: looked at before its time, %s after the last look", interval, next.Sub(start))
				}
				continue
			}
			late := next.Sub(led)
			if late < 0 || late > spread {
				t.Fatalf("interval %s: %s after the start", interval, late)
			}
			buckets[min(int(late*10/spread), 9)]++
		}
		for i, n := range buckets {
			if interval <= time.Hour && (n < 50 || n > 150) {
				t.Errorf("interval %s: %d of 1000 in the tenth %d", interval, n, i)
			}
		}
	}
}

// A source that is away is looked at ever more rarely, up to every quarter of an hour, and in its interval once it is back.
func TestAwaySourcesAreLookedAtMoreRarely(t *testing.T) {
	p, m := Plan{Interval: time.Minute}, Memory{Looked: start, Failing: start}
	looks := 0
	for m.Looked.Before(start.Add(time.Hour)) {
		next := p.Next(m, "a", start)
		if wait := next.Sub(m.Looked); wait > maxBackoff*11/10 || wait < time.Minute*9/10 {
			t.Fatalf("waits for %s", wait)
		}
		m.Looked = next
		looks++
	}
	if looks < 6 || looks > 10 {
		t.Errorf("%d looks in an hour", looks)
	}
	m.Failing = time.Time{}
	if wait := p.Next(m, "a", start).Sub(m.Looked); wait > time.Minute*11/10 {
		t.Errorf("back, and it waits for %s", wait)
	}
	long := Plan{Interval: 2 * time.Hour}
	if wait := long.Next(Memory{Looked: start, Failing: start}, "a", start).Sub(start); wait < 108*time.Minute {
		t.Errorf("an interval of 2h waits for %s only", wait)
	}
}

// Calls that come together make one look, and many calls few looks.
func TestCallsMakeFewLooks(t *testing.T) {
	m := Memory{Looked: start}
	looks := 0
	for at := start.Add(time.Minute); at.Before(start.Add(2 * time.Minute)); { // ten calls a second
		next := Called(m, at)
		if wait := next.Sub(at); wait < time.Second || wait > 10*time.Second {
			t.Fatalf("a look after %s", wait)
		}
		m.Looked, at = next, next.Add(time.Second/10)
		looks++
	}
	if looks < 6 || looks > 8 {
		t.Errorf("%d looks in a minute", looks)
	}
	if at := Called(Memory{Looked: start.Add(time.Hour)}, start); at.After(start.Add(time.Second)) {
		t.Errorf("a look at %s, of a clock that was set back", at)
	}
}

func TestBegins(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Found
		want bool
	}{
		{"nothing has changed", Found{Same: true}, false},
		{"a person asks, and nothing has changed", Found{Same: true, Person: true}, false},
		{"it has changed", Found{}, true},
		{"it was rolled back, and is what it was", Found{Same: true, Stopped: true}, false},
		{"it was rolled back, and has changed", Found{Stopped: true}, true},
		{"it was rolled back, and a person asks", Found{Same: true, Stopped: true, Person: true}, true},
		{"the last put got no revision", Found{Same: true, Uncut: true}, true},
		{"nor did it begin, for the rest of what it was put with never came", Found{Uncut: true, Stopped: true, Unbegun: true}, false},
		{"it did not begin, and a person asks", Found{Uncut: true, Stopped: true, Unbegun: true, Person: true}, true},
	} {
		if got := c.f.Begins(); got != c.want {
			t.Errorf("%s: begins %v", c.name, got)
		}
	}
}
