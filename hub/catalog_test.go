package hub_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// inGit is a module as a file of a catalog has it, with a ConfigMap of a value.
func inGit(name, value string) string {
	return fmt.Sprintf(`apiVersion: towline.dev/v1
kind: Module
metadata: {name: %s}
spec:
  namespace: default
  placement: {selector: {}}
  source:
    inline:
      files:
        a.yaml: |
          apiVersion: v1
          kind: ConfigMap
          metadata: {name: %s}
          data: {a: %q}
`, name, name, value)
}

// catalogWorld is a hub with a cluster, and a repository that a catalog is of.
type catalogWorld struct {
	*world
	repo *sourcetest.Repo
	url  string
	away atomic.Bool // the server answers with errors
}

func newCatalogWorld(t *testing.T) *catalogWorld { return catalogWorldOn(newWorld(t, false)) }

func catalogWorldOn(of *world) *catalogWorld {
	w := &catalogWorld{world: of, repo: sourcetest.NewRepo(of.t)}
	w.join("a", nil, nil)
	handler := w.repo.Handler()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.away.Load() {
			http.Error(rw, "away", http.StatusServiceUnavailable)
			return
		}
		handler(rw, r)
	}))
	w.t.Cleanup(srv.Close)
	w.url = srv.URL + "/repo.git"
	return w
}

// push has the branch have these modules, as NAME=VALUE, and returns the commit.
func (w *catalogWorld) push(modules ...string) string {
	files := map[string]any{"readme.txt": "modules"}
	for _, m := range modules {
		name, value, _ := strings.Cut(m, "=")
		files["modules/"+name+".yaml"] = inGit(name, value)
	}
	return w.repo.Branch("main", files)
}

func (w *catalogWorld) catalog() *towlinev1.Catalog {
	return &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team"}, Spec: &towlinev1.CatalogSpec{Path: "modules", Prune: true,
		Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: w.url, Ref: &towlinev1.GitRef{Branch: "main"}}}}}
}

// catalogOf is a catalog that fetches one folder of the repository.
func (w *catalogWorld) catalogOf(name, folder string) *towlinev1.Catalog {
	c := w.catalog()
	c.Metadata.Name, c.Spec.Path, c.Spec.Source.Git.Path = name, "", folder
	return c
}

func (w *catalogWorld) putCatalog(c *towlinev1.Catalog) {
	w.t.Helper()
	_, err := w.Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: c})
	must(w.t, err)
}

func (w *catalogWorld) resyncs(take bool) (*towlinev1.ResyncCatalogResponse, error) {
	return w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "team", Reason: "pushed", Take: take})
}

// synced resyncs, and says what came of it.
func (w *catalogWorld) synced(state string) *towlinev1.ResyncCatalogResponse {
	w.t.Helper()
	resp, err := w.resyncs(false)
	must(w.t, err)
	if s := resp.GetCatalog().GetStatus(); s.GetState() != state {
		w.t.Fatalf("the catalog is %v, not %s", s, state)
	}
	return resp
}

func (w *catalogWorld) modules() string {
	w.t.Helper()
	resp, err := w.Modules.ListModules(w.ctx, &towlinev1.ListModulesRequest{})
	must(w.t, err)
	var out []string
	for _, m := range resp.GetModules() {
		if m.GetMetadata().GetDeletionTimestamp() == nil {
			out = append(out, m.GetMetadata().GetName())
		}
	}
	return strings.Join(out, " ")
}

func (w *catalogWorld) status() *towlinev1.CatalogStatus {
	w.t.Helper()
	resp, err := w.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
	must(w.t, err)
	return resp.GetCatalog().GetStatus()
}

// value is what the newest revision of a module has in its ConfigMap.
func (w *catalogWorld) value(name string) string {
	w.t.Helper()
	text := w.module(name).GetSpec().GetSource().GetInline().GetFiles()["a.yaml"]
	_, value, _ := strings.Cut(text, `data: {a: "`)
	return strings.TrimSuffix(strings.TrimSpace(value), `"}`)
}

// TestCatalog: modules of a branch are created, changed and deleted as its files say, by rollouts that name the catalog; each says which
// commit it came from.
func TestCatalog(t *testing.T) {
	w := newCatalogWorld(t)
	first := w.push("shop=1", "cart=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	shop := w.await("shop", 0)
	if shop.GetStatus().GetStartedBy() != "catalog/team" {
		t.Errorf("started by %s", shop.GetStatus().GetStartedBy())
	}
	w.await("cart", 0)
	meta := w.module("shop").GetMetadata()
	if meta.GetOrigin() != "catalog/team" || meta.GetOriginRef() != "main@sha1:"+first || meta.GetChangedBy() != "catalog/team" {
		t.Errorf("the module is of %v", meta)
	}
	second := w.push("shop=2", "news=1")
	resp := w.synced("Applied")
	if !slices.Equal(resp.GetCreated(), []string{"news"}) || !slices.Equal(resp.GetConfigured(), []string{"shop"}) || !slices.Equal(resp.GetPruned(), []string{"cart"}) {
		t.Errorf("came to %v", resp)
	}
	if s := resp.GetCatalog().GetStatus(); s.GetModules() != 2 || s.GetAppliedRef() != "main@sha1:"+second || s.GetApplied() == nil {
		t.Errorf("status %v", s)
	}
	if ro := w.await("shop", resp.GetRevision()); ro.GetRevision() != 2 || w.value("shop") != "2" {
		t.Errorf("shop is at r%d with %s", ro.GetRevision(), w.value("shop"))
	}
	if got := w.modules(); got != "news shop" {
		t.Errorf("modules %s", got)
	}
	if again := w.synced("Applied"); len(again.GetCreated())+len(again.GetConfigured())+len(again.GetPruned()) != 0 {
		t.Errorf("unchanged, and came to %v", again)
	}
}

// TestCatalogNeverPrunesByMistake: a folder without modules or that is not there, a file that is broken or not valid, a repository that is
// away: nothing is put and nothing goes, and the catalog says why with file, line and module, until it is mended.
func TestCatalogNeverPrunesByMistake(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1", "c=1", "d=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("d", 0)
	w.synced("Applied")
	good := inGit("a", "2")
	for _, c := range []struct {
		name, reason, says string
		files              map[string]any
	}{
		{"an empty folder", "NoModules", "folder modules of the source has no module", map[string]any{"modules/readme.txt": "none"}},
		{"the folder is gone", "NoModules", "folder modules of the source has no module", map[string]any{"moved/a.yaml": good}},
		{"no YAML", "InvalidFiles", "modules/b.yaml:1: is no YAML", map[string]any{"modules/a.yaml": good, "modules/b.yaml": "{"}},
		{"an empty file", "InvalidFiles", "modules/b.yaml: is empty: was it cut off?", map[string]any{"modules/a.yaml": good, "modules/b.yaml": "\n", "modules/c.yaml": inGit("c", "1"), "modules/d.yaml": inGit("d", "1")}},
		{"an unknown field", "InvalidFiles", "modules/b.yaml:5: module b: spec.namespaces: unknown field; did you mean namespace?", map[string]any{"modules/a.yaml": good, "modules/b.yaml": strings.Replace(inGit("b", "1"), "namespace:", "namespaces:", 1)}},
		{"a module that is not valid", "InvalidFiles", "modules/b.yaml:1: module b: spec.placement", map[string]any{"modules/a.yaml": good, "modules/b.yaml": strings.Replace(inGit("b", "1"), "placement: {selector: {}}", "placement: {}", 1)}},
		{"what cannot be rendered", "InvalidFiles", "modules/b.yaml:1: module b", map[string]any{"modules/a.yaml": good, "modules/b.yaml": strings.Replace(inGit("b", "1"), "kind: ConfigMap", "knid: ConfigMap", 1)}},
		{"the same twice", "InvalidFiles", "modules/b.yaml:1: module a: is in modules/a.yaml:1, too", map[string]any{"modules/a.yaml": good, "modules/b.yaml": good}},
		{"of another project", "InvalidFiles", "a catalog writes into its own project, default", map[string]any{"modules/a.yaml": good, "modules/b.yaml": strings.Replace(inGit("b", "1"), "{name: b}", "{name: b, project: other}", 1)}},
		{"another kind", "InvalidFiles", "modules/p.yaml:1: project other: a catalog keeps modules only", map[string]any{"modules/a.yaml": good, "modules/p.yaml": "apiVersion: towline.dev/v1\nkind: Project\nmetadata: {name: other}\n"}},
		{"a Kubernetes object", "InvalidFiles", "Kubernetes objects belong into the source of a Module", map[string]any{"modules/a.yaml": good, "modules/p.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"}},
		{"moved below", "Needed", "module b is in modules/old/b.yaml:1, which is not read: say recursive: true", map[string]any{"modules/a.yaml": good, "modules/c.yaml": inGit("c", "1"), "modules/d.yaml": inGit("d", "1"), "modules/old/b.yaml": inGit("b", "1")}},
	} {
		w.repo.Branch("main", c.files)
		_, err := w.resyncs(false)
		s := w.status()
		if err == nil || !strings.Contains(err.Error(), c.says) || s.GetState() != "Failed" || s.GetReason() != c.reason || len(s.GetProblems()) == 0 || !strings.Contains(strings.Join(s.GetProblems(), "\n"), c.says) {
			t.Errorf("%s: %v\nstatus %v", c.name, err, s)
		}
		if got := w.modules(); got != "a b c d" || w.value("a") != "1" {
			t.Fatalf("%s: modules %s, a is %s", c.name, got, w.value("a"))
		}
	}
	w.away.Store(true)
	if _, err := w.resyncs(false); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("away: %v", err)
	}
	if s := w.status(); s.GetReason() != "Unavailable" || s.GetAppliedRef() == "" || w.modules() != "a b c d" {
		t.Errorf("away: %v", s)
	}
	w.away.Store(false)
	w.push("a=2", "b=1", "c=1", "d=1")
	if resp := w.synced("Applied"); w.value("a") != "2" || len(resp.GetCatalog().GetStatus().GetProblems()) != 0 {
		t.Errorf("mended: %v", resp)
	}
}

// TestCatalogAsksBeforeMostGoes: where most of a catalog would go, nothing is done before a person has confirmed exactly that, also after the
// hub has started anew.
func TestCatalogAsksBeforeMostGoes(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1", "c=1", "d=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("d", 0)
	w.synced("Applied")
	w.push("a=2")
	s := w.synced("Waiting").GetCatalog().GetStatus()
	if !slices.Equal(s.GetLeftover(), []string{"b", "c", "d"}) || s.GetHold() == "" || w.modules() != "a b c d" || w.value("a") != "1" {
		t.Fatalf("waits with %v; modules %s", s, w.modules())
	}
	holds, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
	must(t, err)
	if len(holds.GetHolds()) != 1 || holds.GetHolds()[0].GetCatalog() != "team" || len(holds.GetHolds()[0].GetItems()) != 3 {
		t.Fatalf("holds %v", holds)
	}
	w.push("a=2", "b=1")
	other := w.synced("Waiting").GetCatalog().GetStatus()
	if !slices.Equal(other.GetLeftover(), []string{"c", "d"}) || other.GetHold() == s.GetHold() || w.modules() != "a b c d" {
		t.Errorf("half goes, of what was asked about: %v, modules %s", other, w.modules())
	}
	if _, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: s.GetHold()}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("what nobody asks any more is confirmed: %v", err)
	}
	w.push("a=2", "b=1", "c=1", "d=1")
	w.synced("Applied")
	w.push("a=2", "b=1")
	if other = w.synced("Applied").GetCatalog().GetStatus(); other.GetHold() != "" || w.modules() != "a b" {
		t.Errorf("half goes without a question: %v, modules %s", other, w.modules())
	}
	w.push("x=1", "z=1")
	s = w.synced("Waiting").GetCatalog().GetStatus()
	w.restart()
	if got := w.status(); got.GetState() != "Waiting" || got.GetHold() != s.GetHold() || w.modules() != "a b" {
		t.Errorf("after a restart %v", got)
	}
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: s.GetHold()})
	must(t, err)
	w.catalogIs("Applied")
	if got := w.modules(); got != "x z" {
		t.Errorf("confirmed, and the modules are %s", got)
	}
	for _, method := range []string{"PutCatalog", "ConfirmHold"} {
		if got := w.recorded(&towlinev1.ListAuditEntriesRequest{Subject: "team", Method: method}); len(got) != 1 {
			t.Errorf("%s: the audit says of the catalog: %v", method, got)
		}
	}
}

// catalogIs waits until the catalog is in a state: its modules are watched, which change then.
func (w *catalogWorld) catalogIs(state string) {
	w.t.Helper()
	w.eventually(func() bool { return w.status().GetState() == state }) // no watch tells of it
}

// TestCatalogTakesNothingOver: what was put by hand, or is of a set, stays as it is until a person has it taken; a set takes nothing of a
// catalog; what is taken from a catalog is not written by it any more, and never pruned.
func TestCatalogTakesNothingOver(t *testing.T) {
	w := newCatalogWorld(t)
	w.await("shop", w.put(listing("shop", "x")).GetRevision())
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: listing("cart", "y"), Set: "carts"})
	must(t, err)
	w.push("shop=1", "cart=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("news", 0)
	s := w.synced("Conflicted").GetCatalog().GetStatus()
	if len(s.GetConflicts()) != 2 || s.GetConflicts()[0].GetModule() != "cart" || s.GetConflicts()[0].GetOwner() != "set/carts" || s.GetConflicts()[1].GetOwner() != "" ||
		s.GetConflicts()[1].GetFile() != "modules/shop.yaml:1" || w.module("shop").GetMetadata().GetOrigin() != "" {
		t.Fatalf("conflicts %v", s.GetConflicts())
	}
	resp, err := w.resyncs(true)
	must(t, err)
	if !slices.Equal(resp.GetConfigured(), []string{"cart", "shop"}) || resp.GetCatalog().GetStatus().GetState() != "Applied" || w.module("cart").GetMetadata().GetOrigin() != "catalog/team" {
		t.Errorf("taken: %v", resp)
	}
	_, err = w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: listing("cart", "y"), Set: "carts"})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "module cart is of catalog/team") {
		t.Errorf("a set takes it: %v", err)
	}
	_, err = w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: listing("cart", "y"), Take: true})
	must(t, err)
	w.push("shop=1", "news=1")
	if resp := w.synced("Applied"); len(resp.GetPruned()) != 0 || w.modules() != "cart news shop" {
		t.Errorf("what was taken is pruned: %v, modules %s", resp, w.modules())
	}
}

// TestCatalogPutsBack: what a person changes in a module of a catalog is said to be put back, and is, unless he has ended the rollout of what
// the files say: that is not begun again before the files change, or somebody asks.
func TestCatalogPutsBack(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("shop=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	byHand := w.put(module("shop", configMap("by hand")))
	if !warned(byHand, fleet.WarnOfCatalog) || byHand.GetModule().GetMetadata().GetOrigin() != "catalog/team" || byHand.GetModule().GetMetadata().GetOriginRef() != "" {
		t.Errorf("by hand: %v", byHand)
	}
	w.await("shop", byHand.GetRevision())
	if resp := w.synced("Applied"); !slices.Equal(resp.GetConfigured(), []string{"shop"}) || w.value("shop") != "1" {
		t.Errorf("not put back: %v", resp)
	}
}

// TestCatalogLeavesWhatWasAborted: see TestCatalogPutsBack.
func TestCatalogLeavesWhatWasAborted(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("shop=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	staged := strings.Replace(inGit("shop", "2"), "spec:\n", "spec:\n  rollout: {stages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n", 1)
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": staged, "modules/news.yaml": inGit("news", "1")})
	w.synced("Applied")
	w.waitsForApproval("shop")
	_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop", Reason: "broken"})
	must(t, err)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutState() == "Aborted" })
	before := w.module("shop").GetStatus().GetRollout()
	c := w.catalog()
	c.Metadata.Labels = map[string]string{"a": "b"}
	c.Spec.Recursive = true // it is looked at, and nobody has asked
	w.putCatalog(c)
	w.applied(2)
	if got := w.module("shop").GetStatus().GetRollout(); got != before {
		t.Errorf("what was aborted began again as %s", got)
	}
	w.await("shop", w.put(module("shop", configMap("by hand"))).GetRevision())
	c.Spec.Recursive = false
	w.putCatalog(c)
	s := w.applied(3)
	if len(s.GetConflicts()) != 1 || s.GetConflicts()[0].GetReason() != "Stopped" || s.GetConflicts()[0].GetRollout() != "default/shop/2" && s.GetConflicts()[0].GetRollout() != "shop/2" {
		t.Errorf("conflicts %v", s.GetConflicts())
	}
	if got := w.module("shop").GetMetadata().GetOriginRef(); got != "" {
		t.Errorf("put again of %s", got)
	}
	w.push("shop=3", "news=1")
	c.Spec.Recursive = true
	w.putCatalog(c)
	w.applied(4)
	if w.value("shop") != "3" {
		t.Errorf("the files have changed, and it is %s", w.value("shop"))
	}
}

// TestCatalogLeavesWhatIsPaused: a rollout that a person paused stays so, whatever the files say, until somebody asks; the other modules
// are put.
func TestCatalogLeavesWhatIsPaused(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("shop=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	staged := strings.Replace(inGit("shop", "2"), "spec:\n", "spec:\n  rollout: {stages: [{name: all, before: [{approval: {approvers: 1}}]}]}\n", 1)
	w.repo.Branch("main", map[string]any{"modules/shop.yaml": staged, "modules/news.yaml": inGit("news", "1")})
	w.synced("Applied")
	w.waitsForApproval("shop")
	_, err := w.Rollouts.PauseRollout(w.ctx, &towlinev1.PauseRolloutRequest{Module: "shop", Reason: "wait"})
	must(t, err)
	isPaused := func(s *towlinev1.ModuleStatus) bool { return s.GetRolloutState() == "Paused" }
	w.moduleIs("shop", isPaused)
	w.push("shop=3", "news=2")
	c := w.catalog()
	c.Spec.Recursive = true // it is looked at, and nobody has asked
	w.putCatalog(c)
	s := w.applied(2)
	if got := s.GetConflicts(); s.GetState() != "Conflicted" || len(got) != 1 || got[0].GetModule() != "shop" || got[0].GetReason() != "Paused" || !strings.HasSuffix(got[0].GetRollout(), "shop/2") {
		t.Errorf("not a conflict: %v", s)
	}
	if m := w.module("shop"); !isPaused(m.GetStatus()) || w.value("shop") != "2" || w.value("news") != "2" {
		t.Errorf("the pause has ended: %v, shop is %s and news %s", m.GetStatus(), w.value("shop"), w.value("news"))
	}
	if resp := w.synced("Applied"); !slices.Equal(resp.GetConfigured(), []string{"shop"}) || w.value("shop") != "3" {
		t.Errorf("somebody asks, and it is not put: %v", resp)
	}
}

// applied waits until the spec of a generation was looked at.
func (w *catalogWorld) applied(generation int64) (s *towlinev1.CatalogStatus) {
	w.t.Helper()
	w.eventually(func() bool { // no watch tells of it: it may write no module
		s = w.status()
		return s.GetObservedGeneration() == generation
	})
	return s
}

// TestDeleteCatalog: its modules stay, and are of nobody, also for a catalog that has the name later; with cascade they go with it.
func TestDeleteCatalog(t *testing.T) {
	w := newCatalogWorld(t)
	w.push("a=1", "b=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("b", 0)
	w.synced("Applied")
	_, err := w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team"})
	must(t, err)
	if got := w.module("a").GetMetadata(); got.GetOrigin() != "" || got.GetOriginRef() != "" || w.modules() != "a b" {
		t.Errorf("it is of %v; modules %s", got, w.modules())
	}
	w.push("a=2", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("news", 0)
	if s := w.synced("Conflicted").GetCatalog().GetStatus(); len(s.GetConflicts()) != 1 || s.GetConflicts()[0].GetModule() != "a" || w.modules() != "a b news" {
		t.Errorf("another catalog of the name: %v, modules %s", s, w.modules())
	}
	_, err = w.resyncs(true)
	must(t, err)
	_, err = w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team", Cascade: true, Reason: "over"})
	must(t, err)
	w.gone("a")
	w.gone("news")
	if got := w.modules(); got != "b" {
		t.Errorf("left are %s", got)
	}
}

// TestExamplesOfTheCatalogPage: the catalog and the module of docs/catalogs.md are applied from a repository, and its commands do what they say.
func TestExamplesOfTheCatalogPage(t *testing.T) {
	g := readGuide(t, "../docs/catalogs.md")
	if len(g.yaml) != 2 || len(g.commands) < 10 {
		t.Fatalf("%d examples and %d commands found", len(g.yaml), len(g.commands))
	}
	w := newCatalogWorld(t)
	towline := w.cli()
	run := func(stdin string, args ...string) string {
		t.Helper()
		out, err := towline(stdin, args...)
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	commit := w.repo.Branch("main", map[string]any{"modules/shop.yaml": g.yaml[1], "readme.md": "of the team"})
	file := strings.Replace(g.yaml[0], "https://git.example.com/team.git", w.url, 1)
	run(file, "apply", "-f", "-", "--dry-run=server")
	if out := run(file, "apply", "-f", "-", "-m", "modules come from git"); !strings.Contains(out, "catalog/team created") {
		t.Errorf("%s", out)
	}
	w.applied(1)
	w.await("shop", 0)
	if out := run("", "get", "modules", "-o", "wide"); !strings.Contains(out, "catalog/team at main@sha1:"+commit[:12]) {
		t.Errorf("%s", out)
	}
	if out := run("", "get", "catalogs"); !strings.Contains(out, "Applied") {
		t.Errorf("%s", out)
	}
	stored := run("", "get", "catalog", "team", "-o", "yaml")
	if out := run(stored, "apply", "-f", "-"); !strings.Contains(out, "catalog/team unchanged") {
		t.Errorf("what is printed goes back as %s", out)
	}
	if out := run("", "resync", "catalog", "team", "--wait"); !strings.Contains(out, "catalog/team unchanged; at main@sha1:"+commit) {
		t.Errorf("%s", out)
	}
	run("", "describe", "catalog", "team")
	run("", "explain", "catalog", "team")
	if out := run(strings.ReplaceAll(g.yaml[1], "name: shop}", "name: shop, labels: {a: b}}"), "apply", "-f", "-"); !strings.Contains(out, "is of catalog team, which puts back what its files say") {
		t.Errorf("by hand: %s", out)
	}
	if out, err := towline(g.yaml[1], "apply", "-f", "-", "--set", "carts"); err == nil || !strings.Contains(out, "module shop is of catalog/team, which puts what its files say") {
		t.Errorf("as a set: %v\n%s", err, out)
	}
	run("", "delete", "catalog", "team", "--cascade", "--yes")
	w.gone("shop")
	g.commandsAreKnown(t, towline)
}
