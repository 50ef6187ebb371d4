package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/manifest"
)

// Package says how files become objects. At most one field is set; none is Plain with the path of Options.
type Package struct {
	Helm      *Helm
	Kustomize *Kustomize
}

// Helm is a chart in the files.
type Helm struct {
	// Path is the folder of the chart, or its .tgz; empty is the root.
	Path string `json:"path,omitempty"`
	// ReleaseName and Namespace are what templates see of a release.
	ReleaseName string `json:"releaseName"`
	Namespace   string `json:"namespace"`
	// ValuesFiles, relative to the root of the files, count over the chart's own values, in order, and Values over them.
	ValuesFiles []string        `json:"valuesFiles,omitempty"`
	Values      json.RawMessage `json:"values,omitempty"`
	// Overlays count over Values, in order.
	Overlays []Overlay `json:"overlays,omitempty"`
	// SkipCRDs leaves out what is in crds/.
	SkipCRDs bool `json:"skipCRDs,omitempty"`
	// KubeVersion and APIVersions are what templates see of a cluster; empty is what Helm takes for it.
	KubeVersion string   `json:"kubeVersion,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	// Capabilities are those of the clusters that it is rendered for; nil: what Helm takes for them. Where KubeVersion or APIVersions is
	// set they do not count.
	Capabilities *fleet.Capabilities `json:"capabilities,omitempty"`
}

// Declared reports that the module says itself what templates see of a cluster.
func (h *Helm) Declared() bool { return h.KubeVersion != "" || len(h.APIVersions) > 0 }

// Overlay is values of a chart, and what messages call them.
type Overlay struct {
	Field  string          `json:"field"`
	Values json.RawMessage `json:"values"`
}

// Kustomize is a kustomization in the files.
type Kustomize struct {
	// Path is the folder of the kustomization; empty is the root.
	Path string `json:"path,omitempty"`
	// Components are folders of components, relative to Path, that are added to those of the kustomization.
	Components []string `json:"components,omitempty"`
}

// Job is one build: what an Engine turns into manifests. It is all that an engine gets to know.
type Job struct {
	Files     map[string][]byte `json:"-"`
	Helm      *Helm             `json:"helm,omitempty"`
	Kustomize *Kustomize        `json:"kustomize,omitempty"`
}

// Built is what an engine makes of a job.
type Built struct {
	// Texts are manifests in YAML, by what messages are to call them: a name of where they come from.
	Texts map[string][]byte
	// Reads is what a chart asks of the cluster that it is rendered for.
	Reads Reads
}

// Engine builds kustomizations and charts. It keeps nothing of a job for the next.
type Engine interface {
	Build(ctx context.Context, job Job) (Built, error)
}

// Render turns files into the objects of a package, in the order of identity. engine may be nil for plain manifests. No error shows a
// value of the module. Beside them it says what a chart asks of the cluster that it is rendered for.
func Render(ctx context.Context, engine Engine, files map[string][]byte, pkg Package, opts Options) ([]manifest.Object, Reads, error) {
	if pkg.Helm == nil && pkg.Kustomize == nil {
		objects, err := Plain(files, opts)
		return objects, Reads{}, err
	}
	if engine == nil {
		return nil, Reads{}, fleet.Errorf(fleet.ErrPrecondition, "package: this hub was started without a render worker, and builds no kustomizations and charts: put plain manifests")
	}
	if pkg.Helm == nil {
		return built(ctx, engine, Job{Files: files, Kustomize: pkg.Kustomize}, opts)
	}
	opts.Options.Chart = true
	charts, err := chartFiles(ctx, files, pkg.Helm)
	if err != nil {
		return nil, Reads{}, err
	}
	objects, reads, err := built(ctx, engine, Job{Files: charts, Helm: pkg.Helm}, opts)
	err = maskError(err, pkg.Helm.Values)
	for _, over := range pkg.Helm.Overlays {
		err = maskError(err, over.Values)
	}
	return objects, reads, err
}

// built are the objects of what an engine makes of a job.
func built(ctx context.Context, engine Engine, job Job, opts Options) ([]manifest.Object, Reads, error) {
	first, second, err := buildTwice(ctx, engine, job)
	if err != nil {
		return nil, Reads{}, err
	}
	objects, err := sameObjects(first.Texts, second.Texts, opts.Options)
	if err != nil {
		return nil, Reads{}, err
	}
	if len(objects) == 0 && !opts.AllowEmpty {
		return nil, Reads{}, fleet.Invalid("package", "renders to no objects; set allowEmpty if the module is to have none")
	}
	return objects, first.Reads, nil
}

// chartFiles are those that a chart can be made of, so that the rest of a large repository is not sent.
func chartFiles(ctx context.Context, files map[string][]byte, h *Helm) (map[string][]byte, error) {
	out := map[string][]byte{}
	roots := map[string]bool{}
	if err := addRoots(ctx, roots, files, path.Clean("./"+h.Path)); err != nil {
		return nil, err
	}
	if err := noFolder(files, roots); err != nil {
		return nil, err
	}
	for name, data := range files {
		if inAny(roots, name) || path.Base(name) == "Chart.yaml" { // of others it is told where they are
			out[name] = data
		}
	}
	for _, name := range h.ValuesFiles {
		if data, there := files[path.Clean("./"+name)]; there {
			out[path.Clean("./"+name)] = data
		}
	}
	return out, nil
}

// maxChartYAML is how large what a chart says of itself may be to be read for what it depends on.
const maxChartYAML = 1 << 20

// addRoots adds a chart's folder, and those beside it that it depends on (file://), to those of charts. It ends when nobody waits for that any more.
func addRoots(ctx context.Context, roots map[string]bool, files map[string][]byte, root string) error {
	if roots[root] || ctx.Err() != nil {
		return ctx.Err()
	}
	roots[root] = true
	for _, name := range []string{"Chart.yaml", "requirements.yaml"} {
		var says struct {
			Dependencies []struct {
				Repository string `json:"repository"`
			} `json:"dependencies"`
		}
		data, there := files[path.Join(root, name)]
		if !there || len(data) > maxChartYAML {
			continue
		}
		if _, err := manifest.Root(name, data); err != nil || yaml.Unmarshal(data, &says) != nil {
			continue // it is said where the chart is loaded
		}
		for _, d := range says.Dependencies {
			if to, is := strings.CutPrefix(d.Repository, "file://"); is && !strings.HasPrefix(to, "/") {
				if err := addRoots(ctx, roots, files, path.Join(root, to)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// inAny reports that a file is one of the roots, or in one.
func inAny(roots map[string]bool, name string) bool {
	for at := name; ; at = path.Dir(at) {
		if roots[at] {
			return true
		}
		if at == "." || at == "/" {
			return false
		}
	}
}

// buildTwice builds two times at once: an engine that has two workers does it in different ones.
func buildTwice(ctx context.Context, engine Engine, job Job) (first, second Built, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		built Built
		err   error
	}
	other := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = guard.Run(func() (err error) {
			o.built, err = engine.Build(ctx, job)
			return err
		})
		if o.err != nil {
			cancel() // the first of two errors is the one that counts
		}
		other <- o
	}()
	first, err = engine.Build(ctx, job)
	if err != nil {
		cancel()
	}
	b := <-other
	if err != nil && (b.err == nil || !errors.Is(err, context.Canceled)) {
		return Built{}, Built{}, err
	}
	return first, b.built, b.err
}

// sameObjects reads both results and says what of them differs: what is not repeatable would change clusters without a change of
// the module.
func sameObjects(first, second map[string][]byte, opts manifest.Options) ([]manifest.Object, error) {
	objects, err := manifest.ParseSet(first, opts)
	if err != nil || maps.EqualFunc(first, second, bytes.Equal) {
		return objects, err
	}
	others, err := manifest.ParseSet(second, opts)
	if err != nil {
		return nil, err
	}
	if at := firstDifference(objects, others); at != "" {
		return nil, fleet.Invalid("package", at+": what makes values up (random text, keys, the time) would change clusters without a change of the module; give the value instead")
	}
	return objects, nil
}

// firstDifference names the first object that is not the same in both, and where in it; empty: there is none. It says no value,
// which may be that of a Secret.
func firstDifference(a, b []manifest.Object) string {
	for i, o := range a {
		switch {
		case i == len(b) || o.ID.Compare(b[i].ID) < 0:
			return sometimes(o)
		case o.ID != b[i].ID:
			return sometimes(b[i])
		case o.Version != b[i].Version || !bytes.Equal(o.Raw, b[i].Raw):
			return o.Place() + ": " + o.ID.Short() + " is another each time it is rendered, at " + differs(o.Raw, b[i].Raw)
		}
	}
	if len(b) > len(a) {
		return sometimes(b[len(a)])
	}
	return ""
}

func sometimes(o manifest.Object) string {
	return o.Place() + ": " + o.ID.Short() + " is there one time it is rendered, and not the next"
}

// differs is the JSON pointer of the first field, in the order of names, in which two objects differ.
func differs(a, b []byte) string {
	x, errX := manifest.Decode(a)
	y, errY := manifest.Decode(b)
	if errX != nil || errY != nil {
		return "/"
	}
	return pointer(x, y, "")
}

func pointer(a, b any, at string) string {
	found := ""
	step := func(key string, x, y any) {
		if found == "" {
			found = pointer(x, y, at+"/"+escape.Replace(key))
		}
	}
	switch x := a.(type) {
	case map[string]any:
		y, isMap := b.(map[string]any)
		if !isMap {
			return at
		}
		both := maps.Clone(x)
		maps.Copy(both, y)
		for _, key := range slices.Sorted(maps.Keys(both)) {
			step(key, x[key], y[key])
		}
	case []any:
		y, isList := b.([]any)
		if !isList || len(x) != len(y) {
			return at
		}
		for i := range x {
			step(strconv.Itoa(i), x[i], y[i])
		}
	default:
		if !reflect.DeepEqual(a, b) {
			return at
		}
	}
	return found
}

// escape writes a key as a step of a JSON pointer.
var escape = strings.NewReplacer("~", "~0", "/", "~1")
