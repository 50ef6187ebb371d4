package hub_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
)

// TestProjectGoesWhileACatalogIsMade: either the project is not empty, or the catalog has no project.
func TestProjectGoesWhileACatalogIsMade(t *testing.T) {
	w := newWorld(t, true)
	for range 40 {
		_, err := w.Identity.PutProject(w.ctx, &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "team"}}})
		must(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = w.Catalogs.PutCatalog(context.WithoutCancel(w.ctx), &towlinev1.PutCatalogRequest{Catalog: &towlinev1.Catalog{
				Metadata: &towlinev1.Metadata{Name: "all", Project: "team"}, Spec: &towlinev1.CatalogSpec{Suspend: true,
					Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": ""}}}}}})
		}()
		_, err = w.Identity.DeleteProject(w.ctx, &towlinev1.DeleteProjectRequest{Name: "team"})
		<-done
		list, e := w.Catalogs.ListCatalogs(w.ctx, &towlinev1.ListCatalogsRequest{})
		must(t, e)
		if err == nil && len(list.GetCatalogs()) > 0 {
			t.Fatalf("left: %v", list)
		}
		for _, c := range list.GetCatalogs() {
			_, e = w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Project: "team", Name: c.GetMetadata().GetName()})
			must(t, e)
		}
	}
}

// TestProblemsOfACatalogShowNoValues: what is wrong with a file is told to viewers and stands in the hub's log, and neither has what may
// be a secret in the file.
func TestProblemsOfACatalogShowNoValues(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.Log = true, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	eve := w.as(w.outsider("eve", "viewer").token)
	for name, spec := range map[string]string{
		"values as a text, as Argo CD and Flux take them": "package: {helm: {values: 'password: canary-values'}}, source: {inline: {files: {Chart.yaml: ''}}}",
		"an address that is misspelt":                     "source: {http: {url: 'htps://ci:canary-url@files.example.com/a.yaml'}}",
		"a list where a map is meant":                     "package: {helm: {values: [canary-list]}}, source: {inline: {files: {Chart.yaml: ''}}}",
		"a patch that is cut off":                         "overrides: [{selector: {}, patches: [{target: {kind: Secret}, patch: 'stringData: {password: canary-patch'}]}], source: {inline: {files: {a.yaml: ''}}}",
		"a Secret whose value is no text":                 `source: {inline: {files: {a.yaml: "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x}\nstringData: {pw: [canary-inline]}"}}}`,
		"a Secret that is no base64":                      `source: {inline: {files: {a.yaml: "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x}\ndata: {pw: canary-data}"}}}`,
		"a Secret with its value as a line":               `source: {inline: {files: {a.yaml: "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x}\nstringData: canary-line"}}}`,
		"a file that is a text":                           `source: {inline: {files: {a.yaml: "canary-text"}}}`,
		"a label that is none":                            `source: {inline: {files: {a.yaml: "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x, annotations: canary-note}"}}}`,
		"a binding whose value is a map":                  "bindings: [{name: PW, value: canary-binding, clusterField: metadata.name}], source: {inline: {files: {a.yaml: ''}}}",
		"a default that is no number":                     "bindings: [{name: PW, clusterLabel: pw, default: canary-default, type: Integer}], source: {inline: {files: {a.yaml: ''}}}",
		"a gate with its token in the address":            "rollout: {stages: [{name: all, before: [{name: ask, webhook: {url: 'htps://gate.example.com/canary-gate'}}]}]}, source: {inline: {files: {a.yaml: ''}}}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team"},
				Spec: &towlinev1.CatalogSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{
					"shop.yaml": "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {placement: {selector: {}}, " + spec + "}\n"}}}}}})
			must(t, err)
			_, told := w.Catalogs.ResyncCatalog(w.ctx, &towlinev1.ResyncCatalogRequest{Name: "team"})
			got, err := eve.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
			must(t, err)
			s := got.GetCatalog().GetStatus()
			if found := secretsIn(strings.Join(s.GetProblems(), " ")); len(found) > 0 || s.GetState() == "Pending" {
				t.Errorf("%s, told %v: a viewer reads %v: %q", s.GetState(), told, found, s.GetProblems())
			}
			if found := secretsIn(log.String()); len(found) > 0 {
				t.Errorf("the log has %v", found)
			}
		})
	}
}
