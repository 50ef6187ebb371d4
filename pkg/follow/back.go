package follow

import (
	"fmt"
	"time"
)

const (
	// Steady is how many looks in a row must find what goes back before it is rolled out unasked. A mirror, a cache or one of several servers
	// that is behind has caught up by then, or another one answers.
	Steady = 3
	// BackApart is within which time a source goes back to the same no second time unasked: servers that differ for good answer in turn.
	BackApart = 24 * time.Hour
)

// ReasonGoesBack is why a look came to nothing: what the source has is older than what the module has of it, or was left by it before.
const ReasonGoesBack = "GoesBack"

// Back is that a source goes back with what a look found.
type Back struct {
	// Why it is so, in a sentence; empty: it goes forward.
	Why string
	// Newer says that what the source has is one of before, and was made after what the module has: then it went back before, and comes forth again.
	Newer bool
	// Seen is how many looks in a row found it, this one included.
	Seen int
	// Before is when the source went back to the same last; zero: it did not.
	Before time.Time
	// Unfollowed says that the source is looked at only until what a person asked for is there: who would take an older state at the third look
	// has no look after that to come forth again.
	Unfollowed bool
}

// Again reports that it went back to the same not long ago. When it went back before, by a clock that was ahead by far, says nothing.
func (b Back) Again(now time.Time) bool {
	return !b.Before.IsZero() && now.Sub(b.Before).Abs() < BackApart
}

// Goes reports that the source goes back, and does not come forth again.
func (b Back) Goes() bool { return b.Why != "" && !b.Newer }

// Sightings are what looks remember of what a source goes back to, and of how many in a row found that. Steady of them let it through for as
// long as the source has it.
type Sightings struct {
	Files string
	Seen  int
}

// Look takes that one more look found files with which the source goes back, and that they are let through at once, or not. It returns what is
// remembered, why they are not taken up yet, empty: they are, and whether to look again soon after something has changed.
func (b Back) Look(was Sightings, files string, let bool, now time.Time, asking string) (next Sightings, waits string, soon bool) {
	before, other := was.Seen, was.Files != "" && was.Files != files
	if other {
		before = 0
	}
	b.Seen = before + 1
	waits = b.Waits(now, asking)
	if let || waits == "" || before == Steady {
		return Sightings{files, Steady}, "", false
	}
	return Sightings{files, min(b.Seen, Steady-1)}, waits, !other && !b.byPerson(now)
}

// byPerson reports that it is rolled out only when a person asks.
func (b Back) byPerson(now time.Time) bool { return b.Unfollowed || b.Again(now) }

// Waits is why it is not rolled out yet by itself, with asking as what a person does for it to be; empty: it is.
func (b Back) Waits(now time.Time, asking string) string {
	switch left := Steady - b.Seen; {
	case b.Unfollowed:
		return fmt.Sprintf("%s: a server of it may be behind, and it is not followed, so that it goes back only when a person asks: %s", b.Why, asking)
	case b.Again(now):
		return fmt.Sprintf("%s, for the second time since %s: its servers may differ, so that it goes back only when a person asks: %s",
			b.Why, b.Before.UTC().Format(time.RFC3339), asking)
	case left == 1:
		return fmt.Sprintf("%s: a server of it may be behind, so that it goes back when the next look finds the same, or now by: %s", b.Why, asking)
	case left > 1:
		return fmt.Sprintf("%s: a server of it may be behind, so that it goes back when the next %d looks find the same, or now by: %s", b.Why, left, asking)
	}
	return ""
}
