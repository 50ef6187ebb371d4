package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/testkit/otherstest"
	"towline.dev/towline/test/lab"
)

// testOthers has charts and kustomizations of others, whole and unchanged, come to Ready from a folder. Their images do not matter
// here, as pods are only played, so that what needs an answer from one of them is turned off by their own values: an aggregated API,
// a load balancer's address.
func testOthers(t *testing.T) {
	dir := otherstest.Dir(t)
	for _, tt := range []struct{ name, from, pack string }{
		{"metrics-server", "metrics-server", "helm: {path: charts/metrics-server, values: {apiService: {create: false}}}"},
		{"traefik", "traefik", "helm: {path: traefik, values: {service: {type: ClusterIP, spec: {type: ClusterIP}}}}"},
		{"alertmanager", "prometheus", "helm: {path: charts/alertmanager, values: {persistence: {enabled: false}}}"},
		{"kube-state-metrics", "prometheus", "helm: {path: charts/kube-state-metrics}"},
		{"blackbox-exporter", "prometheus", "helm: {path: charts/prometheus-blackbox-exporter}"},
		{"prometheus-adapter", "prometheus", "helm: {path: charts/prometheus-adapter, values: {rules: {default: false}}}"},
		{"external-dns", "external-dns", "helm: {path: charts/external-dns, values: {policy: sync}}"},
		{"external-dns-plain", "external-dns", "kustomize: {path: kustomize}"},
		{"metallb", "metallb", "kustomize: {path: config/native}"},
		{"metallb-frr", "metallb", "kustomize: {path: config/frr}"},
		{"traefik-crds", "traefik", "kustomize: {path: traefik/crds}"},
	} {
		t.Run(tt.name, func(t *testing.T) { becomesReady(t, tt.name, filepath.Join(dir, tt.from), tt.pack) })
	}
}

// becomesReady puts a package of a folder, waits for it in every cluster, and takes it away again.
func becomesReady(t *testing.T, name, dir, pack string) {
	ns := "others-" + name
	for _, c := range system.Clusters {
		if err := c.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if spaces, err := c.Resource("v1", "Namespace", ""); err == nil {
				_ = spaces.Delete(context.Background(), ns, metav1.DeleteOptions{})
			}
		})
	}
	file := filepath.Join(t.TempDir(), "module.yaml")
	text := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: " + name + "}\nspec:\n  namespace: " + ns +
		"\n  source: {upload: {}}\n  package: {" + pack + "}\n  placement: {selector: {}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if r := system.CLI(t.Context(), "apply", "-f", file, "--from", dir, "--wait", "--timeout", "90s"); r.Code != 0 {
		logs(t)
		t.Fatal(r.Err())
	}
	t.Logf("Ready in %d clusters after %s", len(system.Clusters), time.Since(began).Round(time.Millisecond))
	for _, c := range system.Clusters {
		podsAreReady(t, c, name)
	}
	if r := system.CLI(t.Context(), "delete", "module", name, "--yes", removing); r.Code != 0 {
		t.Fatal(r.Err())
	}
}

// podsAreReady compares what a module's workloads ask for with what the cluster says that there is.
func podsAreReady(t *testing.T, c *lab.Cluster, module string) {
	t.Helper()
	for kind, fields := range map[string][2][]string{
		"Deployment":  {{"spec", "replicas"}, {"status", "readyReplicas"}},
		"StatefulSet": {{"spec", "replicas"}, {"status", "readyReplicas"}},
		"DaemonSet":   {{"status", "desiredNumberScheduled"}, {"status", "numberReady"}},
	} {
		all, err := c.Resource("apps/v1", kind, "")
		if err != nil {
			t.Fatal(err)
		}
		list, err := all.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			want, _, _ := unstructured.NestedInt64(o.Object, fields[0]...)
			ready, _, _ := unstructured.NestedInt64(o.Object, fields[1]...)
			if strings.Contains(o.GetAnnotations()["towline.dev/owner"], "default/"+module) && (want == 0 || ready != want) {
				t.Errorf("cluster %s: %s has %d pods that are ready, and is to have %d", c.Name, lab.Label(&o), ready, want)
			}
		}
	}
}
