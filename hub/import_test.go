package hub_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/source/sourcetest"
)

// shopRepository serves a repository with manifests, a kustomization and a chart.
func shopRepository(t *testing.T) string {
	t.Helper()
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", map[string]any{
		"deploy/a.yaml":                           "{apiVersion: v1, kind: ConfigMap, metadata: {name: guestbook}}",
		"overlays/prod/kustomization.yaml":        "resources: [shop.yaml]\n",
		"overlays/prod/shop.yaml":                 "{apiVersion: v1, kind: ConfigMap, metadata: {name: shop}, data: {region: \"${REGION}\"}}",
		"charts/web/Chart.yaml":                   "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"charts/web/templates/configmap.yaml":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {cluster: {{ .Values.cluster | quote }}}\n",
		"kustomize/components/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnamePrefix: x-\n",
	})
	git := httptest.NewServer(repo.Handler())
	t.Cleanup(git.Close)
	return git.URL + "/repo.git"
}

// TestExamplesOfTheComingFromPage: each manifest of docs/coming-from.md is imported as the page says, and what is printed is put and rolled out.
func TestExamplesOfTheComingFromPage(t *testing.T) {
	g := readGuide(t, "../docs/coming-from.md")
	if len(g.yaml) != 6 {
		t.Fatalf("%d examples found", len(g.yaml))
	}
	w := newWorld(t, true)
	for name, labels := range map[string]map[string]string{"prod-eu": {"env": "prod", "ring": "canary"}, "in-cluster": nil, "stage": {"env": "staging"}} {
		w.join(name, nil, labels)
	}
	towline := w.cli()
	url := shopRepository(t)
	for i, kind := range []string{"argocd-application", "flux-kustomization", "fleet-gitrepo"} {
		printed, err := towline(g.yaml[2*i], "import", kind, "-f", "-")
		printed, _, _ = strings.Cut(printed, "Warning: ")
		if err != nil || printed != g.yaml[2*i+1] {
			t.Errorf("%s: %v, and prints\n%s\nbut the page has\n%s", kind, err, printed, g.yaml[2*i+1])
		}
		module := strings.ReplaceAll(printed, "https://git.example.com/shop.git", url)
		if out, err := towline(module, "apply", "-f", "-", "--dry-run=server"); err != nil || strings.Contains(out, "Warning: stage") {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
		if out, err := towline(module, "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
	g.commandsAreKnown(t, towline)
}

// TestImportedManifestsArePut: what real manifests of other tools become, a hub takes, with the secrets and the project that the notes ask for.
func TestImportedManifestsArePut(t *testing.T) {
	w := newWorld(t, true)
	w.join("prod", nil, map[string]string{"env": "prod"})
	towline := w.cli()
	url := shopRepository(t)
	for kind, manifest := range map[string]string{
		"argocd-application": `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: front, namespace: argocd}
spec:
  project: team
  source:
    repoURL: https://git.example.com/shop.git
    targetRevision: HEAD
    path: charts/web
    helm: {releaseName: front, parameters: [{name: cluster, value: eu}], valuesObject: {replicas: 2}, skipCrds: true}
  destination: {server: https://kubernetes.default.svc, namespace: front}
  syncPolicy: {syncOptions: [Prune=false, Delete=false, Force=true]}
  ignoreDifferences:
  - {group: apps, kind: Deployment, jsonPointers: [/spec/replicas]}
  - {group: "*", kind: "*", managedFieldsManagers: [kube-controller-manager]}
`,
		"flux-kustomization": `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: shop, namespace: flux-system}
spec: {interval: 1m, url: "https://git.example.com/shop.git", ref: {branch: main}, secretRef: {name: login}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: back, namespace: flux-system}
spec:
  path: ./overlays/prod
  prune: false
  force: true
  timeout: 2m
  targetNamespace: back
  components: [../../kustomize/components]
  patches:
  - target: {kind: ConfigMap, labelSelector: "team notin (other)"}
    patch: |
      - {op: add, path: /data/tier, value: front}
  - patch: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: x-shop}
      data: {region: null}
  sourceRef: {kind: GitRepository, name: shop}
  postBuild: {substitute: {REGION: eu}}
`,
		"flux-helmrelease": `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: shop, namespace: flux-system}
spec: {interval: 1m, url: "https://git.example.com/shop.git", ref: {branch: main}}
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: web}
spec:
  interval: 10m
  chart: {spec: {chart: ./charts/web, sourceRef: {kind: GitRepository, name: shop, namespace: flux-system}}}
  upgrade: {remediation: {retries: 3}}
  driftDetection: {mode: warn, ignore: [{paths: [/data], target: {kind: ConfigMap}}]}
  values: {cluster: eu}
`,
		"fleet-gitrepo": `
apiVersion: fleet.cattle.io/v1alpha1
kind: GitRepo
metadata: {name: shop}
spec: {repo: "https://git.example.com/shop.git", branch: main, paths: [deploy, overlays/prod], targetNamespace: shop, targets: [{clusterSelector: {}}]}
`,
	} {
		if out, err := towline("apiVersion: towline.dev/v1\nkind: Project\nmetadata: {name: team}\n", "apply", "-f", "-"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := towline("hunter22", "secret", "set", "login", "token=-"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		printed, err := towline(manifest, "import", kind, "-f", "-", "--cluster", "prod")
		modules, _, _ := strings.Cut(printed, "Warning: ")
		if err != nil {
			t.Errorf("%s: %v\n%s", kind, err, printed)
		}
		if kind == "fleet-gitrepo" { // one path has a kustomization
			first, second, _ := strings.Cut(modules, "---\n")
			modules = first + "---\n" + strings.Replace(second, "  namespace:", "  package: {kustomize: {}}\n  namespace:", 1) + "  bindings: [{name: REGION, value: eu}]\n"
		}
		if out, err := towline(strings.ReplaceAll(modules, "https://git.example.com/shop.git", url), "apply", "-f", "-", "--dry-run=server"); err != nil {
			t.Errorf("%s: %v\n%s\n%s", kind, err, out, modules)
		}
	}
}
