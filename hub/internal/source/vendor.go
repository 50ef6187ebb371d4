package source

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Limits of what charts depend on.
const (
	maxDependencies    = 100 // that are looked at
	maxDependencyDepth = 8   // of a chart in a chart
)

// Vendor puts what the chart in a folder of an artifact depends on into its charts/, where it is not there yet, so that what is rendered is all in the
// artifact. Each is fetched as the source of a module would be. The artifact keeps its exact ref and gets another digest: that of all its files. Errors
// are those of Fetch.
func (f *Fetcher) Vendor(ctx context.Context, project string, src *towlinev1.Source, folder string, a Artifact) (Artifact, error) {
	timeout, err := readTimeout("timeout", timeoutOf(src))
	if err != nil {
		return Artifact{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	v := &vendoring{f: f, project: project, src: src, files: maps.Clone(a.Files)}
	dir := path.Clean("./" + folder)
	if err := v.fill(ctx, chartAt{files: v.files, dir: dir, in: dir}); err != nil {
		return Artifact{}, err
	}
	if !v.changed {
		return a, nil
	}
	if err := artifact.CheckNames(v.files); err != nil {
		return Artifact{}, fleet.Join("charts", err)
	}
	if err := addFiles(v.files, nil); err != nil {
		return Artifact{}, err
	}
	out := newArtifact(v.files)
	out.Ref, out.Made, out.Charts = a.Ref, a.Made, v.charts
	return out, nil
}

func timeoutOf(src *towlinev1.Source) string {
	return src.GetGit().GetTimeout() + src.GetOci().GetTimeout() + src.GetHelm().GetTimeout() + src.GetHttp().GetTimeout() // a source is of one kind
}

// vendoring is the work of one Vendor.
type vendoring struct {
	f       *Fetcher
	project string
	src     *towlinev1.Source
	files   map[string][]byte // of the source
	charts  []*towlinev1.FetchedChart
	changed bool
	seen    int
	// fetched counts the bytes of the charts that were fetched, as they are kept until the end; unpacked those of archives that were looked into.
	fetched, unpacked int64
}

// chartAt is a chart in a folder of files. In is what its own are in as fetched charts, and above are the charts that it is in, by where they are from.
type chartAt struct {
	files map[string][]byte
	dir   string
	in    string
	above []string
}

// fill puts what a chart depends on into its charts/.
func (v *vendoring) fill(ctx context.Context, c chartAt) error {
	files, dir, above := c.files, c.dir, c.above
	m, ok := readChart(files, dir)
	if !ok || len(m.Dependencies) == 0 {
		return nil
	}
	if len(above) > maxDependencyDepth {
		return refused("chart %s: charts depend on one another more than %d deep: %s", clip(m.Name), maxDependencyDepth, clip(strings.Join(above, ", ")))
	}
	if v.seen += len(m.Dependencies); v.seen > maxDependencies {
		return fleet.Errorf(fleet.ErrExhausted, "chart %s: its charts depend on more than %d others", clip(m.Name), maxDependencies)
	}
	there, err := v.vendoredIn(ctx, files, dir)
	if err != nil {
		return err
	}
	var lock *chartLock
	for _, d := range m.Dependencies {
		if err := ctx.Err(); err != nil {
			return err
		}
		if d.Repository == "" || slices.ContainsFunc(there, d.isIn) {
			continue
		}
		if lock == nil {
			if lock, err = readLock(files, dir, m); err != nil {
				return err
			}
		}
		added, err := v.add(ctx, c, d, lock)
		if err != nil {
			return sayDependency(m, d, err)
		}
		if err := v.drop(ctx, files, m, d, there); err != nil {
			return err
		}
		there = append(there, vendored{chartMeta: added})
	}
	return nil
}

// drop takes what was in charts/ of other versions out, as helm dependency build does: it would be rendered beside the right one.
func (v *vendoring) drop(ctx context.Context, files map[string][]byte, m chartMeta, d *dependency, there []vendored) error {
	for _, old := range there {
		if err := ctx.Err(); err != nil {
			return err
		}
		if old.Name != d.Name || usedBy(m, old) {
			continue
		}
		for _, name := range old.files {
			delete(files, name)
			v.changed = true
		}
	}
	return nil
}

// isIn reports that a chart is the one that is meant.
func (d *dependency) isIn(v vendored) bool { return v.Name == d.Name && inRange(d.Version, v.Version) }

// usedBy reports that a chart in charts/ is what another dependency means.
func usedBy(m chartMeta, v vendored) bool {
	return slices.ContainsFunc(m.Dependencies, func(d *dependency) bool { return d.isIn(v) })
}

// sayDependency says which chart depends on which, in an error.
func sayDependency(m chartMeta, d *dependency, err error) error {
	var away *AwayError
	var waits *SecretError
	if errors.As(err, &waits) {
		return err
	}
	var named *fleet.Named
	switch {
	case errors.As(err, &away):
		return &AwayError{Host: away.Host, Err: fleet.Errorf(fleet.ErrUnavailable, "chart %s depends on %s: %s", clip(m.Name), clip(d.Name), err)}
	case errors.As(err, &named):
		return fleet.Errorf(named.Kind, "chart %s depends on %s: %s", clip(m.Name), clip(d.Name), err)
	case errors.Is(err, fleet.ErrInvalid):
		return refused("chart %s depends on %s: %s", clip(m.Name), clip(d.Name), err)
	}
	return err
}

// add puts one chart into charts/ of another. One in a folder of the source stays there, and is filled.
func (v *vendoring) add(ctx context.Context, c chartAt, d *dependency, lock *chartLock) (m chartMeta, err error) {
	if strings.HasPrefix(d.Repository, "file://") {
		return v.local(ctx, c, d)
	}
	if err := v.mayFetch(d); err != nil {
		return m, err
	}
	version := d.Version
	if exact := lock.locked(d); exact != "" {
		version = exact
	} else if lock != nil {
		return m, refused("Chart.lock has no version of it: run helm dependency update")
	}
	from := d.Repository + " " + d.Name + " " + version
	if slices.Contains(c.above, from) {
		return m, refused("the charts depend on one another in a circle")
	}
	a, err := v.fetch(ctx, d, version)
	if err != nil {
		return m, err
	}
	if v.fetched += int64(len(a.Archive)); v.fetched > MaxUnpackedBytes {
		return m, fleet.Errorf(fleet.ErrExhausted, "with it the charts that are fetched have more than %d MiB unpacked", MaxUnpackedBytes>>20)
	}
	in := maps.Clone(a.Files)
	if err := v.fill(ctx, chartAt{files: in, dir: ".", in: path.Join(c.in, d.Name), above: append(slices.Clone(c.above), from)}); err != nil {
		return m, err
	}
	m, ok := readChart(in, ".")
	if !ok || m.Name != d.Name || strings.Contains(m.Version, "/") {
		return m, refused("what its repository has is a chart of another name, %q", clip(m.Name))
	}
	data, err := packChart(m.Name, in)
	if err != nil {
		return m, err
	}
	c.files[path.Join(c.dir, "charts", m.Name+"-"+m.Version+".tgz")], v.changed = data, true
	if lock == nil {
		v.charts = append(v.charts, &towlinev1.FetchedChart{In: c.in, Name: d.Name, Range: d.Version, Repository: d.Repository, Version: m.Version})
	}
	return m, nil
}

// mayFetch refuses what is not fetched from anywhere.
func (v *vendoring) mayFetch(d *dependency) error {
	switch {
	case strings.HasPrefix(d.Repository, "@") || strings.HasPrefix(d.Repository, "alias:"):
		return refused("repository %s is a name that only a computer knows on which helm repo add was run: write the URL", clip(d.Repository))
	case wire.Contained(v.src):
		return refused("it is not in charts/, and all that is inline or uploaded has to be in the files: run helm dependency build, and take charts/ along")
	case v.src.GetVerify() != nil:
		return refused("it is not in charts/, and nothing that is fetched from elsewhere is signed by a key in source.verify: run helm dependency build, and sign charts/ with the rest")
	}
	return nil
}

// local fills a chart in another folder of the source, where the renderer finds it.
func (v *vendoring) local(ctx context.Context, c chartAt, d *dependency) (m chartMeta, err error) {
	dir, above := c.dir, c.above
	to := strings.TrimPrefix(d.Repository, "file://")
	at := path.Join(dir, to)
	switch {
	case len(above) > 0 && !strings.HasPrefix(above[len(above)-1], "file://"):
		return m, refused("%s is a folder beside the chart, and the chart is fetched alone: whoever packs it has to put that into its charts/", clip(d.Repository))
	case strings.HasPrefix(to, "/") || at == ".." || strings.HasPrefix(at, "../"):
		return m, refused("%s is outside of the source", clip(d.Repository))
	case slices.Contains(above, "file://"+at) || at == dir:
		return m, refused("the charts depend on one another in a circle")
	}
	m, ok := readChart(c.files, at)
	switch {
	case !ok:
		return m, refused("%s has no Chart.yaml that can be read", clip(at))
	case m.Name != d.Name:
		return m, refused("%s is a chart of another name, %s", clip(at), clip(m.Name))
	case !inRange(d.Version, m.Version):
		return m, refused("%s has version %s, which is not in %q", clip(at), clip(m.Version), clip(d.Version))
	}
	if len(above) == 0 {
		above = []string{"file://" + dir}
	}
	return m, v.fill(ctx, chartAt{files: c.files, dir: at, in: path.Join(c.in, d.Name), above: append(slices.Clone(above), "file://"+at)})
}

// fetch fetches a chart. The source's own secret goes to its own server, and nowhere else.
func (v *vendoring) fetch(ctx context.Context, d *dependency, version string) (Artifact, error) {
	src := &towlinev1.HelmSource{Repo: d.Repository, Chart: d.Name, Version: version, Timeout: timeoutOf(v.src)}
	at, err := url.Parse(d.Repository)
	if err != nil {
		return Artifact{}, refused("repository of %s is no URL", clip(d.Name))
	}
	if home := serverOf(v.src); home != nil && sameOrigin(withScheme(at, home), home) {
		src.SecretName = secretName(v.src)
		src.Insecure = at.Scheme == "oci" && home.Scheme == "http"
	}
	if at.User != nil {
		return Artifact{}, refused("repository %s has credentials in its URL, which everybody reads who reads the chart: take them out", safeURL(at))
	}
	a, err := v.f.fetchDependency(ctx, v.project, src)
	if err != nil && errors.Is(err, fleet.ErrUnavailable) && !errors.As(err, new(*SecretError)) {
		err = &AwayError{Host: at.Host, Err: err}
	}
	return a, err
}

// serverOf is the address of the server that a source's secret goes to; nil: there is none.
func serverOf(src *towlinev1.Source) *url.URL {
	u, err := url.Parse(src.GetHttp().GetUrl() + src.GetGit().GetUrl() + src.GetOci().GetUrl() + src.GetHelm().GetRepo()) // a source is of one kind
	if err != nil || u.Host == "" {
		return nil
	}
	if u.Scheme == "oci" {
		u.Scheme = "https"
		if src.GetOci().GetInsecure() || src.GetHelm().GetInsecure() {
			u.Scheme = "http"
		}
	}
	return u
}

// withScheme is the address of a registry as it is asked on the server of a source.
func withScheme(at, home *url.URL) *url.URL {
	if at.Scheme != "oci" || home.Scheme == "ssh" {
		return at
	}
	out := *at
	out.Scheme = home.Scheme
	return &out
}

func secretName(src *towlinev1.Source) string {
	return src.GetHttp().GetSecretName() + src.GetGit().GetSecretName() + src.GetOci().GetSecretName() + src.GetHelm().GetSecretName()
}
