package sourcetest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-billy/v5/osfs"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
)

// Signer is somebody who works with git, and signs with a program.
type Signer struct {
	t    *testing.T
	dir  string // a repository with files
	home string
}

// NewSigner makes a repository that git works in; nil: one of the programs that are named is not here.
func NewSigner(t *testing.T, programs ...string) *Signer {
	t.Helper()
	for _, p := range append(programs, "git") {
		if _, err := exec.LookPath(p); err != nil {
			return nil
		}
	}
	home, err := os.MkdirTemp("", "gpg") // a short path: gpg-agent listens at a socket in it
	if err != nil {
		t.Fatal(err)
	}
	s := &Signer{t: t, dir: t.TempDir(), home: home}
	t.Cleanup(func() {
		_ = s.command("gpgconf", "--kill", "gpg-agent").Run() // there may be none
		_ = os.RemoveAll(home)
	})
	s.Git("init", "-q", "-b", "main", ".")
	return s
}

// Repo serves what is there.
func (s *Signer) Repo() *Repo {
	dir := filepath.Join(s.dir, ".git")
	return &Repo{t: s.t, Dir: dir, store: filesystem.NewStorage(osfs.New(dir), gitcache.NewObjectLRUDefault())}
}

// URL is where the repository is.
func (s *Signer) URL() string { return "file://" + s.dir }

func (s *Signer) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = s.dir
	c.Env = append(os.Environ(), "HOME="+s.home, "GNUPGHOME="+s.home, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=Ana", "GIT_AUTHOR_EMAIL=ana@example.com",
		"GIT_COMMITTER_NAME=Ana", "GIT_COMMITTER_EMAIL=ana@example.com")
	return c
}

func (s *Signer) run(name string, args ...string) string {
	s.t.Helper()
	out, err := s.command(name, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Git runs git, and returns what it prints.
func (s *Signer) Git(args ...string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run("git", args...))
}

// PGP makes a key with gpg and returns its ID, by which git signs, and the public key. Expires is as gpg takes it: never, or 2026-01-01; seconds=N.
func (s *Signer) PGP(name, expires string, options ...string) (id, public string) {
	s.t.Helper()
	return s.PGPOf("ed25519", name, expires, options...)
}

// PGPOf makes a key of a kind as gpg takes it.
func (s *Signer) PGPOf(kind, name, expires string, options ...string) (id, public string) {
	s.t.Helper()
	s.gpg(append(options, "--passphrase", "", "--quick-generate-key", name, kind, "sign", expires)...)
	for line := range strings.Lines(s.gpg("--with-colons", "--list-keys", "="+name)) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			id = fields[9]
		}
	}
	return id, s.gpg("--armor", "--export", id)
}

// Extend gives a key another end and returns the public key.
func (s *Signer) Extend(id, expires string) (public string) {
	s.t.Helper()
	s.gpg("--passphrase", "", "--quick-set-expire", id, expires)
	return s.gpg("--armor", "--export", id)
}

// Revoke revokes a key by the certificate that gpg made together with it and returns the public key.
func (s *Signer) Revoke(id string) (public string) {
	s.t.Helper()
	cert, err := os.ReadFile(filepath.Join(s.home, "openpgp-revocs.d", id+".rev"))
	if err != nil {
		s.t.Fatal(err)
	}
	// A colon keeps it from being taken by accident.
	s.gpg("--import", s.Program("revocation", strings.ReplaceAll(string(cert), "\n:-----", "\n-----")))
	return s.gpg("--armor", "--export", id)
}

func (s *Signer) gpg(args ...string) string {
	s.t.Helper()
	return s.run("gpg", append([]string{"--batch", "--quiet", "--pinentry-mode", "loopback"}, args...)...)
}

// SSH makes a key with ssh-keygen and returns its file, by which git signs, and the line of the public key.
func (s *Signer) SSH(kind string) (file, public string) {
	s.t.Helper()
	file = filepath.Join(s.t.TempDir(), "id")
	s.run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "ana@example.com", "-f", file)
	line, err := os.ReadFile(file + ".pub")
	if err != nil {
		s.t.Fatal(err)
	}
	return file, string(line)
}

// Program writes a file that can be run, and returns its name.
func (s *Signer) Program(name, text string) string {
	s.t.Helper()
	file := filepath.Join(s.home, name)
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// Commit writes a file and commits it, signed with the key as git takes it in the format openpgp or ssh; without one it is not signed.
func (s *Signer) Commit(text, format, key string) string {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "a.yaml"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.Git("add", ".")
	s.Git(append(signWith(format, key), "commit", "-q", "--allow-empty", "-m", "change to "+text)...)
	return s.Git("rev-parse", "HEAD")
}

// Tag tags what is there, with a message, and signed if there is a key.
func (s *Signer) Tag(name, format, key string) {
	s.t.Helper()
	kind := "-a"
	if key != "" {
		kind = "-s"
	}
	s.Git(append(signWith(format, key), "-c", "tag.gpgSign=false", "tag", "-f", kind, "-m", name, name)...)
}

func signWith(format, key string) []string {
	return []string{"-c", "gpg.format=" + orElse(format, "openpgp"), "-c", "user.signingKey=" + key, "-c", fmt.Sprintf("commit.gpgSign=%t", key != "")}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// PublicPEM is a public key as cosign.pub has it.
func PublicPEM(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// signText signs as cosign does: ECDSA and RSA the SHA-256 of a text, Ed25519 the text.
func signText(t *testing.T, key crypto.Signer, text []byte) string {
	t.Helper()
	sum, opts := sha256.Sum256(text), crypto.SignerOpts(crypto.SHA256)
	digest := sum[:]
	switch key.(type) {
	case ed25519.PrivateKey:
		digest, opts = text, crypto.Hash(0)
	case *ecdsa.PrivateKey, *rsa.PrivateKey:
	default:
		t.Fatalf("%T is no key", key)
	}
	sig, err := key.Sign(rand.Reader, digest, opts)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// Media types and names of cosign: specs/SIGNATURE_SPEC.md and specs/BUNDLE_SPEC.md of its repository.
const (
	simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	cosignSig     = "application/vnd.dev.cosign.artifact.sig.v1+json"
	bundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// SimplePayload is what cosign signs for a digest.
func SimplePayload(reference, digest string) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, reference, digest)
}

// CosignTag pushes what `cosign sign --key` of version 2 does: the payload as a layer of an image behind the tag of the digest, whose
// annotation is the signature.
func (r *Registry) CosignTag(repository, digest string, key crypto.Signer, payload []byte) {
	r.t.Helper()
	r.pushSigned(repository, strings.Replace(digest, ":", "-", 1)+".sig", "", nil, r.simple(key, payload))
}

// CosignReferrer pushes what cosign does with --registry-referrers-mode=oci-1-1: the same, as a referrer.
func (r *Registry) CosignReferrer(repository, digest string, key crypto.Signer, payload []byte) {
	r.t.Helper()
	r.pushSigned(repository, "", cosignSig, r.describe(repository, digest), r.simple(key, payload))
}

func (r *Registry) simple(key crypto.Signer, payload []byte) signedLayer {
	return signedLayer{simpleSigning, payload, map[string]string{"dev.cosignproject.cosign/signature": signText(r.t, key, payload)}}
}

// Statement is what version 3 of cosign signs for a digest.
func Statement(digest, predicate string) []byte {
	_, sum, _ := strings.Cut(digest, ":")
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, sum, predicate)
}

// CosignBundle pushes what `cosign sign --key` of version 3 does: a bundle with an envelope, as a referrer.
func (r *Registry) CosignBundle(repository, digest string, key crypto.Signer, statement []byte) {
	r.t.Helper()
	const kind = "application/vnd.in-toto+json"
	text := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement)
	bundle, err := json.Marshal(map[string]any{
		"mediaType":            bundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{"payload": statement, "payloadType": kind,
			"signatures": []any{map[string]any{"sig": signText(r.t, key, text)}}},
	})
	r.must(err)
	r.pushSigned(repository, "", bundleType, r.describe(repository, digest), signedLayer{bundleType, bundle, nil})
}

type signedLayer struct {
	kind        string
	data        []byte
	annotations map[string]string
}

// Digest is what a tag stands for.
func (r *Registry) Digest(repository, tag string) string {
	return r.describe(repository, tag).Digest.String()
}

func (r *Registry) describe(repository, digest string) *ocispec.Descriptor {
	r.t.Helper()
	desc, err := r.repository(repository).Resolve(context.Background(), digest)
	r.must(err)
	return &desc
}

func (r *Registry) pushSigned(repository, tag, artifactType string, subject *ocispec.Descriptor, l signedLayer) {
	r.t.Helper()
	ctx, store := context.Background(), memory.New()
	layer := content.NewDescriptorFromBytes(l.kind, l.data)
	layer.Annotations = l.annotations
	r.must(store.Push(ctx, layer, bytes.NewReader(l.data)))
	config := content.NewDescriptorFromBytes(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"","os":"","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`))
	r.must(store.Push(ctx, config, bytes.NewReader([]byte(`{"architecture":"","os":"","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`))))
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType, Config: config, Layers: []ocispec.Descriptor{layer}, Subject: subject}
	m.SchemaVersion = 2
	data, err := json.Marshal(m)
	r.must(err)
	desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, data)
	repo := r.repository(repository)
	for _, blob := range []ocispec.Descriptor{layer, config} {
		in, err := store.Fetch(ctx, blob)
		r.must(err)
		r.must(repo.Push(ctx, blob, in))
	}
	if tag == "" {
		tag = desc.Digest.String()
	}
	r.must(repo.Manifests().PushReference(ctx, desc, bytes.NewReader(data), tag))
}
