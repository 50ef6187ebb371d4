package hub_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// inline is a source of ConfigMaps, as a file of a catalog has it.
func inline(objects ...string) string {
	out := "  source:\n    inline:\n      files:\n"
	for _, o := range objects {
		out += fmt.Sprintf("        %s.yaml: '{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: default}}'\n", o, o)
	}
	return out
}

// asFile is a module as a file of a catalog has it.
func asFile(name, more, source string) string {
	return "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: " + name + "}\nspec:\n  namespace: default\n  placement: {selector: {}}\n" + more + source
}

// moving is a catalog of which one has m, and two is there without it; the agent of c keeps what it is told to keep.
type moving struct{ *catalogWorld }

// newMoving begins with two as it is given.
func newMoving(t *testing.T, two string) *moving {
	w := &moving{&catalogWorld{world: newWorld(t, false), repo: sourcetest.NewRepo(t)}}
	w.keepsForHeirs()
	srv := httptest.NewServer(w.repo.Handler())
	t.Cleanup(srv.Close)
	w.url = srv.URL + "/repo.git"
	w.says(asFile("one", "", inline("a", "m")), two)
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("one", 0)
	return w
}

// says has the files of the catalog say so of the modules; empty: nothing.
func (w *moving) says(one, two string) {
	files := map[string]any{"readme.txt": "modules"}
	for name, text := range map[string]string{"one": one, "two": two} {
		if text != "" {
			files["modules/"+name+".yaml"] = text
		}
	}
	w.repo.Branch("main", files)
}

// looked has the catalog looked at without a person who asks.
func (w *moving) looked() *towlinev1.CatalogStatus {
	w.t.Helper()
	got, err := w.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
	must(w.t, err)
	c := got.GetCatalog()
	c.Spec.Recursive = !c.Spec.Recursive
	w.putCatalog(c)
	return w.applied(c.GetMetadata().GetGeneration() + 1)
}

// TestCatalogMovesToOneWhoseSourceFails: what a commit moves to a module stays until the source of that can be had, whether the one that had
// it is still there or not, and is taken up then; or that is put without it.
func TestCatalogMovesToOneWhoseSourceFails(t *testing.T) {
	for name, one := range map[string]string{"the one stays": asFile("one", "", inline("a")), "the one goes": ""} {
		t.Run(name, func(t *testing.T) {
			w := newMoving(t, asFile("two", "", inline("b")))
			w.await("two", 0)
			w.says(one, asFile("two", "", fmt.Sprintf("  source: {git: {url: %q, ref: {tag: next}}}\n", w.url)))
			w.looked()
			w.moduleIs("two", func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutState() == "Failed" })
			w.awaitHeir("c", "one", "m", "two")
			w.says(one, asFile("two", "", inline("b", "m")))
			w.looked()
			w.await("two", 0)
			if one == "" {
				w.gone("one")
				return
			}
			w.awaitHeir("c", "one", "m", "")
		})
	}
}

// TestCatalogMovesToOneThatIsNotPut: what a commit moves to a module stays while that is not put, because a person paused its rollout or that
// lets no other begin, also when the hub starts anew; and goes when it is put without that.
func TestCatalogMovesToOneThatIsNotPut(t *testing.T) {
	const waits = "  rollout: {%sstages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n"
	for name, tc := range map[string]struct {
		more, one, state string
		paused           bool
	}{
		"paused, and the one stays":   {paused: true, one: asFile("one", "", inline("a")), state: "Conflicted"},
		"paused, and the one goes":    {paused: true, state: "Conflicted"},
		"rejecting, and the one goes": {more: "onSupersede: Reject, ", state: "Waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMoving(t, asFile("two", fmt.Sprintf(waits, tc.more), inline("b")))
			w.waitsForApproval("two")
			if tc.paused {
				_, err := w.Rollouts.PauseRollout(w.ctx, &towlinev1.PauseRolloutRequest{Module: "two", Reason: "wait"})
				must(t, err)
				w.moduleIs("two", func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutState() == "Paused" })
			}
			w.says(tc.one, asFile("two", "", inline("b", "m")))
			if s := w.looked(); s.GetState() != tc.state {
				t.Fatalf("the catalog is %v", s)
			}
			w.awaitHeir("c", "one", "m", "two")
			w.restart()
			w.awaitHeir("c", "one", "m", "two")
			w.says(tc.one, asFile("two", "", inline("b")))
			_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "two", Reason: "go on"})
			must(t, err)
			if _, err := w.resyncs(false); err != nil && !errors.Is(err, fleet.ErrConflict) {
				t.Fatal(err)
			}
			w.catalogIs("Applied")
			w.await("two", 0)
			w.awaitHeir("c", "one", "m", "")
		})
	}
}
