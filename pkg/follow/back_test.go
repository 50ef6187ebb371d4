package follow

import (
	"strings"
	"testing"
	"time"
)

// What goes back waits until looks in a row have found it, and for a person if it did so in the last day already.
func TestBackWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		b    Back
		says string // empty: it does not wait
	}{
		{"seen once", Back{Why: "w", Seen: 1}, "w: a server of it may be behind, so that it goes back when the next 2 looks find the same, or now by: ask"},
		{"seen twice", Back{Why: "w", Seen: 2}, "w: a server of it may be behind, so that it goes back when the next look finds the same, or now by: ask"},
		{"steady", Back{Why: "w", Seen: 3}, ""},
		{"and did so yesterday", Back{Why: "w", Seen: 3, Before: start.Add(-BackApart)}, ""},
		{"and did so today", Back{Why: "w", Seen: 30, Before: start.Add(time.Second - BackApart)}, "only when a person asks: ask"},
		{"by a clock that was ahead", Back{Why: "w", Seen: 30, Before: start.Add(time.Hour)}, "only when a person asks: ask"},
	} {
		got := c.b.Waits(start, "ask")
		if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
