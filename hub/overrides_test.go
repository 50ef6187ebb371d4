package hub_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// overriding is a module of the ConfigMaps a and b, with a placeholder, and overrides; each is a label with its patches: a name leaves that
// ConfigMap out, a name=value sets what it says.
func overriding(overrides ...string) *towlinev1.Module {
	m := listing("shop", "a", "b")
	for name, text := range m.Spec.Source.Inline.Files {
		m.Spec.Source.Inline.Files[name] = strings.Replace(text, "data: {by: shop}", "data: {by: shop, cluster: '${CLUSTER}'}", 1)
	}
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterField: "metadata.name"}}
	for _, o := range overrides {
		label, rest, _ := strings.Cut(o, ": ")
		key, value, _ := strings.Cut(label, "=")
		x := &towlinev1.Override{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{key: value}}}
		for _, p := range strings.Fields(rest) {
			name, set, sets := strings.Cut(p, "=")
			text := "$patch: delete"
			if sets {
				text = "- {op: replace, path: /data/by, value: " + set + "}"
			}
			x.Patches = append(x.Patches, &towlinev1.Patch{Target: &towlinev1.PatchTarget{Kind: "ConfigMap", Name: name}, Patch: text})
		}
		m.Spec.Overrides = append(m.Spec.Overrides, x)
	}
	return m
}

// variants are those of a revision, as OVERRIDES:OBJECTS:CLUSTERS.
func (w *world) variants(revision int64) string {
	w.t.Helper()
	var out []string
	for _, v := range w.revision("shop", revision).GetVariants() {
		out = append(out, fmt.Sprintf("%v:%d:%d%s", v.GetOverrides(), v.GetObjects(), v.GetClusters(), v.GetProblem()))
	}
	return strings.Join(out, " ")
}

// fourClusters are a and b in production, and c and d.
func fourClusters(t *testing.T, memory bool) *world {
	w := newWorld(t, memory)
	for _, c := range []string{"a", "b"} {
		w.join(c, nil, map[string]string{"env": "prod"})
	}
	for _, c := range []string{"c", "d"} {
		w.join(c, nil, map[string]string{"env": "dev"})
	}
	return w
}

// TestVariantsAreShared: clusters that the same overrides match have one bundle, whatever their values are, and what people read says
// of each what it has.
func TestVariantsAreShared(t *testing.T) {
	w := fourClusters(t, true)
	if s := w.await("shop", w.put(overriding("env=prod: a=prod b")).GetRevision()).GetStatus(); s.GetState() != "Succeeded" {
		t.Fatalf("%v", s)
	}
	a, b, c, d := w.held("a", "shop"), w.held("b", "shop"), w.held("c", "shop"), w.held("d", "shop")
	if a.Bundle != b.Bundle || c.Bundle != d.Bundle || a.Bundle == c.Bundle || a.Objects != 1 || c.Objects != 2 {
		t.Errorf("bundles: %v %v %v %v", a.Bundle, b.Bundle, c.Bundle, d.Bundle)
	}
	if a.Values["CLUSTER"] != "a" || d.Values["CLUSTER"] != "d" {
		t.Errorf("values: %v, %v", a.Values, d.Values)
	}
	if got := w.variants(1); got != "[]:2:2 [0]:1:2" {
		t.Errorf("variants: %s", got)
	}
	if got := len(w.objects(&towlinev1.ObjectFilter{Module: "shop"})); got != 6 {
		t.Errorf("%d objects in all clusters, not 6", got)
	}
	if s := w.module("shop").GetStatus(); s.GetHealthy() != 4 {
		t.Errorf("status: %v", s)
	}
	get := func(overrides ...int32) string {
		resp, err := w.Modules.GetRevisionObjects(w.ctx, &towlinev1.GetRevisionObjectsRequest{Module: "shop", Overrides: overrides})
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, o := range resp.GetObjects() {
			out = append(out, string(o))
		}
		return strings.Join(out, "")
	}
	if all, prod := get(), get(0); strings.Count(all, "${CLUSTER}") != 2 || strings.Count(prod, "${CLUSTER}") != 1 || !strings.Contains(prod, `"by":"prod"`) {
		t.Errorf("rendered: %s; %s", all, prod)
	}
	if says := get(1); !strings.Contains(says, "r1 is not rendered with overrides[1]; it is with: no override; overrides[0]") {
		t.Errorf("says: %s", says)
	}
	if again := w.put(overriding("env=prod: a=prod b")); again.GetResult() != "unchanged" {
		t.Errorf("the same again: %v", again.GetResult())
	}
	w.delete("shop", false)
	w.gone("shop")
}

// TestLabelChangesTheVariant: a cluster that other overrides come to match gets what they say at once, as it gets another value of a
// binding, and stays at its revision; what nobody had before is rendered then, also after a restart of the hub.
func TestLabelChangesTheVariant(t *testing.T) {
	w := fourClusters(t, false)
	m := overriding("env=prod: a=prod b", "ring=canary: a=canary")
	m.Spec.Overrides[1].AllowEmpty = true
	w.await("shop", w.put(m).GetRevision())
	prod := w.held("a", "shop")
	w.labelled("c", map[string]string{"env": "prod"})
	w.awaitTracker("shop", "c", "as in production", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("c", "shop").Bundle == prod.Bundle })
	if s := w.held("c", "shop"); s.Revision != 1 || s.Objects != 1 || s.Generation <= prod.Generation {
		t.Errorf("c has %+v", s)
	}
	if got := w.variants(1); got != "[]:2:1 [0]:1:3" {
		t.Errorf("variants: %s", got)
	}
	w.restart()
	w.labelled("d", map[string]string{"env": "prod", "ring": "canary"})
	w.awaitTracker("shop", "d", "the canary of production", func(tr *towlinev1.Tracker) bool {
		s := w.held("d", "shop")
		return tr.GetReady() && s.Objects == 1 && s.Bundle != prod.Bundle
	})
	if got := w.variants(1); got != "[]:2:0 [0]:1:3 [0 1]:1:1" {
		t.Errorf("variants: %s", got)
	}
	if s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 4 }); s.GetRollout() != "shop/1" {
		t.Errorf("status: %v", s)
	}
}

// TestRollbackToOtherOverrides: each cluster goes back to what the older revision has for it, by the labels that it has now.
func TestRollbackToOtherOverrides(t *testing.T) {
	w := fourClusters(t, true)
	w.await("shop", w.put(overriding("env=prod: a=prod b")).GetRevision())
	prod, dev := w.held("a", "shop"), w.held("c", "shop")
	w.await("shop", w.put(overriding("env=dev: a=dev a", "env=prod: b=more")).GetRevision())
	if s := w.held("a", "shop"); s.Objects != 2 || s.Revision != 2 || w.held("c", "shop").Objects != 1 {
		t.Fatalf("a has %+v", s)
	}
	w.labelled("b", map[string]string{"env": "dev"})
	w.labelled("d", map[string]string{"env": "prod"})
	w.act(client.Word{Verb: "rollback", Module: "shop"})
	w.until("shop", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "RolledBack" })
	for cluster, want := range map[string]fleet.Digest{"a": prod.Bundle, "b": dev.Bundle, "c": dev.Bundle, "d": prod.Bundle} {
		if s := w.held(cluster, "shop"); s.Bundle != want || s.Revision != 1 {
			t.Errorf("%s has r%d, bundle %v, not %v", cluster, s.Revision, s.Bundle, want)
		}
	}
}

// TestVariantThatCannotBeRendered: one variant that is wrong fails the whole put, or its rollout, by name, and no cluster has anything of it.
func TestVariantThatCannotBeRendered(t *testing.T) {
	w := fourClusters(t, true)
	w.await("shop", w.put(overriding()).GetRevision())
	bad := overriding("env=prod: a=prod api=1")
	const says = "overrides[0].patches[1]: matches no object; objects of kind ConfigMap: default/a, default/b (with overrides[0], as in a, b)"
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: bad}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("put: %v", err)
	}
	files := bad.Spec.Source.Inline.Files
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		for _, text := range files {
			_, _ = rw.Write([]byte(text + "---\n"))
		}
	}))
	t.Cleanup(srv.Close)
	bad.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/all.yaml"}}
	s := w.await("shop", w.put(bad).GetRevision()).GetStatus()
	if s.GetState() != "Failed" || !strings.Contains(fmt.Sprint(s), says) {
		t.Errorf("rollout: %v", s)
	}
	for _, c := range []string{"a", "c"} {
		if s := w.held(c, "shop"); s.Revision != 1 || s.Objects != 2 {
			t.Errorf("%s has %+v", c, s)
		}
	}
	malformed := overriding("env=prod: a=prod")
	malformed.Spec.Source = bad.Spec.Source
	malformed.Spec.Overrides[0].Patches[0].Patch = "- {op: set, path: /data}"
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: malformed}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), `overrides[0].patches[0].patch[0].op: "set" is unknown`) {
		t.Errorf("malformed: %v", err)
	}
}

// TestLateVariantThatCannotBeRendered: a cluster comes to overrides that do not fit the module. It keeps what it has and says so; the others
// have nothing to do with it, and with its labels back it is well.
func TestLateVariantThatCannotBeRendered(t *testing.T) {
	w := fourClusters(t, true)
	m := overriding("env=prod: a=prod b", "ring=canary: b=x")
	m.Spec.Overrides[1].AllowEmpty = true
	w.await("shop", w.put(m).GetRevision())
	had := w.held("a", "shop")
	w.labelled("a", map[string]string{"env": "prod", "ring": "canary"})
	w.awaitTracker("shop", "a", "refused", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "CannotAssign" && strings.Contains(tr.GetMessage(), "overrides[1].patches[0]: matches no object") && !tr.GetReady()
	})
	if s := w.held("a", "shop"); s.Bundle != had.Bundle {
		t.Errorf("a has %+v", s)
	}
	if tr := w.tracker("shop", "b"); !tr.GetReady() {
		t.Errorf("b: %v", tr)
	}
	w.labelled("a", map[string]string{"env": "prod"})
	w.awaitTracker("shop", "a", "well", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("a", "shop").Bundle == had.Bundle })
}

// TestOwnerThatKeepsWhatItHasForWantOfAVariant: where the owner of an object cannot have its variant it keeps what it has, so that another
// module that lists the object is in conflict with it, and does not wait for it to be let go.
func TestOwnerThatKeepsWhatItHasForWantOfAVariant(t *testing.T) {
	w := fourClusters(t, true)
	m := overriding("env=prod: a=prod b", "ring=canary: b=x")
	m.Spec.Overrides[1].AllowEmpty = true
	w.await("shop", w.put(m).GetRevision())
	w.labelled("a", map[string]string{"env": "prod", "ring": "canary"})
	w.awaitTracker("shop", "a", "refused", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	w.put(listing("two", "a"))
	for _, cluster := range []string{"a", "b"} {
		w.awaitTracker("two", cluster, "in conflict", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "Conflict" })
	}
}

// TestOverrideThatMatchesNothing: a misspelt selector is said at the put and holds the rollout before anything moves, until somebody
// says that it is right.
func TestOverrideThatMatchesNothing(t *testing.T) {
	w := fourClusters(t, true)
	put := w.put(overriding("env=prdo: a=prod"))
	if !warned(put, fleet.WarnEmptyOverride) {
		t.Errorf("warnings: %v", put.GetWarnings())
	}
	s := w.until("shop", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "EmptyOverride" }).GetStatus()
	if s.GetState() != "Waiting" || len(s.GetFacts().GetNames()) != 1 || s.GetFacts().GetNames()[0] != "overrides[0]" {
		t.Errorf("rollout: %v", s)
	}
	if s := w.held("a", "shop"); s.Revision != 0 {
		t.Errorf("a has %+v", s)
	}
	w.act(client.Word{Verb: "promote", Module: "shop"})
	if s := w.await("shop", 1).GetStatus(); s.GetState() != "Succeeded" {
		t.Errorf("promoted: %v", s)
	}
	may := overriding("env=prdo: a=prod")
	may.Spec.Overrides[0].AllowEmpty = true
	if s := w.await("shop", w.put(may).GetRevision()).GetStatus(); s.GetState() != "Succeeded" {
		t.Errorf("allowEmpty: %v", s)
	}
}

// TestOverrideThatComesToMatch: a rollout that waits for an override which matches nothing goes on when a label is given by which it does,
// and names meanwhile only those that still match nothing. A label that moves nothing is not said to have a module enter.
func TestOverrideThatComesToMatch(t *testing.T) {
	w := fourClusters(t, true)
	w.put(overriding("tier=gold: a=gold", "tier=iron: a=iron"))
	waits := func(names ...string) {
		t.Helper()
		w.until("shop", 1, func(r *towlinev1.Rollout) bool {
			s := r.GetStatus()
			return s.GetReason() == "EmptyOverride" && slices.Equal(s.GetFacts().GetNames(), names)
		})
	}
	waits("overrides[0]", "overrides[1]")
	gold := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "a", Labels: map[string]string{"env": "prod", "tier": "gold"}}}
	got, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: gold})
	must(t, err)
	if len(got.GetEnters())+len(got.GetLeaves()) != 0 {
		t.Errorf("it enters %v and leaves %v, and is selected before and after", got.GetEnters(), got.GetLeaves())
	}
	waits("overrides[1]")
	w.labelled("c", map[string]string{"env": "dev", "tier": "iron"})
	if s := w.await("shop", 1).GetStatus(); s.GetState() != "Succeeded" {
		t.Errorf("both match: %v", s)
	}
}

// TestNewClusterOfAnotherVariant: a cluster that joins later, with labels that nobody had, gets its variant as any late joiner gets the
// revision.
func TestNewClusterOfAnotherVariant(t *testing.T) {
	w := fourClusters(t, true)
	m := overriding("env=prod: a=prod b", "env=edge: b")
	m.Spec.Overrides[1].AllowEmpty = true
	w.await("shop", w.put(m).GetRevision())
	w.join("e", nil, map[string]string{"env": "edge"})
	w.awaitTracker("shop", "e", "ready", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("e", "shop").Objects == 1 })
	if got := w.variants(1); got != "[]:2:2 [0]:1:2 [1]:1:1" {
		t.Errorf("variants: %s", got)
	}
}

// TestOverridesOfPackages: values of a chart are merged over the package's in order, and components of a kustomization are added to its own.
func TestOverridesOfPackages(t *testing.T) {
	w := fourClusters(t, true)
	values := func(in map[string]any) *towlinev1.HelmOverride {
		v, err := structpb.NewStruct(in)
		must(t, err)
		return &towlinev1.HelmOverride{Values: v}
	}
	all, prod := &towlinev1.LabelSelector{}, &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	m := chart()
	m.Spec.Overrides = []*towlinev1.Override{{Selector: all, Helm: values(map[string]any{"text": "all", "number": 5})}, {Selector: prod, Helm: values(map[string]any{"text": "prod of ${CLUSTER}"}),
		Patches: []*towlinev1.Patch{{Target: &towlinev1.PatchTarget{Kind: "ServiceAccount"}, Patch: "metadata: {labels: {env: prod}}"}}}}
	w.await("shop", w.put(m).GetRevision())
	if got := w.variants(1); got != "[0]:2:2 [0 1]:2:2" {
		t.Errorf("variants: %s", got)
	}
	for _, tc := range []struct {
		overrides []int32
		has       []string
	}{
		{[]int32{0}, []string{`"text":"all"`, `"number":"5"`, `"file":"read"`}},
		{[]int32{0, 1}, []string{`"text":"prod of ${CLUSTER}"`, `"number":"5"`, `"env":"prod"`}},
	} {
		resp, err := w.Modules.GetRevisionObjects(w.ctx, &towlinev1.GetRevisionObjectsRequest{Module: "shop", Overrides: tc.overrides})
		must(t, err)
		for _, want := range tc.has {
			if !strings.Contains(fmt.Sprintf("%s", resp.GetObjects()), want) {
				t.Errorf("%v lacks %s: %s", tc.overrides, want, resp.GetObjects())
			}
		}
	}
	k := kustomization()
	k.Spec.Source.Inline.Files["components/more/kustomization.yaml"] = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: [more.yaml]\n"
	k.Spec.Source.Inline.Files["components/more/more.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n"
	k.Spec.Overrides = []*towlinev1.Override{{Selector: prod, Kustomize: &towlinev1.KustomizeOverride{Components: []string{"../../components/more"}}}}
	w.await("shop", w.put(k).GetRevision())
	if a, c := w.held("a", "shop"), w.held("c", "shop"); a.Objects != 2 || c.Objects != 1 || a.Revision != 2 {
		t.Errorf("a has %+v, c has %+v", a, c)
	}
	for _, tc := range []struct {
		change func(*towlinev1.Override)
		says   string
	}{
		{func(o *towlinev1.Override) { o.Helm = values(nil) }, "spec.overrides[0].helm: is for a chart"},
		{func(o *towlinev1.Override) { o.Selector = nil }, "spec.overrides[0].selector: is required"},
		{func(o *towlinev1.Override) { o.Kustomize = nil }, "spec.overrides[0]: changes nothing"},
		{func(o *towlinev1.Override) { o.Kustomize.Components = []string{"../../../x"} }, "spec.overrides[0].kustomize.components[0]: \"../../../x\" is no folder"},
		{func(o *towlinev1.Override) { o.Kustomize.Components = []string{"../../components/none"} }, "components/none"},
		{func(o *towlinev1.Override) { o.Patches = []*towlinev1.Patch{{}} }, "spec.overrides[0].patches[0].patch: is required"},
	} {
		bad := proto.CloneOf(k)
		tc.change(bad.Spec.Overrides[0])
		if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: bad}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("says %v, not %s", err, tc.says)
		}
	}
}

// TestThousandClustersHaveFewBundles: with values of their own and two overrides, a thousand clusters need a bundle for each variant, and
// each is rendered once.
func TestThousandClustersHaveFewBundles(t *testing.T) {
	w := newWorld(t, true)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("c", i))
		labels := map[string]string{"region": fmt.Sprint("r", i)}
		if i%2 == 0 {
			labels["env"] = "prod"
		}
		if i%3 == 0 {
			labels["ring"] = "canary"
		}
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: names[i], Labels: labels}}})
		must(t, err)
	}
	m := overriding("env=prod: a=prod", "ring=canary: b=canary")
	m.Spec.Bindings = append(m.Spec.Bindings, &towlinev1.Binding{Name: "REGION", ClusterLabel: "region"})
	m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}} // which gives it to clusters without agents, too
	w.await("shop", w.put(m).GetRevision())
	for some := range slices.Chunk(names, 50) {
		_, err := w.Assignments.PutAssignments(w.ctx, assigning("shop", 1, some[0], some...))
		must(t, err)
	}
	if got := w.variants(1); got != "[]:2:333 [0]:2:333 [0 1]:2:167 [1]:2:167" {
		t.Errorf("variants: %s", got)
	}
	bundles := map[string]bool{}
	for _, v := range w.revision("shop", 1).GetVariants() {
		bundles[v.GetBundle()] = true
	}
	if len(bundles) != 4 {
		t.Errorf("%d bundles", len(bundles))
	}
}

// TestPatchThatCannotBeAppliedShowsNoValue: a variable of an override's patch has its name misspelt, beside a value that viewers may not see.
// What is said of the patch has no value in it.
func TestPatchThatCannotBeAppliedShowsNoValue(t *testing.T) {
	const web = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: default}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n" +
		"    metadata: {labels: {app: web}}\n    spec: {containers: [{name: web, image: web, env: [{name: A, value: a}]}]}\n"
	w := newWorld(t, true)
	w.join("a", nil, map[string]string{"env": "dev"})
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "vera", Role: "viewer"})
	must(t, err)
	vera := w.as(user.GetToken())
	m := module("shop", map[string]string{"web.yaml": web})
	m.Spec.Overrides = []*towlinev1.Override{{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}, AllowEmpty: true, Patches: []*towlinev1.Patch{{
		Target: &towlinev1.PatchTarget{Kind: "Deployment"},
		Patch:  "spec: {template: {spec: {containers: [{name: web, env: [{nmae: DB_PASSWORD, value: s3cr3t}]}]}}}"}}}}
	seen, err := vera.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "shop"})
	if err == nil {
		t.Fatalf("there before: %v", seen)
	}
	w.await("shop", w.put(m).GetRevision())
	w.labelled("a", map[string]string{"env": "prod"})
	w.awaitTracker("shop", "a", "refused", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	got, err := vera.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Module: "shop"}})
	must(t, err)
	rev, err := vera.Modules.GetRevision(w.ctx, &towlinev1.GetRevisionRequest{Module: "shop", Number: 1})
	must(t, err)
	if strings.Contains(got.String(), "s3cr3t") || strings.Contains(rev.String(), "s3cr3t") {
		t.Errorf("a viewer reads %v\nand %v", got.GetTrackers()[0].GetMessage(), rev.GetRevision().GetVariants())
	}
	elsewhere := elsewhereSource(t, m, nil)
	elsewhere.Metadata.Name = "far"
	elsewhere.Spec.Source.Http.Url += "?1"
	w.await("far", w.put(elsewhere).GetRevision())
	ro, err := vera.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "far"})
	must(t, err)
	if strings.Contains(ro.String(), "s3cr3t") {
		t.Errorf("a viewer reads %v", ro.GetRollout().GetStatus())
	}
}

// TestVariantsOfOneBundleAreCountedApart: an override that changes nothing in a revision makes a variant of the same bundle. Each is in the
// clusters that have it.
func TestVariantsOfOneBundleAreCountedApart(t *testing.T) {
	w := fourClusters(t, true)
	w.await("shop", w.put(overriding("env=prod: a=shop")).GetRevision())
	if got, want := w.variants(1), "[]:2:2 [0]:2:2"; got != want {
		t.Errorf("variants %s, want %s", got, want)
	}
}

// TestDryRunOfALabelTellsWhatAVariantRemoves: a label brings a cluster to an override that leaves an object out. A dry run of the cluster says
// how many objects go, as it does where a module leaves.
func TestDryRunOfALabelTellsWhatAVariantRemoves(t *testing.T) {
	w := fourClusters(t, true)
	w.await("shop", w.put(overriding("env=prod: b")).GetRevision())
	resp, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{DryRun: true, Apply: true,
		Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"env": "prod"}}}})
	must(t, err)
	if resp.GetRemovesObjects() != 1 || !slices.Equal(resp.GetLoses(), []string{"default/shop"}) {
		t.Errorf("%s, removes %d objects of %q, want 1", resp.GetResult(), resp.GetRemovesObjects(), resp.GetLoses())
	}
	// What no cluster comes to yet is not rendered, so that it is not known.
	m := overriding("env=prod: b", "env=none: a b=x")
	m.Spec.Overrides[1].AllowEmpty = true
	w.await("shop", w.put(m).GetRevision())
	for env, loses := range map[string]int{"none": 1, "dev": 0, "other": 0} {
		resp, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{DryRun: true, Apply: true,
			Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"env": env}}}})
		must(t, err)
		if len(resp.GetLoses()) != loses {
			t.Errorf("with env=%s it loses objects of %q", env, resp.GetLoses())
		}
	}
}

// overridingYAML is overriding("env=prod: a=prod b") as people write it.
const overridingYAML = `apiVersion: towline.dev/v1
kind: Module
metadata: {name: shop}
spec:
  source:
    inline:
      files:
        a.yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, data: {by: shop, cluster: '${CLUSTER}'}}"
        b.yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: default}, data: {by: shop}}"
  placement: {selector: {}}
  bindings: [{name: CLUSTER, clusterField: metadata.name}]
  overrides:
  - selector: {matchLabels: {env: prod}}
    patches:
    - {target: {kind: ConfigMap, name: a}, patch: "- {op: replace, path: /data/by, value: prod}"}
    - {target: {kind: ConfigMap, name: b}, patch: "$patch: delete"}
`

// TestRenderOfVariants: each variant is printed once with the clusters that have it, and with --all each cluster has its own values.
func TestRenderOfVariants(t *testing.T) {
	w := fourClusters(t, true)
	towline := w.cli()
	for name, tt := range map[string]struct {
		args []string
		has  []string // in this order
		not  string
	}{
		"variants":            {nil, []string{"# no override, in c, d", "by: shop", "cluster: ${CLUSTER}", "name: b", "# overrides[0], in a, b", "by: prod", "cluster: ${CLUSTER}"}, ""},
		"each cluster":        {[]string{"--all"}, []string{"# overrides[0], in a\n", "by: prod", "cluster: a", "# overrides[0], in b\n", "cluster: b", "# no override, in c\n", "by: shop", "cluster: c", "name: b", "# no override, in d\n", "cluster: d"}, "${"},
		"one cluster":         {[]string{"--cluster", "b"}, []string{"# overrides[0], in b\n", "by: prod", "cluster: b"}, "by: shop"},
		"of some":             {[]string{"-l", "env=dev"}, []string{"# no override, in c, d", "by: shop", "name: b"}, "prod"},
		"each of some":        {[]string{"-l", "env=dev", "--all"}, []string{"in c\n", "cluster: c", "in d\n", "cluster: d"}, "prod"},
		"as JSON":             {[]string{"-l", "env=prod", "-o", "json"}, []string{`"overrides": [`, "0", `"clusters": [`, `"a"`, `"b"`, `"by": "prod"`}, "shop\","},
		"none has the labels": {[]string{"-l", "env=none"}, []string{"module shop: nothing to print: its placement selects no cluster with the labels env=none"}, "cluster: a"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := towline(overridingYAML, append([]string{"render", "-f", "-"}, tt.args...)...)
			rest := out
			for _, has := range tt.has {
				_, after, ok := strings.Cut(rest, has)
				if !ok {
					t.Fatalf("%v: %q is not there, or not in its place:\n%s", err, has, out)
				}
				rest = after
			}
			if err != nil || tt.not != "" && strings.Contains(out, tt.not) {
				t.Errorf("%v, or it has %q:\n%s", err, tt.not, out)
			}
		})
	}
}

// TestDiffOfVariants: each cluster is asked about the variant that it would get, and what another variant leaves out is told where it goes.
func TestDiffOfVariants(t *testing.T) {
	w := newWorld(t, true)
	for name, env := range map[string]string{"a": "prod", "c": "dev"} {
		w.joinAnswering(name, unchanged, map[string]string{"env": env})
	}
	plan, got := w.diff(overriding("env=prod: a=prod b"))
	if want := []string{"a 1 unchanged", "c 2 unchanged"}; !slices.Equal(got, want) || plan.GetVariants() != 2 || plan.GetObjects() != 2 {
		t.Errorf("%v: it says %q, want %q", plan, got, want)
	}
	put := w.put(overriding("env=prod: a=prod b"))
	w.await("shop", put.GetRevision())
	for name, objects := range map[string]int{"a": 1, "c": 2} {
		if held := w.held(name, "shop"); int(held.Objects) != objects {
			t.Errorf("%s holds %d objects after the put, not %d", name, held.Objects, objects)
		}
	}
}
