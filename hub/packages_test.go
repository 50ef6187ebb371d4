package hub_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
)

// TestMain is a render worker where a hub of these tests starts it as one, and a hub where a test starts that.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == hub.RenderWorker {
		if err := hub.ServeRenders(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := hub.Command().Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

// run runs the tests, which share what is built for them.
func run(m *testing.M) int {
	var err error
	if builtIn, err = os.MkdirTemp("", "towline-hub-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(builtIn)
	return m.Run()
}

// kustomization is a module of a kustomization with a base, for production.
func kustomization() *towlinev1.Module {
	m := module("shop", map[string]string{
		"base/kustomization.yaml":           "resources: [web.yaml]\n",
		"base/web.yaml":                     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {cluster: '${CLUSTER}', other: '${OTHER}'}\n",
		"overlays/prod/kustomization.yaml":  "resources: [../../base]\nnameSuffix: -prod\n",
		"components/tls/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\ncommonAnnotations: {tls: 'on'}\n",
	})
	m.Spec.Namespace = "shop"
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterField: "metadata.name"}}
	m.Spec.Package = &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{Path: "overlays/prod", Components: []string{"../../components/tls"}}}
	return m
}

// TestKustomizationReachesItsClusters: built on the hub, with its placeholders left for each cluster; what cannot be built is refused
// at the put, and a source that cannot be built any more fails the rollout and leaves the clusters as they are.
func TestKustomizationReachesItsClusters(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(kustomization()).GetRevision())
	had := w.held("a", "shop")
	if got := w.manifests("shop", 1); had.Objects != 1 || had.Values["CLUSTER"] != "a" || got != webProd {
		t.Fatalf("the cluster has %d objects with %v of\n%s", had.Objects, had.Values, got)
	}
	broken := kustomization()
	broken.Spec.Source.Inline.Files["base/kustomization.yaml"] = "resources: [https://example.com/a.yaml]\n"
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: broken})
	if err == nil || !strings.Contains(err.Error(), `base/kustomization.yaml: resources[0]: "https://example.com/a.yaml" is remote`) {
		t.Errorf("a put of what cannot be built: %v", err)
	}
	served := "resources: [gone.yaml]\n"
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(archive(t, map[string]string{"kustomization.yaml": served}))
	}))
	t.Cleanup(srv.Close)
	fetched := kustomization()
	fetched.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.tgz"}}
	fetched.Spec.Package.Kustomize = &towlinev1.KustomizePackage{}
	s := w.await("shop", w.put(fetched).GetRevision()).GetStatus()
	if s.GetState() != "Failed" || s.GetReason() != "SourceFailed" || !strings.Contains(s.GetFacts().GetDetail(), `kustomization.yaml: resources[0]: "gone.yaml" is no file or folder of the source`) {
		t.Errorf("%s %s %v", s.GetState(), s.GetReason(), s.GetFacts())
	}
	if now := w.held("a", "shop"); now.Bundle != had.Bundle || now.Revision != had.Revision {
		t.Errorf("the cluster has %+v", now)
	}
}

// webProd is the object of kustomization, canonical.
const webProd = `{"apiVersion":"v1","data":{"cluster":"${CLUSTER}","other":"${OTHER}"},"kind":"ConfigMap","metadata":{"annotations":{"tls":"on"},"name":"web-prod","namespace":"shop"}}`

// manifests are those of a revision, a line each.
func (w *world) manifests(module string, revision int64) string {
	w.t.Helper()
	resp, err := w.Modules.GetRevisionObjects(w.ctx, &towlinev1.GetRevisionObjectsRequest{Module: module, Number: revision})
	must(w.t, err)
	var lines []string
	for _, o := range resp.GetObjects() {
		lines = append(lines, string(o))
	}
	return strings.Join(lines, "\n")
}

// archive is a tar.gz of files.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}))
		_, err := w.Write([]byte(files[name]))
		must(t, err)
	}
	must(t, w.Close())
	must(t, packed.Close())
	return out.Bytes()
}

// chart is a module of a chart with values, a hook and a CRD.
func chart() *towlinev1.Module {
	m := module("shop", map[string]string{
		"web/Chart.yaml":          "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"web/values.yaml":         "text: default\nnumber: 1\n",
		"web/templates/map.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}'}\ndata: {text: '{{ .Values.text }}', number: '{{ .Values.number }}', namespace: '{{ .Release.Namespace }}', file: '{{ .Values.file }}'}\n",
		"web/templates/hook.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\n",
		"values/prod.yaml":        "file: read\ntext: overruled\n",
	})
	values, err := structpb.NewStruct(map[string]any{"text": "of ${CLUSTER}", "number": 1234567})
	if err != nil {
		panic(err)
	}
	m.Spec.Namespace = "front"
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterField: "metadata.name"}}
	m.Spec.Package = &towlinev1.Package{Helm: &towlinev1.HelmPackage{Path: "web", Values: values, ValuesFiles: []string{"values/prod.yaml"}}}
	return m
}

// TestChartKeepsAnObject: the cluster is told that it stays, and people see why.
func TestChartKeepsAnObject(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	m := chart()
	m.Spec.Policies = []*towlinev1.Policy{{Drift: "Report"}}
	m.Spec.Source.Inline.Files["web/templates/kept.yaml"] = "apiVersion: v1\nkind: Secret\nmetadata: {name: db, annotations: {helm.sh/resource-policy: keep}}\n"
	w.await("shop", w.put(m).GetRevision())
	decided := func(kind, name string) string {
		got, err := w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: kind, Namespace: "front", Name: name}})
		must(t, err)
		p := got.GetPolicies()[0]
		return fmt.Sprint(p.GetField(), " ", p.GetValue(), " ", p.GetEntry())
	}
	if kept, other := decided("Secret", "db"), decided("ConfigMap", "shop"); kept != "prune Never -1" || other != "prune OnUpdate 0" {
		t.Errorf("kept: %s, other: %s", kept, other)
	}
}

// TestChartReachesItsClusters: its values, files and the module's names are in it, and its hook comes before the rest.
func TestChartReachesItsClusters(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(chart()).GetRevision())
	want := `{"apiVersion":"v1","data":{"file":"read","namespace":"front","number":"1.234567e+06","text":"of ${CLUSTER}"},"kind":"ConfigMap","metadata":{"name":"shop","namespace":"front"}}
{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"annotations":{"helm.sh/hook":"pre-install"},"name":"hook","namespace":"front"}}`
	if got := w.manifests("shop", 1); got != want || w.held("a", "shop").Values["CLUSTER"] != "a" {
		t.Errorf("the cluster has\n%s\nwant\n%s", got, want)
	}
	broken := chart()
	broken.Spec.Source.Inline.Files["web/templates/map.yaml"] = "# {{ lookup \"v1\" \"Secret\" \"\" \"db\" }}\n"
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: broken})
	if err == nil || !strings.Contains(err.Error(), "web/templates/map.yaml:1:5: ") || !strings.Contains(err.Error(), "lookup of v1 Secret/db is refused") {
		t.Errorf("a put of what cannot be rendered: %v", err)
	}
	files := chart().GetSpec().GetSource().GetInline().GetFiles()
	delete(files, "values/prod.yaml")
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(archive(t, files)) }))
	t.Cleanup(srv.Close)
	fetched := chart()
	fetched.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.tgz"}}
	s := w.await("shop", w.put(fetched).GetRevision()).GetStatus()
	if s.GetState() != "Failed" || s.GetReason() != "SourceFailed" || !strings.Contains(s.GetFacts().GetDetail(), "package.helm.valuesFiles[0]: values/prod.yaml is no file of the source") {
		t.Errorf("%s %s %v", s.GetState(), s.GetReason(), s.GetFacts())
	}
}
