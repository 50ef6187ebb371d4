package hub_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestSourceThatGoesBack: whoever may write to a branch may put an older commit back under it, signed as it is. It is rolled out, for an honest
// person does so as well, and the revision and the rollout say that it goes back. A commit that comes after, or another ref in the module, does not.
func TestSourceThatGoesBack(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	day := func(n int, text string) string {
		return repo.At(time.Date(2026, 3, n, 12, 0, 0, 0, time.UTC), deployed(configMap(text)))
	}
	first, second, third, never, revert, branch := day(10, "1"), day(11, "2"), day(12, "3"), day(2, "0"), day(13, "2"), day(1, "4")
	repo.Set("main", first)
	repo.Set("old", branch)
	m := following("shop", srv.URL)
	w.await("shop", w.put(m).GetRevision())
	for n, step := range []struct {
		commit, back string
		put          func() int64
	}{
		{second, "", nil},
		{third, "", nil},
		{first, "the source goes back to main@sha1:" + first + ", which r1 had", nil},
		{third, "the source goes back to main@sha1:" + third + ", which r3 had", nil},
		{never, "the source goes back to main@sha1:" + never + " of 2026-03-02T12:00:00Z, which is older than that of r5, of 2026-03-12T12:00:00Z", nil},
		{revert, "", nil},
		{branch, "", func() int64 {
			m.Spec.Source.Git.Ref.Branch = "old"
			return w.put(m).GetRevision()
		}},
	} {
		repo.Set("main", step.commit)
		why := "pushed"
		var at int64
		if step.put == nil {
			came, err := w.resync("shop")
			must(t, err)
			at = came.GetRevision()
		} else {
			why, at = "", step.put()
		}
		ro, rev := w.await("shop", at), w.revision("shop", int64(n+2))
		if step.back != "" {
			why += "; " + step.back
		}
		if !strings.HasSuffix(rev.GetResolvedRef(), step.commit) || rev.GetGoesBack() != step.back || ro.GetRevision() != rev.GetNumber() || ro.GetStatus().GetStartReason() != why || rev.GetSourceTime().AsTime().Hour() != 12 {
			t.Errorf("step %d: r%d of %s says %q, rollout %q; want %q", n, ro.GetRevision(), rev.GetResolvedRef(), rev.GetGoesBack(), ro.GetStatus().GetStartReason(), why)
		}
	}
	list, err := w.Modules.ListRevisions(w.ctx, &towlinev1.ListRevisionsRequest{Module: "shop"})
	must(t, err)
	if len(list.GetRevisions()) != 8 {
		t.Errorf("%d revisions", len(list.GetRevisions()))
	}
}

// A person who has one module go back with its source has all go back that follow it, together: what one of them lets go another may list.
func TestModulesOfOneSourceGoBackTogether(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	day := func(n int, text string) string {
		files := deployed(configMap(text))
		files["two/b.yaml"] = strings.Replace(files["deploy/a.yaml"].(string), "name: web", "name: two", 1)
		return repo.At(time.Date(2026, 3, n, 12, 0, 0, 0, time.UTC), files)
	}
	first, second := day(10, "1"), day(11, "2")
	repo.Set("main", first)
	w.await("one", w.put(following("one", srv.URL)).GetRevision())
	two := following("two", srv.URL)
	two.Spec.Source.Git.Path = "two"
	w.await("two", w.put(two).GetRevision())
	for n, commit := range []string{second, first} {
		repo.Set("main", commit)
		came, err := w.resync("one")
		must(t, err)
		w.await("one", came.GetRevision())
		w.await("two", int64(n+2))
		for _, m := range []string{"one", "two"} {
			if rev := w.revision(m, int64(n+2)); !strings.HasSuffix(rev.GetResolvedRef(), commit) || (rev.GetGoesBack() != "") != (commit == first) {
				t.Errorf("%s: %v", m, rev)
			}
		}
	}
}
