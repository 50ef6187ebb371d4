package render

import (
	"fmt"
	"testing"
	"time"

	"towline.dev/towline/pkg/manifest"
)

// TestManyTextsAreNoWork: each of the many files of a source may be a symbolic link that was copied as text, as far as its first look tells. That must
// not cost the hub a look at all the others for each.
func TestManyTextsAreNoWork(t *testing.T) {
	files := map[string][]byte{"k8s/a.yaml": configMap("a"), "c/Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")}
	for i := range 30_000 {
		files[fmt.Sprintf("k8s/data/%d", i)] = fmt.Appendf(nil, "v%d", i)
		files[fmt.Sprintf("c/crds/data/%d", i)] = fmt.Appendf(nil, "v%d", i)
	}
	e := &texter{texts: []map[string][]byte{texts("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")}, errs: []error{nil}}
	for name, of := range map[string]func() error{
		"plain": func() error { _, err := Plain(files, Options{Path: "k8s"}); return err },
		"chart": func() error {
			_, _, err := Render(t.Context(), e, files, Package{Helm: &Helm{Path: "c"}}, Options{Options: manifest.Options{Namespace: "shop"}})
			return err
		},
	} {
		began := time.Now()
		if err := of(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}
