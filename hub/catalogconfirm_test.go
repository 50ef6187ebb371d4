package hub_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestConfirmOfACatalogEndsWhereItIsListedAgain: a person confirms that modules go, which others need still, so that they go later. Before that
// they are listed again, by files that cannot be applied for something else, or that drop others and wait for a person, and dropped again later: of
// that nobody was asked.
func TestConfirmOfACatalogEndsWhereItIsListedAgain(t *testing.T) {
	w := newCatalogWorld(t)
	listed := map[string]any{"modules/a.yaml": inGit("a", "1"), "modules/b.yaml": inGit("b", "1"), "modules/c.yaml": inGit("c", "1")}
	push := func(listed map[string]any, shop, newsAt string) {
		files := map[string]any{"modules/shop.yaml": shop, newsAt: inGit("news", "1")}
		maps.Copy(files, listed)
		w.repo.Branch("main", files)
	}
	push(listed, strings.Replace(inGit("shop", "1"), "spec:\n", "spec:\n  dependsOn: [{module: a}, {module: b}, {module: c}]\n", 1), "modules/news.yaml")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	push(nil, asksFirst("shop", "2", ""), "modules/news.yaml")
	hold := w.synced("Waiting").GetCatalog().GetStatus().GetHold()
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold})
	must(t, err)
	w.waitsForApproval("shop")
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetReason() != "InUse" || s.GetHold() != "" {
		t.Fatalf("what was confirmed waits for %v", s)
	}
	push(listed, asksFirst("shop", "2", ""), "modules/below/news.yaml")
	if _, err := w.resyncs(false); err == nil || w.status().GetState() != "Failed" {
		t.Fatalf("the files that list them again: %v, %v", err, w.status())
	}
	push(nil, asksFirst("shop", "2", ""), "modules/news.yaml")
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetHold() == "" {
		t.Errorf("nobody is asked about what is dropped anew: %v", s)
	}
	w.approves("shop")
	w.await("shop", 0)
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetHold() == "" || w.modules() != "a b c news shop" {
		t.Errorf("modules %s: %v", w.modules(), s)
	}
}

// TestQuestionOfACatalogEndsWhereItIsListedAgain: the same where nobody has answered yet: files that list again what a person is asked about, and
// cannot be applied, end the question.
func TestQuestionOfACatalogEndsWhereItIsListedAgain(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1", "c=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.push("news=1")
	asked := w.synced("Waiting").GetCatalog().GetStatus().GetHold()
	w.repo.Branch("main", map[string]any{"modules/a.yaml": inGit("a", "1"), "modules/b.yaml": inGit("b", "1"), "modules/c.yaml": inGit("c", "1"),
		"modules/below/news.yaml": inGit("news", "1")})
	if _, err := w.resyncs(false); err == nil || w.status().GetHold() != "" {
		t.Fatalf("the files that list them again: %v, %v", err, w.status())
	}
	if _, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: asked}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("what is listed again is confirmed to go: %v", err)
	}
	w.push("news=1")
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetHold() == "" || w.modules() != "a b c news" {
		t.Errorf("modules %s: %v", w.modules(), s)
	}
}

// TestQuestionOfACatalogStandsForFewer: a person is asked whether most of a catalog's modules are to go, and the files list some of them again:
// the rest, which is no more than half by now, goes only when that is confirmed.
func TestQuestionOfACatalogStandsForFewer(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1", "c=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.push("news=1")
	all := w.synced("Waiting").GetCatalog().GetStatus().GetHold()
	w.push("news=2", "a=1")
	if _, err := w.resyncs(false); err != nil {
		t.Fatal(err)
	}
	s := w.status()
	if s.GetState() != "Waiting" || s.GetHold() == "" || s.GetHold() == all || w.modules() != "a b c news" {
		t.Fatalf("modules %s: %v", w.modules(), s)
	}
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: s.GetHold()})
	must(t, err)
	w.eventually(func() bool { return w.modules() == "a news" })
}

// TestQuestionOfACatalogStandsForTheRest: files that list again some of what a person is asked about, and cannot be applied for something else,
// end the question of these only: the rest goes when that is confirmed, also by files that can be applied.
func TestQuestionOfACatalogStandsForTheRest(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1", "c=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.push("news=1")
	all := w.synced("Waiting").GetCatalog().GetStatus().GetHold()
	w.repo.Branch("main", map[string]any{"modules/a.yaml": inGit("a", "1"), "modules/below/news.yaml": inGit("news", "1")})
	if _, err := w.resyncs(false); err == nil {
		t.Fatalf("applied: %v", w.status())
	}
	rest := w.status().GetHold()
	w.eventually(func() bool { // a refusal says of no revision that it was after it
		holds, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		got := holds.GetHolds()
		return len(got) == 1 && got[0].GetId() == rest && rest != all && len(got[0].GetItems()) == 2
	})
	if _, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: all}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("what is listed again is confirmed to go: %v", err)
	}
	w.push("news=1", "a=1")
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetHold() != rest || w.modules() != "a b c news" {
		t.Fatalf("modules %s: %v", w.modules(), s)
	}
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: rest})
	must(t, err)
	w.eventually(func() bool { return w.modules() == "a news" })
}
