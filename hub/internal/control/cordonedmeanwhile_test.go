package control

import (
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
)

// A cluster can have by now what could not be assigned there, and is cordoned between that look and the commit that gives it: it keeps what it has,
// and says which word brings the other.
func TestWhatCouldNotBeAssignedIsNotGivenToWhoIsCordonedMeanwhile(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.undecided("a")
	l.put(func(w store.Writer) {
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w)), Rollout: 2, Problem: "no value", ProblemRevision: 2,
			ProblemGeneration: record.NextGeneration(w)})
	})
	b.happens = func() {
		l.writes(func(w store.Writer) { w.Put(store.ClusterKey("a"), member("a", true, true)) })
	}
	l.must(l.Controller.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: record.Generation(l.desired("a")), again: true}}))
	if d := l.desired("a"); b.happens != nil || d.GetSync().GetRevision() != 1 || !strings.Contains(d.GetProblem(), "towline cluster uncordon a") {
		t.Errorf("a is cordoned, and has %v", d)
	}
}
