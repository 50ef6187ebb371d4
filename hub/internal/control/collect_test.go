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
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A bundle that cannot be read stops no sweep: it is named, and what it may list stays, which is whatever is not known to be
// something else.
func TestUnreadableBundleKeepsWhatItMayList(t *testing.T) {
	l := newLeader(t)
	listed := fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "web"}}
	_, bundle := assemble.BundleDigest([]fleet.BundleEntry{listed})
	blobs, err := l.o.Store.Blobs().Put(t.Context(), []byte(`{"kind":"ConfigMap"}`), []byte("what nobody knows"),
		artifact.Encode(map[string][]byte{"a.yaml": []byte("kind: ConfigMap")}), bundle)
	l.must(err)
	broken := l.revision(1)
	broken.Bundle = fleet.DigestOf([]byte("lost")).Bytes()
	l.put(func(w store.Writer) { w.Put(store.RevisionKey(shop, 1), broken) })
	for range 3 {
		if err := l.collect(t.Context()); !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), store.RevisionKey(shop, 1)) {
			t.Errorf("the sweep says of the unreadable bundle: %v", err)
		}
	}
	for i, want := range []bool{true, true, false, false} {
		if _, err := l.o.Store.Blobs().Get(t.Context(), blobs[i]); (err == nil) != want {
			t.Errorf("blob %d is kept: %t, want %t (%v)", i, err == nil, want, err)
		}
	}
	if n := l.UnreadBundles(); n != 1 {
		t.Errorf("%d bundles are said to be unreadable", n)
	}
	l.put(func(w store.Writer) { w.Delete(store.RevisionKey(shop, 1)) })
	for range 2 {
		l.must(l.collect(t.Context()))
	}
	if _, err := l.o.Store.Blobs().Get(t.Context(), blobs[0]); err == nil || l.UnreadBundles() != 0 {
		t.Error("nothing goes although nothing refers to the bundle any more")
	}
}

func TestTrimKeepsTheRolloutToGoBackTo(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded)))
		for n := int64(2); n < 30; n++ {
			w.Put(store.RolloutKey(shop, n), rolloutRecord(n, string(rollout.Failed)))
		}
	})
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		if n := rollouts.Standing(r, shop); n != 1 {
			t.Errorf("last succeeded is r%d, want r1", n)
		}
		if n := len(rollouts.List(r, shop)); n != keptRollouts+1 {
			t.Errorf("%d rollouts kept", n)
		}
	})
}

// Many puts failed, or were superseded, between two revisions that succeeded: the one that a person takes the newest rollout back to is kept, as well
// where all but one are to go.
func TestTrimKeepsTheRevisionToGoBackTo(t *testing.T) {
	for _, limit := range []int32{1, 0} {
		l := newLeader(t)
		l.put(func(w store.Writer) {
			m := moduleRecord()
			m.Module.Spec.Rollout = &towlinev1.RolloutStrategy{RevisionHistoryLimit: limit}
			w.Put(store.ModuleKey(shop), m)
			for n := int64(1); n <= 16; n++ {
				state := rollout.Superseded
				if n == 2 || n == 16 {
					state = rollout.Succeeded
				}
				ro := rolloutRecord(n, string(state))
				ro.Rollout.Revision, ro.Rollout.FromRevision = n, min(n-1, 2)
				w.Put(store.RolloutKey(shop, n), ro)
				w.Put(store.RevisionKey(shop, n), &storev1.RevisionRecord{Revision: &towlinev1.Revision{Number: n}})
			}
		})
		l.must(l.trim(t.Context()))
		l.read(func(r store.Reader) {
			if record.Revision(r, shop, 1) != nil || record.Revision(r, shop, 2) == nil || record.Revision(r, shop, 16) == nil {
				t.Errorf("limit %d: r1 is to go, and r2 and r16 are to stay", limit)
			}
		})
	}
}

// A cluster could not have the revision of a rollout of which nothing is kept any more. What a person said of that rollout is not known, and what
// it rolled out is no more where the module is going: the cluster is not given it. What the module stands at it is given.
func TestWhatARolloutThatIsNotKeptBroughtIsNotGiven(t *testing.T) {
	const external = 0 // another program says where revisions go
	for standing, given := range map[int64]bool{1: false, 5: true, external: true} {
		l := newLeader(t)
		l.put(func(w store.Writer) {
			w.Put(store.ModuleKey(shop), moduleRecord())
			for n := int64(1); n < 40; n++ {
				state := rollout.Failed
				if n == 5 {
					state = rollout.Aborted
				}
				if n == standing {
					state = rollout.Succeeded
				}
				ro := rolloutRecord(n, string(state))
				if standing == external {
					ro.Rollout.Strategy = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
				}
				w.Put(store.RolloutKey(shop, n), ro)
			}
		})
		d := &storev1.DesiredRecord{Sync: &agentv1.Sync{Revision: 4}, Problem: "wants a label", ProblemRevision: 5, Rollout: 5}
		l.must(l.trim(t.Context()))
		l.read(func(r store.Reader) {
			x := withholder{r: r, ref: shop}
			if why, _ := x.why("a", d); (why == "") != given {
				t.Errorf("standing at r%d: %q", standing, why)
			}
		})
	}
}

// The revisions of a module that had the name before are kept while it leaves a cluster yet, and no longer: by them it is known who may be an
// heir there.
func TestTrimKeepsWhatHadTheNameBeforeWhileItLeaves(t *testing.T) {
	l := newLeader(t)
	left := store.DesiredKey("c1", shop)
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.FirstRevision = 3
		w.Put(store.ModuleKey(shop), m)
		w.Put(store.RevisionKey(shop, 2), l.revision(2))
		w.Put(left, &storev1.DesiredRecord{Tombstone: tomb(4), Final: true})
	})
	for _, leaves := range []bool{true, false} {
		l.must(l.trim(t.Context()))
		l.read(func(r store.Reader) {
			if _, kept := r.Get(store.RevisionKey(shop, 2)); kept != leaves {
				t.Errorf("while it leaves (%v) its revision is kept: %v", leaves, kept)
			}
		})
		l.put(func(w store.Writer) { w.Delete(left) })
	}
}

// A rollout that a person ended of what a catalog had put is known however many a module has had since: by that the catalog does not begin it
// again.
func TestTrimKeepsTheRolloutOfWhatACatalogPut(t *testing.T) {
	for generation, kept := range map[int64]int{0: keptRollouts, 2: keptRollouts + 1} {
		l := newLeader(t)
		l.put(func(w store.Writer) {
			m := moduleRecord()
			m.PutGeneration = generation
			w.Put(store.ModuleKey(shop), m)
			for n := int64(1); n < 30; n++ {
				ro := rolloutRecord(n, string(rollout.Aborted))
				ro.Rollout.ModuleGeneration = n
				w.Put(store.RolloutKey(shop, n), ro)
			}
		})
		l.must(l.trim(t.Context()))
		l.read(func(r store.Reader) {
			if n := len(rollouts.List(r, shop)); n != kept || (rollouts.OfGeneration(r, shop, 2) != nil) != (generation == 2) {
				t.Errorf("generation %d: %d rollouts kept, and of it %v", generation, n, rollouts.OfGeneration(r, shop, 2))
			}
		})
	}
}

// A module that was rolled back by hand stands at an older revision than the last one that succeeded, however many rollouts failed
// since.
func TestTrimKeepsTheRollbackThatStands(t *testing.T) {
	l := newLeader(t)
	l.fleetOf("a")
	l.reportReady("a")
	l.again()
	l.put(func(w store.Writer) { w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Failed))) })
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbRollback, Revision: 1})
	l.reportReady("a")
	l.again()
	l.put(func(w store.Writer) {
		for n := int64(3); n < 30; n++ {
			w.Put(store.RolloutKey(shop, n), rolloutRecord(n, string(rollout.Failed)))
		}
	})
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		if n := rollouts.Standing(r, shop); n != 1 {
			t.Errorf("it stands at r%d, want r1", n)
		}
	})
}

// The placement of the revision to which a rollout was rolled back says where the module is, though no cluster has that revision.
func TestTrimKeepsTheRevisionThatPlaces(t *testing.T) {
	l := newLeader(t)
	l.fleetOf()
	l.put(func(w store.Writer) {
		w.Put(store.VerbKey(shop, 2, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbRollback, Revision: 1, By: "ana"}, Scope: rollout.ScopeFailed})
	})
	l.again()
	if s := l.rollout(2).State; s.State != rollout.RolledBack || s.PlacedBy() != 1 {
		t.Fatalf("state: %+v", s.Head)
	}
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Module.Spec.Rollout = &towlinev1.RolloutStrategy{RevisionHistoryLimit: 1}
		w.Put(store.ModuleKey(shop), m)
	})
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		if record.Revision(r, shop, 1) == nil {
			t.Error("r1 is gone")
		}
	})
}

// A verb goes with its rollout, but one that may be repeated is known for longer; also when another module has the name by now.
func TestRequestsOutliveTheirRollouts(t *testing.T) {
	l := newLeader(t)
	day := func(days int) *timestamppb.Timestamp { return timestamppb.New(time.Now().AddDate(0, 0, -days)) }
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.FirstRollout = 3
		w.Put(store.ModuleKey(shop), m)
		for n := int64(3); n <= 40; n++ {
			w.Put(store.RolloutKey(shop, n), rolloutRecord(n, string(rollout.Failed)))
		}
		w.Put(store.StartKey(shop, 41), rolloutRecord(41, string(rollout.Pending)))
		w.Put(store.VerbKey(shop, 41, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbAbort, At: day(0)}}) // not heard yet
		for _, n := range []int64{1, 3, 40} {                                                                                    // of a module of before, of a rollout that is dropped, of one that is kept
			w.Put(store.VerbKey(shop, n, 1), &storev1.VerbRecord{RequestId: "new", Verb: &towlinev1.VerbRecord{At: day(6)}})
			w.Put(store.VerbKey(shop, n, 2), &storev1.VerbRecord{RequestId: "old", Verb: &towlinev1.VerbRecord{At: day(8)}})
			w.Put(store.VerbKey(shop, n, 3), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{At: day(0)}})
		}
	})
	for range 2 { // the second time their rollouts are gone already
		l.must(l.trim(t.Context()))
		l.read(func(r store.Reader) {
			var left []string
			r.Scan(store.VerbPrefix, func(e store.Entry) bool {
				left = append(left, e.Key)
				return true
			})
			want := []string{store.VerbKey(shop, 1, 1), store.VerbKey(shop, 3, 1), store.VerbKey(shop, 40, 1), store.VerbKey(shop, 40, 2), store.VerbKey(shop, 40, 3), store.VerbKey(shop, 41, 1)}
			if !slices.Equal(left, want) {
				t.Errorf("left %q, want %q", left, want)
			}
		})
	}
}

// What a cluster may still have of a module is read again when somebody comes to list it: its list is no garbage.
func TestListsOfWhatWasGivenBeforeAreKept(t *testing.T) {
	l := newLeader(t)
	before, err := l.o.Store.Blobs().Put(t.Context(), []byte("a list of before"))
	l.must(err)
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("c1"), clusterRecord("c1"))
		w.Put(store.DesiredKey("c1", shop), &storev1.DesiredRecord{Before: []*storev1.Given{{Bundle: before[0].Bytes()}},
			Tombstone: &agentv1.Tombstone{Module: shop.String(), Generation: 2, Policy: fleet.DeleteDelete}})
	})
	for range 3 {
		l.must(l.collect(t.Context()))
	}
	if _, err := l.o.Store.Blobs().Get(t.Context(), before[0]); err != nil {
		t.Error(err)
	}
}

// A module that begins to let something go looks once more: what another one came to list between its look and the note of
// that was told to nobody.
func TestModuleThatBeginsToLetGoLooksOnceMore(t *testing.T) {
	l := newLeader(t)
	st := l.state(shop)
	st.take()
	l.noteDropping(shop, "c1", true)
	if dirty, all := st.take(); len(dirty) != 1 && !all {
		t.Error("it does not look again")
	}
	l.noteDropping(shop, "c1", true)
	if dirty, all := st.take(); len(dirty) != 0 || all {
		t.Error("it looks for ever")
	}
}

// What is assigned in a cluster that was forgotten meanwhile is dropped: a cluster that comes under its name later would get it,
// whatever became of the module. Of a cluster whose record cannot be read nothing is dropped.
func TestAssignmentsOfForgottenClustersAreDropped(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		for _, name := range []fleet.ClusterName{"there", "damaged", "gone"} {
			if name != "gone" {
				w.Put(store.ClusterKey(name), clusterRecord(string(name)))
			}
			w.Put(store.DesiredKey(name, shop), &storev1.DesiredRecord{Sync: l.sync(1)})
			w.Put(store.ObservedKey(name, shop), &storev1.ObservedRecord{Epoch: 1})
		}
	})
	l.damage(b, store.ClusterKey("damaged"))
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		for name, want := range map[fleet.ClusterName]bool{"there": true, "damaged": true, "gone": false} {
			_, desired := r.Get(store.DesiredKey(name, shop))
			_, observed := r.Get(store.ObservedKey(name, shop))
			if desired != want || observed != want {
				t.Errorf("%s: assigned %v, observed %v", name, desired, observed)
			}
		}
	})
}
