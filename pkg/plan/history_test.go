package plan

import (
	"testing"
	"time"
)

// A change that went away by itself, after a correction of it had failed, is over: the next one is one more.
func TestChangesAreCountedOnce(t *testing.T) {
	var f *History
	if got := f.Changes(); got != 1 {
		t.Errorf("the first change counts as %d", got)
	}
	f = &History{}
	now := time.Unix(1, 0)
	f.Observe("ana", [16]byte{1}, true, now)
	f.Observe("ana", [16]byte{1}, true, now) // the same correction, tried again
	if got := f.Changes(); got != 1 {
		t.Errorf("a correction that is tried twice counts as %d changes", got)
	}
	f.Corrected()
	if got := f.Changes(); got != 2 {
		t.Errorf("the next change counts as %d", got)
	}
}

// Whoever changes an object once a second, each time to another value, is corrected often, and then now and then.
func TestWriterOfEverOtherValuesIsASecondWriter(t *testing.T) {
	var f History
	corrected, from := 0, time.Unix(0, 0)
	for i := range 3600 {
		now := from.Add(time.Duration(i) * time.Second)
		if f.NotBefore(now).After(now) {
			continue
		}
		f.Observe("heart", [16]byte{byte(i), byte(i >> 8)}, true, now)
		corrected++
	}
	if corrected > 7*FlapWriter {
		t.Errorf("%d corrections in an hour", corrected)
	}
	var g History
	for i := range FlapWriter - 1 {
		g.Observe("ana", [16]byte{byte(i)}, true, from)
		g.Observe("ben", [16]byte{byte(i)}, true, from)
	}
	if g.Fights() {
		t.Error("two people who edit much count as one that does")
	}
}

// A drift says when the object was changed first and last, whatever was put back in between.
func TestSpanOfChanges(t *testing.T) {
	at := func(minute int) time.Time { return time.Unix(0, 0).Add(time.Duration(minute) * time.Minute) }
	is := func(h *History, since, first, last int) {
		t.Helper()
		if a, b := h.Span(at(since)); !a.Equal(at(first)) || !b.Equal(at(last)) {
			t.Errorf("from %v to %v, want minutes %d and %d", a, b, first, last)
		}
	}
	var h History
	is(nil, 5, 5, 5)
	is(&h, 5, 5, 5)
	h.Observe("ana", [16]byte{1}, true, at(10))
	h.Observe("ana", [16]byte{1}, true, at(11)) // tried again: the same change
	is(&h, 10, 10, 10)
	h.Corrected()
	is(&h, 30, 10, 30) // another one, that is not corrected yet
	h.Observe("ben", [16]byte{2}, true, at(30))
	is(&h, 30, 10, 30)
	h.Corrected()
	h.Observe("ben", [16]byte{3}, true, at(40))
	is(&h, 30, 10, 40) // two writers: the state is the same since
}
