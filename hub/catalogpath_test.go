package hub_test

import (
	"strings"
	"testing"
)

// TestCatalogLeavesWhatMovedToAnotherPath: two catalogs of one branch say in their sources which folder they read, so that neither fetches what the
// other does. A module whose file moves from the one to the other is not deleted.
func TestCatalogLeavesWhatMovedToAnotherPath(t *testing.T) {
	w := newCatalogWorld(t)
	push := func(shop, slip string) {
		w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "other/cart.yaml": inGit("cart", "1"), shop + "/shop.yaml": inGit("shop", "1") + slip})
	}
	push("modules", "")
	w.putCatalog(w.catalogOf("team", "modules"))
	w.applied(1)
	w.putCatalog(w.catalogOf("other", "other"))
	w.eventually(func() bool { return w.modules() == "cart news shop" })
	w.await("shop", 0)
	w.await("cart", 0)
	push("other", "<<<<<<< HEAD\n")
	if _, err := w.resyncs(false); err == nil || !strings.Contains(err.Error(), "may be in other/shop.yaml, which cannot be read") || w.modules() != "cart news shop" {
		t.Fatalf("the first catalog: %v; modules %s", err, w.modules())
	}
	push("other", "")
	w.movesToOther()
	if w.modules() != "cart news shop" {
		t.Errorf("modules %s", w.modules())
	}
}

// TestCatalogBesideOneThatCannotBeRead: a module leaves the files of a catalog while the record of another one of the project is damaged, or not valid:
// nobody knows what that one reads, and it is not deleted.
func TestCatalogBesideOneThatCannotBeRead(t *testing.T) {
	w := catalogWorldOn(newMortalWorld(t))
	push := func(file string) {
		w.repo.Branch("main", map[string]any{"modules/news.yaml": inGit("news", "1"), "other/cart.yaml": inGit("cart", "1"), file: inGit("shop", "1")})
	}
	push("modules/shop.yaml")
	w.putCatalog(w.catalog())
	w.applied(1)
	other := w.catalog()
	other.Metadata.Name, other.Spec.Path = "other", "other"
	w.putCatalog(other)
	w.eventually(func() bool { return w.modules() == "cart news shop" })
	w.await("shop", 0)
	w.await("cart", 0)
	w.damage("catalogs/default/other")
	push("other/shop.yaml")
	if _, err := w.resyncs(false); err == nil || !strings.Contains(err.Error(), "module shop is in the files no more, and may be in those of catalog other, of which the hub's record is damaged: put that catalog again") || w.modules() != "cart news shop" {
		t.Fatalf("the first catalog: %v; modules %s", err, w.modules())
	}
	w.putCatalog(other)
	if _, err := w.resyncs(false); err == nil || !strings.Contains(err.Error(), "module shop is in other/shop.yaml:1, which catalog other reads") {
		t.Fatalf("the first catalog: %v", err)
	}
}

// TestDamagedCatalogIsDeleted: what the hub says to do about a catalog whose record is damaged is done as it is written: it is shown as damaged, and
// deleted alone, for nobody knows which modules it has.
func TestDamagedCatalogIsDeleted(t *testing.T) {
	w := &pipelines{catalogWorldOn(newMortalWorld(t)), nil}
	w.push("shop=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.damage("catalogs/default/team")
	w.towline = w.cli()
	const says = "catalog team, of which the hub's record is damaged: put that catalog again (towline apply), or delete it: towline delete catalog team"
	for _, tc := range []struct {
		args, says string
		refused    bool
	}{
		{"get catalogs", "Damaged", false},
		{"describe catalog team", says, true},
		{"resync catalog team", says, true},
		{"delete catalog team --cascade --yes", "cannot be deleted with its modules", true},
		{"delete catalog team --yes", "catalog/team deleted", false},
		{"get catalogs", "No catalogs", false},
	} {
		if out, err := w.towline("", strings.Fields(tc.args)...); (err != nil) != tc.refused || !strings.Contains(out, tc.says) {
			t.Errorf("%s: %v\n%s", tc.args, err, out)
		}
	}
	if w.originIs("shop", ""); w.modules() != "shop" {
		t.Errorf("modules are %s", w.modules())
	}
}
