package hub_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// A catalog whose source has no refs was read all the same, and holds up no prune.
func TestSetBesideAnInlineCatalog(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news"}, "--prune")
	c := w.catalog()
	c.Spec.Path, c.Spec.Source = "", &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"more.yaml": inGit("more", "1")}}}
	w.putCatalog(c)
	w.synced("Applied")
	if out, err := w.apply("a", []string{"news"}, "--prune"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A catalog whose new source was not had yet may have what moved there.
func TestSetBesideACatalogWhoseNewSourceIsAway(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news", "cart"}, "--prune")
	w.push("more=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	c := w.catalog()
	c.Spec.Source.Git.Url = nobody() + "/repo.git"
	w.putCatalog(c)
	if _, err := w.resyncs(false); err == nil {
		t.Fatal("it is away")
	}
	w.prunesNotShop()
}

// An apply that a person did not confirm wants what is in its files.
func TestWantOfAnApplyThatIsNotConfirmed(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news", "cart"}, "--prune")
	w.applies("b", []string{"m1", "m2", "m3"}, "--prune")
	if out, err := w.apply("b", []string{"m1", "shop"}, "--prune"); err == nil { // m2 and m3 go, and nobody says yes
		t.Fatal(out)
	}
	w.prunesNotShop()
}

// What a catalog was told to take, and has not taken yet, is not pruned by the set that has it.
func TestTakeThatWaits(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news", "cart"}, "--prune")
	w.push("m1=1", "m2=1", "m3=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.push("m1=1", "shop=1")
	w.synced("Waiting")
	w.refused("a", []string{"news", "cart"}, "at the last look of catalog team", "cart m1 m2 m3 news shop", "--prune")
	_, _ = w.resyncs(true) // a person is asked about m2 and m3
	w.prunesNotShop()
}

// An apply that was to take a module, and was refused for another one, wants it still.
func TestWantOfATakeThatIsRefused(t *testing.T) {
	w := newPipelines(t)
	w.applies("a", []string{"shop", "news", "cart"}, "--prune")
	text := inGit("shop", "1") + "---\n" + inGit("y", "1") // y is no name in YAML 1.1
	if out, err := w.towline(text, "apply", "-f", "-", "--set", "b", "--take", "--prune"); err == nil {
		t.Fatal(out)
	}
	w.prunesNotShop()
}

// A pipeline whose files cannot be applied, for something in them is wrong, wants what they have, and nothing that they only speak of.
func TestWantOfFilesThatCannotBeApplied(t *testing.T) {
	const slip = "<<<<<<< HEAD\n"
	for name, tc := range map[string]struct {
		files map[string]string
		flags string
	}{
		"another file is no YAML":    {map[string]string{"shop.yaml": inGit("shop", "1"), "slip.yaml": slip}, "--prune"},
		"its file is no YAML":        {map[string]string{"shop.yaml": inGit("shop", "about: cart") + "\tx: 1\n", "other.yaml": inGit("other", "1")}, ""},
		"it is there twice":          {map[string]string{"shop.yaml": inGit("shop", "1"), "copy.yaml": inGit("shop", "2")}, "--take --prune"},
		"there is nothing to upload": {map[string]string{"shop.yaml": inGit("shop", "1")}, "--from /none"},
		"on stdin":                   {map[string]string{"": inGit("shop", "1") + "---\n" + slip}, "--prune"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPipelines(t)
			w.applies("a", []string{"shop", "news", "cart"}, "--prune")
			from := t.TempDir()
			for name, text := range tc.files {
				if name == "" {
					from = "-"
					break
				}
				must(t, os.WriteFile(filepath.Join(from, name), []byte(text), 0o600))
			}
			if out, err := w.towline(tc.files[""], append([]string{"apply", "-f", from, "--set", "b"}, strings.Fields(tc.flags)...)...); err == nil {
				t.Fatal(out)
			}
			w.prunesNotShop()
			if _, err := w.apply("a", []string{"news"}, "--prune", "--yes"); err == nil || w.modules() != "news shop" {
				t.Errorf("%v; modules are %s", err, w.modules())
			}
		})
	}
}

// A catalog whose source was never had may have what moved there.
func TestCatalogBesideOneThatWasNeverRead(t *testing.T) {
	w := newPipelines(t)
	w.push("shop=1", "news=1", "cart=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.putOther(nobody())
	w.push("news=1", "cart=1")
	_, _ = w.resyncs(false)
	w.keepsShop()
}

// What another catalog was told to take, and has not taken yet, is not pruned by the first.
func TestTakeThatWaitsBetweenCatalogs(t *testing.T) {
	w := newPipelines(t)
	w.push("shop=1", "news=1", "cart=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", map[string]any{"modules/m1.yaml": inGit("m1", "1"), "modules/m2.yaml": inGit("m2", "1"), "modules/m3.yaml": inGit("m3", "1")})
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	w.putOther(srv.URL)
	w.eventually(func() bool { return w.modules() == "cart m1 m2 m3 news shop" })
	repo.Branch("main", map[string]any{"modules/m1.yaml": inGit("m1", "1"), "modules/shop.yaml": inGit("shop", "1")})
	_, _ = w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "other", Take: true})
	w.push("news=1", "cart=1")
	_, _ = w.resyncs(false)
	w.keepsShop()
}

// What could not be taken because a rollout runs is the set's still, and not pruned.
func TestTakeBehindARollout(t *testing.T) {
	w := newPipelines(t)
	const waits = "  rollout: {onSupersede: Reject, stages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n"
	file := func(v string) string {
		return strings.Replace(inGit("shop", v), "  placement: {selector: {}}\n", "  placement: {selector: {}}\n"+waits, 1)
	}
	if out, err := w.towline(file("1")+"---\n"+inGit("news", "1")+"---\n"+inGit("cart", "1"), "apply", "-f", "-", "--set", "a", "--prune"); err != nil {
		t.Fatal(out)
	}
	w.eventually(func() bool { return w.module("shop").GetStatus().GetRolloutState() == "Waiting" })
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": file("2")})
	w.putCatalog(w.catalog())
	w.synced("Conflicted")
	_, _ = w.resyncs(true)
	if out, err := w.apply("a", []string{"news", "cart"}, "--prune", "--dry-run=server"); err == nil {
		t.Errorf("shop would be deleted: %s", out)
	}
	_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop", Reason: "go on"})
	must(t, err)
	w.eventually(func() bool { return w.status().GetState() != "Waiting" })
	w.prunesNotShop()
}

// A catalog that looked while a module was somebody else's has it in its files all the same.
func TestSetBesideACatalogThatSawAnotherOwner(t *testing.T) {
	w := newPipelines(t)
	if out, err := w.towline(inGit("shop", "1"), "apply", "-f", "-"); err != nil {
		t.Fatal(out)
	}
	w.push("shop=1", "more=1")
	w.putCatalog(w.catalog()) // no follow
	w.synced("Conflicted")
	w.applies("a", []string{"shop", "news", "cart"}, "--prune") // adopts it
	w.prunesNotShop()
}

// keepsShop fails where the module is gone.
func (w *pipelines) keepsShop() {
	w.t.Helper()
	if !strings.Contains(w.modules(), "shop") {
		w.t.Errorf("shop was deleted: %s", w.modules())
	}
}

// prunesNotShop has the pipeline of set a, whose files have shop no more, prune.
func (w *pipelines) prunesNotShop() {
	w.t.Helper()
	_, _ = w.apply("a", []string{"news", "cart"}, "--prune")
	w.keepsShop()
}

// putOther puts a catalog of another repository.
func (w *pipelines) putOther(url string) {
	w.t.Helper()
	c := w.catalog()
	c.Metadata.Name, c.Spec.Source.Git.Url = "other", url+"/repo.git"
	w.putCatalog(c)
}

// nobody is the address of a server that is gone.
func nobody() string {
	srv := httptest.NewServer(nil)
	defer srv.Close()
	return srv.URL
}
