package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// dependency is what a chart says of another one. Its fields and their order are those of Helm, of which Chart.lock has a digest.
type dependency struct {
	Name         string   `json:"name"`
	Version      string   `json:"version,omitempty"`
	Repository   string   `json:"repository"`
	Condition    string   `json:"condition,omitempty"`
	Tags         []string `json:"tags,omitempty"`
	Enabled      bool     `json:"enabled,omitempty"`
	ImportValues []any    `json:"import-values,omitempty"`
	Alias        string   `json:"alias,omitempty"`
}

// chartMeta is as much of Chart.yaml as says what a chart is and depends on.
type chartMeta struct {
	APIVersion   string        `json:"apiVersion"`
	Name         string        `json:"name"`
	Version      string        `json:"version"`
	Dependencies []*dependency `json:"dependencies"`
}

// chartLock is what Chart.lock says.
type chartLock struct {
	Digest       string        `json:"digest"`
	Dependencies []*dependency `json:"dependencies"`
}

// maxChartYAML is how large what a chart says of itself may be.
const maxChartYAML = 1 << 20

func readYAML(data []byte, into any) error {
	if len(data) > maxChartYAML {
		return errTooLarge
	}
	if _, err := manifest.Root("file", data); err != nil { // what its aliases repeat is written out before it is read
		return err
	}
	return yaml.Unmarshal(data, into)
}

// readChart reads what a chart in a folder of files is; false: it cannot be read, which is said with the file where it is rendered.
func readChart(files map[string][]byte, dir string) (m chartMeta, ok bool) {
	data, there := files[path.Join(dir, "Chart.yaml")]
	if !there || readYAML(data, &m) != nil {
		return m, false
	}
	if old := files[path.Join(dir, "requirements.yaml")]; old != nil && m.APIVersion != "v2" {
		var more chartMeta
		if readYAML(old, &more) != nil {
			return m, false
		}
		m.Dependencies = more.Dependencies
	}
	return m, !slices.Contains(m.Dependencies, nil)
}

// readLock reads which versions a chart is locked to; nil: to none.
func readLock(files map[string][]byte, dir string, m chartMeta) (*chartLock, error) {
	name := path.Join(dir, "Chart.lock")
	if files[name] == nil && m.APIVersion != "v2" {
		name = path.Join(dir, "requirements.lock")
	}
	data := files[name]
	if data == nil {
		return nil, nil
	}
	var l chartLock
	if err := readYAML(data, &l); err != nil || slices.Contains(l.Dependencies, nil) {
		return nil, fleet.Invalid(name, "cannot be read: make it anew with helm dependency update")
	}
	of := lockDigest([2][]*dependency{m.Dependencies, l.Dependencies})
	older := lockDigest(map[string][]*dependency{"dependencies": m.Dependencies})
	if l.Digest != of && (m.APIVersion == "v2" || l.Digest != older) {
		return nil, fleet.Invalidf(name, "is not one of these dependencies any more: run helm dependency update, and keep both files")
	}
	return &l, nil
}

// lockDigest is the digest that Helm makes of dependencies.
func lockDigest(of any) string {
	data, err := json.Marshal(of)
	if err != nil {
		return ""
	}
	return "sha256:" + fleet.DigestOf(data).String()
}

// locked is the version that a lock has for a dependency; "": none.
func (l *chartLock) locked(d *dependency) string {
	if l == nil {
		return ""
	}
	for _, one := range l.Dependencies {
		if one.Name == d.Name && one.Repository == d.Repository && inRange(d.Version, one.Version) {
			return one.Version
		}
	}
	return ""
}

// inRange reports that a version is in a range, of which empty is all.
func inRange(text, version string) bool {
	if text == version {
		return true
	}
	within, err := semver.NewConstraint(text)
	if text == "" {
		within, err = semver.NewConstraint(anyVersion + "-0")
	}
	v, bad := semver.NewVersion(version)
	return err == nil && bad == nil && within.Check(v)
}

// vendored is a chart in charts/ of another one.
type vendored struct {
	chartMeta
	files []string // that it is made of
}

// vendoredIn are the charts in charts/ of a folder.
func (v *vendoring) vendoredIn(ctx context.Context, files map[string][]byte, dir string) (found []vendored, err error) {
	at := path.Join(dir, "charts") + "/"
	parts := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if rest, below := strings.CutPrefix(name, at); below {
			first, _, _ := strings.Cut(rest, "/")
			parts[first] = append(parts[first], name)
		}
	}
	for _, first := range slices.Sorted(maps.Keys(parts)) {
		one := vendored{files: parts[first]}
		if data, is := files[at+first]; is {
			one.chartMeta = v.archivedChart(data)
		} else {
			one.chartMeta, _ = readChart(files, at+first)
		}
		switch found = append(found, one); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case v.unpacked > MaxUnpackedBytes:
			return nil, fleet.Errorf(fleet.ErrExhausted, "%s has archives of more than %d MiB before their Chart.yaml: pack them anew, with helm dependency build", clip(at), MaxUnpackedBytes>>20)
		}
	}
	return found, nil
}

// maxChartHead is how much of an archive is looked through for its Chart.yaml.
const maxChartHead = 16 << 20

// archivedChart is what an archive of a chart says of itself; of what is none it is empty.
func (v *vendoring) archivedChart(data []byte) (m chartMeta) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return m
	}
	head := &io.LimitedReader{R: z, N: maxChartHead}
	defer func() { v.unpacked += maxChartHead - head.N }()
	r := tar.NewReader(head)
	for {
		h, err := r.Next()
		if err != nil {
			return m
		}
		if dir, file := path.Split(path.Clean(h.Name)); file != "Chart.yaml" || strings.Count(dir, "/") != 1 {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(r, maxChartYAML+1))
		if err != nil || readYAML(text, &m) != nil {
			return chartMeta{}
		}
		return m
	}
}

// packChart makes an archive of a chart. It is not compressed, so that the same files are the same bytes with every version of the packer.
func packChart(name string, files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name + "/" + file, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[file])), Format: tar.FormatPAX})
		if err == nil {
			_, err = w.Write(files[file])
		}
		if err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), z.Close())
	return b.Bytes(), err
}
