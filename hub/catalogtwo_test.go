package hub_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// TestCatalogLeavesWhatMovedToAnother: a module whose file moves from the folder of one catalog to that of another is not deleted: the first says
// where it is, and goes on when the other has taken it over, which changes nothing of it.
func TestCatalogLeavesWhatMovedToAnother(t *testing.T) {
	w := newCatalogWorld(t)
	push := func(shop string) {
		w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "other/cart.yaml": inGit("cart", "1"), shop + "/shop.yaml": inGit("shop", "1")})
	}
	push("modules")
	w.putCatalog(w.catalog())
	w.applied(1)
	other := w.catalog()
	other.Metadata.Name, other.Spec.Path = "other", "other"
	w.putCatalog(other)
	w.eventually(func() bool { return w.modules() == "cart news shop" })
	w.await("shop", 0)
	w.await("cart", 0)
	uid := w.module("shop").GetMetadata().GetUid()
	push("other")
	w.movesToOther()
	if meta := w.module("shop").GetMetadata(); meta.GetUid() != uid || meta.GetOrigin() != "catalog/other" || w.modules() != "cart news shop" {
		t.Errorf("shop is %v; modules %s", meta, w.modules())
	}
}

// TestCatalogLeavesWhatMovedToAnotherSource: the same between catalogs of two repositories, where the other has named the module as a conflict.
func TestCatalogLeavesWhatMovedToAnotherSource(t *testing.T) {
	w := newCatalogWorld(t)
	w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "modules/shop.yaml": inGit("shop", "1")})
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	uid := w.module("shop").GetMetadata().GetUid()
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", map[string]any{"modules/cart.yaml": inGit("cart", "1"), "modules/shop.yaml": inGit("shop", "1")})
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	other := w.catalog()
	other.Metadata.Name, other.Spec.Source.Git.Url = "other", srv.URL+"/repo.git"
	w.putCatalog(other)
	w.eventually(func() bool { return w.modules() == "cart news shop" })
	resync := func(take bool) *towlinev1.CatalogStatus {
		resp, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other", Take: take})
		must(t, err)
		return resp.GetCatalog().GetStatus()
	}
	if s := resync(false); s.GetState() != "Conflicted" {
		t.Fatalf("the other catalog: %v", s)
	}
	w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1")})
	if _, err := w.resyncs(false); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "module shop was in modules/shop.yaml:1 at the last look of catalog other") {
		t.Fatalf("the first catalog: %v", err)
	}
	if s := resync(true); s.GetState() != "Applied" {
		t.Errorf("the other catalog: %v", s)
	}
	w.synced("Applied")
	if meta := w.module("shop").GetMetadata(); meta.GetUid() != uid || meta.GetOrigin() != "catalog/other" || w.modules() != "cart news shop" {
		t.Errorf("shop is %v; modules %s", meta, w.modules())
	}
}

// movesToOther has catalog other take module shop over, whose file has moved to its folder, as the first catalog says it should.
func (w *catalogWorld) movesToOther() {
	w.t.Helper()
	if _, err := w.resyncs(false); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "module shop is in other/shop.yaml:1, which catalog other reads: towline resync catalog other --take") {
		w.t.Fatalf("the first catalog: %v", err)
	}
	resp, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other", Take: true})
	must(w.t, err)
	if s := resp.GetCatalog().GetStatus(); s.GetState() != "Applied" {
		w.t.Errorf("the other catalog: %v", s)
	}
	w.synced("Applied")
}
