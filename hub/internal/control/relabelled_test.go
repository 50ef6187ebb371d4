package control

import (
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/rollout"
)

// A person takes a cluster out of the placement by its label between what a decision was made of and its commit: the module does not come there, where
// it would stay until somebody confirms that the cluster loses it. The others get it.
func TestModuleComesToNoClusterThatWasRelabelledMeanwhile(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	run := l.undecided("a", "b")
	l.put(func(w store.Writer) {
		rev := l.revision(2)
		rev.Revision.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "true"}}}
		w.Put(store.RevisionKey(shop, 2), rev)
	})
	b.happens = func() {
		l.writes(func(w store.Writer) { w.Put(store.ClusterKey("a"), member("a", false, false)) })
	}
	_, _ = l.commit(t.Context(), run, rollout.Decide(run.Input(time.Now())))
	if d := l.desired("a"); b.happens != nil || d != nil {
		t.Fatalf("a is not selected any more, and has %v", d)
	}
	l.again()
	if d := l.desired("a"); d != nil {
		t.Errorf("looked at once more: a is not selected any more, and has %v", d)
	}
	if d := l.desired("b"); d.GetSync().GetRevision() != 2 {
		t.Errorf("b has %v, want r2", d)
	}
}

// Who goes back to what it had before does so whatever the placement says by now: it leaves when the rollback is over, which must not wait for its label.
func TestRelabelledClusterGoesBackAllTheSame(t *testing.T) {
	l := newLeader(t)
	run := l.undecided("a")
	d := rollout.Decide(run.Input(time.Now()))
	d.State.Back, d.Assign[0].Revision = &rollout.Back{To: 1}, 1
	l.put(func(w store.Writer) {
		w.Put(store.RevisionKey(shop, 1), nowhere(l.revision(1)))
		if err := mayMove(w, w, run, d); err != nil {
			t.Error(err)
		}
	})
}
