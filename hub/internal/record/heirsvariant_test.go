package record

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What a module is to list where its labels have come to another variant nobody knows before that is rendered, and then it is assigned that: all is
// kept so long, also where it is at the revision already. A variant whose list cannot be read it is not assigned.
func TestHeirsOfVariants(t *testing.T) {
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	a := assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"})
	lists := []fleet.Heir{{Module: two, Keys: []uint64{a}}}
	unknown := []fleet.Heir{{Module: two, Unknown: true, Keys: []uint64{a}}}
	for name, tc := range map[string]struct {
		rendered, lost, full bool  // full: with as many variants as there may be
		has                  int64 // revision of the other one in the cluster, of the variant before
		want                 []fleet.Heir
	}{
		"rendered":                              {rendered: true, want: lists},
		"rendered, and another is there":        {rendered: true, has: 2, want: lists},
		"not rendered":                          {want: unknown},
		"not rendered, and another is there":    {has: 2, want: unknown},
		"not rendered, and a revision before":   {has: 1, want: unknown},
		"the list is lost":                      {rendered: true, lost: true, want: unknown},
		"the list is lost, and another's there": {rendered: true, lost: true, has: 2},
		"there may be no more variants":         {full: true},
		"no more, and another is there":         {full: true, has: 2},
		"no more, and a revision before":        {full: true, has: 1},
		"the last one that there may be":        {full: true, rendered: true, want: lists},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := library{}, storetest.New(t)
			had, before, wants := l.add("a"), l.add("b"), l.add("a", "c")
			old := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 1, Revision: 1, Bundle: had, Objects: 1})}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a": "a"}}},
					Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}},
					Overrides: []*towlinev1.Override{{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": "b"}}, Patches: []*towlinev1.Patch{{Patch: "x"}}}}}
				w.Put(store.ModuleKey(two), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "two", Project: "default"}, Spec: spec}})
				variants := []*storev1.VariantRecord{{Bundle: before.Bytes()}}
				for n := int32(1); tc.full && len(variants) < assemble.MaxVariants-1; n++ {
					variants = append(variants, &storev1.VariantRecord{Overrides: []int32{n}, Bundle: before.Bytes()})
				}
				if tc.full && !tc.rendered {
					variants = append(variants, &storev1.VariantRecord{Overrides: []int32{assemble.MaxVariants}, Bundle: before.Bytes()})
				}
				if tc.rendered {
					variants = append(variants, &storev1.VariantRecord{Overrides: []int32{0}, Bundle: wants.Bytes()})
				}
				w.Put(store.RevisionKey(two, 2), &storev1.RevisionRecord{Variants: variants, Revision: &towlinev1.Revision{Number: 2, Spec: spec}})
				w.Put(store.RolloutKey(two, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 2, Revision: 2}})
				w.Put(store.DesiredKey("c1", one), old)
				if tc.has != 0 {
					w.Put(store.DesiredKey("c1", two), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: two, Generation: 1, Revision: tc.has, Bundle: before, Objects: 1})})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if tc.lost {
				delete(l, wants)
			}
			var got []fleet.Heir
			if err := s.View(t.Context(), rev, func(r store.Reader) (err error) {
				next := &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2, Policy: fleet.DeleteDelete})}
				got, err = NewSuccession(l, one).Of(t.Context(), r, fleet.Cluster{Name: "c1", Labels: map[string]string{"role": "b"}}, old, next)
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

// What a module only reads it does not list, whatever it was asked about before, for another cluster.
func TestReadByOneIsNotListedForAnother(t *testing.T) {
	reads := true
	key := func(name string) uint64 {
		return assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name})
	}
	l, c := library{}, fleet.Cluster{Name: "c1"}
	o := successor{form: func(fleet.Cluster) fleet.Variant { return fleet.Variant{} }, module: &wire.Module{Policies: []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"b"}}, ReadOnly: &reads}}}}
	o.entries = map[string][]fleet.BundleEntry{o.variantIn(c): l[l.add("a", "b")].Entries}
	treats := treatments{bundles: l}
	for _, about := range []map[uint64]bool{{key("a"): true}, {key("a"): true, key("b"): true}} {
		got, _, err := o.lists(t.Context(), &treats, c, about)
		if err != nil || about[key("b")] && got[key("b")] || !got[key("a")] {
			t.Errorf("asked about %v: %v, %v", about, got, err)
		}
	}
}
