package follow

import (
	"strings"
	"testing"
	"time"
)

// Each look counts what the one before has found, from one on again where it finds something else; what was let through stays so, and a call has
// the source looked at again only where that may bring more.
func TestBackLook(t *testing.T) {
	today := Back{Why: "w", Before: start.Add(-time.Hour)}
	for _, c := range []struct {
		name  string
		b     Back
		was   Sightings
		let   bool
		next  int
		waits bool
		soon  bool
	}{
		{"the first", Back{Why: "w"}, Sightings{}, false, 1, true, true},
		{"the second", Back{Why: "w"}, Sightings{"a", 1}, false, 2, true, true},
		{"the third", Back{Why: "w"}, Sightings{"a", 2}, false, Steady, false, false},
		{"after something else", Back{Why: "w"}, Sightings{"b", 2}, false, 1, true, false},
		{"let through", Back{Why: "w"}, Sightings{"b", 2}, true, Steady, false, false},
		{"let through before", today, Sightings{"a", Steady}, false, Steady, false, false},
		{"for the second time today", today, Sightings{"a", 2}, false, Steady - 1, true, false},
		{"the third, which nobody follows", Back{Why: "w", Unfollowed: true}, Sightings{"a", 2}, false, Steady - 1, true, false},
		{"and a person asks", today, Sightings{"a", 2}, true, Steady, false, false},
	} {
		next, waits, soon := c.b.Look(c.was, "a", c.let, start, "ask")
		if next != (Sightings{"a", c.next}) || (waits != "") != c.waits || soon != c.soon {
			t.Errorf("%s: %v, %q, soon %v", c.name, next, waits, soon)
		}
	}
}

// What goes back waits until looks in a row have found it, and for a person if it did so in the last day already.
func TestBackWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		b    Back
		says string // empty: it does not wait
	}{
		{"seen once", Back{Why: "w", Seen: 1}, "w: a server of it may be behind, so that it goes back when the next 2 looks find the same, or now by: ask"},
		{"seen twice", Back{Why: "w", Seen: 2}, "w: a server of it may be behind, so that it goes back when the next look finds the same, or now by: ask"},
		{"seen often, and not followed", Back{Why: "w", Seen: 30, Unfollowed: true}, "w: a server of it may be behind, and it is not followed, so that it goes back only when a person asks: ask"},
		{"steady", Back{Why: "w", Seen: 3}, ""},
		{"and did so yesterday", Back{Why: "w", Seen: 3, Before: start.Add(-BackApart)}, ""},
		{"and did so today", Back{Why: "w", Seen: 30, Before: start.Add(time.Second - BackApart)}, "only when a person asks: ask"},
		{"by a clock that was a year ahead", Back{Why: "w", Seen: 3, Before: start.AddDate(1, 0, 0)}, ""},
		{"by a clock that was ahead", Back{Why: "w", Seen: 30, Before: start.Add(time.Hour)}, "only when a person asks: ask"},
	} {
		got := c.b.Waits(start, "ask")
		if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
