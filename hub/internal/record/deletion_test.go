package record

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// TestUndone: a word that a module is deleted is one that its agent has to carry out, whoever said it, until it has, and there is nothing to do
// where it was given nothing.
func TestUndone(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	gone := func(policy string) *agentv1.Tombstone {
		return &agentv1.Tombstone{Module: ref.String(), Generation: 7, Policy: policy}
	}
	there := &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: 5, Revision: 1}}
	for name, tc := range map[string]struct {
		deleting string
		origin   string // the UID of the catalog that has put it
		desired  *storev1.DesiredRecord
		removed  bool
		anew     *storev1.ClusterRecord
		want     string
	}{
		"nobody deletes it":                                         {desired: there},
		"it only leaves the cluster":                                {desired: &storev1.DesiredRecord{Tombstone: gone("Delete")}},
		"the cluster is not told yet":                               {deleting: "Delete", desired: there, want: "Delete"},
		"its objects are to stay":                                   {deleting: "Orphan", desired: &storev1.DesiredRecord{Tombstone: gone("Orphan"), Final: true}, want: "Orphan"},
		"the last word counts":                                      {deleting: "Delete", desired: &storev1.DesiredRecord{Tombstone: gone("Orphan"), Final: true}, want: "Delete"},
		"another one has the name":                                  {desired: &storev1.DesiredRecord{Tombstone: gone("Delete"), Final: true, NextRevision: 1, NextGeneration: 9}, want: "Delete"},
		"another one has it, and is deleted, too":                   {deleting: "Orphan", desired: &storev1.DesiredRecord{Tombstone: gone("Delete"), Final: true, NextRevision: 1, NextGeneration: 9}, want: "Delete"},
		"its catalog goes with it":                                  {origin: "u1", desired: there, want: "Delete"},
		"a catalog of before has put it":                            {origin: "u0", desired: there},
		"the agent has done it":                                     {deleting: "Delete", desired: &storev1.DesiredRecord{Tombstone: gone("Delete"), Final: true}, removed: true},
		"another cluster has the name since it was ordered":         {deleting: "Delete", desired: &storev1.DesiredRecord{Tombstone: gone("Delete"), Final: true}, anew: &storev1.ClusterRecord{AnewGeneration: 7, AnewTake: 3}},
		"another cluster has the name since its catalog goes":       {origin: "u1", desired: there, anew: &storev1.ClusterRecord{AnewGeneration: 7, AnewTake: 3}},
		"another cluster had the name before its catalog goes":      {origin: "u1", desired: there, anew: &storev1.ClusterRecord{AnewGeneration: 7, AnewTake: 2}, want: "Delete"},
		"another cluster has the name, and was given it since that": {origin: "u1", desired: there, anew: &storev1.ClusterRecord{AnewGeneration: 4, AnewTake: 3}, want: "Delete"},
		"the cluster was given nothing":                             {deleting: "Delete", desired: &storev1.DesiredRecord{Problem: "no value for REGION", ProblemGeneration: 5, ProblemRevision: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				meta := &towlinev1.Metadata{Name: "shop", Project: "default", Uid: "u"}
				if tc.origin != "" {
					meta.Origin = fleet.CatalogOrigin("all")
				}
				w.Put(store.ModuleKey(ref), &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: meta}, Deleting: tc.deleting, OriginUid: tc.origin})
				w.Put(store.CatalogKey(fleet.ModuleRef{Project: "default", Name: "all"}), &storev1.CatalogRecord{Deleting: true, DeletedTakes: new(uint64(2)),
					Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "all", Project: "default", Uid: "u1"}}})
				w.Put(store.DesiredKey("c", ref), tc.desired)
				if tc.anew != nil {
					w.Put(store.ClusterKey("c"), tc.anew)
				}
				w.Put(store.SessionKey("c"), &storev1.SessionRecord{Epoch: 1})
				if tc.removed {
					w.Put(store.ObservedKey("c", ref), &storev1.ObservedRecord{Epoch: 1, Status: &agentv1.SyncStatus{Module: ref.String(), Generation: 7, Phase: string(fleet.PhaseRemoved)}})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				if got := Undone(r, "c")[ref]; got != tc.want {
					t.Errorf("%q, want %q", got, tc.want)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
