package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// wanting is an API with module shop of set a, which the clock and the store can be told otherwise.
type wanting struct {
	*API
	t  *testing.T
	s  *storetest.Store
	at time.Time
}

func newWanting(t *testing.T) *wanting {
	x := &wanting{t: t, s: storetest.New(t), at: time.Now()}
	x.API = newAPIOn(t, x.s, func(store.Writer) {})
	x.now = func() time.Time { return x.at }
	x.puts("a", false)
	return x
}

func (x *wanting) put(set string, change func(*towlinev1.PutModuleRequest)) error {
	req := putShop()
	if req.Set = set; change != nil {
		change(req)
	}
	_, err := x.PutModule(x.t.Context(), req)
	return err
}

func (x *wanting) puts(set string, take bool) {
	x.t.Helper()
	if err := x.put(set, func(r *towlinev1.PutModuleRequest) { r.Take = take }); err != nil {
		x.t.Fatal(err)
	}
}

func (x *wanting) refused(set string) {
	x.t.Helper()
	if err := x.put(set, nil); !errors.Is(err, fleet.ErrPrecondition) {
		x.t.Fatalf("set %s puts shop: %v", set, err)
	}
}

// prunes asks what the set would be told that deletes shop.
func (x *wanting) prunes(set string) error {
	if _, err := x.s.Barrier(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	_, err := x.DeleteModule(x.t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Set: set, DryRun: true, Force: true})
	return err
}

func (x *wanting) stays(when, says string) {
	x.t.Helper()
	if err := x.prunes("a"); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), says) {
		x.t.Errorf("%s: %v", when, err)
	}
}

func (x *wanting) goes(when string) {
	x.t.Helper()
	if err := x.prunes("a"); err != nil {
		x.t.Errorf("%s: %v", when, err)
	}
}

func (x *wanting) record() *storev1.WantedRecord {
	var rec *storev1.WantedRecord
	_, _ = x.s.Barrier(x.t.Context())
	_ = x.s.View(x.t.Context(), 0, func(r store.Reader) error {
		rec, _, _ = store.Get[*storev1.WantedRecord](r, store.WantedKey(damagedShop))
		return nil
	})
	return rec
}

// What a set was refused its owner does not prune: for a week after the last time, until the set has it, and whatever the put was wrong with
// beside that.
func TestWantedIsNotPruned(t *testing.T) {
	x := newWanting(t)
	x.goes("nobody wants it")
	x.refused("b")
	x.stays("b was refused it", "module shop is wanted by set/b, which was refused it at "+x.at.UTC().Format(time.RFC3339)+": apply it there with --take")
	x.at = x.at.Add(record.WantedFor - time.Minute)
	x.stays("six days later", "set/b")
	x.refused("c")
	x.at = x.at.Add(2 * time.Minute)
	x.stays("b has not asked again, and c has", "set/c")
	x.puts("c", true)
	if err := x.prunes("c"); err != nil {
		t.Errorf("c has it, and prunes: %v", err)
	}
	x.puts("a", true)
	x.goes("c has had it once")
	if err := x.put("b", func(r *towlinev1.PutModuleRequest) { r.Module.Spec = nil }); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("%v", err)
	}
	x.stays("what b put is not valid", "set/b")
	x.at = x.at.Add(record.WantedFor)
	x.goes("a week later")
}

// Who only asks what would be wants nothing, but in a dry run that says that it is to be put. A person who names the module deletes it, and an older command line
// that prunes, and does not say for which set, does not.
func TestWhoWantsAndWhoPrunes(t *testing.T) {
	x := newWanting(t)
	dry := func(r *towlinev1.PutModuleRequest) { r.DryRun = true }
	if err := x.put("b", dry); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("%v", err)
	}
	x.goes("b was told what would be")
	if err := x.put("b", func(r *towlinev1.PutModuleRequest) { r.DryRun, r.Wants = true, true }); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("%v", err)
	}
	x.stays("b is to put it", "set/b")
	if _, err := x.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Batch: "one"}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("an older command line: %v", err)
	}
	x.at = x.at.Add(time.Hour / 2)
	was := x.record()
	x.refused("b")
	if now := x.record(); !now.GetWants()[0].GetAt().AsTime().Equal(was.GetWants()[0].GetAt().AsTime()) {
		t.Errorf("it is written at each put: %v, then %v", was, now)
	}
	for i := range 12 {
		x.refused(fmt.Sprintf("s%d", i))
	}
	if n := len(x.record().GetWants()); n != 8 {
		t.Errorf("%d want it", n)
	}
	x.stays("many want it", "set/s11")
	if _, err := x.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop"}); err != nil {
		t.Errorf("a person: %v", err)
	}
}

// A module of nobody is nobody's to prune, and one that has the name later is wanted by nobody.
func TestWantIsOfOneModule(t *testing.T) {
	x := newWanting(t)
	x.refused("b")
	if _, err := x.s.Update(t.Context(), func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(damagedShop))
		rec.Module.Metadata.Uid = "another"
		w.Put(store.ModuleKey(damagedShop), rec)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x.goes("it is another one")
	x.puts("", true)
	if x.puts("b", false); x.record().GetModuleUid() == "another" {
		t.Errorf("b was not refused it, and wants it: %v", x.record())
	}
}

// What a catalog names as a conflict, or may have, the set that it is of does not prune.
func TestWhatACatalogHasIsNotPruned(t *testing.T) {
	x := newWanting(t)
	team := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}
	set := func(spec *towlinev1.CatalogSpec, s *towlinev1.CatalogStatus) {
		t.Helper()
		spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/team.git", Ref: &towlinev1.GitRef{Branch: "main"}}}
		if _, err := x.s.Update(context.WithoutCancel(t.Context()), func(w store.Writer) error {
			w.Put(store.CatalogKey(team), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team", Project: fleet.DefaultProject, Uid: "u", Generation: 2}, Spec: spec}})
			w.Put(store.CatalogStateKey(team), &storev1.CatalogState{CatalogUid: "u", Status: s})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	named := func(reason, owner string) []*towlinev1.CatalogConflict {
		return []*towlinev1.CatalogConflict{{Module: "shop", File: "modules/shop.yaml:1", Reason: reason, Owner: owner}}
	}
	seen := func(conflicts []*towlinev1.CatalogConflict) *towlinev1.CatalogStatus {
		return &towlinev1.CatalogStatus{ObservedGeneration: 2, ResolvedRef: "main@sha1:1", Conflicts: conflicts}
	}
	set(&towlinev1.CatalogSpec{}, seen(nil))
	x.goes("it has others")
	set(&towlinev1.CatalogSpec{}, seen(named(catalog.Owned, "set/a")))
	x.stays("it has it", "module shop was in modules/shop.yaml:1 at the last look of catalog team: towline resync catalog team --take")
	set(&towlinev1.CatalogSpec{Suspend: true}, seen(named(catalog.Owned, "set/a")))
	x.stays("it has it, and is suspended", "at the last look of catalog team")
	set(&towlinev1.CatalogSpec{}, seen(named(catalog.Owned, "set/b")))
	x.stays("it was another's when it looked", "at the last look of catalog team")
	set(&towlinev1.CatalogSpec{}, &towlinev1.CatalogStatus{ObservedGeneration: 1, ResolvedRef: "main@sha1:1"})
	x.stays("it was put since", "module shop may be in the files of catalog team, whose files were not read yet")
	set(&towlinev1.CatalogSpec{}, &towlinev1.CatalogStatus{ObservedGeneration: 2, State: catalog.Failed})
	x.stays("its source was never to be had", "were not read yet")
	set(&towlinev1.CatalogSpec{Suspend: true}, nil)
	x.goes("it is suspended, and was never looked at")
}

// A catalog does not prune what a set wants, also when the set was refused it after the plan; what a person has it delete with all it has goes.
func TestCatalogLeavesWhatIsWanted(t *testing.T) {
	x := newCatalogAPI(t)
	x.look.Prune = true
	apply := func(plan catalog.Plan) error {
		_, err := x.ApplyCatalog(t.Context(), x.look, plan)
		return err
	}
	if err := apply(x.plan("shop", "1", "cart", "1", "news", "1")); err != nil {
		t.Fatal(err)
	}
	plan := x.plan("cart", "1", "news", "1")
	if len(plan.Prunes) != 1 {
		t.Fatalf("%+v", plan)
	}
	shop := &towlinev1.PutModuleRequest{Module: textual("shop", "1"), Set: "b"}
	if _, err := x.PutModule(t.Context(), shop); !errors.Is(err, fleet.ErrPrecondition) {
		t.Fatal(err)
	}
	if err := apply(plan); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("the plan of before: %v", err)
	}
	plan = x.plan("cart", "1", "news", "1")
	if c := plan.Conflicts; len(plan.Prunes) != 0 || len(c) != 1 || c[0].Name != "shop" || c[0].Reason != catalog.Wanted || c[0].Owner != "set/b" {
		t.Errorf("%+v", plan)
	}
	x.look.Prune = false
	if err := x.DropCatalog(t.Context(), x.look); err != nil {
		t.Error(err)
	}
	at, err := x.s.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := x.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop", MinRevision: at}); err != nil || m.GetModule().GetMetadata().GetDeletionTimestamp() == nil {
		t.Errorf("%v, %v", m, err)
	}
}

// A catalog does not prune what the files of another one have since the plan, of another source: what those of the same source have it saw itself.
func TestCatalogLeavesWhatAnotherListsByNow(t *testing.T) {
	x := newCatalogAPI(t)
	x.look.Prune = true
	apply := func(plan catalog.Plan) error {
		_, err := x.ApplyCatalog(t.Context(), x.look, plan)
		return err
	}
	if err := apply(x.plan("shop", "1", "cart", "1", "news", "1")); err != nil {
		t.Fatal(err)
	}
	plan, other := x.plan("cart", "1", "news", "1"), fleet.ModuleRef{Project: fleet.DefaultProject, Name: "other"}
	lists := func(url string, suspend bool) {
		t.Helper()
		if _, err := x.s.Update(t.Context(), func(w store.Writer) error {
			for _, ref := range []fleet.ModuleRef{x.look.Ref, other} {
				spec := &towlinev1.CatalogSpec{Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/team.git"}}}
				uid := "u"
				if ref == other {
					spec.Source.Git.Url, spec.Suspend, uid = url, suspend, "v"
				}
				w.Put(store.CatalogKey(ref), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: uid, Generation: 1}, Spec: spec}})
			}
			w.Put(store.CatalogStateKey(other), &storev1.CatalogState{CatalogUid: "v", Lists: []string{"shop"}, ReadGeneration: 1})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	lists("https://git.example.com/other.git", false)
	if err := apply(plan); !errors.Is(err, fleet.ErrConflict) || !strings.Contains(err.Error(), "module shop is in the files of catalog other by now") {
		t.Errorf("%v", err)
	}
	for _, goes := range []func(){func() { lists("https://git.example.com/team.git", false) }, func() { lists("https://git.example.com/other.git", true) }} {
		goes()
		if err := apply(plan); err != nil {
			t.Error(err)
		}
		if err := apply(x.plan("shop", "1", "cart", "1", "news", "1")); err != nil {
			t.Fatal(err)
		}
		plan = x.plan("cart", "1", "news", "1")
	}
}

// Of a record that cannot be read nobody knows who wants the module: somebody does, until it is taken, or a person deletes it.
func TestDamagedWant(t *testing.T) {
	rec, absent := record.StandIn(store.WantedKey(damagedShop), errors.New("damaged"))
	if absent {
		t.Fatal("it counts as none")
	}
	x := newWanting(t)
	if _, err := x.s.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.WantedKey(damagedShop), rec)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x.stays("damaged", "module shop is wanted by somebody whose word cannot be read: ")
	x.puts("b", true)
	if err := x.prunes("b"); err != nil {
		t.Errorf("b has taken it: %v", err)
	}
}
