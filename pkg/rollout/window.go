package rollout

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"towline.dev/towline/pkg/fleet"
)

// Window is a recurring span of time. Cron is read on the wall clock of TimeZone, Duration is elapsed time.
//
// When the clock is put forward, an opening inside the hour that does not exist happens at the moment of the change.
// When it is put back, an opening inside the hour that comes twice happens once, the first time.
type Window struct {
	Cron     string
	Duration time.Duration
	TimeZone string // IANA name; default UTC

	spec *cron.SpecSchedule
	zone *time.Location
}

// maxWindow is how long a window may stay open.
const maxWindow = 366 * 24 * time.Hour

// horizon is how far around a wall clock time its offset is looked for; more than any offset.
const horizon = 26 * time.Hour

var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Check compiles the windows, and says what is wrong with them.
func (g *WindowGate) Check() error {
	if len(g.Allow) == 0 && len(g.Deny) == 0 {
		return fleet.Invalid("", "has neither allow nor deny")
	}
	for i := range g.Allow {
		if err := g.Allow[i].compile(); err != nil {
			return fleet.Join(fmt.Sprintf("allow[%d]", i), err)
		}
	}
	for i := range g.Deny {
		if err := g.Deny[i].compile(); err != nil {
			return fleet.Join(fmt.Sprintf("deny[%d]", i), err)
		}
	}
	return nil
}

func (w *Window) compile() error {
	if len(w.Cron) > 0 && w.Cron[0] == 'T' || len(w.Cron) > 4 && w.Cron[:5] == "CRON_" {
		return fleet.Invalid("cron", "must not name a time zone; use timeZone")
	}
	s, err := cronParser.Parse(w.Cron)
	if err != nil {
		return fleet.Invalidf("cron", "%.80q: %v; write five fields: minute hour day month weekday", w.Cron, err)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return fleet.Invalidf("cron", "%.80q: write five fields: minute hour day month weekday", w.Cron)
	}
	spec.Location = time.UTC
	if w.TimeZone == "Local" {
		return fleet.Invalid("timeZone", "\"Local\" is a different zone on every machine; write an IANA name such as Europe/Berlin")
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		return fleet.Invalidf("timeZone", "%.80q is unknown; write an IANA name such as Europe/Berlin", w.TimeZone)
	}
	if w.Duration < time.Minute || w.Duration > maxWindow {
		return fleet.Invalidf("duration", "%s is not between 1m and %s", w.Duration, maxWindow)
	}
	w.spec, w.zone = spec, zone
	return nil
}

// longestMonths are the days that each month has at most, from January.
var longestMonths = [...]int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// cronStar is set in a field of a cron schedule that takes every value.
const cronStar = 1 << 63

// Opens is an error for the first window that never opens, for no month that it names has a day that it names. Whoever writes one means something
// else; one that is stored stays closed. Check comes before it.
func (g *WindowGate) Opens() error {
	for i := range g.Allow {
		if err := g.Allow[i].opens(); err != nil {
			return fleet.Join(fmt.Sprintf("allow[%d]", i), err)
		}
	}
	for i := range g.Deny {
		if err := g.Deny[i].opens(); err != nil {
			return fleet.Join(fmt.Sprintf("deny[%d]", i), err)
		}
	}
	return nil
}

func (w *Window) opens() error {
	if w.spec.Dow&cronStar == 0 {
		return nil // a weekday comes in every month: with one, the day of the month is another way to be open, and no condition
	}
	for month, days := range longestMonths {
		if w.spec.Month&(1<<(month+1)) == 0 {
			continue
		}
		for day := 1; day <= days; day++ {
			if w.spec.Dom&(1<<day) != 0 {
				return nil
			}
		}
	}
	return fleet.Invalidf("cron", "%.80q never comes: no month that it names (the fourth field) has a day that it names (the third)", w.Cron)
}

// Open reports whether the gate is open at now, and when that may change next; zero: never. Check comes before it.
func (g *WindowGate) Open(now time.Time) (bool, time.Time) {
	allowed, denied := len(g.Allow) == 0, false
	var next time.Time
	for i := range g.Allow {
		ok, edge := g.Allow[i].open(now)
		allowed, next = allowed || ok, earlier(next, edge)
	}
	for i := range g.Deny {
		ok, edge := g.Deny[i].open(now)
		denied, next = denied || ok, earlier(next, edge)
	}
	return allowed && !denied, next
}

// earlier is the earlier of two times, where the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// open reports whether the window is open at now, and when that may change next; zero: never.
func (w *Window) open(now time.Time) (bool, time.Time) {
	if last, ok := w.last(now); ok {
		return true, last.Add(w.Duration)
	}
	return false, w.next(now)
}

// last is the newest opening in (now-Duration, now].
func (w *Window) last(now time.Time) (time.Time, bool) {
	oldest := now.Add(-w.Duration)
	for back := time.Minute; ; back *= 2 {
		back = min(back, w.Duration)
		if t, ok := w.lastAfter(now.Add(-back), now); ok {
			return t, t.After(oldest)
		}
		if back == w.Duration {
			return time.Time{}, false
		}
	}
}

// lastAfter is the newest opening in (after, now].
func (w *Window) lastAfter(after, now time.Time) (time.Time, bool) {
	var found time.Time
	for t := w.next(after); !t.IsZero() && !t.After(now); t = w.next(t) {
		found = t
	}
	return found, !found.IsZero()
}

// next is the first opening after t; zero if there is none.
func (w *Window) next(t time.Time) time.Time {
	local := t.In(w.zone)
	_, offset := local.Zone()
	wall := t.UTC().Add(time.Duration(offset) * time.Second)
	// A clock that was put back shows times that it has shown before: start early enough to see them again.
	start := wall
	if begin, _ := local.ZoneBounds(); !begin.IsZero() && t.Sub(begin) < 3*time.Hour {
		start = wall.Add(-3 * time.Hour)
	}
	for a := w.spec.Next(start); !a.IsZero(); a = w.spec.Next(a) {
		if at := w.instant(a); at.After(t) {
			return at
		}
	}
	return time.Time{}
}

// instant is when the wall clock of the zone shows what the UTC clock shows at wall: the first time if it does so
// twice, the moment of the change if it never does.
func (w *Window) instant(wall time.Time) time.Time {
	_, before := wall.Add(-horizon).In(w.zone).Zone()
	_, after := wall.Add(horizon).In(w.zone).Zone()
	first := wall.Add(-time.Duration(before) * time.Second)
	if before == after || w.shows(first, before) {
		return first
	}
	second := wall.Add(-time.Duration(after) * time.Second)
	if w.shows(second, after) {
		return second
	}
	if _, end := second.In(w.zone).ZoneBounds(); !end.IsZero() {
		return end.UTC()
	}
	return first
}

func (w *Window) shows(t time.Time, offset int) bool {
	_, at := t.In(w.zone).Zone()
	return at == offset
}
