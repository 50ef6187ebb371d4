package hub_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// assemblage is what the agent of a cluster holds, as module@revision.
func (w *world) assemblage(cluster string) (out []string) {
	for _, s := range w.agents[cluster].Held().Syncs {
		out = append(out, fmt.Sprintf("%s@%d", s.Module.Name, s.Revision))
	}
	return out
}

// Scenario 1: a module without a selector, which would be in no cluster, is refused, one whose selector matches none is in none, one
// with an empty selector is in all, also in one that comes later; when its tag is another one, all of them get that.
func TestScenario01SelectorThatMatchesAllAndNone(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, nil)
	}
	repo := sourcetest.NewRepo(t)
	repo.Tag("v0.3.4", repo.Branch("main", deployed(configMap("4"))), true)
	repo.Tag("v0.3.5", repo.Branch("main", deployed(configMap("5"))), false)
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	matches := module("matches", nil)
	at := func(tag string) {
		matches.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: srv.URL + "/repo.git", Ref: &towlinev1.GitRef{Tag: tag}, Path: "deploy"}}
		w.await("matches", w.put(matches).GetRevision())
	}
	nomatch := module("nomatch", configMap("no"))
	nomatch.Spec.Placement = &towlinev1.Placement{}
	says := "spec.placement: is empty and would select no cluster; set selector ({} selects every cluster) or clusters"
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: nomatch}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("without a selector: %v", err)
	}
	nomatch.Spec.Placement.Selector = &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "none"}}
	w.put(nomatch)
	at("v0.3.4")
	w.join("d", nil, nil)
	w.awaitTracker("matches", "d", "ready", ready)
	for _, c := range []string{"a", "b", "c", "d"} {
		if got := w.assemblage(c); !slices.Equal(got, []string{"matches@1"}) {
			t.Errorf("cluster %s has %v", c, got)
		}
	}
	at("v0.3.5")
	if ref := w.revision("matches", 2).GetResolvedRef(); !strings.HasPrefix(ref, "v0.3.5@sha1:") {
		t.Errorf("revision 2 is of %s", ref)
	}
	for _, c := range []string{"a", "b", "c", "d"} {
		if got := w.assemblage(c); !slices.Equal(got, []string{"matches@2"}) || w.held(c, "matches").Bundle != w.held("a", "matches").Bundle {
			t.Errorf("cluster %s has %v", c, got)
		}
	}
	if s := w.module("nomatch").GetStatus(); s.GetClusters() != 0 {
		t.Errorf("the module that nothing matches: %v", s)
	}
}

// Scenario 2: what the hub knows of a cluster goes to it as a literal, also where only what the agent evaluates refers to it; that goes
// as it was written, and the hub's own names for its fields do not.
func TestScenario02BindingsOfTheHubAndOfTheAgent(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b"} {
		w.enroll(c, nil)
		w.connectWith(c, simagent.Options{Keep: true})
	}
	m := module("shop", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: shop}\ndata: {at: \"${DOMAIN}\"}\n"})
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterField: "metadata.name"}, {Name: "DOMAIN", Object: &towlinev1.BindingObject{
		ApiVersion: "v1", Kind: "ConfigMap", Namespace: "platform", Name: "info-${CLUSTER}", FieldPath: "data.domain"}}}
	w.await("shop", w.put(m).GetRevision())
	for _, c := range []string{"a", "b"} {
		s := w.held(c, "shop")
		raw, err := w.agents[c].Content(s.Policies)
		must(t, err)
		p, err := wire.PolicySetFromContent(raw)
		must(t, err)
		if !maps.Equal(s.Values, map[string]string{"CLUSTER": c}) || len(p.Bindings) != 1 || p.Bindings[0].Name != "DOMAIN" ||
			p.Bindings[0].Object.Name != "info-${CLUSTER}" || strings.Contains(string(raw), "metadata.name") {
			t.Errorf("cluster %s has values %q and bindings %s", c, s.Values, raw)
		}
	}
	if w.held("a", "shop").Bundle != w.held("b", "shop").Bundle || w.held("a", "shop").Policies != w.held("b", "shop").Policies {
		t.Error("the clusters do not share what they have in common")
	}
}

// Scenario 3: a cluster that reports success counts as such, and one that reports the same of an older digest counts as updating.
func TestScenario03OneClusterReportsSuccess(t *testing.T) {
	w := newWorld(t, true)
	var old atomic.Pointer[fleet.Sync]
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		if x := old.Load(); x != nil {
			return simagent.Ready(*x)
		}
		return simagent.Ready(s)
	}, nil)
	w.await("web", w.put(module("web", configMap("1"))).GetRevision())
	s := w.moduleIs("web", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
	if s.GetClusters() != 1 || s.GetUpdated() != 1 || s.GetProgressing()+s.GetBad()+s.GetAway() != 0 {
		t.Errorf("%v", s)
	}
	had := w.held("a", "web")
	old.Store(&had)
	w.put(module("web", configMap("2")))
	s = w.moduleIs("web", func(s *towlinev1.ModuleStatus) bool { return s.GetRevision() == 2 && s.GetProgressing() == 1 })
	if s.GetClusters() != 1 || s.GetHealthy() != 0 || s.GetSucceededRevision() != 1 {
		t.Errorf("with a report of what was before: %v", s)
	}
	old.Store(nil)
	must(t, w.agents["a"].Again())
	w.moduleIs("web", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 && s.GetSucceededRevision() == 2 })
}

// Scenario 4: a module without a spec or a source is refused; without a package it is all plain manifests of the source; every cluster
// has one assemblage with one sync.
func TestScenario04SpecSourceAndDefaults(t *testing.T) {
	w := newWorld(t, true)
	for says, m := range map[string]*towlinev1.Module{
		"spec: is required":               {Metadata: &towlinev1.Metadata{Name: "none"}},
		"spec.source: set exactly one of": {Metadata: &towlinev1.Metadata{Name: "none"}, Spec: &towlinev1.ModuleSpec{Placement: &towlinev1.Placement{}}},
	} {
		if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, nil)
	}
	files := configMap("1")
	files["folder/b.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: default}\n"
	w.await("web", w.put(module("web", files)).GetRevision())
	for _, c := range []string{"a", "b", "c"} {
		if got := w.assemblage(c); !slices.Equal(got, []string{"web@1"}) || w.held(c, "web").Objects != 2 {
			t.Errorf("cluster %s has %v with %d objects", c, got, w.held(c, "web").Objects)
		}
	}
	stored, err := w.Modules.ListModules(w.ctx, &towlinev1.ListModulesRequest{})
	must(t, err)
	if len(stored.GetModules()) != 1 {
		t.Errorf("%d modules", len(stored.GetModules()))
	}
}

// Scenario 6: bindings that are literal, built from others at any depth, or used only by others resolve, what reads an object goes to the
// agent with all that it refers to; each module is a sync of its own. What the agent makes of it: TestBindingReadsTheCluster.
func TestScenario06BindingsAtAnyDepth(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", map[string]string{"region": "eu"})
	w.connectWith("a", simagent.Options{Keep: true})
	text := func(s string) *string { return &s }
	for _, name := range []string{"shop", "api"} {
		m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: shop}\ndata: {d: \"${D4}\", o: \"${BUILT}\"}\n"})
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "D4", Value: text("${D3}!")}, {Name: "D3", Value: text("${D2}-${D1}")},
			{Name: "D2", Value: text("${D1}.${REGION}")}, {Name: "D1", Value: text("one")}, {Name: "REGION", ClusterLabel: "region"},
			{Name: "READ", Object: &towlinev1.BindingObject{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: "from-${D2}", FieldPath: "data.v"}},
			{Name: "BUILT", Value: text("${READ}/${D1}")}}
		w.await(name, w.put(m).GetRevision())
	}
	if got := w.assemblage("a"); !slices.Equal(got, []string{"api@1", "shop@1"}) {
		t.Errorf("the cluster has %v", got)
	}
	want := map[string]string{"D1": "one", "D2": "one.eu", "D3": "one.eu-one", "D4": "one.eu-one!", "REGION": "eu"}
	for _, name := range []string{"shop", "api"} {
		s := w.held("a", name)
		raw, err := w.agents["a"].Content(s.Policies)
		must(t, err)
		p, err := wire.PolicySetFromContent(raw)
		must(t, err)
		if !maps.Equal(s.Values, want) || len(p.Bindings) != 2 || p.Bindings[0].Object.Name != "from-${D2}" || *p.Bindings[1].Value != "${READ}/${D1}" {
			t.Errorf("module %s has values %q and bindings %s", name, s.Values, raw)
		}
	}
}
