package record

import (
	"context"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What one module lets go stays while the put of another that follows the same source is queued, and what that source has cannot be rendered
// for it, or was not fetched for it since; of another source a put that cannot be rendered lists nothing.
func TestHeirWhoseQueuedPutIsNotKnown(t *testing.T) {
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	lists := func(names ...string) map[string][]fleet.BundleEntry {
		l := library{}
		return map[string][]fleet.BundleEntry{fleet.Variant{}.Key(): l[l.add(names...)].Entries}
	}
	for name, tc := range map[string]struct {
		draft         Draft
		branch        string // of the other
		unknown, heir bool
		unlooked      bool
		looked        bool // at the one, since
		still         bool // it follows nothing
		self          bool // the one may be the heir itself
	}{
		"it cannot be rendered":                        {draft: Draft{Failed: true}, branch: "main", unknown: true, heir: true},
		"it cannot be rendered any more":               {draft: Draft{Failed: true, Known: true, Ref: "x", At: -1, Entries: lists("b")}, branch: "main", unknown: true, heir: true},
		"of another source":                            {draft: Draft{Failed: true}, branch: "next"},
		"of what was there before":                     {draft: Draft{Known: true, Ref: "x", At: -1, Entries: lists("b")}, branch: "main", unknown: true, heir: true, unlooked: true, self: true},
		"of what is there":                             {draft: Draft{Known: true, Ref: "y", At: -1, Entries: lists("b")}, branch: "main"},
		"of what is there, and it is the heir":         {draft: Draft{Known: true, Ref: "y", At: -1, Entries: lists("m")}, branch: "main", heir: true},
		"of what is there since":                       {draft: Draft{Known: true, Ref: "x", At: 0, Entries: lists("b")}, branch: "main", unknown: true, heir: true, self: true},
		"of what the one was looked at since":          {draft: Draft{Known: true, Ref: "x", At: 0, Entries: lists("b")}, branch: "main", looked: true},
		"it follows nothing, of what was there before": {draft: Draft{Known: true, Ref: "x", At: -1, Entries: lists("b")}, branch: "main", still: true, unknown: true, heir: true, unlooked: true, self: true},
		"it follows nothing, and cannot be rendered":   {draft: Draft{Failed: true}, branch: "main", still: true, unknown: true, heir: true},
		"it follows nothing, of what is there":         {draft: Draft{Known: true, Ref: "y", At: -1, Entries: lists("b")}, branch: "main", still: true},
		"of another source since":                      {draft: Draft{Known: true, Ref: "x", At: 0, Entries: lists("b")}, branch: "next"},
	} {
		t.Run(name, func(t *testing.T) {
			l := library{}
			had, has := l.add("a", "m"), l.add("a")
			s := storetest.New(t)
			src := func(branch string) *towlinev1.ModuleSpec {
				return &towlinev1.ModuleSpec{Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}, Source: &towlinev1.Source{Follow: &towlinev1.Follow{},
					Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: &towlinev1.GitRef{Branch: branch}}}}
			}
			rec := func(name, branch string) *storev1.ModuleRecord {
				return &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: "default", Uid: "u", Generation: 1}, Spec: src(branch)}}
			}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				w.Put(store.ModuleKey(one), rec("one", "main"))
				m := rec("two", tc.branch)
				if tc.still {
					m.Module.Spec.Source.Follow = nil
				}
				w.Put(store.ModuleKey(two), m)
				w.Put(store.RevisionKey(one, 2), &storev1.RevisionRecord{Bundle: has.Bytes(), Revision: &towlinev1.Revision{Number: 2, ResolvedRef: "y", Spec: src("main")}})
				w.Put(store.RevisionKey(two, 1), &storev1.RevisionRecord{Bundle: l.add("b").Bytes(), Revision: &towlinev1.Revision{Number: 1, ResolvedRef: "x", Spec: src(tc.branch)}})
				w.Put(store.RolloutKey(one, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 2, Revision: 2, Status: &towlinev1.RolloutStatus{State: "Succeeded"}}})
				if tc.looked {
					w.Put(store.FollowKey(one), &storev1.FollowRecord{ModuleUid: "u", Generation: 1, ResolvedRef: "x", Began: w.Revision() + 2})
				}
				w.Put(store.RolloutKey(two, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: "two/1", Number: 1, Revision: 1, Strategy: &towlinev1.RolloutStrategy{OnSupersede: "Queue"},
					Status: &towlinev1.RolloutStatus{State: "Progressing"}}})
				w.Put(store.StartKey(two, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 2, Status: &towlinev1.RolloutStatus{State: "Pending"}}})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			sync := func(generation uint64, revision int64, d fleet.Digest) *storev1.DesiredRecord {
				return &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: one.String(), Generation: generation, Revision: revision, Bundle: d.Bytes()}}
			}
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				x := NewSuccession(l, one)
				x.Drafts = func(context.Context, *wire.Module, *storev1.ModuleRecord, int64) Draft {
					d := tc.draft
					d.At += rev
					return d
				}
				heirs, err := x.Of(t.Context(), r, fleet.Cluster{Name: "c1"}, sync(1, 1, had), sync(2, 2, has))
				if err != nil {
					return err
				}
				m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(two))
				if u := x.Unlooked(t.Context(), r, two, m); assemble.WaitsForUnknown(heirs) != tc.unknown || len(heirs) > 0 != tc.heir || u != tc.unlooked {
					t.Errorf("heirs %v, a look would tell: %v", heirs, u)
				}
				m, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(one))
				if self := x.Unlooked(t.Context(), r, one, m); self != tc.self || self && (len(heirs) != 1 || heirs[0].Module != one) {
					t.Errorf("heirs %v, a look at the one itself would tell: %v", heirs, self)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
