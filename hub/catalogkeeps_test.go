package hub_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestSetBesideACatalogThatListsIt: what the files of a catalog had at its last look is not pruned by the set that has it by now, whatever came of
// that look, and whoever had it then.
func TestSetBesideACatalogThatListsIt(t *testing.T) {
	for name, before := range map[string]func(*pipelines){
		"it could not be applied, and the module was nobody's": func(w *pipelines) {
			if out, err := w.towline(inGit("shop", "1"), "apply", "-f", "-"); err != nil {
				w.t.Fatal(out)
			}
			w.repo.Branch("main", map[string]any{"modules/shop.yaml": inGit("shop", "1"), "modules/slip.yaml": "<<<<<<< HEAD\n"})
			w.putCatalog(w.catalog())
			_, _ = w.resyncs(false)
		},
		"it waited for a person, and there was no such module": func(w *pipelines) {
			w.push("m1=1", "m2=1", "m3=1")
			w.putCatalog(w.catalog())
			w.applied(1)
			w.push("m1=1", "shop=1")
			w.synced("Waiting")
		},
		"the rollout of the module was paused": func(w *pipelines) { w.pausedShop() },
		"the module was its own": func(w *pipelines) {
			w.push("shop=1", "m=1")
			w.putCatalog(w.catalog())
			w.applied(1)
		},
		"the module was its own, in a file that could not be read": func(w *pipelines) {
			w.push("shop=1", "m=1")
			w.putCatalog(w.catalog())
			w.applied(1)
			w.repo.Branch("main", map[string]any{"modules/shop.yaml": inGit("shop", "2") + "<<<<<<< HEAD\n\tx\n", "modules/m.yaml": inGit("m", "1")})
			_, _ = w.resyncs(false)
		},
		"it was looked at in a folder that is not there since": func(w *pipelines) {
			w.begins()
			w.push("shop=1", "m=1")
			w.putCatalog(w.catalog())
			w.synced("Conflicted")
			c := w.catalog()
			c.Spec.Path = "modlues"
			w.putCatalog(c)
			_, _ = w.resyncs(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPipelines(t)
			before(w)
			w.begins()
			w.prunesNotShop()
			w.repo.Branch("main", map[string]any{"modules/m.yaml": inGit("m", "1")})
			w.putCatalog(w.catalog())
			if _, err := w.resyncs(true); err != nil {
				t.Fatal(err)
			}
			if out, err := w.apply("a", []string{"news", "cart"}, "--prune"); err != nil || strings.Contains(w.modules(), "shop") {
				t.Errorf("its files have it no more: %v\n%s", err, out)
			}
		})
	}
}

// TestWaysOutOfACatalogWithoutFiles: what the files of a catalog had before they came to have no module is not deleted by a set, nor by another catalog; each says
// what frees it, and does when that is done as it says.
func TestWaysOutOfACatalogWithoutFiles(t *testing.T) {
	for name, conflict := range map[string]bool{"it listed the module as its own": false, "it named it as a conflict": true} {
		t.Run(name, func(t *testing.T) {
			w := newPipelines(t)
			if conflict {
				w.begins()
			}
			w.push("shop=1", "m=1")
			w.putCatalog(w.catalog())
			w.catalogIs(map[bool]string{true: "Conflicted", false: "Applied"}[conflict])
			w.begins()
			w.repo.Branch("main", map[string]any{"modules/readme.txt": "nothing"})
			if _, err := w.resyncs(true); err == nil || !strings.Contains(err.Error(), "mend path, ") || !strings.Contains(err.Error(), "delete catalog team") {
				t.Fatalf("the catalog: %v", err)
			}
			const says = "looks at it come to nothing now (NoModules): mend that catalog, as towline describe catalog team says, for towline resync catalog team --take to have it take the module over as it is, or delete it, which leaves its modules: towline delete catalog team"
			w.refused("a", []string{"news", "cart"}, says, w.modules(), "--prune")
			other := w.other("other", "shop", "x1", "x2")
			if _, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other", Take: true}); err != nil {
				t.Fatal(err)
			}
			other("x1", "x2")
			if _, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other"}); err == nil || !strings.Contains(err.Error(), says) {
				t.Fatalf("the other catalog: %v", err)
			}
			if out, err := w.towline("", "delete", "catalog", "team", "--yes"); err != nil {
				t.Fatal(out)
			}
			resp, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other"})
			if err != nil || strings.Join(resp.GetPruned(), " ") != "shop" {
				t.Errorf("the other catalog: %v, %v", resp, err)
			}
			w.begins()
			if out, err := w.apply("a", []string{"news", "cart"}, "--prune"); err != nil || strings.Contains(w.modules(), "shop") {
				t.Errorf("the set: %v\n%s", err, out)
			}
		})
	}
}

// other puts a catalog of another repository that has these modules, which push changes.
func (w *pipelines) other(name string, modules ...string) (push func(modules ...string)) {
	w.t.Helper()
	repo := sourcetest.NewRepo(w.t)
	srv := httptest.NewServer(repo.Handler())
	w.t.Cleanup(srv.Close)
	push = func(modules ...string) {
		files := map[string]any{}
		for _, m := range modules {
			files["modules/"+m+".yaml"] = inGit(m, "1")
		}
		repo.Branch("main", files)
	}
	push(modules...)
	c := w.catalog()
	c.Metadata.Name, c.Spec.Source.Git.Url = name, srv.URL+"/repo.git"
	w.putCatalog(c)
	return push
}

// begins has set a have three modules, whosever they were.
func (w *pipelines) begins() {
	w.t.Helper()
	w.applies("a", []string{"shop", "news", "cart"}, "--take", "--prune")
}

// pausedShop has catalog team have module shop, a rollout of which a person has paused, and another one in its files.
func (w *pipelines) pausedShop() {
	w.t.Helper()
	const waits = "  rollout: {stages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n"
	push := func(v string) {
		shop := strings.Replace(inGit("shop", v), "  placement: {selector: {}}\n", "  placement: {selector: {}}\n"+waits, 1)
		w.repo.Branch("main", map[string]any{"modules/shop.yaml": shop, "modules/m.yaml": inGit("m", "1")})
	}
	push("1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.waitsForApproval("shop")
	_, err := w.Rollouts.PauseRollout(w.ctx, &towlinev1.PauseRolloutRequest{Module: "shop", Reason: "wait"})
	must(w.t, err)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutState() == "Paused" })
	push("2")
	c := w.catalog()
	c.Spec.Recursive = true
	w.putCatalog(c)
	w.catalogIs("Conflicted")
}
