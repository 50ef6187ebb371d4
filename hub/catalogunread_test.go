package hub_test

import (
	"strings"
	"testing"
)

// TestMovedIntoAFileThatCannotBeRead: a push moves shop.yaml from the folder of one catalog to that of another, and has a slip in that file, or in what is beside it in the same file.
func TestMovedIntoAFileThatCannotBeRead(t *testing.T) {
	for name, slip := range map[string]string{"a merge's marker": "<<<<<<< HEAD\n", "a tab": "\tx: 1\n"} {
		t.Run(name, func(t *testing.T) {
			w := newCatalogWorld(t)
			push := func(file, shop string) {
				w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "modules/more.yaml": inGit("more", "1"), "other/cart.yaml": inGit("cart", "1"), file: shop})
			}
			push("modules/shop.yaml", inGit("shop", "1"))
			w.putCatalog(w.catalog())
			w.applied(1)
			other := w.catalog()
			other.Metadata.Name, other.Spec.Path = "other", "other"
			w.putCatalog(other)
			w.eventually(func() bool { return w.modules() == "cart more news shop" })
			w.await("shop", 0)
			w.await("cart", 0)
			push("other/shop.yaml", inGit("shop", "1")+slip)
			_, err := w.resyncs(false)
			if err == nil || !strings.Contains(err.Error(), "module shop is in the files no more, and may be in other/shop.yaml, which cannot be read") || !strings.Contains(w.modules(), "shop") {
				t.Errorf("%v; modules: %s", err, w.modules())
			}
		})
	}
}

// TestMovedBelowIntoAFileThatCannotBeRead: the same into a folder below that is not read. What a chart has there is no such file.
func TestMovedBelowIntoAFileThatCannotBeRead(t *testing.T) {
	w := newCatalogWorld(t)
	push := func(file, shop string) {
		w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "modules/more.yaml": inGit("more", "1"), file: shop})
	}
	push("modules/shop.yaml", inGit("shop", "1"))
	w.putCatalog(w.catalog())
	w.applied(1)
	w.eventually(func() bool { return w.modules() == "more news shop" })
	w.await("shop", 0)
	push("modules/web/shop.yaml", inGit("shop", "1")+"\tx: 1\n")
	_, err := w.resyncs(false)
	if err == nil || !strings.Contains(err.Error(), "may be in modules/web/shop.yaml, which cannot be read") || !strings.Contains(w.modules(), "shop") {
		t.Errorf("%v; modules: %s", err, w.modules())
	}
	push("modules/web/templates/shop.yaml", "{{ if .Values.shop }}\na: b\n{{ end }}\n")
	if _, err := w.resyncs(false); err != nil || strings.Contains(w.modules(), "shop") {
		t.Errorf("%v; modules: %s", err, w.modules())
	}
}
