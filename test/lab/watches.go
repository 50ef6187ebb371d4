package lab

import (
	"maps"
	"net/url"
	"slices"
	"time"
)

// Watches follows the watches of a client in an audit log: from when to when each was open, as the API server saw it.
type Watches struct {
	audit *Audit
	keep  func(Request) bool
	next  Mark
	all   map[string]*Watch // by the id that the stages of a request share
}

// Watch is a request that was answered for as long as it was open.
type Watch struct {
	Request
	Began, Ended time.Time // Ended is zero while it is open
}

// What is the kind that is watched, by its path, and which objects of it.
func (w Watch) What() string {
	u, err := url.Parse(w.URI)
	if err != nil {
		return w.URI
	}
	q := u.Query()
	return u.Path + "?" + q.Get("labelSelector") + "&" + q.Get("fieldSelector")
}

// together is how long two were open at the same time.
func (w Watch) together(other Watch) time.Duration {
	from, to := w.Began, w.Ended
	if other.Began.After(from) {
		from = other.Began
	}
	if to.IsZero() || !other.Ended.IsZero() && other.Ended.Before(to) {
		to = other.Ended
	}
	if to.IsZero() {
		to = time.Now()
	}
	return to.Sub(from)
}

// Watches are those that began after a mark and that keep reports.
func (a *Audit) Watches(from Mark, keep func(Request) bool) *Watches {
	return &Watches{audit: a, keep: keep, next: from, all: map[string]*Watch{}}
}

// Read takes in what was logged since it was called last.
func (w *Watches) Read() (err error) {
	w.next, err = w.audit.events(w.next, func(e auditEvent) {
		r := e.request()
		switch one := w.all[e.AuditID]; {
		case one != nil && e.Stage == completed:
			one.Ended = e.StageTimestamp
		case r.Verb == "watch" && e.Stage == started && r.Code == 200 && w.keep(r):
			w.all[e.AuditID] = &Watch{Request: r, Began: e.StageTimestamp}
		}
	})
	return err
}

// Len is how many there were.
func (w *Watches) Len() int { return len(w.all) }

// Open counts those that are open, by what they are of.
func (w *Watches) Open() map[string]int {
	out := map[string]int{}
	for _, one := range w.all {
		if one.Ended.IsZero() {
			out[one.What()]++
		}
	}
	return out
}

// Twice are those of one kind and selector of which two were open together for longer than this. The API server learns of the end of
// one on its own, so that it may see the next one first.
func (w *Watches) Twice(longer time.Duration) (out [][2]Watch) {
	of := map[string][]Watch{}
	for _, one := range w.all {
		of[one.What()] = append(of[one.What()], *one)
	}
	for _, what := range slices.Sorted(maps.Keys(of)) {
		for i, one := range of[what] {
			for _, other := range of[what][:i] {
				if one.together(other) > longer {
					out = append(out, [2]Watch{other, one})
				}
			}
		}
	}
	return out
}
