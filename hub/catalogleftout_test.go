package hub_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestMovedIntoAFileThatCannotBeDelivered: a push moves a module's file to the folder of another catalog, each of which is a source.git.path, as
// something that no Git source delivers, which the first catalog does not see beside its own path; or as what is no text.
func TestMovedIntoAFileThatCannotBeDelivered(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
	submodule := sourcetest.Submodule(strings.Repeat("a", 40))
	for name, moved := range map[string]map[string]any{
		"kept in Git LFS":               {"other/in/cart.yaml": inGit("cart", "1"), "other/in/shop.yaml": pointer},
		"a link out of the repository":  {"other/in/cart.yaml": inGit("cart", "1"), "other/in/shop.yaml": sourcetest.Link("../../../shop.yaml")},
		"the folder is a submodule now": {"other/in": submodule},
		"it is in a submodule now":      {"other": submodule},
		"it is behind a link out":       {"other": sourcetest.Link("../other")},
		"encrypted":                     {"other/in/cart.yaml": inGit("cart", "1"), "other/in/shop.yaml": "\x00GITCRYPT\x00\x8a\xf1\x03"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCatalogWorld(t)
			push := func(files map[string]any) {
				all := map[string]any{"modules/news.yaml": inGit("news", "1"), "modules/more.yaml": inGit("more", "1")}
				maps.Copy(all, files)
				w.repo.Branch("main", all)
			}
			push(map[string]any{"modules/shop.yaml": inGit("shop", "1"), "other/in/cart.yaml": inGit("cart", "1")})
			w.putCatalog(w.catalogOf("team", "modules"))
			w.applied(1)
			w.putCatalog(w.catalogOf("other", "other/in"))
			w.eventually(func() bool { return w.modules() == "cart more news shop" })
			w.await("shop", 0)
			w.await("cart", 0)
			push(moved)
			_, err := w.resyncs(false)
			if err == nil || !strings.Contains(err.Error(), "module shop is in the files no more, and may be in those of catalog other, whose folder cannot be read as it is now") || w.modules() != "cart more news shop" {
				t.Fatalf("%v; modules: %s", err, w.modules())
			}
			push(map[string]any{"other/in/cart.yaml": inGit("cart", "1")})
			w.synced("Applied")
			if w.modules() != "cart more news" {
				t.Errorf("mended, the modules are %s", w.modules())
			}
			push(map[string]any{"modules/more.yaml": "# none\n"})
			w.synced("Applied")
			if w.modules() != "cart news" {
				t.Errorf("with no folder of the other catalog any more, the modules are %s", w.modules())
			}
		})
	}
}

// TestCatalogsOfOneAddressWithTwoSecrets: a server answers each of two catalogs what is theirs, so that what one of them was answered says nothing
// of the other's files.
func TestCatalogsOfOneAddressWithTwoSecrets(t *testing.T) {
	w := newCatalogWorld(t)
	var mu sync.Mutex
	files := map[string]string{"eu": inGit("news", "1") + "---\n" + inGit("shop", "1"), "us": inGit("cart", "1") + "---\n" + inGit("shop", "1")}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = rw.Write([]byte(files[r.Header.Get("X-Region")]))
	}))
	t.Cleanup(srv.Close)
	for name, region := range map[string]string{"team": "eu", "other": "us"} {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: name, Values: map[string][]byte{"header.X-Region": []byte(region)}})
		must(t, err)
	}
	of := func(name string) *towlinev1.Catalog {
		return &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: name}, Spec: &towlinev1.CatalogSpec{Prune: true,
			Source: &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/modules.yaml", SecretName: name}}}}
	}
	w.putCatalog(of("team"))
	w.applied(1)
	w.await("shop", 0)
	w.putCatalog(of("other"))
	w.eventually(func() bool { return w.modules() == "cart news shop" })
	resp, err := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other"})
	must(t, err)
	if s := resp.GetCatalog().GetStatus(); s.GetState() != "Conflicted" {
		t.Fatalf("the other catalog: %v", s)
	}
	mu.Lock()
	files["eu"] = inGit("news", "1")
	mu.Unlock()
	if _, err := w.resyncs(false); err == nil || !strings.Contains(err.Error(), "at the last look of catalog other") || w.modules() != "cart news shop" {
		t.Fatalf("%v; modules: %s", err, w.modules())
	}
	resp, err = w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other", Take: true})
	must(t, err)
	if s := resp.GetCatalog().GetStatus(); s.GetState() != "Applied" {
		t.Errorf("the other catalog: %v", s)
	}
	w.synced("Applied")
	if w.modules() != "cart news shop" || w.module("shop").GetMetadata().GetOrigin() != "catalog/other" {
		t.Errorf("modules %s; shop is of %s", w.modules(), w.module("shop").GetMetadata().GetOrigin())
	}
}
