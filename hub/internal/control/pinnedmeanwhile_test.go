package control

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A person pins a cluster while the next rollout of the module is put, but has not begun: the pin is recorded with the rollout that decides by then. It holds
// against the one that begins, whenever before that it was recorded.
func TestPinThatIsRecordedAsTheNextRolloutBeginsHolds(t *testing.T) {
	for _, of := range []struct {
		name string
		to   shape
	}{
		{"another revision", shape{objects: 4}},
		{"another revision in stages", shape{objects: 4, staged: true}},
		{"it leaves", shape{objects: 4, zone: "x"}},
	} {
		before := func(w *interleaved) {
			w.bothPut()
			w.calms()
			if of.to.zone != "" {
				w.isIn("b", "y", false)
			}
		}
		course := course{name: of.name, before: before, course: func(w *interleaved) { w.shapes(moduleOne, of.to) }}
		for i := range runSingle(t, course, moment{}, nil).acts {
			t.Run(fmt.Sprintf("%s, before commit %d", of.name, i+1), func(t *testing.T) { pinned(t, course, i+1) })
		}
	}
}

func pinned(t *testing.T, of course, commit int) {
	synctest.Test(t, func(t *testing.T) {
		w := newInterleaved(t, &tape{})
		for _, name := range wovenClusters {
			w.joins(name)
		}
		w.depth++
		of.before(w)
		w.calms()
		has := func(name fleet.ClusterName) *storev1.DesiredRecord {
			d, _, _ := store.Get[*storev1.DesiredRecord](w.last, store.DesiredKey(name, moduleOne))
			return d
		}
		in := false
		w.single = single{counts: true, at: moment{commit: commit}, what: func(w *interleaved) {
			in = rollouts.Driven(w.last, moduleOne).GetRollout().GetNumber() == 1 // what another one decided by then was decided before
			w.steersIt("pin", moduleOne, "b")
		}}
		of.course(w)
		w.calms()
		if d := has("b"); in && (d.GetTombstone() != nil || d.GetSync().GetRevision() != 1) {
			w.note("b was pinned, and has %s", brieflyOf(d))
			for _, line := range w.log {
				t.Log(line)
			}
			t.Fail()
		}
		if d := has("a"); d.GetSync().GetRevision() != 2 {
			t.Errorf("a has %s", brieflyOf(d))
		}
	})
}

// The next rollout begins in the moment in which the pin is recorded: it is recorded with that one.
func TestPinIsOfTheRolloutThatDecidesAtItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newInterleaved(t, &tape{})
		for _, name := range wovenClusters {
			w.joins(name)
		}
		w.depth++
		w.bothPut()
		w.calms()
		w.shapes(moduleOne, shape{objects: 4, staged: true})
		w.single = single{counts: true, at: moment{commit: 1}, what: func(w *interleaved) {
			for rollouts.Driven(w.last, moduleOne).GetRollout().GetNumber() == 1 && w.leader() {
				w.follows()
			}
		}}
		w.steersIt("pin", moduleOne, "b")
		w.calms()
		d, _, _ := store.Get[*storev1.DesiredRecord](w.last, store.DesiredKey("b", moduleOne))
		if d.GetSync().GetRevision() != 1 || !w.single.was {
			t.Errorf("b is pinned at r1, and has %s", brieflyOf(d))
			for _, line := range w.log {
				t.Log(line)
			}
		}
	})
}

// A cut waits for a verb until a run is through that could take it in, though one that came to nothing was before that, and for a minute at most:
// what keeps the rollout from it may last.
func TestHowLongACutWaitsForAVerb(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	st := &moduleState{}
	waits := func(verb string, after time.Duration, want bool) {
		t.Helper()
		if got := st.awaitsSaid(verb, now.Add(after)); got != want {
			t.Errorf("%s, after %s: waits %v", verb, after, got)
		}
	}
	waits("1", 0, true)
	if at := st.awaitSaid("1", now); !at.Equal(now) {
		t.Errorf("it is looked at again %s", at)
	}
	waits("1", time.Second, true) // the run came to nothing
	if at := st.awaitSaid("1", now.Add(time.Second)); !at.Equal(now.Add(2 * time.Second)) {
		t.Errorf("and again %s", at)
	}
	waits("1", time.Minute, false)
	waits("2", time.Minute, true)
	st.awaitSaid("2", now)
	st.said.run = true
	waits("2", time.Second, false)
	waits("3", time.Second, true)
}
