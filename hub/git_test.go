package hub_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

func deployed(in map[string]string) map[string]any {
	out := map[string]any{}
	for name, text := range in {
		out["deploy/"+name] = text
	}
	return out
}

func (w *world) revision(module string, n int64) *towlinev1.Revision {
	w.t.Helper()
	resp, err := w.Modules.GetRevision(w.ctx, &towlinev1.GetRevisionRequest{Module: module, Number: n})
	must(w.t, err)
	return resp.GetRevision()
}

// TestModuleFromGit: a revision keeps the commit that its branch was at, whatever happens to the branch, and a put of the same spec
// takes what is there then.
func TestModuleFromGit(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	first := repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: srv.URL + "/repo.git", Ref: &towlinev1.GitRef{Branch: "main"}, Path: "deploy"}}
	w.await("shop", w.put(m).GetRevision())
	if got := w.revision("shop", 1).GetResolvedRef(); got != "main@sha1:"+first {
		t.Errorf("revision 1 is of %s", got)
	}
	second := repo.Branch("main", deployed(configMap("2"))) // by force: it has nothing before it
	m.Spec.Namespace = "other"
	w.await("shop", w.put(m).GetRevision())
	if got := w.revision("shop", 2).GetResolvedRef(); got != "main@sha1:"+second {
		t.Errorf("revision 2 is of %s", got)
	}
	if got := w.revision("shop", 1).GetResolvedRef(); got != "main@sha1:"+first {
		t.Errorf("revision 1 is of %s now", got)
	}
	m.Spec.Source.Git.Ref = &towlinev1.GitRef{Branch: "none"}
	if ro := w.await("shop", w.put(m).GetRevision()); ro.GetStatus().GetReason() != "SourceFailed" {
		t.Errorf("of a branch that is not there: %v", ro.GetStatus())
	}
	dry := &towlinev1.PutModuleRequest{Module: module("new", nil), DryRun: true}
	dry.Module.Spec.Source = m.Spec.Source
	if _, err := w.Modules.PutModule(w.ctx, dry); !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), `has no branch "none": check source.git.ref.branch (it has main)`) {
		t.Errorf("dry run: %v", err)
	}
}

// TestModuleFromAFolder: a hub reads repositories of its own machine if it is told to.
func TestModuleFromAFolder(t *testing.T) {
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "file://" + repo.Dir}}
	w := newWorld(t, true)
	w.join("a", nil, nil)
	if ro := w.await("shop", w.put(m).GetRevision()); ro.GetStatus().GetReason() != "SourceFailed" {
		t.Errorf("unasked: %v", ro.GetStatus())
	}
	w = newWorldWith(t, func(o *hub.Options) { o.Memory, o.AllowFileSources = true, true })
	w.join("a", nil, nil)
	w.await("shop", w.put(m).GetRevision())
	if n := w.revision("shop", 1).GetObjects(); n != 1 {
		t.Errorf("%d objects", n)
	}
}
