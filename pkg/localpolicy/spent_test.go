package localpolicy

import (
	"encoding/json"
	"testing"
	"time"
)

func TestSpent(t *testing.T) {
	var s Spent
	start := time.Date(2026, 11, 24, 3, 0, 30, 0, time.UTC)
	take := func(after time.Duration, perHour int, want bool, until time.Duration) {
		t.Helper()
		ok, at := s.Take(perHour, start.Add(after))
		if ok != want || until == 0 && !at.IsZero() || until != 0 && !at.Equal(start.Add(until)) {
			t.Errorf("after %s: %v until %s; want %v until %s", after, ok, at, want, until)
		}
	}
	take(0, 0, false, 0) // a budget of none is never free
	take(0, 3, true, 0)
	take(time.Second, 3, true, 0)
	take(10*time.Minute, 3, true, 0)
	free := time.Hour + 30*time.Second // the minute in which the first two were ends
	take(10*time.Minute, 3, false, free)
	take(59*time.Minute, 3, false, free)
	take(59*time.Minute, 2, false, free)
	take(59*time.Minute, 1, false, free+10*time.Minute)
	take(59*time.Minute, 4, true, 0)
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	s = Spent{}
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	take(free-time.Second, 3, false, free)
	take(free, 3, true, 0)
	take(free, 3, false, free+10*time.Minute)
}

// TestSpentAndAClockThatGoesBack: what was deleted counts for an hour from then on, and not until the clock is there again.
func TestSpentAndAClockThatGoesBack(t *testing.T) {
	var s Spent
	ahead := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	s.Take(1, ahead)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if ok, until := s.Take(1, now); ok || !until.Equal(now.Add(span)) {
		t.Errorf("%v until %s", ok, until)
	}
	if ok, _ := s.Take(1, now.Add(span)); !ok {
		t.Error("an hour later there is no room")
	}
}
