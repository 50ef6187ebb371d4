package record

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// What the files of a catalog move from one of its modules to another is not let go before the source of that can be had, and it is put; what
// has nothing to do with the catalog, or comes to nothing for good, holds nothing up.
func TestHeldBackByItsCatalog(t *testing.T) {
	const mine = "u"
	conflict := func(module, reason string) *towlinev1.CatalogStatus {
		return &towlinev1.CatalogStatus{Conflicts: []*towlinev1.CatalogConflict{{Module: module, Reason: reason}}}
	}
	waits := func(module, file string) *towlinev1.CatalogStatus {
		return &towlinev1.CatalogStatus{Waits: []*towlinev1.CatalogWait{{Module: module, File: file, Reason: catalog.Running}}}
	}
	for name, tc := range map[string]struct {
		one, two string // the catalogs that they are of, by UID
		sets     [2]string
		fails    bool   // the source of two came to nothing
		level    bool   // and a look since found what it has
		missing  bool   // what two was put with never came
		of       string // the catalog that says
		says     *towlinev1.CatalogStatus
		want     bool
	}{
		"all is put":                      {one: mine, two: mine, of: mine, says: &towlinev1.CatalogStatus{}},
		"nothing is known":                {one: mine, two: mine},
		"its source came to nothing":      {one: mine, two: mine, fails: true, want: true},
		"and then it had what it has":     {one: mine, two: mine, fails: true, level: true},
		"so it did, of nobody's":          {fails: true},
		"so it did, of one set":           {sets: [2]string{"a", "a"}, fails: true, want: true},
		"so it did, of another set":       {sets: [2]string{"a", "b"}, fails: true},
		"so it did, of no set":            {sets: [2]string{"a", ""}, fails: true},
		"so it did, of a set beside it":   {one: mine, sets: [2]string{"", "a"}, fails: true},
		"a set's source is well":          {sets: [2]string{"a", "a"}},
		"so it did, of another catalog":   {one: mine, two: "v", fails: true},
		"what it was put with never came": {missing: true, want: true},
		"a person paused its rollout":     {one: mine, two: mine, of: mine, says: conflict("two", catalog.Paused), want: true},
		"a person ended its rollout":      {one: mine, two: mine, of: mine, says: conflict("two", catalog.Stopped), want: true},
		"it is somebody else's":           {one: mine, two: mine, of: mine, says: conflict("two", catalog.Owned)},
		"that of another one was paused":  {one: mine, two: mine, of: mine, says: conflict("three", catalog.Paused)},
		"its rollout lets none begin":     {one: mine, two: mine, of: mine, says: waits("two", "two.yaml:1"), want: true},
		"it goes later":                   {one: mine, two: mine, of: mine, says: waits("two", "")},
		"one of before says so":           {one: mine, two: mine, of: "v", says: conflict("two", catalog.Paused)},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			one, two := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "one"}, fleet.ModuleRef{Project: fleet.DefaultProject, Name: "two"}
			rec := func(name, uid string, set string) *storev1.ModuleRecord {
				origin := ""
				switch {
				case uid != "":
					origin = fleet.CatalogOrigin("team")
				case set != "":
					origin = fleet.SetOrigin(set)
				}
				return &storev1.ModuleRecord{OriginUid: uid, Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: fleet.DefaultProject, Origin: origin, Uid: "u" + name, Generation: 1}}}
			}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				w.Put(store.ModuleKey(one), rec("one", tc.one, tc.sets[0]))
				w.Put(store.ModuleKey(two), rec("two", tc.two, tc.sets[1]))
				ro := &towlinev1.Rollout{Id: "two/1", Number: 1, Revision: 1, Status: &towlinev1.RolloutStatus{State: "Succeeded"}}
				if tc.fails {
					ro.Revision, ro.Status.State = 0, "Failed"
				}
				if tc.level {
					w.Put(store.HubKey, &storev1.Hub{Incarnation: "i"})
					w.Put(store.RevisionKey(two, 1), &storev1.RevisionRecord{Revision: &towlinev1.Revision{Number: 1, ModuleGeneration: 1}})
					w.Put(store.FollowKey(two), &storev1.FollowRecord{ModuleUid: "utwo", Generation: 1, Incarnation: "i", Began: 1, Revision: 1, CaughtUp: 1})
				}
				if tc.missing {
					ro.Revision, ro.Status.State, ro.Status.Reason = 0, "Failed", rollout.ReasonPutsMissing
				}
				w.Put(store.RolloutKey(two, 1), &storev1.RolloutRecord{Rollout: ro})
				if tc.of != "" {
					w.Put(store.CatalogStateKey(fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}), &storev1.CatalogState{CatalogUid: tc.of, Status: tc.says})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				if got := newLetting(r, one).heldBack(r, two, rec("two", tc.two, tc.sets[1])); got != tc.want {
					t.Errorf("held back: %v", got)
				}
				if newLetting(r, two).heldBack(r, two, rec("two", tc.two, tc.sets[1])) {
					t.Error("it waits for itself")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
