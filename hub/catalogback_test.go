package hub_test

import (
	"slices"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// A mirror, a cache or one of several servers that is behind serves the commit of before for a while: what was made since is not in it yet, and
// nothing is deleted for that unless a person says so. The newer commit ends the question, also a revert that is a commit of its own.
func TestCatalogDeletesNothingForASourceThatIsBehind(t *testing.T) {
	w := newCatalogWorld(t)
	at := func(day int, modules ...string) string {
		files := map[string]any{}
		for _, m := range modules {
			files["modules/"+m+".yaml"] = inGit(m, "1")
		}
		return w.repo.At(time.Date(2026, 3, day, 12, 0, 0, 0, time.UTC), files)
	}
	behind, newer := at(10, "a", "b", "c"), at(11, "a", "b", "c", "d")
	w.repo.Set("main", behind)
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("c", 0)
	w.repo.Set("main", newer)
	w.synced("Applied")
	w.await("d", 0)

	w.repo.Set("main", behind)
	s := w.synced("Waiting").GetCatalog().GetStatus()
	if s.GetReason() != "SourceGoesBack" || !slices.Equal(s.GetLeftover(), []string{"d"}) || w.modules() != "a b c d" {
		t.Fatalf("behind: %v; modules %s", s, w.modules())
	}
	w.restart()
	if s := w.synced("Waiting").GetCatalog().GetStatus(); s.GetReason() != "SourceGoesBack" || w.modules() != "a b c d" {
		t.Fatalf("behind, after a restart: %v; modules %s", s, w.modules())
	}
	w.repo.Set("main", newer)
	if s := w.synced("Applied").GetCatalog().GetStatus(); s.GetHold() != "" || w.modules() != "a b c d" {
		t.Errorf("as before: %v", s)
	}
	w.repo.Set("main", at(12, "a", "b", "c"))
	if s := w.synced("Applied").GetCatalog().GetStatus(); s.GetHold() != "" || w.modules() != "a b c" {
		t.Errorf("a commit that takes it away: %v; modules %s", s, w.modules())
	}
	w.repo.Set("main", newer) // it lists what was taken away, and takes nothing away itself
	w.synced("Applied")
	w.repo.Set("main", behind)
	s = w.synced("Waiting").GetCatalog().GetStatus()
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: s.GetHold()})
	must(t, err)
	w.catalogIs("Applied")
	if got := w.modules(); got != "a b c" {
		t.Errorf("confirmed, and the modules are %s", got)
	}
	w.repo.Set("main", newer)
	w.synced("Applied")
	w.repo.Set("main", behind)
	w.synced("Waiting")
	w.repo.Set("main", at(13, "a", "b", "c")) // what was asked about goes by a commit of its own
	if s := w.synced("Applied").GetCatalog().GetStatus(); s.GetHold() != "" || w.modules() != "a b c" {
		t.Errorf("a commit that takes it away, after one that is behind: %v; modules %s", s, w.modules())
	}
}
