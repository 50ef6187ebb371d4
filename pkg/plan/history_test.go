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
