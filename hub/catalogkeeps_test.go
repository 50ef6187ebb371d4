package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
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
