package api

import (
	"errors"
	"slices"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// catalogAPI is an API with a catalog, and the means to do what people and others do meanwhile.
type catalogAPI struct {
	*API
	t    *testing.T
	s    *storetest.Store
	look record.CatalogLook
}

func newCatalogAPI(t *testing.T) *catalogAPI {
	x := &catalogAPI{t: t, s: storetest.New(t), look: record.CatalogLook{Ref: fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}, UID: "u", Generation: 1}}
	x.API = newAPIOn(t, x.s, func(w store.Writer) {
		w.Put(store.CatalogKey(x.look.Ref), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team", Project: fleet.DefaultProject, Uid: "u", Generation: 1}}})
	})
	return x
}

func textual(name, text string) *towlinev1.Module {
	m := putShop().GetModule()
	m.Metadata.Name, m.Spec.Source.Inline.Files["a.yaml"] = name, text
	return m
}

// plan is what the catalog does when its files have these modules, as NAME, TEXT and so on.
func (x *catalogAPI) plan(files ...string) catalog.Plan {
	x.t.Helper()
	x.look.Files = nil
	for i := 0; i < len(files); i += 2 {
		x.look.Files = append(x.look.Files, record.CatalogFile{At: files[i] + ".yaml:1", Module: textual(files[i], files[i+1])})
	}
	plan, err := x.PlanCatalog(x.t.Context(), x.look)
	if err != nil {
		x.t.Fatal(err)
	}
	return plan
}

func (x *catalogAPI) byHand(name, text string) {
	x.t.Helper()
	if _, err := x.PutModule(x.t.Context(), &towlinev1.PutModuleRequest{Module: textual(name, text)}); err != nil {
		x.t.Fatal(err)
	}
}

// ends has the rollout of a number of a module of a generation be ended by a person.
func (x *catalogAPI) ends(name string, number int64) {
	x.t.Helper()
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: name}
	if _, err := x.s.Update(x.t.Context(), func(w store.Writer) error {
		ro, _, ok := store.Get[*storev1.RolloutRecord](w, store.StartKey(ref, number))
		if !ok {
			return errors.New("there is no such rollout")
		}
		w.Delete(store.StartKey(ref, number))
		next := &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: ro.GetRollout().GetId(), Module: name, Number: number, ModuleGeneration: ro.GetRollout().GetModuleGeneration(),
			Revision: number, Status: &towlinev1.RolloutStatus{State: string(rollout.Aborted)}}}
		w.Put(store.RolloutKey(ref, number), next)
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
}

func isStopped(p catalog.Plan, id string) bool {
	return len(p.Puts) == 0 && len(p.Conflicts) == 1 && p.Conflicts[0].Reason == catalog.Stopped && p.Conflicts[0].Rollout == id
}

// What a catalog has put counts as that from the put on, whatever becomes of the look: a person who ends the rollout of it, and changes the
// module, is not overruled.
func TestCatalogKnowsWhatItPutInALookThatFailed(t *testing.T) {
	x := newCatalogAPI(t)
	plan := x.plan("shop", "a", "cart", "a")
	x.byHand("cart", "by hand")
	if _, err := x.ApplyCatalog(t.Context(), x.look, plan); !errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("not a conflict: %v", err)
	}
	x.ends("shop", 1)
	x.byHand("shop", "by hand")
	if plan := x.plan("shop", "a"); !isStopped(plan, "shop/1") {
		t.Errorf("put again: %+v", plan)
	}
	if plan := x.plan("shop", "b"); len(plan.Puts) != 1 {
		t.Errorf("the file has changed: %+v", plan)
	}
}

// Where one put of a look fails the batch stays open after the last one, for the look is made again, and may put that: none of the others begins
// at once without it.
func TestCatalogLeavesABatchOpenThatIsNotWhole(t *testing.T) {
	x := newCatalogAPI(t)
	if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("cart", "a", "news", "a", "shop", "a")); err != nil {
		t.Fatal(err)
	}
	open := func() (n int) {
		x.byHand("now", time.Now().String()) // what came before that is seen
		_ = x.s.View(t.Context(), 0, func(r store.Reader) error {
			r.Scan(store.BatchPrefix, func(store.Entry) bool { n++; return true })
			return nil
		})
		return n
	}
	if n := open(); n != 0 {
		t.Fatalf("all is put, and %d batches are open", n)
	}
	plan := x.plan("cart", "b", "news", "b", "shop", "b")
	x.byHand("news", "by hand")
	if _, err := x.ApplyCatalog(t.Context(), x.look, plan); !errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("not a conflict: %v", err)
	}
	if n := open(); n != 1 {
		t.Errorf("%d batches are open", n)
	}
	x.byHand("cart", "by hand")
	if _, err := x.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: textual("cart", "b"), Batch: "a person's", More: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("cart", "b", "news", "b", "shop", "b")); err != nil {
		t.Fatal(err)
	}
	if n := open(); n != 1 {
		t.Errorf("the next try has put the rest, and %d batches are open beside that of a person", n-1)
	}
}

// What did not begin, because a look did not come to put all, is put again by the next one that does.
func TestCatalogPutsAgainWhatDidNotBegin(t *testing.T) {
	x := newCatalogAPI(t)
	if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("cart", "a", "shop", "a")); err != nil {
		t.Fatal(err)
	}
	plan := x.plan("cart", "b", "shop", "b")
	x.byHand("shop", "by hand")
	if _, err := x.ApplyCatalog(t.Context(), x.look, plan); !errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("not a conflict: %v", err)
	}
	broken(t, x.s, "cart")
	done, err := x.ApplyCatalog(t.Context(), x.look, x.plan("cart", "b", "shop", "b"))
	if err != nil || !slices.Equal(done.Configured, []string{"cart", "shop"}) {
		t.Fatalf("came to %v, %v", done, err)
	}
	if err := x.s.View(t.Context(), 0, func(r store.Reader) error {
		if ro := rollouts.Unresolved(r, fleet.ModuleRef{Project: fleet.DefaultProject, Name: "cart"}); ro.GetRollout().GetNumber() != 3 {
			t.Errorf("it has not begun: %v", ro)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if plan := x.plan("cart", "b", "shop", "b"); len(plan.Puts) != 0 {
		t.Errorf("put again and again: %+v", plan)
	}
}

// What a person puts as the files say it counts as put by the catalog from the next look on, and its rollout, ended, stays so.
func TestCatalogKnowsWhatAPersonPutBeforeIt(t *testing.T) {
	x := newCatalogAPI(t)
	if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("shop", "a")); err != nil {
		t.Fatal(err)
	}
	x.byHand("shop", "b")
	plan := x.plan("shop", "b")
	done, err := x.ApplyCatalog(t.Context(), x.look, plan)
	if err != nil || len(done.Created)+len(done.Configured) != 0 {
		t.Fatalf("came to %v, %v", done, err)
	}
	if plan := x.plan("shop", "b"); len(plan.Puts) != 0 {
		t.Errorf("noted again: %+v", plan)
	}
	x.ends("shop", 2)
	x.byHand("shop", "by hand")
	if plan := x.plan("shop", "b"); !isStopped(plan, "shop/2") {
		t.Errorf("put again: %+v", plan)
	}
	x.byHand("shop", "b") // back to what the files say, by a person
	x.ends("shop", 4)
	x.byHand("shop", "c")
	if plan := x.plan("shop", "b"); !isStopped(plan, "shop/4") {
		t.Errorf("put again: %+v", plan)
	}
}

// What a hub of before noted of its puts counts until there is something newer.
func TestCatalogKnowsThePutsOfAHubOfBefore(t *testing.T) {
	x := newCatalogAPI(t)
	if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("shop", "a")); err != nil {
		t.Fatal(err)
	}
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	if _, err := x.s.Update(t.Context(), func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
		x.look.Puts = []*storev1.CatalogPut{{Module: "shop", SpecDigest: rec.GetSpecDigest(), Rollout: 1}}
		w.Put(store.ModuleKey(ref), &storev1.ModuleRecord{Module: rec.GetModule(), SpecDigest: rec.GetSpecDigest(), OriginUid: rec.GetOriginUid()})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x.ends("shop", 1)
	x.byHand("shop", "by hand")
	if plan := x.plan("shop", "a"); !isStopped(plan, "shop/1") {
		t.Errorf("put again: %+v", plan)
	}
}
