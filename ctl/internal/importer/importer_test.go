package importer_test

import (
	"cmp"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/ctl/internal/importer"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

var update = flag.Bool("update", false, "write the modules that are wanted")

func convert(t *testing.T, kind, text string, o importer.Options) ([]importer.Module, []string, error) {
	t.Helper()
	docs, err := resource.Documents([]string{"-"}, resource.Options{Stdin: strings.NewReader(text)})
	if err != nil {
		return nil, nil, err
	}
	return importer.Convert(kind, docs, o)
}

func kindOf(name string) string {
	switch {
	case strings.HasPrefix(name, "argo-"):
		return "argocd-application"
	case strings.HasPrefix(name, "fleet-"):
		return "fleet-gitrepo"
	}
	return strings.TrimSuffix(name, ".yaml")
}

// TestManifests: what manifests become stands beside them, each note and each field; it is read again as it was written, and is what a hub
// takes for a module.
func TestManifests(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(inputs) < 6 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			modules, unread, err := convert(t, kindOf(filepath.Base(input)), string(text), importer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, m := range modules {
				got.WriteString("---\n")
				if _, err := m.Write(&got); err != nil {
					t.Fatal(err)
				}
				if _, err := wire.ModuleFromProto(m.Module); err != nil {
					t.Errorf("%s: %v", m.GetMetadata().GetName(), err)
				}
			}
			for _, where := range unread {
				got.WriteString("# " + where + " is not imported\n")
			}
			compare(t, input+".module", got.String())
			reads(t, got.String(), modules)
		})
	}
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

// reads checks that towline apply gets the modules that were converted.
func reads(t *testing.T, text string, modules []importer.Module) {
	t.Helper()
	found, err := resource.Parse("printed", []byte(text), resource.Options{Kinds: []proto.Message{&v1.Module{}}})
	if err != nil || len(found) != len(modules) {
		t.Fatalf("%d modules are read again: %v", len(found), err)
	}
	for i, r := range found {
		if !proto.Equal(r.Message, modules[i].Module) {
			t.Errorf("module %d is read as %v", i, r.Message)
		}
	}
}

const application = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: shop}\nspec:\n  source: {repoURL: https://git.example.com/a.git, path: a}\n  destination: {name: c1}\n"

const kustomization = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: shop, namespace: flux-system}\nspec: {prune: true, sourceRef: {kind: GitRepository, name: shop}}\n"

const fleetKeepsOut = "apiVersion: fleet.cattle.io/v1alpha1\nkind: GitRepo\nmetadata: {name: shop}\nspec:\n  repo: https://git.example.com/a.git\n  paths: [a]\n  targets: [{clusterSelector: {matchLabels: {env: prod}}}]\n" +
	"---\ntargetCustomizations: [{clusterSelector: {matchLabels: {place: eu}}, doNotDeploy: true}]\n"

// TestRefuses: what cannot be converted is an error that says where it is and what to do.
func TestRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ kind, text, want string }{
		"application set": {"argocd-application", "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: all}\nspec: {generators: []}\n",
			"stdin:1: applicationset all: an ApplicationSet makes Applications from generators: for one a cluster write a single Module"},
		"unknown field": {"argocd-application", application + "  syncPolcy: {automated: {}}\n", "stdin:7: application shop: spec.syncPolcy: unknown field; did you mean syncPolicy?"},
		"unknown field below": {"argocd-application", application + "  syncPolicy: {automated: {prun: true}}\n",
			"stdin:7: application shop: spec.syncPolicy.automated.prun: unknown field; did you mean prune?"},
		"wrong type":     {"argocd-application", application + "  syncPolicy: {automated: {prune: sometimes}}\n", `spec.syncPolicy.automated.prune: takes true or false, not "sometimes"`},
		"list for text":  {"argocd-application", strings.Replace(application, "path: a", "path: [a]", 1), "spec.source.path: takes a text"},
		"text for map":   {"argocd-application", strings.Replace(application, "{name: c1}", "c1", 1), "spec.destination: takes a mapping"},
		"set twice":      {"argocd-application", application + "  destination: {name: c2}\n", "stdin:7: application shop: spec.destination: is set twice, first in line 6"},
		"another kind":   {"argocd-application", kustomization, "there is no Application of argoproj.io in what was read: stdin:1: kustomization shop; that is for import flux-kustomization"},
		"nothing of it":  {"argocd-application", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "there is no Application of argoproj.io in what was read: stdin:1: configmap a"},
		"unknown word":   {"argo", application, `"argo" cannot be imported; use one of argocd-application, fleet-gitrepo, flux-helmrelease, flux-kustomization`},
		"no source":      {"flux-kustomization", kustomization, "stdin:4: kustomization shop: spec.sourceRef: GitRepository flux-system/shop is not among the files: add it, as kubectl get gitrepository -o yaml prints it"},
		"bucket":         {"flux-kustomization", strings.Replace(kustomization, "GitRepository", "Bucket", 1) + "---\napiVersion: source.toolkit.fluxcd.io/v1\nkind: Bucket\nmetadata: {name: shop}\n", "a module has no source that is a Bucket"},
		"two of a name":  {"argocd-application", application + "---\n" + application, "Application shop and Application shop would both be module shop"},
		"no YAML":        {"argocd-application", "a: [", "stdin:1: is no YAML"},
		"not deployed":   {"fleet-gitrepo", fleetKeepsOut, "stdin:9: targetCustomizations[0]: doNotDeploy: the module would come to these clusters: say with -l LABEL=VALUE which are to have it"},
		"values no YAML": {"argocd-application", strings.Replace(application, "path: a", "path: a, helm: {values: 'a: ['}", 1), "spec.source.helm.values: is no YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := convert(t, tc.kind, tc.text, importer.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// TestOptions: the project, the placement and the package may be said beside the files.
func TestOptions(t *testing.T) {
	text := application + "---\n" + strings.NewReplacer("name: shop", "name: back", "c1", "c2").Replace(application)
	o := importer.Options{Project: "team", Clusters: map[string]string{"c1": "prod-eu", "": "lab"}, Package: "kustomize"}
	modules, _, err := convert(t, "argocd-application", text, o)
	if err != nil || len(modules) != 2 {
		t.Fatal(modules, err)
	}
	for i, want := range []string{"prod-eu", "lab"} {
		m := modules[i]
		if got := m.GetSpec().GetPlacement().GetClusters(); len(got) != 1 || got[0] != want || m.GetMetadata().GetProject() != "team" || m.GetSpec().GetPackage().GetKustomize() == nil {
			t.Errorf("module %d is %v, want it in %s", i, m.Module, want)
		}
	}
	o.Selector = &v1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	modules, _, err = convert(t, "argocd-application", text, o)
	if err != nil || !proto.Equal(modules[0].GetSpec().GetPlacement(), &v1.Placement{Selector: o.Selector}) {
		t.Errorf("the placement is %v, %v", modules, err)
	}
	modules, _, err = convert(t, "fleet-gitrepo", fleetKeepsOut, o)
	if err != nil || !proto.Equal(modules[0].GetSpec().GetPlacement(), &v1.Placement{Selector: o.Selector}) {
		t.Errorf("the placement is %v, %v", modules, err)
	}
}

// TestNoCredentialIsPrinted: what is in an address, or in a Secret beside, is in no module and in no note.
func TestNoCredentialIsPrinted(t *testing.T) {
	const canary = "hunter22"
	secret := "---\napiVersion: v1\nkind: Secret\nmetadata: {name: repo, labels: {argocd.argoproj.io/secret-type: repository}}\nstringData: {url: 'https://bot:hunter22@git.example.com/a.git', password: hunter22}\n"
	app := strings.Replace(application, "https://git", "https://bot:hunter22@git", 1)
	chart := strings.Replace(app, "path: a", "chart: a, targetRevision: 1.0.0", 1)
	ssh := strings.Replace(application, "https://git", "ssh://git:hunter22@git", 1)
	release := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: a, namespace: b}\nspec: {chart: {spec: {chart: a, sourceRef: {kind: HelmRepository, name: a}}}}\n---\n" +
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: a}\nspec: {url: 'https://bot:hunter22@charts.example.com'}\n"
	for kind, texts := range map[string][]string{"argocd-application": {app + secret, chart + secret, ssh + secret}, "flux-helmrelease": {release}} {
		for _, text := range texts {
			modules, unread, err := convert(t, kind, text, importer.Options{})
			if err != nil || len(modules) != 1 {
				t.Fatal(modules, err)
			}
			var got strings.Builder
			if _, err := modules[0].Write(&got); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got.String()+strings.Join(unread, ""), canary) || !strings.Contains(got.String(), "towline secret set") {
				t.Errorf("%s: prints\n%s", kind, got.String())
			}
		}
	}
}

// TestSaysWhatAHubRefuses: a manifest that its own tool would not take either is not passed on in silence.
func TestSaysWhatAHubRefuses(t *testing.T) {
	modules, _, err := convert(t, "argocd-application", strings.Replace(application, "repoURL: https://git.example.com/a.git, ", "", 1), importer.Options{})
	if err != nil || len(modules) != 1 {
		t.Fatal(modules, err)
	}
	notes := modules[0].Notes
	if last := notes[len(notes)-1]; last.Path != "the module" || !strings.Contains(last.Text, "spec.source.git") {
		t.Errorf("%v", notes)
	}
}

// TestReleaseNames: what a chart calls its objects by is what the other tool calls them by, so that they are the same ones.
func TestReleaseNames(t *testing.T) {
	const repo = "apiVersion: fleet.cattle.io/v1alpha1\nkind: GitRepo\nmetadata: {name: store}\nspec: {repo: 'https://git.example.com/a.git', paths: PATHS, targets: [{clusterSelector: {}}]}\n---\n"
	const chart = "helm: {chart: ./web, values: {a: 1}}\n"
	release := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: a.b, namespace: c}\nspec: {chart: {spec: {chart: a, sourceRef: {kind: HelmRepository, name: a}}}}\n---\n" +
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: a}\nspec: {url: 'https://charts.example.com'}\n"
	fleet := func(paths, more string) string { return strings.Replace(repo, "PATHS", paths, 1) + more }
	for name, tc := range map[string]struct{ kind, text, want, note string }{
		"Fleet":                  {"fleet-gitrepo", fleet("[charts/web]", chart), "store-charts-web", ""},
		"Fleet, whole":           {"fleet-gitrepo", fleet("[]", chart), "store", ""},
		"Fleet, named":           {"fleet-gitrepo", fleet("[charts]", "name: front\n"+chart), "front", ""},
		"Fleet, release":         {"fleet-gitrepo", fleet("[charts]", "name: front\nhelm: {chart: ./web, releaseName: back}\n"), "back", ""},
		"Fleet, no name of Helm": {"fleet-gitrepo", fleet("[Charts/my_web]", chart), "store-charts-my-web", "as helm list has it"},
		"Flux, with a dot":       {"flux-helmrelease", release, "a.b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			modules, _, err := convert(t, tc.kind, tc.text, importer.Options{})
			if err != nil || len(modules) != 1 {
				t.Fatal(modules, err)
			}
			m := modules[0]
			if got := cmp.Or(m.GetSpec().GetPackage().GetHelm().GetReleaseName(), m.GetMetadata().GetName()); got != tc.want {
				t.Errorf("the release is %s, want %s", got, tc.want)
			}
			if said := noted(m, "as helm list has it"); said != (tc.note != "") {
				t.Errorf("%v", m.Notes)
			}
		})
	}
}

// TestIgnoresNoOtherObjects: what Flux ignores of objects that it selects by labels or annotations is not ignored of all, and that is said.
func TestIgnoresNoOtherObjects(t *testing.T) {
	const release = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: a, namespace: c}\nspec:\n  chart: {spec: {chart: a, sourceRef: {kind: HelmRepository, name: a}}}\n" +
		"  driftDetection: {mode: enabled, ignore: [{paths: [/spec/replicas], target: TARGET}, {paths: [/data], target: {kind: ConfigMap}}]}\n---\n" +
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: a}\nspec: {url: 'https://charts.example.com'}\n"
	for target, policies := range map[string]int{"{labelSelector: app=web}": 1, "{kind: Deployment, annotationSelector: a=b}": 1, "{kind: Deployment}": 2} {
		modules, _, err := convert(t, "flux-helmrelease", strings.Replace(release, "TARGET", target, 1), importer.Options{})
		if err != nil || len(modules) != 1 {
			t.Fatal(modules, err)
		}
		if got := modules[0].GetSpec().GetPolicies(); len(got) != policies || noted(modules[0], "match.labelSelector for the objects") != (policies == 1) {
			t.Errorf("%s: %v, %v", target, got, modules[0].Notes)
		}
	}
}

// TestSaysWhatTheFilesMayHave: what the other tool reads in a cluster, or on an object, no field of its manifest shows.
func TestSaysWhatTheFilesMayHave(t *testing.T) {
	const git = "---\napiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: shop}\nspec: {url: 'https://git.example.com/a.git'}\n"
	chart := strings.Replace(application, "path: a", "chart: a, targetRevision: 1.0.0", 1)
	for name, tc := range map[string]struct {
		kind, text, note string
		want             bool
	}{
		"a chart":                 {"argocd-application", chart, "package.helm.apiVersions", false},
		"a chart with a version":  {"argocd-application", strings.Replace(chart, "1.0.0", "1.0.0, helm: {kubeVersion: 1.33.4}", 1), "package.helm.apiVersions", true},
		"a chart that is told":    {"argocd-application", strings.Replace(chart, "1.0.0", "1.0.0, helm: {kubeVersion: 1.33.4, apiVersions: [a.b/v1]}", 1), "package.helm.apiVersions", false},
		"no chart":                {"argocd-application", application, "package.helm.apiVersions", false},
		"what Flux prunes":        {"flux-kustomization", kustomization + git, "kustomize.toolkit.fluxcd.io/prune: disabled", true},
		"what Flux keeps":         {"flux-kustomization", strings.Replace(kustomization, "prune: true", "prune: false", 1) + git, "kustomize.toolkit.fluxcd.io/prune: disabled", false},
		"what Flux writes":        {"flux-kustomization", kustomization + git, "kustomize.toolkit.fluxcd.io/ssa", true},
		"what Flux fills in":      {"flux-kustomization", strings.Replace(kustomization, "prune: true", "prune: true, postBuild: {substitute: {A: b}}", 1) + git, "towline.dev/substitute: disabled", true},
		"what Flux leaves":        {"flux-kustomization", kustomization + git, "towline.dev/substitute: disabled", false},
		"what Argo CD prunes":     {"argocd-application", application + "  syncPolicy: {automated: {prune: true}}\n", "Prune=false", true},
		"what Argo CD only shows": {"argocd-application", application, "Prune=false", false},
		"what Argo CD keeps":      {"argocd-application", application, "Delete=false", true},
		"what Argo CD runs later": {"argocd-application", application, "argocd.argoproj.io/hook", true},
		"what Flux passes over":   {"flux-kustomization", kustomization + git, "kustomize.toolkit.fluxcd.io/reconcile: disabled", true},
	} {
		t.Run(name, func(t *testing.T) {
			modules, _, err := convert(t, tc.kind, tc.text, importer.Options{})
			if err != nil || len(modules) != 1 {
				t.Fatal(modules, err)
			}
			if noted(modules[0], tc.note) != tc.want {
				t.Errorf("%v", modules[0].Notes)
			}
		})
	}
}

// TestVerify: public keys are carried over from the Secret that has them, of which nothing else is; what cannot be checked is said.
func TestVerify(t *testing.T) {
	const pgp, ssh, cosign = "-----BEGIN PGP PUBLIC KEY BLOCK-----\nx\n-----END PGP PUBLIC KEY BLOCK-----\n", "ssh-ed25519 AAAA ana@example.com\n", "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"
	coded := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	secret := "---\napiVersion: v1\nkind: Secret\nmetadata: {name: keys}\ntype: Opaque\ndata: {a: " + coded(pgp) + ", b: " + coded(ssh) + ", c: " + coded(cosign) +
		", d: " + coded("-----BEGIN OPENSSH PRIVATE KEY-----\nhunter22 ssh-\n") + ", e: " + coded("hunter22") + "}\n"
	repo := func(kind, spec string) string {
		return strings.ReplaceAll(kustomization, "GitRepository", kind) + "---\napiVersion: source.toolkit.fluxcd.io/v1\nkind: " + kind + "\nmetadata: {name: shop}\nspec: {" + spec + "}\n"
	}
	const git, oci = "url: 'https://git.example.com/a.git', ref: {tag: v1}, verify: ", "url: 'oci://registry.example.com/a', verify: "
	for name, tt := range map[string]struct {
		text string
		want *v1.Verify
		note string
	}{
		"commit":       {repo("GitRepository", git+"{mode: head, secretRef: {name: keys}}") + secret, &v1.Verify{Mode: "HEAD", PgpKeys: []string{pgp}, SshKeys: []string{ssh}}, ""},
		"tag":          {repo("GitRepository", git+"{mode: TagAndHEAD, secretRef: {name: keys}}") + secret, &v1.Verify{Mode: "TagAndHEAD", PgpKeys: []string{pgp}, SshKeys: []string{ssh}}, ""},
		"cosign":       {repo("OCIRepository", oci+"{provider: cosign, secretRef: {name: keys}}") + secret, &v1.Verify{CosignKeys: []string{cosign}}, ""},
		"no secret":    {repo("GitRepository", git+"{mode: HEAD, secretRef: {name: keys}}"), nil, "put Secret keys into the files that are imported"},
		"another mode": {repo("GitRepository", git+"{mode: Other, secretRef: {name: keys}}") + secret, nil, "mode Other has nothing that does the same"},
		"notation":     {repo("OCIRepository", oci+"{provider: notation, secretRef: {name: keys}}") + secret, nil, "signatures of notation are not read"},
		"keyless":      {repo("OCIRepository", oci+"{provider: cosign, matchOIDCIdentity: [{issuer: a, subject: b}]}"), nil, "a signature without a key"},
	} {
		t.Run(name, func(t *testing.T) {
			modules, _, err := convert(t, "flux-kustomization", tt.text, importer.Options{})
			if err != nil || len(modules) != 1 {
				t.Fatal(modules, err)
			}
			m := modules[0]
			if !proto.Equal(m.GetSpec().GetSource().GetVerify(), tt.want) || tt.note != "" && !noted(m, tt.note) || tt.note == "" && noted(m, "verify") {
				t.Errorf("%v\n%v", m.GetSpec().GetSource().GetVerify(), m.Notes)
			}
			if strings.Contains(fmt.Sprint(m.Module, m.Notes), "hunter22") {
				t.Error("what is no public key is carried over")
			}
		})
	}
}

func noted(m importer.Module, text string) bool {
	return slices.ContainsFunc(m.Notes, func(n importer.Note) bool { return strings.Contains(n.Text, text) })
}

// TestAliases: a manifest is what its aliases stand for.
func TestAliases(t *testing.T) {
	text := strings.Replace(application, "path: a}", "path: &p a, directory: {recurse: true, exclude: *p}}", 1)
	modules, _, err := convert(t, "argocd-application", text, importer.Options{})
	if err != nil || len(modules) != 1 || modules[0].GetSpec().GetSource().GetGit().GetPath() != "a" {
		t.Errorf("%v, %v", modules, err)
	}
}

// FuzzConvert: whatever a file says, it is converted or refused.
func FuzzConvert(f *testing.F) {
	inputs, _ := filepath.Glob("testdata/*.yaml")
	for _, input := range inputs {
		if text, err := os.ReadFile(input); err == nil {
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range importer.Kinds() {
			_, _, _ = convert(t, kind, text, importer.Options{})
		}
	})
}
