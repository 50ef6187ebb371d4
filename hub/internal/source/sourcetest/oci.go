package sourcetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	containers "github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
)

// Registry is an OCI registry over http.
type Registry struct {
	t *testing.T
	// Host is where it listens.
	Host string
}

// Layer is a layer of an artifact.
type Layer struct {
	Type, Title string
	Data        []byte
}

// NewRegistry starts one; around, if it is set, is asked before it.
func NewRegistry(t *testing.T, around func(http.Handler) http.Handler) *Registry {
	t.Helper()
	h := containers.New(containers.Logger(log.New(io.Discard, "", 0)))
	push := httptest.NewServer(h)
	t.Cleanup(push.Close)
	if around == nil {
		return &Registry{t: t, Host: strings.TrimPrefix(push.URL, "http://")}
	}
	s := httptest.NewServer(around(h))
	t.Cleanup(s.Close)
	return &Registry{t: t, Host: strings.TrimPrefix(s.URL, "http://")}
}

// Push gives an artifact a tag, and returns its digest.
func (r *Registry) Push(repository, tag, artifactType string, layers ...Layer) string {
	r.t.Helper()
	ctx := context.Background()
	store := memory.New()
	opts := oras.PackManifestOptions{}
	for _, l := range layers {
		desc := content.NewDescriptorFromBytes(l.Type, l.Data)
		if l.Title != "" {
			desc.Annotations = map[string]string{ocispec.AnnotationTitle: l.Title}
		}
		if exists, _ := store.Exists(ctx, desc); !exists {
			r.must(store.Push(ctx, desc, bytes.NewReader(l.Data)))
		}
		opts.Layers = append(opts.Layers, desc)
	}
	desc, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, artifactType, opts)
	r.must(err)
	r.must(store.Tag(ctx, desc, tag))
	_, err = oras.Copy(ctx, store, tag, r.repository(repository), tag, oras.DefaultCopyOptions)
	r.must(err)
	return desc.Digest.String()
}

// PushIndex gives an index of nothing a tag.
func (r *Registry) PushIndex(repository, tag string) {
	r.t.Helper()
	data := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[]}`)
	desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageIndex, data)
	repo := r.repository(repository)
	r.must(repo.PushReference(context.Background(), desc, bytes.NewReader(data), tag))
}

func (r *Registry) repository(name string) *remote.Repository {
	repo, err := remote.NewRepository(r.Host + "/" + name)
	r.must(err)
	repo.PlainHTTP = true
	return repo
}

func (r *Registry) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// Archive packs files as a tar.gz, as they are named.
func Archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name]))})
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
