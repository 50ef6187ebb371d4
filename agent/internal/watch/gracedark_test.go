package watch

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// unheardTill is a kind whose watch is open, with an object that we have just changed and whose operator has said nothing since.
func unheardTill(t *testing.T) (s *sighted, changes *atomic.Int64) {
	s, changes = newSighted(nil), &atomic.Int64{}
	s.w.ctx = t.Context()
	s.resource.Kind = "Till"
	s.kinds = map[apply.Resource]*kind{s.resource: s.kind}
	s.o.HasStatus = func(apply.Resource) bool { return true }
	s.o.Changed = func(fleet.ObjectID, string) { changes.Add(1) }
	s.open(false)
	born := time.Now()
	pass(time.Hour)
	now := time.Now()
	if err := s.Update(decodeItem(t, s.kind, till("9", 3, born, now, born))); err != nil {
		t.Fatal(err)
	}
	return s, changes
}

// TestNobodySpokeOnlyWhileSomebodyListened: that an operator has said nothing of our change counts only while its kind is watched. What it said
// while no watch was open is told when one is again.
func TestNobodySpokeOnlyWhileSomebodyListened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, changes := unheardTill(t)
		defer s.end()
		s.refuse = errors.New("too many requests")
		s.open(false)
		pass(20 * time.Second)
		if f := held(s.kind); f.Health != fleet.HealthProgressing {
			t.Fatalf("nobody has listened for 20 s: %+v", f)
		}
		s.refuse = nil
		s.open(false)
		pass(100 * time.Millisecond) // what is sent first is on its way
		if f := held(s.kind); f.Health != fleet.HealthProgressing {
			t.Fatalf("a watch is open since a moment ago: %+v", f)
		}
		pass(2 * time.Second)
		if f := held(s.kind); f.Health != fleet.HealthHealthy || changes.Load() != 2 {
			t.Errorf("a watch is open and brings nothing: %+v, told %d times", f, changes.Load())
		}
	})
}

// TestServerWhoseWatchesDoNotLast: each watch of a kind ends at once, so that one is open for moments only. Nobody is waited for without end.
func TestServerWhoseWatchesDoNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := unheardTill(t)
		defer s.end()
		for range 40 {
			s.attempt()
			pass(500 * time.Millisecond)
			s.open(false)
		}
		if f := held(s.kind); f.Health != fleet.HealthHealthy {
			t.Errorf("after 20 s: %+v", f)
		}
	})
}

// TestNobodySpokeOfWhatIsReadOnlyWhileSomebodyListened is the same of an object that is watched by itself, which is judged when it is asked for.
func TestNobodySpokeOfWhatIsReadOnlyWhileSomebodyListened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := unheardTill(t)
		defer s.end()
		one := Single{Resource: s.resource, Key: Key{"n", "a"}}
		s.only, s.singles = &one.Key, map[Single]*kind{one: s.kind}
		changed := time.Now()
		if err := s.Update(decodeItem(t, s.kind, till("10", 4, changed.Add(-time.Hour), changed, changed.Add(-time.Hour)))); err != nil {
			t.Fatal(err)
		}
		is := func(after time.Duration, want fleet.Health) {
			t.Helper()
			pass(after)
			_, _ = s.JudgeOne(one, nil)
			synctest.Wait() // it may be read once more
			f, _ := s.JudgeOne(one, nil)
			if f == nil || f.Health != want || want != fleet.HealthHealthy && time.Until(f.Until()) < catchUp {
				t.Errorf("%s after the change: %+v, want %s, and to look again in a second at the earliest", time.Since(changed), f, want)
			}
		}
		is(9*time.Second, fleet.HealthProgressing)
		s.refuse = errors.New("too many requests")
		s.open(false)
		is(11*time.Second, fleet.HealthProgressing)
		s.refuse = nil
		s.open(false)
		is(100*time.Millisecond, fleet.HealthProgressing)
		is(catchUp, fleet.HealthHealthy)
	})
}
