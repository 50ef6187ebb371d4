package packager

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
)

// variant is something to render, and the same with the library alone, in this process and from memory.
type variant struct {
	name string
	job  render.Job
	bare func() error
}

// TestCostOfRendering measures a build in a process that is warm beside the library alone in this one, and what a module's rendering takes in
// all: two builds, which are compared, and their manifests read. bench/render runs it with TOWLINE_BENCH_RENDER=ROUNDS.
func TestCostOfRendering(t *testing.T) {
	rounds, enforced := 3, false
	if n, err := strconv.Atoi(os.Getenv("TOWLINE_BENCH_RENDER")); err == nil {
		rounds, enforced = n, true
	}
	const limit = 1.3
	for _, v := range variants(t) {
		p := pool(t, child.Limits{})
		build := func() error { _, err := p.Build(t.Context(), v.job); return err }
		whole := func() error {
			_, _, err := render.Render(t.Context(), p, v.job.Files, render.Package{Helm: v.job.Helm, Kustomize: v.job.Kustomize}, render.Options{Options: manifest.Options{Namespace: "default"}})
			return err
		}
		cold := once(t, build)
		took := interleaved(t, rounds, v.bare, build, whole)
		ratio := float64(took[1]) / float64(took[0])
		fmt.Printf("%-28s the library alone %8v   a warm worker %8v (%.2f ×)   rendered: twice, compared, read %8v   first, with the worker's start %8v\n",
			v.name, round(took[0]), round(took[1]), ratio, round(took[2]), round(cold))
		if enforced && ratio > limit {
			t.Errorf("%s: a warm worker takes %.2f × of the library alone; at most %.1f", v.name, ratio, limit)
		}
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func once(t *testing.T, f func() error) time.Duration {
	t.Helper()
	began := time.Now()
	must(t, f())
	return time.Since(began)
}

// interleaved is what each takes when little else is in its way (the tenth of its times that are shortest, the longest of these), measured
// in turn, so that whatever else the machine does meets all of them. The first round warms up.
func interleaved(t *testing.T, rounds int, fs ...func() error) []time.Duration {
	t.Helper()
	took := make([][]time.Duration, len(fs))
	for range rounds + 1 {
		for i, f := range fs {
			took[i] = append(took[i], once(t, f))
		}
	}
	best := make([]time.Duration, len(fs))
	for i := range took {
		rest := took[i][1:]
		slices.Sort(rest)
		best[i] = rest[len(rest)/10]
	}
	return best
}

func variants(t *testing.T) []variant {
	openapi.ResetOpenAPI()
	files := filesOf(t, "testdata/kustomize")
	out := []variant{kustomizeVariant("kustomize, 10 objects", files, "overlays/prod"), helmVariant("chart, 15 objects", filesOf(t, "testdata/helm"), web)}
	large := filesOf(t, "testdata/helm")
	for i := range 100 {
		large[fmt.Sprintf("charts/web/templates/more%d.yaml", i)] = bytes.ReplaceAll(large["charts/web/templates/config.yaml"], []byte(`%s-%s" $`), fmt.Appendf(nil, `%%s-%d-%%s" $`, i))
	}
	for name, text := range large { // the List is in each of them
		large[name], _, _ = bytes.Cut(text, []byte("---\n# nothing but"))
	}
	return append(out, helmVariant("chart, 215 objects", large, web))
}

// helmVariant is a chart that is read from memory each time, as it comes to a worker.
func helmVariant(name string, files map[string][]byte, h render.Helm) variant {
	return variant{name: name, job: render.Job{Files: files, Helm: &h}, bare: func() error {
		var parts []*archive.BufferedFile
		for name, data := range files {
			if rest, below := strings.CutPrefix(name, h.Path+"/"); below && !strings.HasPrefix(rest, "docs/") && !strings.HasSuffix(rest, ".bak") {
				parts = append(parts, &archive.BufferedFile{Name: rest, Data: data})
			}
		}
		c, err := loader.LoadFiles(parts)
		if err != nil {
			return err
		}
		values, err := valuesOf(files, h)
		if err != nil {
			return err
		}
		in := action.NewInstall(action.NewConfiguration())
		in.DryRunStrategy, in.Replace, in.ReleaseName, in.Namespace, in.IncludeCRDs = action.DryRunClient, true, h.ReleaseName, h.Namespace, true
		if in.KubeVersion, err = common.ParseKubeVersion(h.KubeVersion); err != nil {
			return err
		}
		_, err = in.Run(c, values)
		return err
	}}
}

func kustomizeVariant(name string, files map[string][]byte, at string) variant {
	fs := newTree(files)
	return variant{name: name, job: render.Job{Files: files, Kustomize: &render.Kustomize{Path: at}}, bare: func() error {
		built, err := krusty.MakeKustomizer(options()).Run(fs, mount+"/"+at)
		if err != nil {
			return err
		}
		_, err = built.AsYaml()
		return err
	}}
}
