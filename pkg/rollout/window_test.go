package rollout

import (
	"testing"
	"time"
)

func window(t *testing.T, cron, zone string, length time.Duration) *Window {
	t.Helper()
	w := &Window{Cron: cron, Duration: length, TimeZone: zone}
	if err := w.compile(); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWindowAcrossChangesOfTheClock(t *testing.T) {
	const berlin, newYork = "Europe/Berlin", "America/New_York"
	for _, c := range []struct {
		name, cron, zone string
		length           time.Duration
		at               string // UTC
		open             bool
		next             string
	}{
		{"a plain day opens by the local clock", "0 22 * * *", berlin, time.Hour, "2026-01-10T21:30:00Z", true, "2026-01-10T22:00:00Z"},
		{"in summer an hour earlier in UTC", "0 22 * * *", berlin, time.Hour, "2026-07-10T20:30:00Z", true, "2026-07-10T21:00:00Z"},
		{"closed says when it opens", "0 22 * * *", berlin, time.Hour, "2026-07-10T21:00:00Z", false, "2026-07-11T20:00:00Z"},
		// 2026-03-29 01:00 UTC: 02:00 becomes 03:00.
		{"an opening in the hour that is skipped happens at the change", "30 2 * * *", berlin, time.Hour, "2026-03-29T00:59:00Z", false, "2026-03-29T01:00:00Z"},
		{"and stays open for its elapsed time", "30 2 * * *", berlin, time.Hour, "2026-03-29T01:59:00Z", true, "2026-03-29T02:00:00Z"},
		{"and is over then", "30 2 * * *", berlin, time.Hour, "2026-03-29T02:00:00Z", false, "2026-03-30T00:30:00Z"},
		{"a window over the change lasts its elapsed time", "0 1 * * *", berlin, 2 * time.Hour, "2026-03-29T01:59:00Z", true, "2026-03-29T02:00:00Z"},
		// 2026-10-25 01:00 UTC: 03:00 becomes 02:00.
		{"an opening in the hour that comes twice happens the first time", "30 2 * * *", berlin, 30 * time.Minute, "2026-10-25T00:40:00Z", true, "2026-10-25T01:00:00Z"},
		{"and not the second time", "30 2 * * *", berlin, 30 * time.Minute, "2026-10-25T01:40:00Z", false, "2026-10-26T01:30:00Z"},
		{"openings after the change come by the new clock", "30 3 * * *", berlin, time.Hour, "2026-10-25T02:40:00Z", true, "2026-10-25T03:30:00Z"},
		{"hourly openings go on in the second hour", "15 * * * *", berlin, 10 * time.Minute, "2026-10-25T02:16:00Z", true, "2026-10-25T02:25:00Z"},
		{"west of Greenwich", "30 2 8 3 *", newYork, time.Hour, "2026-03-08T07:00:00Z", true, "2026-03-08T08:00:00Z"},
		{"a long freeze", "0 0 20 12 *", "UTC", 14 * 24 * time.Hour, "2026-12-31T12:00:00Z", true, "2027-01-03T00:00:00Z"},
		{"weekdays only", "0 9 * * 1-5", "UTC", time.Hour, "2026-03-07T09:30:00Z", false, "2026-03-09T09:00:00Z"},
		{"a date that never comes", "0 0 31 2 *", "UTC", time.Hour, "2026-03-07T09:30:00Z", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := time.Parse(time.RFC3339, c.at)
			if err != nil {
				t.Fatal(err)
			}
			open, next := window(t, c.cron, c.zone, c.length).open(at)
			got := ""
			if !next.IsZero() {
				got = next.UTC().Format(time.RFC3339)
			}
			if open != c.open || got != c.next {
				t.Errorf("open %t, next %s; want %t, %s", open, got, c.open, c.next)
			}
		})
	}
}

// TestWindowEdges walks through a year: between the edges that open names, nothing changes.
func TestWindowEdges(t *testing.T) {
	w := window(t, "30 2 * * *", "Europe/Berlin", 90*time.Minute)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end := now.AddDate(1, 0, 0)
	opened, total := 0, time.Duration(0)
	for now.Before(end) {
		open, next := w.open(now)
		if !next.After(now) {
			t.Fatalf("at %s the next edge is %s", now, next)
		}
		if half := now.Add(next.Sub(now) / 2); true {
			if o, _ := w.open(half); o != open {
				t.Fatalf("at %s it is open %t, between edges at %s %t", now, open, half, o)
			}
		}
		if open {
			opened++
			total += next.Sub(now)
		}
		now = next
	}
	if opened != 365 || total != 365*90*time.Minute {
		t.Errorf("opened %d times for %s in all, want once a day for 90m", opened, total)
	}
}

// TestWindowThatNeverOpens: a window is refused as one that never opens if there is no opening, and only then.
func TestWindowThatNeverOpens(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for cron, opens := range map[string]bool{
		"0 0 31 11 *": false, "0 0 31 2,4,6,9,11 *": false, "0 0 30-31 2 *": false, "0 0 30 feb ?": false,
		"0 0 31 11,12 *": true, "0 0 29 2 *": true, "0 0 31 * *": true, "0 0 */15 2 *": true, "* * * * *": true,
		"0 0 31 11 1-5": true, "0 0 31 11 */2": true, "0 0 * 11 0": true,
	} {
		w := window(t, cron, "Europe/Berlin", time.Hour)
		g := WindowGate{Deny: []Window{*w}}
		err := g.Opens()
		if _, next := w.open(now); next.IsZero() == opens || (err == nil) != opens {
			t.Errorf("%s: the next opening is %s, and it says %v", cron, next, err)
		}
		if err := g.Check(); err != nil {
			t.Errorf("%s: what is stored is not read any more: %v", cron, err)
		}
	}
}
