package control

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// fleetOf is a module whose newest rollout, of r2, has reached its clusters.
func (l *leader) fleetOf(clusters ...string) {
	l.t.Helper()
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Module: moduleRecord().GetModule()})
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.RevisionKey(shop, 2), l.revision(2))
		ro := rolloutRecord(2, string(rollout.Progressing))
		ro.Rollout.FromRevision = 1
		w.Put(rolloutKey(shop, ro), ro)
		for _, c := range clusters {
			w.Put(store.ClusterKey(fleet.ClusterName(c)), clusterRecord(c))
		}
	})
	l.must(l.reconcileModule(l.t.Context(), shop))
}

func (l *leader) rollout(n int64) (run *rollouts.Run) {
	l.t.Helper()
	l.read(func(r store.Reader) {
		var err error
		run, err = rollouts.Load(r, shop, n)
		l.must(err)
	})
	return run
}

func (l *leader) verb(k int64, v *towlinev1.VerbRecord) {
	l.t.Helper()
	v.By, v.At = "ana", timestamppb.Now()
	l.put(func(w store.Writer) {
		w.Put(store.VerbKey(shop, 2, k), &storev1.VerbRecord{Verb: v, Scope: rollout.ScopeMoved})
	})
	l.must(l.reconcileModule(l.t.Context(), shop))
}

// A verb that cannot be carried out is answered so, however it came to be stored, and nothing moves.
func TestStoredRollbackToNoRevisionIsRefused(t *testing.T) {
	l := newLeader(t)
	l.fleetOf("a", "b")
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbRollback, Revision: 99})
	run := l.rollout(2)
	if v := run.State.Verbs; len(v) != 1 || v[0].Outcome.Accepted || !strings.Contains(v[0].Outcome.Sentence, "no revision r99; there are r1, r2") {
		t.Errorf("answers: %+v", v)
	}
	if run.State.Back != nil || run.State.State != rollout.Progressing {
		t.Errorf("state: %+v", run.State.Head)
	}
}

// What a revision consists of may be lost between the word of a person and the step, or a step may be stored that
// nobody can carry out: the clusters say so, and the module can still be driven.
func TestRevisionThatIsLostStopsNothingElse(t *testing.T) {
	for name, lose := range map[string]func(*leader){
		"the revision": func(l *leader) { l.put(func(w store.Writer) { w.Delete(store.RevisionKey(shop, 1)) }) },
		"the bundle": func(l *leader) {
			rev := l.revision(1)
			rev.Bundle = fleet.DigestOf([]byte("collected")).Bytes()
			l.put(func(w store.Writer) { w.Put(store.RevisionKey(shop, 1), rev) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.fleetOf("a")
			lose(l)
			l.put(func(w store.Writer) {
				w.Put(store.StepKey(shop, 2, 1), &storev1.StepRecord{Generation: 1 << 20, Revision: 1, Clusters: []string{"a"}})
			})
			l.finish(&rollouts.Run{Module: shop, Number: 2, Plan: &rollout.Plan{}})
			d := l.desired("a")
			if d.GetProblemRevision() != 1 || d.GetProblemGeneration() != 1<<20 || !strings.Contains(d.GetProblem(), "r1") || d.GetSync().GetRevision() != 2 {
				t.Fatalf("desired: %v", d)
			}
			// The next change is assigned as ever.
			l.put(func(w store.Writer) {
				w.Put(store.GenerationKey, &storev1.Counter{Value: 1 << 20})
				w.Put(store.RevisionKey(shop, 3), l.revision(3))
				w.Put(store.RolloutKey(shop, 3), rolloutRecord(3, string(rollout.Progressing)))
				w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Module: moduleRecord().GetModule()})
			})
			l.must(l.reconcileModule(t.Context(), shop))
			if d := l.desired("a"); d.GetSync().GetRevision() != 3 || d.GetProblem() != "" {
				t.Errorf("desired: %v", d)
			}
		})
	}
}

// A rollout that cannot be driven, whatever the reason, does not keep the source of the next change from being fetched.
func TestBrokenRolloutDoesNotHoldTheNextSource(t *testing.T) {
	l := newLeader(t)
	l.fleetOf("a")
	l.put(func(w store.Writer) {
		rec, _, _ := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(shop, 2))
		rec.Head = []byte("{") // damaged
		w.Put(rolloutKey(shop, rec), rec)
		pending := rolloutRecord(3, string(rollout.Pending))
		pending.Rollout.Revision = 0
		w.Put(rolloutKey(shop, pending), pending)
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Module: moduleRecord().GetModule()})
	})
	l.state(shop).reset()
	if err := l.reconcileModule(t.Context(), shop); err == nil {
		t.Error("a damaged rollout is driven")
	}
	if l.resolver.entries[store.ModuleKey(shop)] == nil {
		t.Error("nobody is asked to fetch the source of rollout 3")
	}
}
