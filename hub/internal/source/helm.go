package source

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/hashicorp/go-retryablehttp"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// anyVersion is the range of a chart whose version is left out: the highest that is no prerelease.
const anyVersion = "*"

// chartRequest is a checked chart of a repository.
type chartRequest struct {
	place
	chart, version string
	rangeField     string // that names the version
	signed         verification
	cache          string // what the key of an artifact begins with
}

// fetchHelm takes the files of a chart, with Chart.yaml at the root.
func (f *Fetcher) fetchHelm(ctx context.Context, project string, src *towlinev1.HelmSource, signed verification) (Artifact, error) {
	u, err := wire.HelmRepository(src)
	if err != nil {
		return Artifact{}, fleet.Join("source", err)
	}
	return f.takeChart(ctx, project, src, chartRequest{signed: signed, rangeField: "source.helm.version", place: place{url: u,
		field: "source.helm", address: "source.helm.repo, chart and version"}})
}

// fetchDependency takes the files of a chart that another one names.
func (f *Fetcher) fetchDependency(ctx context.Context, project string, src *towlinev1.HelmSource) (Artifact, error) {
	u, err := wire.HelmRepository(src)
	if err != nil {
		return Artifact{}, err
	}
	return f.takeChart(ctx, project, src, chartRequest{rangeField: "the version in Chart.yaml", place: place{url: u, field: "source", address: "Chart.yaml"}})
}

// takeChart takes the files of a chart, by a request that says how to speak of it.
func (f *Fetcher) takeChart(ctx context.Context, project string, src *towlinev1.HelmSource, r chartRequest) (Artifact, error) {
	u := r.url
	r.chart, r.version, r.name = src.GetChart(), src.GetVersion(), safeURL(u)+" chart "+src.GetChart()
	if r.version == "" {
		r.version = anyVersion
	}
	if err := r.furnish(ctx, f, project, src); err != nil {
		return Artifact{}, err
	}
	r.cache = cacheKey("helm", project, src.GetRepo(), r.chart, fmt.Sprint(src.GetInsecure()), r.secret.digest())
	if u.Scheme == "oci" {
		return f.fetchArtifact(ctx, r.artifact(src.GetInsecure(), f))
	}
	client, err := f.client(r.place)
	if err != nil {
		return Artifact{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return f.fetchChart(ctx, client, r)
}

// artifact is the chart as an artifact of a registry, where each version is a tag.
func (r chartRequest) artifact(insecure bool, f *Fetcher) ociRequest {
	name := strings.Trim(r.url.Path, "/")
	return ociRequest{place: r.place, repository: wire.Repository{Host: r.url.Host, Name: path.Join(name, r.chart)}, insecure: insecure, signed: r.signed,
		semver: r.version, versions: true, rangeField: r.rangeField, cache: r.cache,
		take: func(ctx context.Context, x ociArtifact) (unpacker, error) {
			for _, layer := range x.manifest.Layers {
				if layer.MediaType != chartLayer {
					continue
				}
				data, err := x.fetchLayer(ctx, layer, MaxLayerBytes)
				if err != nil {
					return nil, err
				}
				return func(ctx context.Context) (map[string][]byte, error) { return f.chartFiles(ctx, data) }, nil
			}
			return nil, refused("is no chart: it has no layer of the type %s", chartLayer)
		}}
}

// chartEntry is a version of a chart in the index of a repository.
type chartEntry struct {
	Version string
	URLs    []string
	Digest  string
}

// fetchChart finds the version in the index of a repository, and takes its archive.
func (f *Fetcher) fetchChart(ctx context.Context, client *retryablehttp.Client, r chartRequest) (Artifact, error) {
	at := r.place
	at.url = r.url.JoinPath("index.yaml")
	data, err := f.download(ctx, client, request{place: at, most: MaxIndexBytes, tooMuch: errIndexTooLarge})
	if err != nil {
		return Artifact{}, err
	}
	entry, err := f.findChart(ctx, r, data)
	if err != nil {
		return Artifact{}, r.explain(ctx, err)
	}
	key := cacheKey(r.cache, entry.Version, entry.Digest)
	if entry.Digest != "" {
		if a, known := f.cache.get(key); known {
			return named(a, entry.Version), nil
		}
	}
	if at.url, err = r.archiveURL(entry); err != nil {
		return Artifact{}, r.explain(ctx, err)
	}
	if data, err = f.download(ctx, client, request{place: at}); err != nil {
		return Artifact{}, err
	}
	digest := fleet.DigestOf(data)
	if want := strings.TrimPrefix(entry.Digest, "sha256:"); want != "" && want != digest.String() {
		return Artifact{}, r.fail(fleet.ErrCorrupt, "version %s has SHA-256 %s, but the index says %s", clip(entry.Version), digest, clip(want))
	}
	a, err := f.unpackWith(ctx, func(ctx context.Context) (map[string][]byte, error) { return f.chartFiles(ctx, data) })
	if err != nil {
		return Artifact{}, r.explain(ctx, err)
	}
	a.Ref = "sha256:" + digest.String()
	if entry.Digest != "" {
		f.cache.put(key, a)
	}
	return named(a, entry.Version), nil
}

// findChart is find, when there is room for what an index takes while it is read.
func (f *Fetcher) findChart(ctx context.Context, r chartRequest, index []byte) (chartEntry, error) {
	return inTurn(ctx, f, func(context.Context) (chartEntry, error) { return r.find(index) })
}

// find finds the version that is wanted in an index.
func (r chartRequest) find(data []byte) (chartEntry, error) {
	data, err := indexOf(data, r.chart, r.address)
	if err != nil {
		return chartEntry{}, err
	}
	versions, charts, err := readIndex(data, r.chart)
	if err != nil {
		return chartEntry{}, refused("its index.yaml cannot be read: %s", clip(err.Error()))
	}
	if len(versions) == 0 {
		return chartEntry{}, noChartOf(charts, r.address)
	}
	names := make([]string, len(versions))
	for i, v := range versions {
		if v.Version == r.version {
			return v, nil
		}
		names[i] = v.Version
	}
	wanted, err := newestVersion(r.rangeField, r.version, names)
	if err != nil {
		return chartEntry{}, err
	}
	for _, v := range versions {
		if v.Version == wanted {
			return v, nil
		}
	}
	return chartEntry{}, refused("has no version %s", clip(wanted))
}

// archiveURL is where the archive of a version is: beside the index, or anywhere.
func (r chartRequest) archiveURL(e chartEntry) (*url.URL, error) {
	if len(e.URLs) == 0 {
		return nil, refused("version %s has no URL in the index", clip(e.Version))
	}
	u, err := url.Parse(e.URLs[0])
	if err != nil {
		return nil, refused("version %s has a URL in the index that is none", clip(e.Version))
	}
	base := *r.url
	base.Path, base.RawPath = strings.TrimSuffix(base.Path, "/")+"/", ""
	at := base.ResolveReference(u)
	switch {
	case at.Scheme != "https" && at.Scheme != "http":
		return nil, refused("version %s is at %s: in the index: only https and http are allowed", clip(e.Version), clip(at.Scheme))
	case r.url.Scheme == "https" && at.Scheme != "https":
		return nil, fleet.Errorf(fleet.ErrDenied, "version %s is at an http address, but the repository at an https one: it has to stay encrypted", clip(e.Version))
	case !sameOrigin(at, r.url):
		at.User = nil
	}
	return at, nil
}

// ignoreFile says what is left out when a chart is packed. It held for the folder that was packed: all that is in an archive is the
// chart's, as for Helm, and so is what the charts in charts/ are made of.
const ignoreFile = ".helmignore"

// chartFiles unpacks a chart: all of it is in one folder, which becomes the root.
func (f *Fetcher) chartFiles(ctx context.Context, packed []byte) (map[string][]byte, error) {
	in, err := unpack(ctx, packed, f.opts.TempDir)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(in))
	root := ""
	for name, data := range in {
		dir, rest, deep := strings.Cut(name, "/")
		if !deep || root != "" && dir != root {
			return nil, refused("is no chart: %q is not in its one folder", clip(name))
		}
		root, files[rest] = dir, data
	}
	if files["Chart.yaml"] == nil {
		return nil, refused("is no chart: it has no Chart.yaml")
	}
	delete(files, ignoreFile)
	return files, nil
}
