package session

import (
	"testing"
	"time"
)

// Sessions that began at any two moments of a slot beat at the same moment, and none later than the time between heartbeats.
func TestSessionsBeatTogether(t *testing.T) {
	s := newServer(t, &gates{})
	const every, slot = 10 * time.Second, 10 * time.Second / beatSlots
	s.o.Heartbeat = every
	start := time.Unix(1_800_000_000, 0).Truncate(slot)
	at := func(began time.Time) time.Time {
		s.clock = func() time.Time { return began }
		wait := s.untilBeat()
		if wait <= every-slot || wait > every {
			t.Errorf("it waits for %s", wait)
		}
		return began.Add(wait)
	}
	want := start.Add(every)
	for _, later := range []time.Duration{0, 1, slot / 3, slot - 1} {
		if got := at(start.Add(later)); !got.Equal(want) {
			t.Errorf("%s after the slot began the next beat is at %s, not at %s", later, got, want)
		}
	}
	if got := at(want); !got.Equal(want.Add(every)) {
		t.Errorf("the one after that is at %s", got)
	}
}
