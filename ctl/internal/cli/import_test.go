package cli

import (
	"strings"
	"testing"
)

const argoApplication = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: shop, namespace: argocd}\nspec:\n" +
	"  source: {repoURL: https://git.example.com/a.git, path: a, directory: {recurse: true}}\n  destination: {name: c1}\n"

// What is printed goes into apply: what a person is to know of it is in comments, and how much is left out is said beside it.
func TestImportPrintsModules(t *testing.T) {
	hub := &fakeHub{put: putAnswer()}
	other := "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	got := hub.run(t, run{stdin: argoApplication + other}, "import", "argocd-application", "-f", "-", "-l", "env in (prod,stage)", "-p", "team")
	if got.code != 0 || !strings.Contains(got.out, "# - metadata.namespace: ") || !strings.Contains(got.out, "project: team") || !strings.Contains(got.out, "operator: In") ||
		got.err != "stdin:8: service web is not imported\nWarning: 1 field is not carried over: see the comments above the modules\n" {
		t.Fatalf("exit %d, stdout %s, stderr %q", got.code, got.out, got.err)
	}
	if len(hub.requests) > 0 {
		t.Errorf("the hub was asked %v", hub.requests)
	}
	if put := hub.run(t, run{stdin: got.out}, "apply", "-f", "-"); put.code != 0 {
		t.Errorf("exit %d, stderr %q", put.code, put.err)
	}
}

func TestImportUsage(t *testing.T) {
	for args, want := range map[string]string{
		"import argocd-application": "import: name what to read with -f FILE, -f DIR or -f -",
		"import -f x":               "towline import takes one of argocd-application, fleet-gitrepo, flux-helmrelease or flux-kustomization; see: towline import --help",
		"import argocd-application -f x --package jsonnet": "--package jsonnet: write plain, kustomize or helm",
		"import argocd-application -f x --cluster a=B!":    "--cluster a=B!: ",
		"import argocd-application -f x -l a==b=c":         "-l a==b=c: ",
	} {
		got := (&fakeHub{}).run(t, run{}, strings.Fields(args)...)
		if got.code != 2 || !strings.HasPrefix(got.err, "Error: "+want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", args, got.code, got.err, want)
		}
	}
}
