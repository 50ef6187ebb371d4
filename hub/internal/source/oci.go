package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	ocicontent "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Limits of what a registry sends.
const (
	MaxManifestBytes = 4 << 20
	MaxLayerBytes    = 64 << 20 // of all that are taken
	maxTags          = 100_000
	maxTagPages      = 1000
)

// ociRequest is a checked artifact of a registry.
type ociRequest struct {
	place
	repository wire.Repository
	insecure   bool
	tag        string // or a digest
	semver     string // a range of tags
	versions   bool   // + is _ in tags, which have none
	rangeField string
	signed     verification
	cache      string // what the key of an artifact begins with
	// take fetches what is behind a manifest, and returns what makes its files of that.
	take func(ctx context.Context, x ociArtifact) (unpacker, error)
}

// unpacker makes files of what was fetched. It has one of the places in which something is unpacked, and waits for no server.
type unpacker func(context.Context) (map[string][]byte, error)

// ociArtifact is a manifest, and where its layers are.
type ociArtifact struct {
	manifest ocispec.Manifest
	repo     *remote.Repository
}

// fetchOCI takes the files of an artifact.
func (f *Fetcher) fetchOCI(ctx context.Context, project string, src *towlinev1.OciSource, signed verification) (Artifact, error) {
	where, err := wire.OciReference(src)
	if err != nil {
		return Artifact{}, fleet.Join("source", err)
	}
	r := ociRequest{repository: where, insecure: src.GetInsecure(), tag: src.GetRef().GetTag() + src.GetRef().GetDigest(), semver: src.GetRef().GetSemver(),
		rangeField: "source.oci.ref.semver", signed: signed, take: f.ociFiles}
	if r.tag == "" {
		r.tag = "latest"
	}
	r.place = place{name: "oci://" + where.Host + "/" + where.Name, field: "source.oci", address: "source.oci.url and source.oci.ref"}
	if err := r.furnish(ctx, f, project, src); err != nil {
		return Artifact{}, err
	}
	r.cache = cacheKey("oci", project, src.GetUrl(), fmt.Sprint(r.insecure), r.secret.digest())
	return f.fetchArtifact(ctx, r)
}

// fetchArtifact takes what one manifest stands for. It is not fetched where it is known already.
func (f *Fetcher) fetchArtifact(ctx context.Context, r ociRequest) (Artifact, error) {
	u, err := url.Parse(r.repository.Address(r.insecure))
	if err != nil {
		return Artifact{}, r.fail(fleet.ErrInvalid, "has no host")
	}
	r.url = u
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if r.semver == "" && strings.HasPrefix(r.tag, "sha256:") {
		if a, known := f.cache.get(r.key(r.tag)); known {
			return a, nil
		}
	}
	repo, err := f.openOCI(r)
	if err != nil {
		return Artifact{}, err
	}
	for try := 0; ; try++ {
		a, err := f.ociOnce(ctx, r, repo)
		if err == nil {
			return a, nil
		}
		if !brokeOff(err) || try == maxRedownload || ctx.Err() != nil {
			return Artifact{}, r.explain(ctx, err)
		}
	}
}

func (f *Fetcher) ociOnce(ctx context.Context, r ociRequest, repo *remote.Repository) (Artifact, error) {
	by := r.tag
	if r.semver != "" {
		tags, err := listTags(ctx, repo)
		if err != nil {
			return Artifact{}, err
		}
		if by, err = r.chooseTag(tags); err != nil {
			return Artifact{}, err
		}
	}
	desc, manifest, err := readManifest(ctx, repo, by)
	if err != nil {
		return Artifact{}, err
	}
	if strings.HasPrefix(by, "sha256:") {
		by = ""
	}
	key := r.key(desc.Digest.String())
	if a, known := f.cache.get(key); known {
		return named(a, by), nil
	}
	if err := r.signed.checkOCI(ctx, repo, by, desc); err != nil {
		return Artifact{}, err
	}
	unpack, err := r.take(ctx, ociArtifact{manifest, repo})
	if err != nil {
		return Artifact{}, err
	}
	a, err := f.unpackWith(ctx, unpack)
	if err != nil {
		return Artifact{}, err
	}
	a.Ref = desc.Digest.String()
	if at, err := time.Parse(time.RFC3339, manifest.Annotations[ocispec.AnnotationCreated]); err == nil {
		a.Made = madeAt(at.Unix())
	}
	f.cache.put(key, a)
	return named(a, by), nil
}

// key names the files of a manifest. What was signed is kept by what it was verified with.
func (r ociRequest) key(digest string) string {
	if !r.signed.any() {
		return cacheKey(r.cache, digest)
	}
	return cacheKey(r.cache, digest, r.signed.id)
}

// chooseTag is the tag of the highest version in the range; a version that is a tag is that one.
func (r ociRequest) chooseTag(tags []string) (string, error) {
	if !r.versions {
		return newestVersion(r.rangeField, r.semver, tags)
	}
	names := make([]string, len(tags))
	for i, t := range tags {
		if names[i] = strings.ReplaceAll(t, "_", "+"); names[i] == r.semver {
			return t, nil
		}
	}
	version, err := newestVersion(r.rangeField, r.semver, names)
	return strings.ReplaceAll(version, "+", "_"), err
}

// openOCI is a repository of a registry. It is logged in to with the secret, by what the registry asks for: that is the one thing that
// goes to another host, where the registry says that its tokens are issued.
func (f *Fetcher) openOCI(r ociRequest) (*remote.Repository, error) {
	credential, headers, err := r.secret.registryLogin()
	if err != nil {
		return nil, err
	}
	inner, err := f.clientWith(r.place, headers)
	if err != nil {
		return nil, err
	}
	inner.HTTPClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the client around it follows them
	client := &auth.Client{
		Client:     &http.Client{Transport: &retryablehttp.RoundTripper{Client: inner}, CheckRedirect: f.checkRedirect},
		Header:     http.Header{"User-Agent": {"towline-hub"}},
		Credential: auth.StaticCredential(r.repository.Host, credential),
		Cache:      auth.NewCache(),
	}
	return &remote.Repository{Client: client, PlainHTTP: r.insecure, MaxMetadataBytes: MaxManifestBytes, TagListMaxPages: maxTagPages,
		Reference: registry.Reference{Registry: r.repository.Host, Repository: r.repository.Name}}, nil
}

// registryLogin is what a registry is logged in to with, and the headers that are sent beside that.
func (s *secret) registryLogin() (auth.Credential, http.Header, error) {
	if s == nil {
		return auth.EmptyCredential, nil, nil
	}
	headers, err := s.headers()
	if err != nil {
		return auth.EmptyCredential, nil, err
	}
	user, _, _ := s.text(keyUsername)
	password, _, _ := s.text(keyPassword)
	token, _, _ := s.text(keyToken)
	if user != "" || token != "" {
		headers.Del("Authorization") // the registry is asked first which one it takes
	}
	return auth.Credential{Username: user, Password: password, AccessToken: token}, headers, nil
}

// listTags are the tags of a repository.
func listTags(ctx context.Context, repo *remote.Repository) ([]string, error) {
	var tags []string
	err := repo.Tags(ctx, "", func(page []string) error {
		if tags = append(tags, page...); len(tags) > maxTags {
			return fleet.Errorf(fleet.ErrExhausted, "has more than %d tags: name one", maxTags)
		}
		return nil
	})
	return tags, ociError(err)
}

// readManifest reads the manifest of a tag or digest.
func readManifest(ctx context.Context, repo *remote.Repository, ref string) (desc ocispec.Descriptor, m ocispec.Manifest, err error) {
	desc, body, err := repo.Manifests().FetchReference(ctx, ref)
	if err != nil {
		return desc, m, ociError(err)
	}
	defer func() { _ = body.Close() }()
	if desc.Size > MaxManifestBytes {
		return desc, m, fleet.Errorf(fleet.ErrExhausted, "has a manifest of more than %d MiB", MaxManifestBytes>>20)
	}
	data, err := ocicontent.ReadAll(body, desc)
	if err != nil {
		return desc, m, ociError(err)
	}
	switch kind, _, _ := mime.ParseMediaType(desc.MediaType); kind {
	case ocispec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json":
		return desc, m, refused("is an index of images for several platforms: name an artifact of files")
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return desc, m, refused("has a manifest that cannot be read")
	}
	return desc, m, nil
}

// fetchLayer reads a layer, which has the digest that the manifest says.
func (x ociArtifact) fetchLayer(ctx context.Context, layer ocispec.Descriptor, left int64) ([]byte, error) {
	if layer.Size < 0 || layer.Size > left {
		return nil, fleet.Errorf(fleet.ErrExhausted, "has more than %d MiB: put only what is to be delivered into it", MaxLayerBytes>>20)
	}
	if len(layer.Data) > 0 {
		layer.Data = nil // it is fetched, as others see it
	}
	data, err := ocicontent.FetchAll(ctx, x.repo.Blobs(), layer)
	return data, ociError(err)
}

// ociError tells what a registry answered from what broke.
func ociError(err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return &statusError{code: answer.StatusCode, later: passing(answer.StatusCode)}
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return &statusError{code: http.StatusUnauthorized}
	case errors.Is(err, errdef.ErrNotFound):
		return &statusError{code: http.StatusNotFound}
	case errors.Is(err, ocicontent.ErrMismatchedDigest) || errors.Is(err, ocicontent.ErrTrailingData) || strings.Contains(err.Error(), "mismatch"):
		return fleet.Errorf(fleet.ErrCorrupt, "the registry sends something else than its digest says: %s", clipError(err))
	case errors.Is(err, errdef.ErrSizeExceedsLimit) || errors.Is(err, errdef.ErrTooManyPages):
		return fleet.Errorf(fleet.ErrExhausted, "the registry sends more than is taken: %s", clipError(err))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.Join(errBroken, err)
	case strings.Contains(err.Error(), "bearer realm"):
		return fleet.Errorf(fleet.ErrDenied, "the registry has its tokens issued where the hub sends no login: %s. A host at a private address has to have the registry's own name; else set a token of it in the secret, as header.Authorization=\"Bearer TOKEN\"", clip(realmError(err)))
	case slices.ContainsFunc([]string{"invalid response", "unknown response", "failed to decode response"}, func(said string) bool { return strings.Contains(err.Error(), said) }):
		return refused("the server does not answer as a registry does: %s", clipError(err))
	}
	return err
}

// realmError is what is wrong with the address of a token service, without the request that was made before.
func realmError(err error) string {
	_, why, found := strings.Cut(err.Error(), "bearer realm ")
	if !found {
		return err.Error()
	}
	return why
}

const (
	// chartLayer is a chart of Helm.
	chartLayer      = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	titleAnnotation = ocispec.AnnotationTitle
)

// ociLayer is a layer that was fetched.
type ociLayer struct {
	kind, name string
	data       []byte
}

// ociFiles fetches the layers of an artifact that are archives, and those that have a name.
func (f *Fetcher) ociFiles(ctx context.Context, x ociArtifact) (unpacker, error) {
	left := int64(MaxLayerBytes)
	var layers []ociLayer
	var others []ocispec.Descriptor
	for _, layer := range x.manifest.Layers {
		kind, _, _ := mime.ParseMediaType(layer.MediaType)
		name := plainName(kind, layer)
		switch {
		case isArchive(kind) || name != "":
		case isTar(kind) && (layer.Annotations[titleAnnotation] == "" || strings.Contains(kind, "+")): // else it is a file that was pushed with its name
			return nil, refused("has a layer of the type %s, which is not unpacked: pack it as tar+gzip", clip(kind))
		default:
			others = append(others, layer)
			continue
		}
		data, err := x.fetchLayer(ctx, layer, left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(data))
		layers = append(layers, ociLayer{kind, name, data})
	}
	if len(layers) == 0 {
		var kinds []string
		for _, layer := range others {
			kinds = append(kinds, layerType(layer))
		}
		slices.Sort(kinds)
		return nil, refused("has no layer that is an archive (tar+gzip) or a manifest with a name, but %d others: %s", len(others), strings.Join(slices.Compact(kinds), ", "))
	}
	for _, layer := range others {
		if err := mayBeLeftOut(layer); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) (map[string][]byte, error) { return f.layerFiles(ctx, layers) }, nil
}

// layerFiles are the files of layers.
func (f *Fetcher) layerFiles(ctx context.Context, layers []ociLayer) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, l := range layers {
		in, err := map[string][]byte{l.name: l.data}, error(nil)
		if isArchive(l.kind) {
			in, err = unpack(ctx, l.data, f.opts.TempDir)
		}
		if err != nil {
			return nil, err
		}
		if l.kind == chartLayer {
			maps.DeleteFunc(in, func(name string, _ []byte) bool {
				return strings.Count(name, "/") == 1 && path.Base(name) == ignoreFile
			})
		}
		if err := addFiles(files, in); err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, refused("has %d layers, and no file in them", len(layers))
	}
	return files, artifact.CheckNames(files)
}

func isArchive(kind string) bool {
	return strings.HasSuffix(kind, "tar+gzip") || strings.HasSuffix(kind, ".tar.gzip")
}

// isTar reports that a layer is an archive that is packed otherwise: to leave it out would be to drop what is in it.
func isTar(kind string) bool {
	return strings.HasSuffix(kind, ".tar") || strings.HasSuffix(kind, "+tar") || strings.Contains(kind, "tar+") || strings.Contains(kind, ".tar.")
}

func layerType(layer ocispec.Descriptor) string {
	kind, _, _ := mime.ParseMediaType(layer.MediaType)
	return clip(kind)
}

// Types of layers that only say something of the others.
var besides = []string{"provenance", "in-toto", "spdx", "cyclonedx", "sigstore", "oci.empty."}

// mayBeLeftOut refuses to leave out beside the others what may hold objects, which would go: an archive that is not unpacked, and what nobody says
// what it is. A file with a name that is no manifest's, such as a README, is left out as it would be in a folder.
func mayBeLeftOut(layer ocispec.Descriptor) error {
	name, kind := layer.Annotations[titleAnnotation], layerType(layer)
	switch {
	case slices.Contains(packedEnds, strings.ToLower(path.Ext(name))):
		return refused("has the layer %q, an archive that is not unpacked: push it as %s, or leave it out", clip(name), ocispec.MediaTypeImageLayerGzip)
	case name == "" && !slices.ContainsFunc(besides, func(word string) bool { return strings.Contains(kind, word) }):
		return refused("has a layer of the type %s that has no name, and is not read: pack it as tar+gzip, give it a name (%s), or leave it out", kind, titleAnnotation)
	}
	return nil
}

// packedEnds end the names of archives.
var packedEnds = []string{".tar", ".tgz", ".gz", ".zip", ".zst", ".xz", ".bz2", ".7z"}

// plainName is the name of a layer that is one file; "": it is none that is taken.
func plainName(kind string, layer ocispec.Descriptor) string {
	name := layer.Annotations[titleAnnotation]
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return strings.TrimPrefix(name, "./")
	}
	if name == "" && (strings.HasSuffix(kind, "yaml")) {
		return "manifest.yaml"
	}
	return ""
}

// addFiles puts files to others that they do not overwrite.
func addFiles(to, more map[string][]byte) error {
	for name, data := range more {
		if _, twice := to[name]; twice {
			return refused("has %q in two layers: it has to be in one", clip(name))
		}
		to[name] = data
	}
	total := 0
	for _, data := range to {
		total += len(data)
	}
	if len(to) > MaxEntries || total > MaxUnpackedBytes {
		return fleet.Errorf(fleet.ErrExhausted, "has more than %d files, or more than %d MiB unpacked", MaxEntries, MaxUnpackedBytes>>20)
	}
	return nil
}
