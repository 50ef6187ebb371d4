package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// pipelines are those that apply sets of modules, beside a catalog of the same project.
type pipelines struct {
	*catalogWorld
	towline func(string, ...string) (string, error)
}

func newPipelines(t *testing.T) *pipelines {
	w := newCatalogWorld(t)
	return &pipelines{w, w.cli()}
}

// apply is what the pipeline of a set does with these modules.
func (w *pipelines) apply(set string, modules []string, flags ...string) (string, error) {
	var text []string
	for _, name := range modules {
		text = append(text, inGit(name, "1"))
	}
	return w.towline(strings.Join(text, "---\n"), append([]string{"apply", "-f", "-", "--set", set}, flags...)...)
}

func (w *pipelines) applies(set string, modules []string, flags ...string) {
	w.t.Helper()
	if out, err := w.apply(set, modules, flags...); err != nil {
		w.t.Fatalf("set %s: %v\n%s", set, err, out)
	}
}

// refused is an apply that says this, and after which these modules are there.
func (w *pipelines) refused(set string, modules []string, says, left string, flags ...string) {
	w.t.Helper()
	if out, err := w.apply(set, modules, flags...); err == nil || !strings.Contains(out, says) || w.modules() != left {
		w.t.Errorf("set %s: %v\n%s\nwant %q; modules are %s", set, err, out, says, w.modules())
	}
}

func (w *pipelines) originIs(name, origin string) {
	w.t.Helper()
	if got := w.module(name).GetMetadata().GetOrigin(); got != origin {
		w.t.Errorf("module %s is of %q, not of %q", name, got, origin)
	}
}

// TestMoveFromASetToASet: one commit moves files from the folder of one pipeline to that of another. The other one is refused the modules, and the first,
// which has them no more, does not delete them; it does what else is to be done. When they are taken over it has nothing to say any more.
func TestMoveFromASetToASet(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "cart", "news", "old"}, "--prune")
	for _, name := range []string{"shop", "cart", "news", "old"} {
		w.await(name, 0)
	}
	uid := w.module("shop").GetMetadata().GetUid()
	w.refused("b", []string{"shop"}, "module shop is of set/a", "cart news old shop")
	w.refused("b", []string{"cart", "other"}, "module cart is of set/a", "cart news old shop")
	wanted := "module shop is wanted by set/b"
	w.refused("a", []string{"news"}, wanted, "cart news old shop", "--prune", "--yes", "--dry-run=server")
	w.refused("a", []string{"news"}, wanted, "cart news shop", "--prune", "--yes")
	w.refused("a", []string{"news", "next"}, "module cart is wanted by set/b", "cart news next shop", "--prune", "--yes")
	w.restart()
	w.refused("a", []string{"news", "next"}, "apply it there with --take", "cart news next shop", "--prune", "--yes")
	w.applies("b", []string{"shop", "other"}, "--take", "--prune")
	w.originIs("shop", "set/b")
	if got := w.module("shop").GetMetadata().GetUid(); got != uid {
		t.Errorf("shop was made anew: %s, not %s", got, uid)
	}
	if _, err := w.towline("", "delete", "module", "cart", "--yes"); err != nil || w.modules() != "news next other shop" {
		t.Errorf("%v; modules are %s", err, w.modules())
	}
	w.applies("a", []string{"news", "next"}, "--prune")
	w.applies("a", []string{"news", "shop"}, "--take", "--prune")
	w.applies("a", []string{"news"}, "--prune") // what b wanted once it has had
	if w.modules() != "news other" {
		t.Errorf("modules are %s", w.modules())
	}
}

// TestMoveThatIsOnlyPlanned: a dry run of a set that would be refused keeps nobody from anything, as of a pull request.
func TestMoveThatIsOnlyPlanned(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news"}, "--prune")
	w.refused("b", []string{"shop"}, "module shop is of set/a", "news shop", "--dry-run=server")
	w.refused("b", []string{"shop", "other"}, "module shop is of set/a", "news shop", "--dry-run=server")
	w.await("shop", 0)
	w.applies("a", []string{"news"}, "--prune")
	if w.modules() != "news" {
		t.Errorf("modules are %s", w.modules())
	}
}

// TestMoveFromASetToACatalog: what a catalog of the project has in its files, too, is not pruned by the set that it is of, whatever else the catalog's
// files have, and while nobody knows yet what they have.
func TestMoveFromASetToACatalog(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "cart", "news", "old"}, "--prune")
	w.push("shop=1", "more=1")
	w.away.Store(true)
	w.putCatalog(w.catalog())
	w.refused("a", []string{"shop", "cart", "news"}, "catalog team", "cart news old shop", "--prune")
	w.away.Store(false)
	w.synced("Conflicted")
	for _, name := range []string{"shop", "cart", "news", "old", "more"} {
		w.await(name, 0)
	}
	reads := "module shop was in modules/shop.yaml:1 at the last look of catalog team: towline resync catalog team --take"
	w.refused("a", []string{"cart", "news"}, reads, "cart more news shop", "--prune", "--yes")
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": inGit("shop", "1"), "modules/more.yaml": inGit("more", "1"), "modules/cart.yaml": inGit("cart", "1") + "<<<<<<< HEAD\n"})
	if _, err := w.resyncs(false); err == nil {
		t.Fatal("no YAML, and the catalog is applied")
	}
	w.refused("a", []string{"news"}, "module cart was in modules/cart.yaml when the files of catalog team were had last", "cart more news shop", "--prune", "--yes")
	w.refused("a", []string{"news"}, "module shop was in modules/shop.yaml:1 when", "cart more news shop", "--prune", "--yes")
	w.push("shop=1", "more=1")
	if resp, err := w.resyncs(true); err != nil || resp.GetCatalog().GetStatus().GetState() != "Applied" {
		t.Errorf("%v, %v", resp, err)
	}
	w.originIs("shop", "catalog/team")
	w.applies("a", []string{"news"}, "--prune")
	if w.modules() != "more news shop" {
		t.Errorf("modules are %s", w.modules())
	}
}

// TestMoveFromACatalogToASet: a module that a set was refused because it is of a catalog stays when it is in the files of that no more. The catalog says
// who wants it, and applies the rest.
func TestMoveFromACatalogToASet(t *testing.T) {
	w := newPipelines(t)
	w.push("shop=1", "news=1", "old=1", "more=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	for _, name := range []string{"shop", "news", "old", "more"} {
		w.await(name, 0)
	}
	w.refused("b", []string{"shop", "other"}, "module shop is of catalog/team", "more news old shop")
	w.push("news=2", "more=1")
	s := w.synced("Conflicted").GetCatalog().GetStatus()
	if got := s.GetConflicts(); len(got) != 1 || got[0].GetModule() != "shop" || got[0].GetReason() != "Wanted" || got[0].GetOwner() != "set/b" || got[0].GetFile() != "" {
		t.Errorf("conflicts: %v", got)
	}
	if w.modules() != "more news shop" || w.value("news") != "2" {
		t.Errorf("modules are %s, news says %s", w.modules(), w.value("news"))
	}
	if out, err := w.towline("", "describe", "catalog", "team"); err != nil || !strings.Contains(out, "module shop is in the files no more, and not deleted, for set/b wants it") {
		t.Errorf("%v\n%s", err, out)
	}
	w.restart()
	w.synced("Conflicted")
	w.applies("b", []string{"shop", "other"}, "--take", "--prune")
	w.synced("Applied")
	w.originIs("shop", "set/b")
	if w.modules() != "more news other shop" {
		t.Errorf("modules are %s", w.modules())
	}
}

// TestCatalogGoesWithWhatIsWanted: a person who deletes a catalog with its modules deletes also what a set wants.
func TestCatalogGoesWithWhatIsWanted(t *testing.T) {
	w := newPipelines(t)
	w.push("shop=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.refused("b", []string{"shop"}, "module shop is of catalog/team", "news shop")
	_, err := w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team", Cascade: true})
	must(t, err)
	w.eventually(func() bool { return w.modules() == "" })
}
