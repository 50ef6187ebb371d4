package record

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// library is what bundles can be read.
type library map[fleet.Digest]fleet.Bundle

func (l library) Get(_ context.Context, d fleet.Digest) (fleet.Bundle, error) {
	if b, ok := l[d]; ok {
		return b, nil
	}
	return fleet.Bundle{}, fleet.Errorf(fleet.ErrNotFound, "blob %s", d)
}

func (l library) Content(_ context.Context, d fleet.Digest) ([]byte, error) {
	return nil, fleet.Errorf(fleet.ErrNotFound, "blob %s", d)
}

func (l library) add(names ...string) fleet.Digest {
	var entries []fleet.BundleEntry
	for _, n := range names {
		entries = append(entries, fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: n}, Version: "v1"})
	}
	d, _ := assemble.BundleDigest(entries)
	l[d] = fleet.Bundle{Digest: d, Entries: entries}
	return d
}

// A module whose bundle, or whose assignment, cannot be read any more lets go what nobody knows: whoever is about to list anything there may be
// the heir of it.
func TestHeirsOfWhatCannotBeRead(t *testing.T) {
	l := library{}
	had, wants := l.add("a", "b"), l.add("a", "c")
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	s := storetest.New(t)
	old := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 1, Revision: 1, Bundle: had, Objects: 2})}
	rev, err := s.Update(t.Context(), func(w store.Writer) error {
		spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a": "a"}}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
		w.Put(store.ModuleKey(two), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "two", Project: "default"}, Spec: spec}})
		w.Put(store.RevisionKey(two, 1), &storev1.RevisionRecord{Bundle: wants.Bytes(), Revision: &towlinev1.Revision{Number: 1, Spec: spec}})
		w.Put(store.RolloutKey(two, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 1, Revision: 1}})
		w.Put(store.DesiredKey("c1", one), old)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	keys := func(names ...string) (out []uint64) {
		for _, n := range names {
			out = append(out, assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: n}))
		}
		slices.Sort(out)
		return out
	}
	heirs := func() (got []fleet.Heir) {
		next := &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2, Policy: fleet.DeleteDelete})}
		if err := s.View(t.Context(), rev, func(r store.Reader) (err error) {
			got, err = NewSuccession(l, one).Of(t.Context(), r, fleet.Cluster{Name: "c1"}, old, next)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := heirs(); !assemble.EqualHeirs(got, []fleet.Heir{{Module: two, Keys: keys("a")}}) {
		t.Errorf("of what is known: %v", got)
	}
	delete(l, had)
	if got := heirs(); !assemble.EqualHeirs(got, []fleet.Heir{{Module: two, Keys: keys("a", "c")}}) {
		t.Errorf("of what is not known: %v", got)
	}
	// Nor of what the agent reported last.
	rev, err = s.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ObservedKey("c1", one), &storev1.ObservedRecord{Epoch: 1, Status: &agentv1.SyncStatus{Module: one.String(), Generation: 1, Bundle: had.Bytes()}})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	old = &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 2, Revision: 2, Bundle: l.add("x"), Objects: 1})}
	if got := heirs(); !assemble.EqualHeirs(got, []fleet.Heir{{Module: two, Keys: keys("a", "c")}}) {
		t.Errorf("of what the agent reported: %v", got)
	}
	standIn, _ := StandIn(store.DesiredKey("c1", one), errors.New("a bit is flipped"))
	old = standIn.(*storev1.DesiredRecord)
	if got := heirs(); !assemble.EqualHeirs(got, []fleet.Heir{{Module: two, Keys: keys("a", "c")}}) {
		t.Errorf("of an assignment that is damaged: %v", got)
	}
}

// What an assignment that is damaged says of what stays is not known: all does. One without policies says that nothing does.
func TestDamagedSyncKeepsAll(t *testing.T) {
	l, one := library{}, fleet.ModuleRef{Project: "default", Name: "one"}
	standIn, _ := StandIn(store.DesiredKey("c1", one), errors.New("a bit is flipped"))
	sound := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 2, Revision: 2, Bundle: l.add("x"), Objects: 1})}
	if err := storetest.New(t).View(t.Context(), 0, func(r store.Reader) error {
		for old, keeps := range map[*storev1.DesiredRecord]bool{standIn.(*storev1.DesiredRecord): true, sound: false} {
			next, err := NewSuccession(l, one).Leave(t.Context(), r, "c1", old, wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 3, Policy: fleet.DeleteDelete}), true)
			if err != nil || (len(next.GetTombstone().GetPolicies()) > 0) != keeps {
				t.Errorf("keeps %v, %v: %v", next.GetTombstone().GetPolicies(), err, old)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What is let go is kept as long as nobody can read what another module is about to list, unless that is in the cluster already.
func TestHeirsThatCannotBeRead(t *testing.T) {
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	a := assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"})
	lists := []fleet.Heir{{Module: two, Keys: []uint64{a}}}
	unknown := []fleet.Heir{{Module: two, Unknown: true, Keys: []uint64{a}}}
	for name, tc := range map[string]struct {
		damaged string
		lost    bool
		has     int64 // revision of the other one in the cluster
		want    []fleet.Heir
	}{
		"all is well":                           {want: lists},
		"the list":                              {lost: true, want: unknown},
		"the list, and it is there":             {lost: true, has: 2},
		"the list, and another one is there":    {lost: true, has: 1, want: unknown},
		"the revision":                          {damaged: store.RevisionKey(two, 2), want: unknown},
		"the revision, and it is there":         {damaged: store.RevisionKey(two, 2), has: 2},
		"the module, whose revision is known":   {damaged: store.ModuleKey(two), want: lists},
		"the module, whose list is not, either": {damaged: store.ModuleKey(two), lost: true, want: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			l, b := library{}, memory.New()
			had, before, wants := l.add("a"), l.add("b"), l.add("a", "c")
			s := storetest.On(t, b, engine.Options{})
			old := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 1, Revision: 1, Bundle: had, Objects: 1})}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a": "a"}}},
					Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
				w.Put(store.ModuleKey(two), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "two", Project: "default"}, Spec: spec}})
				for n, list := range map[int64]fleet.Digest{1: before, 2: wants} {
					w.Put(store.RevisionKey(two, n), &storev1.RevisionRecord{Bundle: list.Bytes(), Revision: &towlinev1.Revision{Number: n, Spec: spec}})
					w.Put(store.RolloutKey(two, n), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: n, Revision: n}})
				}
				w.Put(store.DesiredKey("c1", one), old)
				if tc.has != 0 {
					w.Put(store.DesiredKey("c1", two), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: two, Generation: 1, Revision: tc.has, Bundle: before, Objects: 1})})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if tc.damaged != "" {
				rev = storetest.Damage(t, b, tc.damaged)
			}
			if tc.lost {
				delete(l, wants)
			}
			var got []fleet.Heir
			if err := s.View(t.Context(), rev, func(r store.Reader) (err error) {
				next := &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2, Policy: fleet.DeleteDelete})}
				got, err = NewSuccession(l, one).Of(t.Context(), r, fleet.Cluster{Name: "c1"}, old, next)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if !assemble.EqualHeirs(got, tc.want) {
				t.Errorf("%v; want %v", got, tc.want)
			}
		})
	}
}

// What had the name of a module before goes first, and what is kept for that module goes when it has come. Where removals wait for each
// other so, the first of them by name lets go; nobody else does.
func TestRemovalsWaitForEachOtherInNoCircle(t *testing.T) {
	names := []string{"one", "two", "zoo"}
	ref := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }
	type goes struct {
		has, wants string // before and after; empty: it is not put again
		next       bool   // it waits for its own removal
		unknown    bool   // what it is going to list
	}
	for name, tc := range map[string]struct {
		modules map[string]goes
		want    map[string]string // heirs
	}{
		"nobody waits":             {map[string]goes{"one": {has: "a", next: true}, "two": {wants: "a"}}, map[string]string{"one": "two"}},
		"one waits":                {map[string]goes{"one": {has: "a", wants: "x", next: true}, "two": {has: "b", wants: "a", next: true}}, map[string]string{"one": "two", "two": ""}},
		"both wait for each other": {map[string]goes{"one": {has: "a", wants: "b", next: true}, "two": {has: "b", wants: "a", next: true}}, map[string]string{"one": "", "two": "one"}},
		"three in a circle": {map[string]goes{"one": {has: "a", wants: "c", next: true}, "two": {has: "b", wants: "a", next: true}, "zoo": {has: "c", wants: "b", next: true}},
			map[string]string{"one": "", "two": "zoo", "zoo": "one"}},
		"a circle beside it": {map[string]goes{"one": {has: "a", wants: "x", next: true}, "two": {has: "b", wants: "ac", next: true}, "zoo": {has: "c", wants: "b", next: true}},
			map[string]string{"one": "two", "two": "", "zoo": "two"}},
		"not known yet": {map[string]goes{"one": {has: "a", wants: "b", next: true}, "two": {has: "b", wants: "ay", next: true, unknown: true}}, map[string]string{"one": "two", "two": "one"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := library{}, storetest.New(t)
			put := func(write func(w store.Writer)) (rev int64) {
				rev, err := s.Update(t.Context(), func(w store.Writer) error { write(w); return nil })
				if err != nil {
					t.Fatal(err)
				}
				return rev
			}
			rev := put(func(w store.Writer) {
				for name, m := range tc.modules {
					spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a": "a"}}},
						Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
					if m.next {
						tomb := fleet.Tombstone{Module: ref(name), Generation: 2, Policy: fleet.DeleteDelete}
						w.Put(store.DesiredKey("c1", ref(name)), &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(tomb), Final: true, NextRevision: 1, NextGeneration: 3,
							Before: []*storev1.Given{{Bundle: l.add(strings.Split(m.has, "")...).Bytes()}}})
					}
					if m.wants == "" {
						continue
					}
					w.Put(store.ModuleKey(ref(name)), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: "default"}, Spec: spec}})
					bundle := l.add(strings.Split(m.wants, "")...)
					w.Put(store.RevisionKey(ref(name), 1), &storev1.RevisionRecord{Bundle: bundle.Bytes(), Revision: &towlinev1.Revision{Number: 1, Spec: spec}})
					w.Put(store.RolloutKey(ref(name), 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 1, Revision: 1}})
					if m.unknown {
						delete(l, bundle)
					}
				}
			})
			for range 3 { // each look follows from what the others have written
				for _, name := range names {
					if !tc.modules[name].next {
						continue
					}
					var got []fleet.Heir
					var next *storev1.DesiredRecord
					if err := s.View(t.Context(), rev, func(r store.Reader) (err error) {
						d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("c1", ref(name)))
						next = proto.CloneOf(d)
						got, err = NewSuccession(l, ref(name)).Of(t.Context(), r, fleet.Cluster{Name: "c1"}, d, d)
						return err
					}); err != nil {
						t.Fatal(err)
					}
					next.Tombstone.Heirs = wire.HeirsToProto(got)
					rev = put(func(w store.Writer) { w.Put(store.DesiredKey("c1", ref(name)), next) })
				}
			}
			for name, want := range tc.want {
				got := ""
				if err := s.View(t.Context(), rev, func(r store.Reader) error {
					d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("c1", ref(name)))
					for _, h := range d.GetTombstone().GetHeirs() {
						got += strings.TrimPrefix(h.GetModule(), "default/")
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s is kept for %q, want %q", name, got, want)
				}
			}
		})
	}
}
