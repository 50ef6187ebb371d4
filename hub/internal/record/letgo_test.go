package record

import (
	"context"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// letsGo is a store in which one has revision 2, which is of y of a branch that two follows, too. Two was looked at since.
func letsGo(t *testing.T, more ...func(store.Writer)) (one, two fleet.ModuleRef, l library, view func(func(store.Reader))) {
	one, two, l = fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}, library{}
	s := storetest.New(t)
	spec := &towlinev1.ModuleSpec{Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}, Source: &towlinev1.Source{Follow: &towlinev1.Follow{},
		Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: &towlinev1.GitRef{Branch: "main"}}}}
	update := func(do func(store.Writer)) int64 {
		t.Helper()
		rev, err := s.Update(t.Context(), func(w store.Writer) error { do(w); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	rev := update(func(w store.Writer) {
		for _, x := range []struct {
			ref  fleet.ModuleRef
			n    int64
			to   string
			list fleet.Digest
		}{{two, 1, "x", l.add("b")}, {one, 2, "y", l.add("a")}} {
			w.Put(store.ModuleKey(x.ref), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: x.ref.Name, Project: "default", Uid: "u", Generation: 1}, Spec: spec}})
			w.Put(store.RevisionKey(x.ref, x.n), &storev1.RevisionRecord{Bundle: x.list.Bytes(), Revision: &towlinev1.Revision{Number: x.n, ResolvedRef: x.to, Spec: spec}})
			w.Put(store.RolloutKey(x.ref, x.n), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: x.n, Revision: x.n, Status: &towlinev1.RolloutStatus{State: "Succeeded"}}})
		}
	})
	rev = update(func(w store.Writer) {
		w.Put(store.FollowKey(two), &storev1.FollowRecord{ModuleUid: "u", Generation: 1, ResolvedRef: "y", Began: rev})
	})
	for _, do := range more {
		rev = update(do)
	}
	return one, two, l, func(look func(store.Reader)) {
		t.Helper()
		if err := s.View(t.Context(), rev, func(r store.Reader) error { look(r); return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

// What a rollout has one cluster after the other let go is of what all have seen since it was cut. What a cluster lets go by its labels, by what
// was wrong with it before, or because it goes back, stays until those of its source have been looked at since; and what changes nothing begins
// nothing anew.
func TestSinceWhenAClusterLetsGo(t *testing.T) {
	had, has := fleet.DigestOf([]byte("had")).Bytes(), fleet.DigestOf([]byte("has")).Bytes()
	sync := func(revision int64, bundle []byte) *agentv1.Sync {
		return &agentv1.Sync{Revision: revision, Bundle: bundle}
	}
	tombstone := &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{}}
	for name, tc := range map[string]struct {
		old, next *storev1.DesiredRecord
		anew, now bool // the module's rollout has begun anew; the cluster lets go by itself
	}{
		"it comes":                            {next: &storev1.DesiredRecord{Sync: sync(2, has)}},
		"a newer revision":                    {old: &storev1.DesiredRecord{Sync: sync(1, had)}, next: &storev1.DesiredRecord{Sync: sync(2, has)}},
		"a newer revision, which begins anew": {old: &storev1.DesiredRecord{Sync: sync(1, had)}, next: &storev1.DesiredRecord{Sync: sync(2, has)}, anew: true, now: true},
		"what could not be assigned before":   {old: &storev1.DesiredRecord{Sync: sync(1, had), Problem: "no value"}, next: &storev1.DesiredRecord{Sync: sync(2, has)}, now: true},
		"an older revision":                   {old: &storev1.DesiredRecord{Sync: sync(2, had)}, next: &storev1.DesiredRecord{Sync: sync(1, has)}, now: true},
		"another variant":                     {old: &storev1.DesiredRecord{Sync: sync(2, had)}, next: &storev1.DesiredRecord{Sync: sync(2, has)}, now: true},
		"other values":                        {old: &storev1.DesiredRecord{Sync: &agentv1.Sync{Revision: 2, Bundle: has, Values: map[string]string{"A": "1"}}}, next: &storev1.DesiredRecord{Sync: sync(2, has)}, now: true},
		"the same":                            {old: &storev1.DesiredRecord{Sync: sync(2, has)}, next: &storev1.DesiredRecord{Sync: sync(2, has)}},
		"it leaves":                           {old: &storev1.DesiredRecord{Sync: sync(2, had)}, next: tombstone, now: true},
		"it leaves already":                   {old: tombstone, next: tombstone},
		"it comes back":                       {old: tombstone, next: &storev1.DesiredRecord{Sync: sync(2, has)}, now: true},
		"it comes back of another module of its name": {old: &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{}, Final: true}, next: &storev1.DesiredRecord{Sync: sync(2, has)}},
		"the module is deleted":                       {old: &storev1.DesiredRecord{Sync: sync(2, had)}, next: &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{}, Final: true}, now: true},
	} {
		t.Run(name, func(t *testing.T) {
			one, _, l, view := letsGo(t, func(w store.Writer) {
				if tc.anew {
					w.Put(store.RolloutKey(fleet.ModuleRef{Project: "default", Name: "one"}, 3), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 3, Revision: 2, Status: &towlinev1.RolloutStatus{State: "Progressing"}}})
				}
			})
			view(func(r store.Reader) {
				want := int64(0)
				if tc.now {
					want = r.Revision() + 1
				} else if tc.old != nil {
					want = 1
					tc.old.LetGoAt = want
				}
				if got := NewSuccession(l, one).since(t.Context(), r, tc.old, tc.next); got != want {
					t.Errorf("since %d, not %d", got, want)
				}
			})
		})
	}
}

// What leaves a cluster by its labels may be what another module of the source lists by now, until that has been looked at since; the module's
// own rollout, long before, says nothing of that.
func TestLeavesAClusterBeforeOthersHaveLooked(t *testing.T) {
	one, two, l, view := letsGo(t)
	had := l.add("a", "m")
	view(func(r store.Reader) {
		old := &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: one.String(), Generation: 1, Revision: 1, Bundle: had.Bytes()}}
		m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(two))
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(one))
		for name, at := range map[string]int64{"long ago": 0, "now": r.Revision() + 1} {
			x := NewSuccession(l, one)
			next := &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: one.String(), Generation: 2}, LetGoAt: at}
			heirs, err := x.Of(t.Context(), r, fleet.Cluster{Name: "c1"}, old, next)
			if err != nil {
				t.Fatal(err)
			}
			if now := at != 0; assemble.WaitsForUnknown(heirs) != now || x.Unknown[two] != now || x.Unlooked(t.Context(), r, two, m) != now {
				t.Errorf("%s: heirs %v, a look would tell: %v", name, heirs, x.Unlooked(t.Context(), r, two, m))
			}
			if x.Unlooked(t.Context(), r, one, rec) {
				t.Errorf("%s: the one itself is looked at", name)
			}
		}
	})
}

// What the one's own queued put is going to list is as of what was fetched for it: where another module of its source has seen something else
// since, what the one lets go may be its own again.
func TestOwnQueuedPutThatOthersHaveOvertaken(t *testing.T) {
	entries := func(l library) map[string][]fleet.BundleEntry {
		return map[string][]fleet.BundleEntry{fleet.Variant{}.Key(): l[l.add("a")].Entries}
	}
	for name, tc := range map[string]struct {
		ref          string // of its draft
		since        bool   // that was fetched since the look
		failed       bool
		self, looked bool
	}{
		"it was fetched before":  {ref: "x", self: true, looked: true},
		"it is of the same":      {ref: "y"},
		"it was fetched since":   {ref: "z", since: true},
		"it cannot be rendered":  {failed: true, self: true},
		"it was, and now cannot": {ref: "y", failed: true, self: true},
	} {
		t.Run(name, func(t *testing.T) {
			one, _, l, view := letsGo(t, func(w store.Writer) {
				ref := fleet.ModuleRef{Project: "default", Name: "one"}
				w.Put(store.RolloutKey(ref, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: "one/2", Number: 2, Revision: 2, Strategy: &towlinev1.RolloutStrategy{OnSupersede: "Queue"},
					Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing)}}})
				w.Put(store.StartKey(ref, 3), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 3, Status: &towlinev1.RolloutStatus{State: "Pending"}}})
			})
			had, has := l.add("a", "m"), l.add("a")
			view(func(r store.Reader) {
				x := NewSuccession(l, one)
				x.Drafts = func(context.Context, *wire.Module, *storev1.ModuleRecord, int64) Draft {
					d := Draft{Known: tc.ref != "", Failed: tc.failed, Ref: tc.ref, Entries: entries(l)}
					if tc.since {
						d.At = r.Revision()
					}
					return d
				}
				sync := func(generation uint64, revision int64, d fleet.Digest) *storev1.DesiredRecord {
					return &storev1.DesiredRecord{Rollout: 2, Sync: &agentv1.Sync{Module: one.String(), Generation: generation, Revision: revision, Bundle: d.Bytes()}}
				}
				heirs, err := x.Of(t.Context(), r, fleet.Cluster{Name: "c1"}, sync(1, 1, had), sync(2, 2, has))
				if err != nil || rollouts.Unresolved(r, one) == nil {
					t.Fatal(err)
				}
				rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(one))
				if looked := x.Unlooked(t.Context(), r, one, rec); x.Unknown[one] != tc.self || assemble.WaitsForUnknown(heirs) != tc.self || looked != tc.looked {
					t.Errorf("heirs %v, a look would tell: %v", heirs, looked)
				}
			})
		})
	}
}
