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

// A module that comes to a cluster after its own removal, or as soon as it can be assigned, comes whatever taints the cluster has since: it is an heir
// there as one that is there. One that only goes is none.
func TestHeirsThatComeNext(t *testing.T) {
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	lists := []fleet.Heir{{Module: two, Keys: []uint64{assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"})}}}
	removal := wire.TombstoneToProto(fleet.Tombstone{Module: two, Generation: 2, Policy: fleet.DeleteDelete})
	next := &storev1.DesiredRecord{Tombstone: removal, Final: true, NextRevision: 1, NextGeneration: 3}
	problem := &storev1.DesiredRecord{Problem: "no value", ProblemRevision: 1, ProblemGeneration: 3}
	for name, tc := range map[string]struct {
		has      *storev1.DesiredRecord
		external bool
		want     []fleet.Heir
	}{
		"it has nothing there":                      {},
		"it comes after its removal":                {has: next, want: lists},
		"it comes when it can":                      {has: problem, want: lists},
		"it goes":                                   {has: &storev1.DesiredRecord{Tombstone: removal}},
		"it goes for good":                          {has: &storev1.DesiredRecord{Tombstone: removal, Final: true}},
		"another program has it come after that":    {has: next, external: true, want: lists},
		"another program has it come when it can":   {has: problem, external: true, want: lists},
		"another program has taken it from there":   {has: &storev1.DesiredRecord{Tombstone: removal}, external: true},
		"another program has not assigned it there": {external: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := library{}, storetest.New(t)
			old := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 1, Revision: 1, Bundle: l.add("a"), Objects: 1})}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a": "a"}}},
					Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
				if tc.external {
					spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
				}
				w.Put(store.ModuleKey(two), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "two", Project: "default"}, Spec: spec}})
				w.Put(store.RevisionKey(two, 1), &storev1.RevisionRecord{Bundle: l.add("a", "c").Bytes(), Revision: &towlinev1.Revision{Number: 1, Spec: spec}})
				w.Put(store.RolloutKey(two, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 1, Revision: 1, Strategy: spec.Rollout}})
				w.Put(store.DesiredKey("c1", one), old)
				if tc.has != nil {
					w.Put(store.DesiredKey("c1", two), tc.has)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			cluster := fleet.Cluster{Name: "c1"}
			if !tc.external {
				cluster.Taints = []fleet.Taint{{Key: "draining"}}
			}
			var got []fleet.Heir
			if err := s.View(t.Context(), rev, func(r store.Reader) (err error) {
				gone := &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2, Policy: fleet.DeleteDelete})}
				got, err = NewSuccession(l, one).Of(t.Context(), r, cluster, old, gone)
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
