package control

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A person says that something is not to go, or that nothing is to be written, and in that moment the leader orders just that: between what it has
// read and its commit. What the person said counts as of its own commit.
func TestWhatIsSaidInTheMomentOfAnOrderCounts(t *testing.T) {
	type said struct {
		says func(*leader)
		// goes says that an order of the kind may be given in spite of it.
		goes func(order string) bool
	}
	never := func(string) bool { return false }
	all := map[string]said{
		"a hold of the module":  {func(l *leader) { l.holds(&towlinev1.Hold{Project: shop.Project, Module: shop.Name}) }, never},
		"a hold of the cluster": {func(l *leader) { l.holds(&towlinev1.Hold{Cluster: "a"}) }, never},
		"the label that places it": {func(l *leader) {
			l.writes(func(w store.Writer) {
				rec := clusterRecord("a")
				rec.Cluster.Metadata.Labels = map[string]string{"in": "no"}
				w.Put(store.ClusterKey("a"), rec)
			})
		}, func(order string) bool { return order != "a step that takes it away" }},
		"that its objects stay": {func(l *leader) {
			l.writes(func(w store.Writer) {
				m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
				m = proto.CloneOf(m)
				record.Delete(w, shop, m, fleet.DeleteOrphan)
				w.Put(store.ModuleKey(shop), m)
			})
		}, func(order string) bool { return order == "what was confirmed" }},
		"another cluster has the name": {func(l *leader) { l.takes("a") }, func(order string) bool { return order == "a step that takes it away" }},
	}
	orders := map[string]func(l *leader, had uint64){
		"a step that takes it away": func(l *leader, had uint64) {
			_, _ = l.leave(t.Context(), shop, []fleet.ClusterName{"a"}, leaving{policy: fleet.DeleteDelete, generation: had + 1, rollout: 1})
		},
		"a deletion": func(l *leader, had uint64) {
			l.put(func(w store.Writer) {
				m := moduleRecord()
				record.Delete(w, shop, m, fleet.DeleteDelete)
				w.Put(store.ModuleKey(shop), m)
			})
			_, _ = l.leave(t.Context(), shop, []fleet.ClusterName{"a"}, leaving{policy: fleet.DeleteDelete, deleted: true})
		},
		"what was confirmed": func(l *leader, had uint64) {
			_ = l.Controller.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: had, prune: true}})
		},
		"the end of another hold": func(l *leader, had uint64) {
			l.put(func(w store.Writer) {
				held := tomb(had)
				held.Hold = true
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: held})
			})
			_ = l.Controller.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: had, policy: fleet.DeleteDelete}})
		},
	}
	for order, give := range orders {
		for what, x := range all {
			t.Run(order+", and "+what, func(t *testing.T) {
				b := &meanwhile{Backend: memory.New()}
				l := newLeaderOn(t, b)
				l.put(func(w store.Writer) {
					w.Put(store.ModuleKey(shop), moduleRecord())
					w.Put(store.RevisionKey(shop, 1), nowhere(l.revision(1)))
					w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
					w.Put(store.ClusterKey("a"), clusterRecord("a"))
					w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w))})
				})
				had := l.desired("a").GetSync().GetGeneration()
				said := false
				if order == "the end of another hold" && what == "that its objects stay" {
					l.put(func(w store.Writer) {
						m := moduleRecord()
						record.Delete(w, shop, m, fleet.DeleteDelete)
						w.Put(store.ModuleKey(shop), m)
					})
				}
				b.happens = func() {
					if order == "a deletion" || order == "the end of another hold" { // that is put first
						b.happens = func() { said = true; x.says(l) }
						return
					}
					said = true
					x.says(l)
				}
				give(l, had)
				d := l.desired("a")
				deletes := d.GetTombstone().GetPolicy() == fleet.DeleteDelete && !d.GetTombstone().GetHold() && !l.elsewhere("a") || d.GetSync().GetPruneConfirmed() && !d.GetSync().GetHold()
				if !said || deletes && !x.goes(order) {
					t.Errorf("said %v; the cluster has %v", said, d)
				}
			})
		}
	}
}

// writes is what others commit.
func (l *leader) writes(change func(w store.Writer)) {
	l.t.Helper()
	if _, err := l.all.Update(l.t.Context(), func(w store.Writer) error {
		change(w)
		return nil
	}); err != nil {
		l.t.Error(err)
	}
}

// holds puts a hold, as the API writes it.
func (l *leader) holds(h *towlinev1.Hold) {
	h = proto.CloneOf(h)
	h.Kind, h.Id = record.HoldFreeze, record.FreezeID+"test"
	l.writes(func(w store.Writer) { record.PutFreeze(w, h) })
}

// elsewhere reports that what a cluster is told of the module is nothing of the one that has the name now.
func (l *leader) elsewhere(c fleet.ClusterName) (is bool) {
	l.read(func(r store.Reader) {
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c, shop))
		m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop))
		is = record.Elsewhere(d, record.DeletedTakes(r, shop, m), record.Anew(r, c))
	})
	return is
}

// A cluster is cordoned, or removed and forgotten, between what a decision was made of and its commit. A cordoned one is given no new revision, and
// no record is left of one that is gone: it would be the order of another cluster that is made under the name.
func TestStepIsForTheClustersAsOfItsCommit(t *testing.T) {
	cordoned := func(l *leader) {
		l.writes(func(w store.Writer) { w.Put(store.ClusterKey("a"), member("a", true, true)) })
	}
	gone := func(l *leader) { l.writes(func(w store.Writer) { w.Delete(store.ClusterKey("a")) }) }
	large := []string{"a", "b"}
	for n := range comparedClusters {
		large = append(large, string(clusterName(n)))
	}
	for name, happens := range map[string]func(*leader){"cordoned": cordoned, "gone": gone} {
		for size, clusters := range map[string][]string{"small": large[:2], "larger": large[:inlineDesired+1], "large": large} {
			t.Run("a "+size+" decision, "+name, func(t *testing.T) {
				b := &meanwhile{Backend: memory.New()}
				l := newLeaderOn(t, b)
				run := l.undecided(clusters...)
				b.happens = func() { happens(l) }
				_, _ = l.commit(t.Context(), run, rollout.Decide(run.Input(time.Now())))
				if d := l.desired("a"); b.happens != nil || d != nil {
					t.Fatalf("a is %s, and has %v", name, d)
				}
				l.again()
				if d := l.desired("a"); d != nil {
					t.Errorf("looked at once more: a is %s, and has %v", name, d)
				}
				if d := l.desired("b"); d.GetSync().GetRevision() != 2 {
					t.Errorf("b has %v, want r2", d)
				}
			})
		}
	}
	t.Run("what a large step left, gone", func(t *testing.T) {
		b := &meanwhile{Backend: memory.New()}
		l := newLeaderOn(t, b)
		l.put(func(w store.Writer) {
			w.Put(store.RevisionKey(shop, 1), l.revision(1))
			w.Put(store.StepKey(shop, 1, 1), &storev1.StepRecord{Generation: 9, Revision: 1, Clusters: []string{"a", "b"}})
			w.Put(store.ClusterKey("a"), clusterRecord("a"))
			w.Put(store.ClusterKey("b"), clusterRecord("b"))
		})
		b.happens = func() { gone(l) }
		l.finish(&rollouts.Run{Module: shop, Number: 1, Plan: &rollout.Plan{}})
		if a, other := l.desired("a"), l.desired("b"); a != nil || other.GetSync().GetRevision() != 1 {
			t.Errorf("a has %v, b has %v", a, other)
		}
	})
}

// undecided is the run of a rollout of r2 that has seen its clusters, and has given them nothing.
func (l *leader) undecided(clusters ...string) (run *rollouts.Run) {
	l.t.Helper()
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.RevisionKey(shop, 2), l.revision(2))
		ro := rolloutRecord(2, string(rollout.Progressing))
		ro.Rollout.FromRevision = 1
		w.Put(rolloutKey(shop, ro), ro)
		for _, c := range clusters {
			w.Put(store.ClusterKey(fleet.ClusterName(c)), member(c, true, false))
		}
	})
	l.read(func(r store.Reader) {
		rec, _, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 2))
		var err error
		run, err = loadRun(r, shop, rec, nil)
		l.must(err)
		view, err := l.presence().Over(r, time.Now(), run, nil)
		l.must(err)
		view.All(r, run)
	})
	return run
}

// A module leaves a cluster in which another one stays, so that nobody is asked, and in the moment of any commit on the way somebody deletes that one: a
// cluster loses its last module by a person's word only.
func TestLastModuleIsAskedForThoughAnotherOneGoesInThatMoment(t *testing.T) {
	large := []*storev1.ClusterRecord{member("a", true, false), member("c", false, false)}
	for n := range comparedClusters {
		large = append(large, member(string(clusterName(n)), true, false))
	}
	for name, members := range map[string][]*storev1.ClusterRecord{"small": large[:2], "larger": large[:inlineDesired+2], "large": large} {
		t.Run(name, func(t *testing.T) {
			for at, happened := 1, true; happened; at++ {
				happened = lastModuleGoes(t, at, members)
				if at == 1 && !happened {
					t.Fatal("nothing was committed")
				}
			}
		})
	}
}

// lastModuleGoes has the other module of c go before the commit of a number, if nothing is ordered in c by then.
func lastModuleGoes(t *testing.T, at int, members []*storev1.ClusterRecord) (happened bool) {
	base := fleet.ModuleRef{Project: "default", Name: "base"}
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.narrowed(members...)
	b.happensAt(at, func() {
		if l.desired("c").GetTombstone() != nil || l.steps() > 0 {
			return
		}
		happened = true
		l.writes(func(w store.Writer) {
			m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(base))
			m = proto.CloneOf(m)
			record.Delete(w, base, m, fleet.DeleteDelete)
			w.Put(store.ModuleKey(base), m)
		})
	})
	for range 4 {
		l.state(shop).markAll()
		_ = l.reconcileModule(t.Context(), shop)
	}
	if d := l.desired("c"); happened && (d.GetTombstone() != nil || len(l.asked()) != 1) {
		t.Errorf("before commit %d: c has %v, and %d questions are asked", at, d, len(l.asked()))
	}
	return happened
}

// steps is how many steps of the rollout are committed, and not yet carried out.
func (l *leader) steps() (n int) {
	l.read(func(r store.Reader) {
		r.Scan(store.StepsOf(shop, 2), func(store.Entry) bool { n++; return true })
	})
	return n
}
