package hub_test

import (
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// monitors is an API that a chart asks for.
const monitors = "monitoring.coreos.com/v1/ServiceMonitor"

// served is what a cluster can do.
func served(version string, more ...string) *fleet.Capabilities {
	out := &fleet.Capabilities{KubeVersion: version, APIs: append([]string{"apps/v1", "apps/v1/Deployment", "v1"}, more...)}
	slices.Sort(out.APIs)
	return out
}

// askingChart is a module of a chart with an object more where there are monitors, and one that says which Kubernetes it is for.
func askingChart() *towlinev1.Module {
	m := module("shop", map[string]string{
		"Chart.yaml":       "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {minor: {{ .Capabilities.KubeVersion.Minor | quote }}}\n",
		"templates/b.yaml": "{{ if .Capabilities.APIVersions.Has \"" + monitors + "\" }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n{{ end }}\n",
	})
	m.Spec.Namespace = "shop"
	m.Spec.Package = &towlinev1.Package{Helm: &towlinev1.HelmPackage{}}
	return m
}

// joinAble has a cluster join whose agent tells what it can do; nil: it is an older one, and tells nothing.
func (w *world) joinAble(name string, can *fleet.Capabilities) {
	w.t.Helper()
	w.enroll(name, nil)
	o := simagent.Options{Can: can}
	if can == nil {
		o.Features = wire.Missing(wire.Features(), []string{wire.FeatureMoves, wire.FeatureDictionaries, wire.FeatureCapabilities})
	}
	w.connectWith(name, o)
	w.awaitCluster(name, "Ready")
	w.knowsAble(name, can)
}

// knowsAble waits until the hub knows what a cluster can do, by its version and how many APIs there are: what it could do before has others.
func (w *world) knowsAble(name string, can *fleet.Capabilities) {
	w.t.Helper()
	if can == nil {
		return
	}
	st, err := w.Clusters.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{})
	must(w.t, err)
	for {
		m, err := st.Recv()
		must(w.t, err)
		if c := m.GetCluster(); c.GetMetadata().GetName() == name && c.GetStatus().GetKubernetesVersion() == can.KubeVersion && int(c.GetStatus().GetApis()) == len(can.APIs) {
			return
		}
	}
}

// capableVariants are those of a revision, as VERSIONS:OBJECTS:CLUSTERS.
func (w *world) capableVariants(revision int64) string {
	w.t.Helper()
	var out []string
	for _, v := range w.revision("shop", revision).GetVariants() {
		var of []string
		for _, c := range v.GetCapabilities() {
			of = append(of, fmt.Sprintf("%s/%d", c.GetKubernetesVersion(), c.GetApis()))
		}
		out = append(out, fmt.Sprintf("%s:%d:%d%s", strings.Join(of, ","), v.GetObjects(), v.GetClusters(), v.GetProblem()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestChartForWhatClustersCanDo: a chart is rendered once for each answer to what it asks, clusters that answer alike share a bundle, and an
// older agent's cluster has what Helm takes for one. A cluster that joins later has what it can do rendered then, also after a restart.
func TestChartForWhatClustersCanDo(t *testing.T) {
	w := newWorld(t, false)
	w.joinAble("a", served("v1.33.1"))
	w.joinAble("b", served("v1.33.1", monitors))
	w.joinAble("c", served("v1.33.1", "other.example.com/v1"))
	w.joinAble("old", nil)
	if s := w.await("shop", w.put(askingChart()).GetRevision()).GetStatus(); s.GetState() != "Succeeded" {
		t.Fatalf("%v", s)
	}
	a, b, c, old := w.held("a", "shop"), w.held("b", "shop"), w.held("c", "shop"), w.held("old", "shop")
	if a.Objects != 1 || b.Objects != 2 || a.Bundle != c.Bundle || a.Bundle == b.Bundle || old.Objects != 1 || old.Bundle == a.Bundle {
		t.Errorf("a %+v, b %+v, c %+v, old %+v", a, b, c, old)
	}
	if got := w.capableVariants(1); got != "/0:1:1 v1.33.1/3,v1.33.1/4:1:2 v1.33.1/4:2:1" {
		t.Errorf("variants: %s", got)
	}
	w.restart()
	w.joinAble("d", served("v1.34.0", monitors))
	w.awaitTracker("shop", "d", "as it can do", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("d", "shop").Objects == 2 })
	if d := w.held("d", "shop"); d.Revision != 1 || d.Bundle == b.Bundle {
		t.Errorf("d has %+v", d)
	}
	if got := w.capableVariants(1); !strings.Contains(got, "v1.34.0/4:2:1") {
		t.Errorf("variants: %s", got)
	}
	if again := w.put(askingChart()); again.GetResult() != "unchanged" {
		t.Errorf("the same again: %v", again.GetResult())
	}
	w.delete("shop", false)
	w.gone("shop")
}

// TestCapabilitiesOfASettledCluster: a revision does not change under a cluster that has it; the next look or resync begins a rollout if
// what the chart comes to is something else, and none if it is the same.
func TestCapabilitiesOfASettledCluster(t *testing.T) {
	w := newWorld(t, false)
	w.joinAble("a", served("v1.33.1"))
	w.joinAble("b", served("v1.33.1"))
	m := askingChart()
	repo := sourcetest.NewRepo(t)
	files := map[string]any{}
	for name, text := range m.Spec.Source.Inline.Files {
		files[name] = text
	}
	repo.Branch("main", files)
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	m.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: srv.URL + "/repo.git", Ref: &towlinev1.GitRef{Branch: "main"}}}
	w.await("shop", w.put(m).GetRevision())
	had := w.held("a", "shop")
	now := served("v1.33.1", "other.example.com/v1")
	must(t, w.agents["a"].Able(*now))
	w.knowsAble("a", now)
	if r, err := w.resync("shop"); err != nil || r.GetRollout() != "" {
		t.Fatalf("what makes no difference: %v, %v", r, err)
	}
	now = served("v1.33.1", monitors, "other.example.com/v1")
	must(t, w.agents["a"].Able(*now))
	w.knowsAble("a", now)
	w.restart()
	w.awaitCluster("a", "Ready")
	if s := w.held("a", "shop"); s.Generation != had.Generation || s.Bundle != had.Bundle {
		t.Fatalf("a had %+v, and has %+v", had, s)
	}
	r, err := w.resync("shop")
	must(t, err)
	if r.GetRollout() != "shop/2" {
		t.Fatalf("what makes a difference: %v", r)
	}
	w.awaitTracker("shop", "a", "as it can do now", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("a", "shop").Objects == 2 })
	if a, b := w.held("a", "shop"), w.held("b", "shop"); a.Revision != 2 || b.Objects != 1 {
		t.Errorf("a has %+v, b %+v", a, b)
	}
	if r, err := w.resync("shop"); err != nil || r.GetRollout() != "" {
		t.Errorf("again: %v, %v", r, err)
	}
}

// TestPutAgainForWhatClustersCanDoNow: a put of the same begins a rollout if clusters can do something else since, and comes to the same
// revision if that makes no difference; then it is unchanged again.
func TestPutAgainForWhatClustersCanDoNow(t *testing.T) {
	w := newWorld(t, true)
	w.joinAble("a", served("v1.33.1"))
	w.await("shop", w.put(askingChart()).GetRevision())
	for revision, now := range []*fleet.Capabilities{1: served("v1.33.1", "other.example.com/v1"), 2: served("v1.33.1", monitors, "other.example.com/v1")} {
		if revision == 0 {
			continue
		}
		if again := w.put(askingChart()); again.GetResult() != "unchanged" {
			t.Errorf("the same again: %v", again)
		}
		must(t, w.agents["a"].Able(*now))
		w.knowsAble("a", now)
		if s := w.await("shop", w.put(askingChart()).GetRevision()).GetStatus(); s.GetState() != "Succeeded" || w.held("a", "shop").Revision != int64(revision) {
			t.Errorf("%v; a has %+v", s, w.held("a", "shop"))
		}
	}
	if a := w.held("a", "shop"); a.Objects != 2 {
		t.Errorf("a has %+v", a)
	}
}

// TestDeclaredCapabilitiesWin over those of clusters, and a chart that asks nothing is rendered once.
func TestDeclaredCapabilitiesWin(t *testing.T) {
	w := newWorld(t, true)
	w.joinAble("a", served("v1.33.1"))
	w.joinAble("b", served("v1.34.1", monitors))
	m := askingChart()
	m.Spec.Package.Helm.KubeVersion, m.Spec.Package.Helm.ApiVersions = "1.32.0", []string{monitors}
	w.await("shop", w.put(m).GetRevision())
	if a, b := w.held("a", "shop"), w.held("b", "shop"); a.Bundle != b.Bundle || a.Objects != 2 || len(w.revision("shop", 1).GetVariants()) != 0 {
		t.Errorf("declared: a %+v, b %+v", a, b)
	}
	m = askingChart()
	delete(m.Spec.Source.Inline.Files, "templates/b.yaml")
	m.Spec.Source.Inline.Files["templates/a.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	w.await("shop", w.put(m).GetRevision())
	if a, b := w.held("a", "shop"), w.held("b", "shop"); a.Bundle != b.Bundle || a.Revision != 2 || len(w.revision("shop", 2).GetVariants()) != 0 {
		t.Errorf("asks nothing: a %+v, b %+v", a, b)
	}
}

// TestNewClusterTellsAfterItIsAssigned: what was chosen before a cluster told anything gives way as soon as it tells.
func TestNewClusterTellsAfterItIsAssigned(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.put(askingChart())
	w.connectWith("a", simagent.Options{Can: served("v1.33.1", monitors)})
	w.awaitTracker("shop", "a", "as it can do", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("a", "shop").Objects == 2 })
}

// TestRenderedForACluster: a module of a file is printed for what clusters can do, each with those that have it.
func TestRenderedForACluster(t *testing.T) {
	w := newWorld(t, true)
	w.joinAble("a", served("v1.33.1"))
	w.joinAble("b", served("v1.34.1", monitors))
	render := func(cluster string) (out []string) {
		st, err := w.Modules.RenderModule(w.ctx, &towlinev1.RenderModuleRequest{Module: askingChart(), Cluster: cluster})
		must(t, err)
		for {
			m, err := st.Recv()
			if err == io.EOF {
				return out
			}
			must(t, err)
			if g := m.GetGroup(); g != nil {
				out = append(out, fmt.Sprintf("# %s", g.GetCapabilities()[0].GetKubernetesVersion()))
				continue
			}
			out = append(out, string(m.GetObject()))
		}
	}
	if got := strings.Join(render("b"), "\n"); !strings.Contains(got, `"minor":"34"`) || !strings.Contains(got, `"name":"b"`) {
		t.Errorf("for b: %s", got)
	}
	if got := render(""); len(got) != 5 || !slices.Contains(got, "# v1.33.1") || !slices.Contains(got, "# v1.34.1") {
		t.Errorf("for all: %q", got)
	}
}

// TestNewClusterIsWaitedForToTell: a cluster whose agent is about to tell what it can do gets nothing of a chart that asks for it before,
// at its turn in a rollout and when it joins after one, as Helm's own answer may be one that prunes, or changes what cannot be changed.
func TestNewClusterIsWaitedForToTell(t *testing.T) {
	for name, late := range map[string]bool{"at its turn": false, "after the rollout": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.joinAble("b", served("v1.33.1"))
			var mu sync.Mutex
			var had []int
			joins := func() {
				w.enroll("a", nil)
				w.connectWith("a", simagent.Options{Features: wire.Missing(wire.Features(), []string{wire.FeatureMoves, wire.FeatureDictionaries}),
					Took: func(a fleet.Assemblage) {
						mu.Lock()
						defer mu.Unlock()
						for _, s := range a.Syncs {
							had = append(had, s.Objects)
						}
					}})
				w.awaitCluster("a", "Ready")
			}
			if late {
				w.await("shop", w.put(askingChart()).GetRevision())
				joins()
			} else {
				joins()
				w.put(askingChart())
			}
			w.eventually(func() bool {
				why, err := w.Rollouts.ExplainRollout(w.ctx, &towlinev1.ExplainRolloutRequest{Module: "shop"})
				must(t, err)
				return strings.Contains(prototext.Format(why), rollout.ReasonNotHeard) || len(w.trackers(&towlinev1.ObjectFilter{Module: "shop", Cluster: "a"})) > 0
			})
			must(t, w.agents["a"].Able(*served("v1.33.1", monitors)))
			w.awaitTracker("shop", "a", "as it can do", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("a", "shop").Objects == 2 })
			mu.Lock()
			defer mu.Unlock()
			if slices.ContainsFunc(had, func(n int) bool { return n != 2 }) {
				t.Errorf("a had bundles of %v objects", had)
			}
		})
	}
}

// TestClusterThatIsMadeAnewIsNoOther: what the cluster before could do is no word of one that is made anew under its name, and what was
// rendered for that is rendered again when this one has told, also where what it has was told again meanwhile, with a hold. One whose agent
// joins anew keeps what it has.
func TestClusterThatIsMadeAnewIsNoOther(t *testing.T) {
	for uid, objects := range map[string]int{"uid-a": 2, "uid-new": 1} {
		w := newWorld(t, true)
		w.joinAble("a", served("v1.33.1", monitors))
		w.await("shop", w.put(askingChart()).GetRevision())
		if had := w.held("a", "shop"); had.Objects != 2 {
			t.Fatalf("a has %+v", had)
		}
		w.leaves("a")
		got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "a", Reissue: true})
		must(t, err)
		w.redeems("a", got.GetToken(), uid)
		c, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "a"})
		must(t, err)
		if known := c.GetCluster().GetStatus().GetApis() > 0; known != (uid == "uid-a") {
			t.Errorf("%s: what it can do is known: %t", uid, known)
		}
		hold, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a"})
		must(t, err)
		w.connectWith("a", simagent.Options{})
		w.awaitCluster("a", "Ready")
		w.eventually(func() bool { return w.held("a", "shop").Hold })
		_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId()})
		must(t, err)
		w.eventually(func() bool { s := w.held("a", "shop"); return s.Revision == 1 && !s.Hold })
		w.leaves("a")
		w.connectWith("a", simagent.Options{Can: served("v1.34.0")})
		w.awaitCluster("a", "Ready")
		w.knowsAble("a", served("v1.34.0"))
		w.awaitTracker("shop", "a", "with what it has", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("a", "shop").Objects == objects })
	}
}
