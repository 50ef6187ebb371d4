package packager

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/ignore"
	release "helm.sh/helm/v4/pkg/release/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
)

// renderChart does what `helm template --include-crds` does, but for hooks of tests and of a release's end, and for lookup.
func renderChart(files map[string][]byte, h render.Helm) (child.Result, error) {
	root, err := folder("package.helm.path", h.Path)
	if err != nil {
		return child.Result{}, err
	}
	c, err := loadChart(files, root)
	if err != nil {
		return child.Result{}, err
	}
	if err := beside(files, c, root, nil); err != nil {
		return child.Result{}, err
	}
	if err := installable(c, root); err != nil {
		return child.Result{}, err
	}
	values, err := valuesOf(files, h)
	if err != nil {
		return child.Result{}, err
	}
	var reads render.Reads
	if !h.Declared() {
		if reads, err = readsOf(c, values); err != nil {
			return child.Result{}, err
		}
	}
	install, err := installOf(h)
	if err != nil {
		return child.Result{}, err
	}
	rel, err := run(install, c, values, h, reads)
	if err != nil {
		at, text := sayHelm(err, c, root, h, values)
		return child.Result{}, fleet.Invalid(at, text)
	}
	made, ok := rel.(*release.Release)
	if !ok {
		return child.Result{}, fleet.Invalidf(chartFile(root), "gives a release of an unknown kind: %T", rel)
	}
	return child.Result{Texts: texts(made, c, root), Reads: reads}, nil
}

// chartFile is what messages call a chart.
func chartFile(root string) string {
	if strings.HasSuffix(root, ".tgz") {
		return root
	}
	return path.Join(root, "Chart.yaml")
}

// loadChart reads a chart from its folder or its archive.
func loadChart(files map[string][]byte, root string) (*chartv2.Chart, error) {
	if data, is := files[root]; is {
		c, err := loader.LoadArchive(bytes.NewReader(data))
		if err != nil {
			return nil, fleet.Invalidf(root, "is no archive of a chart: %s", clean(err.Error()))
		}
		return c, nil
	}
	if _, there := files[path.Join(root, "Chart.yaml")]; !there {
		return nil, noChart(files, root)
	}
	for _, name := range []string{"Chart.yaml", "requirements.yaml"} {
		if err := dependsTwice(path.Join(root, name), files[path.Join(root, name)]); err != nil {
			return nil, err
		}
	}
	rules, err := ignore.Parse(bytes.NewReader(files[path.Join(root, ".helmignore")]))
	if err != nil {
		return nil, fleet.Invalidf(path.Join(root, ".helmignore"), "%s", clean(err.Error()))
	}
	rules.AddDefaults()
	var parts []*archive.BufferedFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, below := strings.CutPrefix(name, root+"/")
		if root == "." {
			rest, below = name, true
		}
		if below && !ignored(rules, rest) {
			parts = append(parts, &archive.BufferedFile{Name: rest, Data: bytes.TrimPrefix(files[name], []byte("\ufeff"))})
		}
	}
	c, err := loader.LoadFiles(parts)
	if err != nil {
		return nil, fleet.Invalid(path.Join(root, "Chart.yaml"), clean(err.Error()))
	}
	return c, nil
}

// maxBeside is how deep charts in folders of the source may depend on one another.
const maxBeside = 8

// beside adds the charts in other folders of the source that a chart depends on (file://), as helm dependency build puts them into its charts/.
func beside(files map[string][]byte, c *chartv2.Chart, root string, above []string) error {
	above = append(above, root)
	for _, d := range c.Metadata.Dependencies {
		to, is := strings.CutPrefix(d.Repository, "file://")
		if !is || slices.ContainsFunc(c.Dependencies(), func(have *chartv2.Chart) bool { return isMeant(d, have) }) {
			continue
		}
		at := path.Join(root, to)
		switch {
		case strings.HasPrefix(to, "/") || at == ".." || strings.HasPrefix(at, "../"):
			return fleet.Invalidf(chartFile(root), "chart %s depends on %s, which is outside of the source", c.Name(), fleet.Clip(d.Repository, maxSaid))
		case slices.Contains(above, at) || len(above) > maxBeside:
			return fleet.Invalidf(chartFile(root), "charts depend on one another in a circle, or too deep: %s, %s", some(above), at)
		}
		in, err := loadChart(files, at)
		if err != nil {
			return err
		}
		if !isMeant(d, in) {
			return fleet.Invalidf(chartFile(root), "chart %s depends on %s %s, but %s is %s %s", c.Name(), d.Name, d.Version, at, in.Name(), in.Metadata.Version)
		}
		if err := beside(files, in, at, above); err != nil {
			return err
		}
		c.AddDependency(in)
	}
	return nil
}

// isMeant reports that a chart is the one that is depended on.
func isMeant(d *chartv2.Dependency, c *chartv2.Chart) bool {
	if c.Name() != d.Name || d.Version == "" || d.Version == c.Metadata.Version {
		return c.Name() == d.Name
	}
	within, err := semver.NewConstraint(d.Version)
	v, bad := semver.NewVersion(c.Metadata.Version)
	return err == nil && bad == nil && within.Check(v)
}

func noChart(files map[string][]byte, root string) error {
	var there []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Base(name) == "Chart.yaml" {
			there = append(there, path.Dir(name))
		}
	}
	if len(there) == 0 {
		return fleet.Invalidf("package.helm.path", "%s has no Chart.yaml", root)
	}
	return fleet.Invalidf("package.helm.path", "%s has no Chart.yaml; folders that have: %s", root, some(there))
}

// ignored reports that .helmignore leaves out a file, or one of the folders that it is in.
func ignored(rules *ignore.Rules, name string) bool {
	for at := strings.IndexByte(name, '/'); at >= 0; {
		if rules.Ignore(name[:at], info{name: path.Base(name[:at]), dir: true}) {
			return true
		}
		next := strings.IndexByte(name[at+1:], '/')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return rules.Ignore(name, info{name: path.Base(name)})
}

// info is what rules ask of a file.
type info struct {
	name string
	dir  bool
}

// Name implements fs.FileInfo.
func (i info) Name() string { return i.name }

// Size implements fs.FileInfo.
func (i info) Size() int64 { return 0 }

// Mode implements fs.FileInfo.
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir
	}
	return 0
}

// ModTime implements fs.FileInfo.
func (i info) ModTime() time.Time { return time.Time{} }

// IsDir implements fs.FileInfo.
func (i info) IsDir() bool { return i.dir }

// Sys implements fs.FileInfo.
func (i info) Sys() any { return nil }

// installable refuses libraries and charts that lack what they depend on.
func installable(c *chartv2.Chart, root string) error {
	if t := c.Metadata.Type; t != "" && t != "application" {
		return fleet.Invalidf(chartFile(root), "chart %s is of type %s, which other charts use and nobody installs: name a chart of type application", c.Name(), t)
	}
	deps := make([]chart.Dependency, len(c.Metadata.Dependencies))
	for i, d := range c.Metadata.Dependencies {
		deps[i] = d
	}
	if err := action.CheckDependencies(c, deps); err != nil {
		_, names, _ := strings.Cut(err.Error(), "directory: ")
		return fleet.Invalidf(chartFile(root), "chart %s depends on %s, missing in %s: put them there (helm dependency update)", c.Name(), names, path.Join(root, "charts"))
	}
	return aliased(c, root)
}

// aliased refuses another version of a chart than the one that is depended on under another name (alias): Helm would render that once, under its own
// name and without the values that are given under the other, so that all that it was under that would be dropped.
func aliased(c *chartv2.Chart, root string) error {
	for _, d := range c.Metadata.Dependencies {
		if d == nil || d.Alias == "" || slices.ContainsFunc(c.Dependencies(), func(have *chartv2.Chart) bool { return isMeant(d, have) }) {
			continue
		}
		var there []string
		for _, have := range c.Dependencies() {
			if have.Name() == d.Name {
				there = append(there, have.Metadata.Version)
			}
		}
		if len(there) > 0 { // else nothing is rendered in its place: a chart may be packed without what is switched off
			return fleet.Invalidf(chartFile(root), "chart %s depends on %s %s as %s, and what is in its charts/ is %s: put the right one there (helm dependency update), or say the version that is there",
				c.Name(), d.Name, d.Version, d.Alias, some(there))
		}
	}
	for _, below := range c.Dependencies() {
		if err := aliased(below, root); err != nil {
			return err
		}
	}
	return nil
}

// valuesOf merges the values as `helm -f FILE… -f VALUES` does.
func valuesOf(files map[string][]byte, h render.Helm) (map[string]any, error) {
	out := map[string]any{}
	for i, name := range h.ValuesFiles {
		field := "package.helm.valuesFiles[" + itoa(i) + "]"
		at, err := folder(field, name)
		if err != nil {
			return nil, err
		}
		data, there := files[at]
		if !there {
			return nil, fleet.Invalidf(field, "%s is no file of the source", at)
		}
		values, err := loader.LoadValues(bytes.NewReader(data))
		if err != nil {
			return nil, fleet.Invalidf(at, "is no YAML map of values: %s", clean(err.Error()))
		}
		out = loader.MergeMaps(out, values)
	}
	for _, over := range ownValues(h) {
		var values map[string]any
		if err := json.Unmarshal(over.Values, &values); err != nil {
			return nil, fleet.Invalid(over.Field, err.Error())
		}
		out = loader.MergeMaps(out, values)
	}
	return out, nil
}

// ownValues are those that the module has itself, in order.
func ownValues(h render.Helm) []render.Overlay {
	if len(h.Values) == 0 {
		return h.Overlays
	}
	return append([]render.Overlay{{Field: "package.helm.values", Values: h.Values}}, h.Overlays...)
}

// installOf is the action of `helm template --include-crds`.
func installOf(h render.Helm) (*action.Install, error) {
	config := action.NewConfiguration()
	config.SetLogger(slog.DiscardHandler)
	config.CustomTemplateFuncs = template.FuncMap{"lookup": func(version, kind, namespace, name string) (map[string]any, error) {
		return nil, fmt.Errorf("lookup of %s %s is refused: a package is rendered without a cluster; give what it looks for as a value", version, path.Join(kind, namespace, name))
	}}
	in := action.NewInstall(config)
	in.DryRunStrategy, in.Replace = action.DryRunClient, true
	in.ReleaseName, in.Namespace, in.IncludeCRDs, in.APIVersions = h.ReleaseName, h.Namespace, !h.SkipCRDs, h.APIVersions
	if h.KubeVersion != "" {
		v, err := common.ParseKubeVersion(h.KubeVersion)
		if err != nil {
			return nil, fleet.Invalidf("package.helm.kubeVersion", "%s", err)
		}
		in.KubeVersion = v
	}
	return in, nil
}

// texts are the manifests of a release by the template that they come from.
func texts(rel *release.Release, c *chartv2.Chart, root string) map[string][]byte {
	out := map[string][]byte{}
	add := func(source, text string) {
		name := inChart(source, c, root) + " (rendered)"
		out[name] = append(out[name], "---\n"+text+"\n"...)
	}
	for _, part := range strings.Split("\n"+rel.Manifest, "\n---\n# Source: ") {
		if source, text, found := strings.Cut(part, "\n"); found && source != "" {
			add(source, text)
		} else if strings.TrimSpace(part) != "" {
			add(c.Name(), part)
		}
	}
	for _, hook := range rel.Hooks {
		if slices.ContainsFunc(hook.Events, comesWithARevision) {
			add(hook.Path, hook.Manifest)
		}
	}
	return out
}

// comesWithARevision reports whether a hook is of installing or upgrading. A module is not tested by Helm, and what is to be done
// when a release is rolled back or deleted must not be done while it is there.
func comesWithARevision(e release.HookEvent) bool {
	return slices.Contains([]release.HookEvent{release.HookPreInstall, release.HookPostInstall, release.HookPreUpgrade, release.HookPostUpgrade}, e)
}

// inChart is the path in the source of what Helm calls CHART/templates/FILE.
func inChart(name string, c *chartv2.Chart, root string) string {
	if rest, found := strings.CutPrefix(name, c.Name()+"/"); found {
		return path.Join(root, rest)
	}
	return name
}

// placed is an error that begins with the template and the line.
var placed = regexp.MustCompile(`^(?:template: |(?:execution|parse) error at \(|YAML parse error on )([^\s():]+(?::\d+)*)\)?: (.*)$`)

// sayHelm is an error of Helm as people can read it, and where it is: files are those of the source, and of values none is told: of the module
// wherever it stands, of files what is quoted.
func sayHelm(err error, c *chartv2.Chart, root string, h render.Helm, values map[string]any) (at, says string) {
	text := strings.ReplaceAll(clean(withoutTemplates(err.Error())), syscall.EMFILE.Error(), errNoNetwork.Error()) // package child has the process open nothing
	for _, dir := range []string{"templates/", "charts/", "crds/"} {
		text = strings.ReplaceAll(text, c.Name()+"/"+dir, path.Join(root, dir)+"/")
	}
	for _, own := range ownValues(h) {
		text = render.MaskValues(text, own.Values)
	}
	text = render.MaskQuoted(text, append(ownDefaults(c), values))
	if m := placed.FindStringSubmatch(text); m != nil {
		return m[1], inShort(m[2])
	}
	return chartFile(root), inShort(text)
}

// givenToTpl is what Helm says before it quotes all of a text that tpl was given.
var givenToTpl = regexp.MustCompile(`(?:cannot parse template|error during tpl function execution for) "`)

// withoutTemplates is a message without the texts that tpl was given: they are values, of any length and with any marks in them.
func withoutTemplates(text string) string {
	var out strings.Builder
	for {
		at := givenToTpl.FindStringIndex(text)
		if at == nil {
			return out.String() + text
		}
		begins := at[1] - 1
		out.WriteString(text[:begins] + strconv.Quote(fleet.Masked))
		quoted, err := strconv.QuotedPrefix(text[begins:])
		if err != nil { // nobody knows where it ends
			return out.String()
		}
		text = text[begins+len(quoted):]
	}
}

// ownDefaults are a chart's own values, and those of the charts in it.
func ownDefaults(c *chartv2.Chart) []any {
	out := []any{c.Values}
	for _, below := range c.Dependencies() {
		out = append(out, ownDefaults(below)...)
	}
	return out
}

// inShort keeps both ends of a message: where templates include one another, what is wrong comes last.
func inShort(text string) string {
	if len(text) <= maxSaid {
		return text
	}
	return fleet.Clip(text, maxSaid/2) + " " + strings.ToValidUTF8(text[len(text)-maxSaid/2:], "")
}

// clean makes one line of a message, without what it quotes of a file that cannot be read.
func clean(text string) string {
	return withoutValues(strings.Join(strings.Fields(fleet.CleanText(text)), " "))
}
