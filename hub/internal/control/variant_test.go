package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/wire"
)

// pairSource has two ConfigMaps, and counts how often it is asked.
type pairSource struct{ n int }

func (s *pairSource) Fetch(context.Context, string, *towlinev1.Source) (source.Artifact, error) {
	s.n++
	files := map[string][]byte{"all.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n")}
	archive := artifact.Encode(files)
	return source.Artifact{Digest: fleet.DigestOf(archive), Files: files, Archive: archive}, nil
}

func labelledRecord(name string, labels map[string]string) *storev1.ClusterRecord {
	rec := clusterRecord(name)
	rec.Cluster.Metadata.Labels = labels
	return rec
}

// varying is a leader with a module of two overrides, one of which nothing fits to, and the revision that it was rendered to.
func varying(t *testing.T, clusters ...*storev1.ClusterRecord) (*leader, *storev1.RevisionRecord) {
	l := newLeader(t)
	l.o.Source = &pairSource{}
	l.variants = newRunner(1, l.runVariants)
	put := moduleRecord()
	put.Module.Spec = &towlinev1.ModuleSpec{Namespace: "shop", Source: &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "http://example/x"}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}, Overrides: []*towlinev1.Override{
			{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}, Patches: []*towlinev1.Patch{{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n$patch: delete"}}},
			{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "bad"}}, AllowEmpty: true, Patches: []*towlinev1.Patch{{Target: &towlinev1.PatchTarget{Kind: "Secret"}, Patch: "data: {}"}}}}}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), put)
		for _, c := range clusters {
			w.Put(store.ClusterKey(fleet.ClusterName(c.GetCluster().GetMetadata().GetName())), c)
		}
	})
	m, err := wire.ModuleFromProto(put.GetModule())
	l.must(err)
	r, err := l.render(t.Context(), m)
	l.must(err)
	l.put(func(w store.Writer) { revisionFor(w, shop, put, nil, r, nil) })
	return l, l.newestRevision()
}

func (l *leader) newestRevision() (rev *storev1.RevisionRecord) {
	l.read(func(r store.Reader) { rev = record.NewestRevision(r, shop) })
	return rev
}

func keysOf(rev *storev1.RevisionRecord) (out []string) {
	for _, v := range rev.GetVariants() {
		key := fleet.Variant{Overrides: v.GetOverrides()}.Key()
		if v.GetProblem() != "" {
			key += "!"
		}
		out = append(out, key)
	}
	return out
}

// TestVariantsComeAndGo: what clusters come to is added to a revision from the files that it was cut from, what cannot be rendered is noted,
// what no cluster has or would have goes, and its contents with it; what is assigned stays.
func TestVariantsComeAndGo(t *testing.T) {
	l, rev := varying(t, labelledRecord("a", nil), labelledRecord("p", map[string]string{"env": "prod"}))
	if got := keysOf(rev); !slices.Equal(got, []string{"", "0"}) {
		t.Fatalf("variants: %q", got)
	}
	fetched := l.o.Source.(*pairSource).n
	l.must(l.addVariants(t.Context(), shop, 1, []fleet.Variant{{Overrides: []int32{1}}}))
	if got := keysOf(l.newestRevision()); !slices.Equal(got, []string{"", "0", "1!"}) || l.o.Source.(*pairSource).n != fetched {
		t.Errorf("with one that cannot be rendered: %q", got)
	}
	prod := record.Digest(rev.GetVariants()[1].GetBundle())
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("p"), labelledRecord("p", nil))
		w.Put(store.DesiredKey("p", shop), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String(), Generation: 5, Revision: 1, Bundle: prod.Bytes()}})
	})
	l.must(l.trimVariants(t.Context()))
	if got := keysOf(l.newestRevision()); !slices.Equal(got, []string{"", "0"}) {
		t.Errorf("while a cluster has it: %q", got)
	}
	if live := l.liveBlobs(); !live[prod] || !live[record.Digest(rev.GetVariants()[0].GetBundle())] {
		t.Error("bundles in use would be collected")
	}
	l.put(func(w store.Writer) { w.Delete(store.DesiredKey("p", shop)) })
	l.must(l.trimVariants(t.Context()))
	if got := keysOf(l.newestRevision()); !slices.Equal(got, []string{""}) {
		t.Errorf("when nobody has it: %q", got)
	}
	if l.liveBlobs()[prod] {
		t.Error("the bundle of a variant that nobody has is kept")
	}
	l.must(l.addVariants(t.Context(), shop, 1, []fleet.Variant{{Overrides: []int32{0}}}))
	if now := l.newestRevision(); record.Digest(now.GetVariants()[1].GetBundle()) != prod {
		t.Error("rendered again it is another bundle")
	}
}

// stoppedEngine is stopped in the middle of everything.
type stoppedEngine struct{}

func (stoppedEngine) Build(context.Context, render.Job) (render.Built, error) {
	return render.Built{}, fleet.Errorf(fleet.ErrStopped, "package: rendering was stopped")
}

// TestVariantThatIsStopped in the middle each time is tried a few times, and is noted then like one that cannot be rendered.
func TestVariantThatIsStopped(t *testing.T) {
	l, rev := varying(t, labelledRecord("a", nil))
	l.o.Engine = stoppedEngine{}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(shop, rev))
	l.must(err)
	m.Package = render.Package{Helm: &render.Helm{}}
	for n := 1; ; n++ {
		made, err := l.renderAgain(t.Context(), m, rev, []fleet.Variant{{Overrides: []int32{0}}})
		switch {
		case n == 5 && (err != nil || len(made) != 1 || !strings.Contains(made[0].GetProblem(), "rendering was stopped; it was tried 5 times")):
			t.Errorf("try %d: %v, %v", n, made, err)
		case n < 5 && (!errors.Is(err, fleet.ErrStopped) || l.outcome(t.Context(), "render", err) != lastRetry):
			t.Errorf("try %d: %v, %v", n, made, err)
		}
		if n == 5 {
			return
		}
	}
}

// chartEngine renders every chart to one object, whose name is a placeholder's.
type chartEngine struct{}

func (chartEngine) Build(context.Context, render.Job) (render.Built, error) {
	return render.Built{Texts: map[string][]byte{"web.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'a-${NAME}'}\n")}}, nil
}

// TestVariantThatCannotBeKept as its chart says is noted like one that cannot be rendered: it concerns the clusters that have come to it, and
// keeps nobody else from another variant.
func TestVariantThatCannotBeKept(t *testing.T) {
	l, rev := varying(t, labelledRecord("a", nil))
	l.o.Engine = chartEngine{}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(shop, rev))
	l.must(err)
	m.Package, m.Bindings = render.Package{Helm: &render.Helm{}}, []fleet.Binding{{Name: "NAME"}}
	annotated := func(value string) []fleet.Patch {
		return []fleet.Patch{{Target: &fleet.PatchTarget{Kind: "ConfigMap"}, Text: "metadata: {annotations: {helm.sh/resource-policy: " + value + "}}"}}
	}
	m.Overrides[0].Patches, m.Overrides[1].Patches = annotated("other"), annotated("keep")
	made, err := l.renderAgain(t.Context(), m, rev, []fleet.Variant{{Overrides: []int32{1}}, {Overrides: []int32{0}}})
	if err != nil || len(made) != 2 {
		t.Fatal(made, err)
	}
	if !strings.Contains(made[0].GetProblem(), "cannot be kept to") || made[1].GetProblem() != "" || len(made[1].GetBundle()) == 0 {
		t.Errorf("got %v", made)
	}
}

func (l *leader) liveBlobs() map[fleet.Digest]bool {
	live := map[fleet.Digest]bool{}
	l.read(func(r store.Reader) {
		_, err := l.live(l.t.Context(), r, func(d fleet.Digest) { live[d] = true })
		l.must(err)
	})
	return live
}

// countingEngine renders what says with which values, and counts that.
type countingEngine struct {
	mu sync.Mutex
	n  map[string]int
}

func (e *countingEngine) Build(_ context.Context, job render.Job) (render.Built, error) {
	values := fmt.Sprint(job.Helm.Overlays)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n[values]++
	return render.Built{Texts: map[string][]byte{"a.yaml": fmt.Appendf(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {values: %q}\n", values)}}, nil
}

// TestVariantsAreRenderedOnce: for a thousand clusters a chart is rendered for each variant and no more, twice, as both have to agree.
func TestVariantsAreRenderedOnce(t *testing.T) {
	var clusters []*storev1.ClusterRecord
	for i := range 1000 {
		clusters = append(clusters, labelledRecord(fmt.Sprint("c", i), map[string]string{"env": []string{"dev", "prod"}[i%2], "ring": []string{"canary", "rest", "rest"}[i%3]}))
	}
	l, _ := varying(t)
	for some := range slices.Chunk(clusters, 100) {
		l.put(func(w store.Writer) {
			for _, c := range some {
				w.Put(store.ClusterKey(fleet.ClusterName(c.GetCluster().GetMetadata().GetName())), c)
			}
		})
	}
	engine := &countingEngine{n: map[string]int{}}
	l.o.Engine = engine
	put := moduleRecord().Module
	put.Spec = &towlinev1.ModuleSpec{Namespace: "shop", Source: &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "http://example/x"}},
		Package: &towlinev1.Package{Helm: &towlinev1.HelmPackage{}}, Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
	for _, label := range [][2]string{{"env", "prod"}, {"ring", "canary"}} {
		values, err := structpb.NewStruct(map[string]any{label[0]: label[1]})
		l.must(err)
		put.Spec.Overrides = append(put.Spec.Overrides, &towlinev1.Override{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{label[0]: label[1]}},
			Helm: &towlinev1.HelmOverride{Values: values}})
	}
	m, err := wire.ModuleFromProto(put)
	l.must(err)
	r, err := l.render(t.Context(), m)
	l.must(err)
	if len(r.variants) != 4 || len(engine.n) != 4 {
		t.Errorf("%d variants of %v", len(r.variants), engine.n)
	}
	for values, n := range engine.n {
		if n != 2 {
			t.Errorf("%s: rendered %d times", values, n)
		}
	}
}

// TestSamePutAddsVariants: the same put, when other clusters are there, is the same revision, with what they have besides.
func TestSamePutAddsVariants(t *testing.T) {
	l, _ := varying(t, labelledRecord("a", nil))
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("p"), labelledRecord("p", map[string]string{"env": "prod"}))
	})
	var put *storev1.ModuleRecord
	l.read(func(r store.Reader) { put, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop)) })
	m, err := wire.ModuleFromProto(put.GetModule())
	l.must(err)
	r, err := l.render(t.Context(), m)
	l.must(err)
	n := int64(0)
	l.put(func(w store.Writer) { n = revisionFor(w, shop, put, nil, r, nil) })
	if got := keysOf(l.newestRevision()); n != 1 || !slices.Equal(got, []string{"", "0"}) {
		t.Errorf("r%d with %q", n, got)
	}
}

// TestVariantsOfARevisionAreBounded: labels that keep changing do not make a revision grow for ever.
func TestVariantsOfARevisionAreBounded(t *testing.T) {
	rev := &storev1.RevisionRecord{Revision: &towlinev1.Revision{Spec: &towlinev1.ModuleSpec{Overrides: []*towlinev1.Override{{}}}}}
	for i := range assemble.MaxVariants + 20 {
		if next := withVariants(rev, []*storev1.VariantRecord{{Overrides: []int32{int32(i)}, Bundle: []byte(fmt.Sprint(i))}}); next != nil {
			rev = next
		}
	}
	if _, err := record.VariantIn(rev, fleet.Variant{Overrides: []int32{500}}); len(rev.GetVariants()) != assemble.MaxVariants || err == nil || err == record.ErrNotRendered {
		t.Errorf("%d variants, %v", len(rev.GetVariants()), err)
	}
}

// TestNewValuesComeWithTheNewVariant: a cluster whose label both a binding and an override read has what it had until it can have what is
// right for it, and never the values of the one with the objects of the other.
func TestNewValuesComeWithTheNewVariant(t *testing.T) {
	l, rev := varying(t, labelledRecord("a", map[string]string{"env": "dev"}))
	rev.Revision.Spec.Bindings = []*towlinev1.Binding{{Name: "ENV", ClusterLabel: "env"}}
	l.put(func(w store.Writer) {
		w.Put(store.RevisionKey(shop, 1), rev)
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String(), Generation: 5, Revision: 1,
			Bundle: rev.GetVariants()[0].GetBundle(), Values: map[string]string{"ENV": "dev"}}})
		w.Put(store.ClusterKey("a"), labelledRecord("a", map[string]string{"env": "prod"}))
	})
	l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
	if s := l.desired("a").GetSync(); s.GetGeneration() != 5 || s.GetValues()["ENV"] != "dev" {
		t.Errorf("while the variant is rendered the cluster is given %v", s)
	}
	l.must(l.renderWanted(t.Context(), shop))
	l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
	prod := l.newestRevision().GetVariants()[1]
	if d := l.desired("a"); d.GetSync().GetValues()["ENV"] != "prod" || record.Digest(d.GetSync().GetBundle()) != record.Digest(prod.GetBundle()) || d.GetProblem() != "" {
		t.Errorf("then it has %v", d)
	}
}

// answeringEngine renders a chart that asks for all that a cluster serves, to as many bundles as there are ends.
type answeringEngine struct{ ends int }

func (e answeringEngine) Build(_ context.Context, job render.Job) (render.Built, error) {
	n := 0
	if c := job.Helm.Capabilities; c != nil {
		n = len(c.APIs[0]) % e.ends
	}
	return render.Built{Reads: render.Reads{All: true}, Texts: map[string][]byte{"a.yaml": fmt.Appendf(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a-%d}\n", n)}}, nil
}

// TestManyAnswersThatComeToTheSame: how many different answers clusters give does not matter where a chart comes to the same for them, and
// what it comes to is bounded.
func TestManyAnswersThatComeToTheSame(t *testing.T) {
	for ends, fails := range map[int]bool{2: false, 140: true} {
		l, rev := varying(t)
		l.o.Engine = answeringEngine{ends}
		m, err := wire.ModuleFromProto(record.ModuleOfRevision(shop, rev))
		l.must(err)
		m.Package, m.Overrides = render.Package{Helm: &render.Helm{}}, nil
		x := renderer{c: l.Controller, m: m}
		var made []madeVariant
		for i := range 150 {
			can := fleet.Capabilities{KubeVersion: "v1.33.1", APIs: []string{strings.Repeat("a", i+1)}}
			v, failed := x.render(t.Context(), wantedVariant{variant: fleet.Variant{Capabilities: can.Digest()},
				able: &record.Able{All: can, Sum: &storev1.CapabilitiesSum{Digest: can.Digest().Bytes(), KubernetesVersion: can.KubeVersion, Apis: 1}}})
			if err = failed; err != nil {
				break
			}
			made = append(made, v)
		}
		if fails && (err == nil || !strings.Contains(err.Error(), "more than 100 different bundles")) || !fails && (err != nil || len(x.built) != 150 || len(x.merged(made)) != ends) {
			t.Errorf("%d ends: %d built, %d made, %v", ends, len(x.built), len(made), err)
		}
	}
}

// TestEqualProblemsAreOne: clusters for which a revision does not render, each for its own capabilities, leave room for one for which it does.
func TestEqualProblemsAreOne(t *testing.T) {
	rev := &storev1.RevisionRecord{ByCapabilities: true, Revision: &towlinev1.Revision{Spec: &towlinev1.ModuleSpec{}}}
	of := func(i int, v *storev1.VariantRecord) *storev1.VariantRecord {
		v.Capabilities = []*storev1.CapabilitiesSum{{Digest: fleet.DigestOf(fmt.Append(nil, i)).Bytes()}}
		return v
	}
	add := func(v *storev1.VariantRecord) {
		if next := withVariants(rev, []*storev1.VariantRecord{v}); next != nil {
			rev = next
		}
	}
	for i := range assemble.MaxVariants + 20 {
		add(of(i, &storev1.VariantRecord{Problem: "templates/a.yaml: it does not render"}))
	}
	add(of(-1, &storev1.VariantRecord{Problem: "another"}))
	add(of(-2, &storev1.VariantRecord{Bundle: []byte("b"), Objects: 1}))
	if n := len(rev.GetVariants()); n != 3 {
		t.Errorf("%d variants", n)
	}
	for i, problem := range map[int]bool{0: true, assemble.MaxVariants + 19: true, -2: false} {
		_, err := record.VariantIn(rev, fleet.Variant{Capabilities: fleet.DigestOf(fmt.Append(nil, i))})
		if (err != nil) != problem || errors.Is(err, record.ErrNotRendered) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
