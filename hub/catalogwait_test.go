package hub_test

import (
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// asksFirst is a module as inGit with a stage that waits for an approval, and more in its spec.
func asksFirst(name, value, more string) string {
	return strings.Replace(inGit(name, value), "spec:\n", "spec:\n"+more+"  rollout: {onSupersede: Reject, stages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n", 1)
}

// waitsForApproval waits until the rollout of a module does.
func (w *catalogWorld) waitsForApproval(name string) {
	w.t.Helper()
	w.moduleIs(name, func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutReason() == "Approval" })
}

func (w *catalogWorld) approves(name string) {
	w.t.Helper()
	_, err := w.Rollouts.ApproveGate(w.ctx, &towlinev1.ApproveGateRequest{Module: name, Stage: "all", Gate: "approval"})
	must(w.t, err)
}

// TestCatalogWaitsForARolloutThatLetsNoOtherBegin: a module whose rollout runs with onSupersede: Reject is not put; the others are, one that is
// as its file says is nobody's matter, and when the rollout is over the module is put without anybody asking, also by a hub that was started
// meanwhile.
func TestCatalogWaitsForARolloutThatLetsNoOtherBegin(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("shop=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	files := func(shop, news string) map[string]any {
		return map[string]any{"modules/shop.yaml": shop, "modules/news.yaml": inGit("news", news)}
	}
	w.repo.Branch("main", files(asksFirst("shop", "2", ""), "1"))
	w.synced("Applied")
	w.waitsForApproval("shop")
	w.repo.Branch("main", files(asksFirst("shop", "2", ""), "2"))
	whole := w.synced("Applied").GetCatalog().GetStatus().GetAppliedRef()
	w.repo.Branch("main", files(inGit("shop", "3"), "3"))
	resp := w.synced("Waiting")
	s := resp.GetCatalog().GetStatus()
	if got := s.GetWaits(); s.GetReason() != "RolloutRunning" || len(got) != 1 || got[0].GetModule() != "shop" || got[0].GetFile() != "modules/shop.yaml:1" || !strings.HasSuffix(got[0].GetRollout(), "shop/2") {
		t.Errorf("waits for %v", s)
	}
	if !slices.Equal(resp.GetConfigured(), []string{"news"}) || w.value("news") != "3" || w.value("shop") != "2" || s.GetAppliedRef() != whole || s.GetHold() != "" {
		t.Errorf("came to %v", resp)
	}
	w.restart()
	if s := w.status(); s.GetState() != "Waiting" || w.value("shop") != "2" {
		t.Errorf("after a restart %v", s)
	}
	_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop", Reason: "broken"})
	must(t, err)
	w.catalogIs("Applied")
	if s := w.status(); w.value("shop") != "3" || len(s.GetWaits()) != 0 || s.GetAppliedRef() == whole {
		t.Errorf("the rollout is over, and shop is %s: %v", w.value("shop"), s)
	}
}

// TestCatalogPrunesWhenNothingNeedsIt: a module that leaves the files together with the dependsOn of another goes when the rollout of that has
// come to all clusters.
func TestCatalogPrunesWhenNothingNeedsIt(t *testing.T) {
	w := newCatalogWorld(t)
	w.repo.Branch("main", map[string]any{"modules/base.yaml": inGit("base", "1"), "modules/news.yaml": inGit("news", "1"),
		"modules/shop.yaml": strings.Replace(inGit("shop", "1"), "spec:\n", "spec:\n  dependsOn: [{module: base}]\n", 1)})
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": asksFirst("shop", "2", ""), "modules/news.yaml": inGit("news", "1")})
	resp := w.synced("Waiting")
	s := resp.GetCatalog().GetStatus()
	if got := s.GetWaits(); s.GetReason() != "InUse" || len(got) != 1 || got[0].GetModule() != "base" || !slices.Equal(got[0].GetBy(), []string{"shop"}) || !slices.Equal(s.GetLeftover(), []string{"base"}) {
		t.Errorf("waits for %v", s)
	}
	if !slices.Equal(resp.GetConfigured(), []string{"shop"}) || len(resp.GetPruned()) != 0 || w.modules() != "base news shop" {
		t.Errorf("came to %v; modules %s", resp, w.modules())
	}
	w.waitsForApproval("shop")
	if s := w.synced("Waiting").GetCatalog().GetStatus(); len(s.GetWaits()) != 1 {
		t.Errorf("asked again: %v", s)
	}
	w.approves("shop")
	w.await("shop", 0)
	w.gone("base")
	w.catalogIs("Applied")
	if s := w.status(); len(s.GetWaits()) != 0 || len(s.GetLeftover()) != 0 {
		t.Errorf("in the end %v", s)
	}
}

// TestCatalogAsksOnceForWhatGoesLater: what a person has confirmed and others need still goes later without another question, also by a hub that
// was started meanwhile.
func TestCatalogAsksOnceForWhatGoesLater(t *testing.T) {
	w := newCatalogWorld(t)
	w.repo.Branch("main", map[string]any{"modules/a.yaml": inGit("a", "1"), "modules/b.yaml": inGit("b", "1"), "modules/c.yaml": inGit("c", "1"),
		"modules/shop.yaml": strings.Replace(inGit("shop", "1"), "spec:\n", "spec:\n  dependsOn: [{module: a}, {module: b}]\n", 1)})
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": asksFirst("shop", "2", "")})
	hold := w.synced("Waiting").GetCatalog().GetStatus().GetHold()
	if hold == "" || w.value("shop") != "1" {
		t.Fatalf("nobody is asked: %v", w.status())
	}
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold})
	must(t, err)
	w.gone("c")
	w.waitsForApproval("shop")
	w.restart()
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetReason() != "InUse" || s.GetHold() != "" || len(s.GetWaits()) != 2 {
		t.Errorf("asked again: %v", s)
	}
	w.approves("shop")
	w.gone("a")
	w.gone("b")
	w.catalogIs("Applied")
}

// TestCatalogLeavesWhatIsDamaged: of a module whose record cannot be read nobody knows whose it is. It is not put, also when a person takes, and
// what clusters have of it keeps what it depends on; the catalog says so, and a put by hand mends it.
func TestCatalogLeavesWhatIsDamaged(t *testing.T) {
	w := catalogWorldOn(newMortalWorld(t))
	shop := strings.Replace(inGit("shop", "1"), "spec:\n", "spec:\n  dependsOn: [{module: base}]\n", 1)
	w.repo.Branch("main", map[string]any{"modules/base.yaml": inGit("base", "1"), "modules/news.yaml": inGit("news", "1"), "modules/shop.yaml": shop})
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.damage("modules/default/shop")
	w.push("news=2", "shop=2")
	resp, err := w.resyncs(true)
	must(t, err)
	s := resp.GetCatalog().GetStatus()
	if got := s.GetConflicts(); s.GetState() != "Conflicted" || len(got) != 1 || got[0].GetModule() != "shop" || got[0].GetReason() != "Damaged" || got[0].GetFile() != "modules/shop.yaml:1" {
		t.Errorf("says %v", s)
	}
	if got := s.GetWaits(); len(got) != 1 || got[0].GetModule() != "base" || !slices.Equal(got[0].GetBy(), []string{"shop"}) || !slices.Equal(resp.GetConfigured(), []string{"news"}) || len(resp.GetPruned()) != 0 {
		t.Errorf("came to %v", resp)
	}
	w.push("news=2")
	if resp := w.synced("Waiting"); len(resp.GetPruned()) != 0 {
		t.Errorf("prunes by what it cannot read: %v", resp)
	}
	put := w.put(module("shop", configMap("by hand")))
	w.await("shop", put.GetRevision())
	w.gone("base")
	w.catalogIs("Applied")
	if got := w.module("shop").GetMetadata().GetOrigin(); got != "" {
		t.Errorf("shop is of %s", got)
	}
}
