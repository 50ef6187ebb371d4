package control

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// A freeze stops writes also where the newest revision could not be assigned, and ends there, too.
func TestFreezeReachesTheLastGoodSyncBelowAProblem(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3), Problem: "no REGION", ProblemGeneration: 4, ProblemRevision: 2})
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
	})
	l.must(l.reconcileModule(t.Context(), shop))
	if d := l.desired("a"); !d.GetSync().GetHold() || d.GetProblem() == "" || d.GetSync().GetGeneration() == 3 {
		t.Errorf("frozen: %v", d)
	}
	l.put(func(w store.Writer) { w.Delete(store.HoldPrefix + "freeze-1") })
	l.state(shop).markAll()
	l.must(l.reconcileModule(t.Context(), shop))
	if d := l.desired("a"); d.GetSync().GetHold() {
		t.Errorf("not frozen any more: %v", d)
	}
}

func TestFreezeEndsInItsTime(t *testing.T) {
	l := newLeader(t)
	now := time.Now()
	freeze := func(until *timestamppb.Timestamp) *storev1.HoldRecord {
		return &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a", Until: until}}
	}
	l.put(func(w store.Writer) {
		w.Put(store.HoldPrefix+"freeze-over", freeze(timestamppb.New(now.Add(-time.Second))))
		w.Put(store.HoldPrefix+"freeze-soon", freeze(timestamppb.New(now.Add(time.Minute))))
		w.Put(store.HoldPrefix+"freeze-ever", freeze(nil))
	})
	next, err := l.endFreezes(t.Context(), now)
	l.must(err)
	if next != time.Minute {
		t.Errorf("next look after %s, want 1m", next)
	}
	var left []string
	l.read(func(r store.Reader) {
		r.Scan(store.HoldPrefix, func(e store.Entry) bool {
			left = append(left, strings.TrimPrefix(e.Key, store.HoldPrefix))
			return true
		})
	})
	if strings.Join(left, " ") != "freeze-ever freeze-soon" {
		t.Errorf("left: %v", left)
	}
}

func TestForgottenClusterTakesItsHoldsAlong(t *testing.T) {
	l := newLeader(t)
	rec := clusterRecord("a")
	rec.Removing, rec.Revoked = "keep", true
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), rec)
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
		w.Put(store.HoldPrefix+"freeze-2", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "b"}})
	})
	l.must(l.reconcileCluster(t.Context(), "a"))
	l.read(func(r store.Reader) {
		_, own := r.Get(store.HoldPrefix + "freeze-1")
		_, other := r.Get(store.HoldPrefix + "freeze-2")
		if own || !other {
			t.Errorf("its own hold is there: %t; that of another: %t", own, other)
		}
	})
}

// Deleting a module deletes nothing where nothing may be written, until the freeze ends.
func TestFreezeHoldsADeletionBack(t *testing.T) {
	l := newLeader(t)
	rec := moduleRecord()
	rec.Deleting = fleet.DeleteDelete
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), rec)
		for _, c := range []string{"frozen", "other"} {
			w.Put(store.ClusterKey(fleet.ClusterName(c)), clusterRecord(c))
			w.Put(store.DesiredKey(fleet.ClusterName(c), shop), &storev1.DesiredRecord{Sync: l.sync(3)})
		}
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "frozen"}})
	})
	l.must(l.reconcileModule(t.Context(), shop))
	if a, b := l.desired("frozen"), l.desired("other"); a.GetTombstone() != nil || b.GetTombstone() == nil {
		t.Errorf("frozen %v, other %v", a, b)
	}
	l.put(func(w store.Writer) { w.Delete(store.HoldPrefix + "freeze-1") })
	l.must(l.reconcileModule(t.Context(), shop))
	if a := l.desired("frozen"); a.GetTombstone() == nil {
		t.Errorf("after the freeze: %v", a)
	}
}

// A freeze stops a removal that was ordered before it, that of a module in one cluster and that of a deleted one.
func TestFreezeReachesATombstone(t *testing.T) {
	for _, tc := range []struct {
		name string
		hold *towlinev1.Hold
	}{
		{"cluster", &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}},
		{"module", &towlinev1.Hold{Kind: record.HoldFreeze, Project: shop.Project, Module: shop.Name}},
		{"both", &towlinev1.Hold{Kind: record.HoldFreeze, Project: shop.Project, Module: shop.Name, Cluster: "a"}},
	} {
		for _, deleting := range []string{"", fleet.DeleteDelete} {
			t.Run(tc.name+" "+deleting, func(t *testing.T) {
				l := newLeader(t)
				rec := moduleRecord()
				rec.Deleting = deleting
				dead := &agentv1.Tombstone{Module: shop.String(), Generation: 3, Policy: fleet.DeleteDelete}
				l.put(func(w store.Writer) {
					w.Put(store.ModuleKey(shop), rec)
					w.Put(store.ClusterKey("a"), clusterRecord("a"))
					w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: dead})
					w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: tc.hold})
				})
				l.must(l.reconcileModule(t.Context(), shop))
				first := l.desired("a").GetTombstone()
				if !first.GetHold() || first.GetGeneration() == 3 || first.GetPolicy() != fleet.DeleteDelete {
					t.Errorf("frozen: %v", first)
				}
				l.put(func(w store.Writer) { w.Delete(store.HoldPrefix + "freeze-1") })
				l.state(shop).markAll()
				l.must(l.reconcileModule(t.Context(), shop))
				if next := l.desired("a").GetTombstone(); next.GetHold() || next.GetGeneration() <= first.GetGeneration() {
					t.Errorf("not frozen any more: %v", next)
				}
			})
		}
	}
}

// What leaves a cluster that is frozen is ordered to stand still from the beginning.
func TestTombstoneInAFrozenClusterIsHeld(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
	})
	l.leaves("a", leaving{})
	if d := l.desired("a").GetTombstone(); !d.GetHold() {
		t.Errorf("tombstone %v", d)
	}
}

// The hold of a cluster stands in one record, with a generation of its own, and stays there when a removal is forgotten.
func TestHoldOfAClusterStandsInItsFloor(t *testing.T) {
	l := newLeader(t)
	floor := func() *storev1.FloorRecord {
		var f *storev1.FloorRecord
		l.read(func(r store.Reader) { f, _, _ = store.Get[*storev1.FloorRecord](r, store.FloorKey("a")) })
		return f
	}
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: shop.String(), Generation: 3, Policy: fleet.DeleteDelete}})
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
	})
	l.must(l.reconcileCluster(t.Context(), "a"))
	first := floor()
	l.must(l.reconcileCluster(t.Context(), "a"))
	if !first.GetHold() || first.GetGeneration() == 0 || floor().GetGeneration() != first.GetGeneration() {
		t.Errorf("first %v, then %v", first, floor())
	}
	l.must(l.forget(t.Context(), shop, []gone{{"a", 3}}))
	if f := floor(); !f.GetHold() || f.GetGeneration() <= first.GetGeneration() {
		t.Errorf("after a removal: %v", f)
	}
	second := floor()
	l.put(func(w store.Writer) { w.Delete(store.HoldPrefix + "freeze-1") })
	l.must(l.reconcileCluster(t.Context(), "a"))
	if f := floor(); f.GetHold() || f.GetGeneration() <= second.GetGeneration() {
		t.Errorf("after the hold: %v", f)
	}
}

// A confirm releases the list that the agent waited with. An agent that waits though its sync is confirmed has found
// something else: a person is asked about that, and not before the list is another one for the agent as well.
func TestConfirmIsOfOneList(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
	})
	// report has the agent say what it waits with; hold is what people see then.
	report := func(waits string) (id string) {
		st := fleet.SyncStatus{Module: shop, Generation: l.desired("a").GetSync().GetGeneration(), Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true,
			States: make([]fleet.ObjectState, 1)}
		if waits != "" {
			st.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: waits}, Version: "v1", Held: true}}
		}
		l.put(func(w store.Writer) {
			w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
		})
		l.state(shop).markAll()
		l.must(l.reconcileModule(t.Context(), shop))
		l.read(func(r store.Reader) {
			store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
				id = e.Key
				return true
			})
		})
		return id
	}
	digests := map[string]string{}
	confirm := func(id string) {
		l.put(func(w store.Writer) {
			h, _, _ := store.Get[*storev1.HoldRecord](w, id)
			digests[id] = h.GetHold().GetDigest()
			w.Put(store.ConfirmPrefix+h.GetHold().GetId(), &storev1.ConfirmRecord{Digest: h.GetHold().GetDigest()})
		})
		l.state(shop).markAll()
		l.must(l.reconcileModule(t.Context(), shop))
	}
	first := report("a")
	if confirm(first); !l.desired("a").GetSync().GetPruneConfirmed() {
		t.Fatal("not confirmed")
	}
	if id := report(""); id != "" || !l.desired("a").GetSync().GetPruneConfirmed() {
		t.Fatalf("what was confirmed is done: hold %q, %v", id, l.desired("a"))
	}
	before := l.desired("a").GetSync().GetGeneration()
	report("b")
	if d := l.desired("a").GetSync(); d.GetPruneConfirmed() || d.GetGeneration() == before {
		t.Fatalf("confirmed for what was found later: %v", d)
	}
	second := report("b")
	if second == "" || second == first {
		t.Fatalf("hold %q, the first was %q", second, first)
	}
	if confirm(second); !l.desired("a").GetSync().GetPruneConfirmed() {
		t.Error("the second list is not confirmed")
	}
	if id := report(""); id != "" {
		t.Fatalf("what was confirmed is done: hold %q", id)
	}
	l.read(func(r store.Reader) {
		r.Scan(store.ConfirmPrefix, func(e store.Entry) bool { t.Errorf("%s outlived the question", e.Key); return true })
	})
	// An answer that came while its question was being ended counts for no later one.
	id := strings.TrimPrefix(second, store.HoldPrefix)
	l.put(func(w store.Writer) { w.Put(store.ConfirmPrefix+id, &storev1.ConfirmRecord{Digest: digests[second]}) })
	for range 3 {
		if again := report("b"); again != "" && again != second || l.desired("a").GetSync().GetPruneConfirmed() != (again == "") {
			t.Fatalf("asked once more as %q: %v", again, l.desired("a"))
		}
	}
}

// A person's word outlives a new generation of the sync of which the agent has not told yet: what it is to know of heirs or of a hold changes
// nothing of the list that was confirmed. When it tells that it waits with exactly that, the word counts, and when it waits with more it does not.
func TestConfirmOutlivesAnotherGeneration(t *testing.T) {
	for _, tt := range []struct {
		name   string
		waits  []string
		counts bool
	}{
		{"with the same list", []string{"n"}, true},
		{"with more", []string{"m", "n"}, false},
		{"with something else", []string{"m"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, look := newAssigned(t)
			report := func(waits ...string) {
				l.waitsWith("a", waits...)
				look()
			}
			report("n")
			asked := l.asked()
			if len(asked) != 1 {
				t.Fatalf("asked %v", asked)
			}
			l.put(func(w store.Writer) {
				w.Put(store.ConfirmPrefix+asked[0].GetId(), &storev1.ConfirmRecord{Digest: asked[0].GetDigest()})
				d := l.desired("a") // as when the heirs of what it drops have changed
				d.Sync.Generation += 5
				w.Put(store.DesiredKey("a", shop), d)
			})
			look()
			if l.desired("a").GetSync().GetPruneConfirmed() {
				t.Error("confirmed before the agent has told what it waits with now")
			}
			report(tt.waits...)
			asked = l.asked()
			if got := l.desired("a").GetSync().GetPruneConfirmed(); got != tt.counts {
				t.Errorf("counts: %t; asked %v", got, asked)
			}
			if !tt.counts && (len(asked) != 1 || !slices.Equal(asked[0].GetItems(), objectsNamed(tt.waits...))) {
				t.Errorf("asked %v", asked)
			}
		})
	}
}

// Of what waits an agent lists some and counts the rest. With other values in the names of objects others may be dropped, and as many: an answer
// to such a list is none to the one after it, though they read the same.
func TestConfirmOfACutListEndsWithItsGeneration(t *testing.T) {
	l, look := newAssigned(t)
	report := func() {
		st := fleet.SyncStatus{Module: shop, Generation: l.desired("a").GetSync().GetGeneration(), Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true,
			States: make([]fleet.ObjectState, 1), HeldCount: 40, ExtraCount: 40,
			Extras: []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "n"}, Version: "v1", Held: true}}}
		l.put(func(w store.Writer) {
			w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
		})
		look()
	}
	report()
	asked := l.asked()
	if len(asked) != 1 {
		t.Fatalf("asked %v", asked)
	}
	l.put(func(w store.Writer) {
		w.Put(store.ConfirmPrefix+asked[0].GetId(), &storev1.ConfirmRecord{Digest: asked[0].GetDigest()})
		d := l.desired("a")
		d.Sync.Generation += 5
		w.Put(store.DesiredKey("a", shop), d)
	})
	look()
	report()
	if l.desired("a").GetSync().GetPruneConfirmed() {
		t.Errorf("confirmed, though nobody knows which 39 are meant: %v", asked)
	}
	if len(l.asked()) != 1 {
		t.Errorf("asked %v", l.asked())
	}
}

// An agent that has just started looks at what goes when all else is applied. Until then it waits with nothing, and what it was asked before stands,
// with a person's answer: that counts if it waits with the same list again.
func TestConfirmOutlivesAnAgentThatStarts(t *testing.T) {
	for _, tt := range []struct {
		name     string
		answered bool
		waits    []string
		cut      int
		counts   bool
	}{
		{"with the same list", true, []string{"n"}, 0, true},
		{"unanswered", false, []string{"n"}, 0, false},
		{"with more", true, []string{"m", "n"}, 0, false},
		{"with a list that is cut", true, []string{"n"}, 40, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, look := newAssigned(t)
			report := func(held bool, names ...string) {
				if l.waitsWith("a", names...); tt.cut > 0 && held {
					l.cutList("a", tt.cut)
				}
				if !held {
					l.starts("a")
				}
				look()
			}
			report(true, "n")
			first := l.asked()
			if len(first) != 1 {
				t.Fatalf("asked %v", first)
			}
			if tt.answered {
				l.put(func(w store.Writer) {
					w.Put(store.ConfirmPrefix+first[0].GetId(), &storev1.ConfirmRecord{Digest: first[0].GetDigest()})
				})
			}
			report(false, tt.waits...)
			if asked := l.asked(); (tt.cut == 0) != (len(asked) == 1 && asked[0].GetId() == first[0].GetId()) {
				t.Errorf("asked %v before the agent has looked", asked)
			}
			if l.desired("a").GetSync().GetPruneConfirmed() {
				t.Error("confirmed before the agent has looked")
			}
			report(true, tt.waits...)
			asked := l.asked()
			if got := l.desired("a").GetSync().GetPruneConfirmed(); got != tt.counts {
				t.Errorf("counts: %t; asked %v", got, asked)
			}
			if !tt.counts && len(asked) != 1 {
				t.Errorf("asked %v", asked)
			}
			if !tt.answered && asked[0].GetId() != first[0].GetId() {
				t.Errorf("asked %v, before %v", asked, first)
			}
		})
	}
}

// newAssigned is a leader whose module is assigned to cluster a; look has it looked at again.
func newAssigned(t *testing.T) (l *leader, look func()) {
	l = newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
	})
	return l, func() {
		l.state(shop).markAll()
		l.must(l.reconcileModule(t.Context(), shop))
	}
}

// A list ends with the revision of which it was, whether the agent has told of the next one or not.
func TestQuestionEndsWithItsRevision(t *testing.T) {
	l, look := newAssigned(t)
	l.waitsWith("a", "n")
	look()
	asked := l.asked()
	l.put(func(w store.Writer) {
		w.Put(store.ConfirmPrefix+asked[0].GetId(), &storev1.ConfirmRecord{Digest: asked[0].GetDigest()})
		d := l.desired("a")
		d.Sync.Generation, d.Sync.Bundle = d.Sync.Generation+5, fleet.DigestOf([]byte("the next")).Bytes()
		w.Put(store.DesiredKey("a", shop), d)
	})
	look()
	if left := l.asked(); len(left) > 0 {
		t.Errorf("asked still: %v", left)
	}
}

// waitsWith has the agent of a cluster report, of the generation that it is to have, what it waits with for a confirm.
func (l *leader) waitsWith(c fleet.ClusterName, names ...string) {
	st := fleet.SyncStatus{Module: shop, Generation: l.desired(c).GetSync().GetGeneration(), Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true,
		States: make([]fleet.ObjectState, 1)}
	for _, n := range names {
		st.Extras = append(st.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: n}, Version: "v1", Held: true})
	}
	l.put(func(w store.Writer) {
		w.Put(store.ObservedKey(c, shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
	})
}

// objectsNamed is what waitsWith comes to in a list.
func objectsNamed(names ...string) (out []string) {
	for _, n := range names {
		out = append(out, fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: n}.String())
	}
	return out
}

// asked are the holds that there are.
func (l *leader) asked() (out []*towlinev1.Hold) {
	l.read(func(r store.Reader) {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, _ store.Entry) bool {
			out = append(out, h.GetHold())
			return true
		})
	})
	return out
}

// TestHoldThatEndsWhileItIsWritten: the end of a cluster's hold comes between the look at it and the commit of it, and finds that
// the cluster is not held yet. It is looked at again, and the agent is not told to write nothing for ever.
func TestHoldThatEndsWhileItIsWritten(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	key := store.HoldPrefix + record.FreezeID + "1"
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(key, &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
	})
	b.happens = func() {
		ended, err := l.all.Update(t.Context(), func(w store.Writer) error {
			w.Delete(key)
			return nil
		})
		if err = errors.Join(err, l.o.Store.View(t.Context(), ended, func(store.Reader) error { return nil })); err != nil {
			t.Error(err)
		}
		l.touchHold(key)
	}
	l.must(l.reconcileCluster(t.Context(), "a"))
	for range 2 {
		if _, asked := l.modules.entries[store.ClusterKey("a")]; asked {
			delete(l.modules.entries, store.ClusterKey("a"))
			l.must(l.reconcileCluster(t.Context(), "a"))
		}
	}
	l.read(func(r store.Reader) {
		if held(r, "a") {
			t.Error("the cluster is held, and there is no hold")
		}
	})
}
