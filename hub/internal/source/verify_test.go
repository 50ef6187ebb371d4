package source

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// verified fetches a source whose content has to be signed.
func verified(t *testing.T, f *Fetcher, src *towlinev1.Source, v *towlinev1.Verify) (Artifact, error) {
	t.Helper()
	src = proto.CloneOf(src)
	src.Verify = v
	return f.Fetch(t.Context(), "default", src)
}

func pgp(keys ...string) *towlinev1.Verify { return &towlinev1.Verify{PgpKeys: keys} }
func sshBy(keys ...string) *towlinev1.Verify {
	return &towlinev1.Verify{SshKeys: keys}
}

// wantRefused checks that a source is refused for want of a signature, by name.
func wantRefused(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, fleet.ErrDenied) || !errors.As(err, new(*UnverifiedError)) {
		t.Errorf("it is taken, or refused for another reason: %v", err)
		return
	}
	for _, w := range append(words, "source.verify lists ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v\ndoes not say %q", err, w)
		}
	}
}

func signer(t *testing.T, programs ...string) *sourcetest.Signer {
	t.Helper()
	s := sourcetest.NewSigner(t, programs...)
	if s == nil {
		t.Skipf("git or one of %v is not here", programs)
	}
	return s
}

// TestPGPCommits: what git commit -S makes is taken by the key it was made with, and nothing else is, however often it was taken before.
func TestPGPCommits(t *testing.T) {
	s := signer(t, "gpg")
	id, key := s.PGP("ana", "never")
	other, otherKey := s.PGP("bea", "never")
	f := fetcher(t, Options{AllowFiles: true, CacheDir: t.TempDir()})
	src := gitSource(s.URL(), branch("main"))
	first := s.Commit("1", "openpgp", id)
	a, err := verified(t, f, src, pgp(key))
	if err != nil || string(a.Files["a.yaml"]) != "1" || a.Ref != "main@sha1:"+first {
		t.Fatalf("%s: %v", a.Ref, err)
	}
	if _, err := verified(t, f, src, pgp(otherKey, key)); err != nil {
		t.Errorf("one of two keys fits: %v", err)
	}
	_, err = verified(t, f, src, pgp(otherKey))
	wantRefused(t, err, "main@sha1:"+first+" is not taken: its PGP signature is by another key", "PGP "+other)
	_, err = verified(t, f, gitSource(s.URL(), commit(first)), pgp(otherKey))
	wantRefused(t, err, "source "+s.URL()+": sha1:"+first+" is not taken")
	_, err = verified(t, f, src, sshBy("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj"))
	wantRefused(t, err, "it has a PGP signature, and no pgpKeys are listed")

	s.Commit("2", "openpgp", other)
	_, err = verified(t, f, src, pgp(key))
	wantRefused(t, err, "by another key", "PGP "+id)
	unsigned := s.Commit("3", "", "")
	_, err = verified(t, f, src, pgp(key))
	wantRefused(t, err, "main@sha1:"+unsigned+" is not taken: it has no signature")
	if _, err := f.Fetch(t.Context(), "default", src); err != nil {
		t.Fatal(err) // it is known now, without a signature
	}
	_, err = verified(t, f, src, pgp(key))
	wantRefused(t, err, "it has no signature")
}

// TestPGPKeysThatEnd: a key that has expired signs nothing any more, as git verify-commit has it, also not what was taken while it did.
func TestPGPKeysThatEnd(t *testing.T) {
	s := signer(t, "gpg")
	id, key := s.PGP("ana", "2020-02-01", "--faked-system-time", "20200101T000000!")
	wrapper := s.Program("gpg-then", "#!/bin/sh\nexec gpg --faked-system-time 20200115T000000! \"$@\"\n")
	s.Git("config", "gpg.program", wrapper)
	s.Commit("1", "openpgp", id)
	_, err := verified(t, fetcher(t, Options{AllowFiles: true}), gitSource(s.URL(), branch("main")), pgp(key))
	wantRefused(t, err, "which has expired", "PGP "+id)
}

// TestPGPKeyThatIsListedTwice: the same key may be listed as it was and as it is now, in any order. What it is now counts: it goes on, or is revoked.
func TestPGPKeyThatIsListedTwice(t *testing.T) {
	s := signer(t, "gpg")
	const long, then = "20200101T000000!", "#!/bin/sh\nexec gpg --faked-system-time 20200115T000000! \"$@\"\n"
	id, old := s.PGP("ana", "2020-02-01", "--faked-system-time", long)
	s.Git("config", "gpg.program", s.Program("gpg-then", then))
	s.Commit("1", "openpgp", id)
	longer := s.Extend(id, "never")
	f, src := fetcher(t, Options{AllowFiles: true, CacheDir: t.TempDir()}), gitSource(s.URL(), branch("main"))
	for _, keys := range [][]string{{longer}, {old, longer}, {longer, old}, {old + longer}, {longer + old}} {
		if _, err := verified(t, f, src, pgp(keys...)); err != nil {
			t.Errorf("a key that goes on, and as it was before: %v", err)
		}
	}
	revoked := s.Revoke(id)
	for _, keys := range [][]string{{revoked}, {longer, revoked}, {revoked, longer}, {revoked + longer}} {
		_, err := verified(t, f, src, pgp(keys...))
		wantRefused(t, err, "PGP "+id+", which is revoked")
	}
}

// TestPGPThatIsNotSafe: a signature of a hash for which others can be found, or by a key that is too short, is none, as of the other kinds of keys.
func TestPGPThatIsNotSafe(t *testing.T) {
	s := signer(t, "gpg")
	id, key := s.PGPOf("rsa2048", "ana", "never")
	s.Git("config", "gpg.program", s.Program("gpg-sha1", "#!/bin/sh\nexec gpg --digest-algo SHA1 \"$@\"\n"))
	s.Commit("1", "openpgp", id)
	f, src := fetcher(t, Options{AllowFiles: true}), gitSource(s.URL(), branch("main"))
	_, err := verified(t, f, src, pgp(key))
	wantRefused(t, err, "its signature by PGP "+id+" is by SHA-1, which is not safe any more")
	s.Git("config", "--unset", "gpg.program")
	s.Commit("2", "openpgp", id)
	if _, err := verified(t, f, src, pgp(key)); err != nil {
		t.Errorf("by another hash: %v", err)
	}
	id, key = s.PGPOf("rsa1024", "bea", "never")
	s.Commit("3", "openpgp", id)
	_, err = verified(t, f, src, pgp(key))
	wantRefused(t, err, "it is signed by PGP "+id+", a key of 1024 bits; at least 2048 are needed")
}

// TestSSHCommits: what git makes with gpg.format=ssh is taken by the line of the .pub file, or of an allowed_signers file.
func TestSSHCommits(t *testing.T) {
	s := signer(t, "ssh-keygen")
	src := gitSource(s.URL(), branch("main"))
	_, other := s.SSH("ed25519")
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		file, key := s.SSH(kind)
		s.Commit(kind, "ssh", file)
		f := fetcher(t, Options{AllowFiles: true})
		for _, line := range []string{key, "# Ana\n\n" + key, "ana@example.com,bea@example.com namespaces=\"file,git\" " + key, "* valid-after=\"20200101\" " + key, "\"ana b\" valid-before=\"20990101Z\" " + key} {
			if a, err := verified(t, f, src, sshBy(other, line)); err != nil || string(a.Files["a.yaml"]) != kind {
				t.Errorf("%s: %v", line, err)
			}
		}
		_, err := verified(t, f, src, sshBy(other))
		wantRefused(t, err, "its SSH signature is by another key, SSH SHA256:", "lists SSH SHA256:")
		_, err = verified(t, f, src, sshBy("ana valid-before=\"20200101Z\" "+key))
		wantRefused(t, err, "which may sign until 2020-01-01T00:00:00Z")
		_, err = verified(t, f, src, sshBy("ana valid-after=\"20990101Z\" "+key))
		wantRefused(t, err, "which may sign from 2099-01-01T00:00:00Z on")
	}
	s.Commit("no", "", "")
	_, err := verified(t, fetcher(t, Options{AllowFiles: true}), src, sshBy(other))
	wantRefused(t, err, "it has no signature")
}

// TestSSHNamespace: a signature that was made for something else is none of a commit.
func TestSSHNamespace(t *testing.T) {
	s := signer(t, "ssh-keygen")
	file, key := s.SSH("ed25519")
	s.Git("config", "gpg.ssh.program", s.Program("sign-file", "#!/bin/sh\nfor a; do shift; [ \"$a\" = git ] && a=file; set -- \"$@\" \"$a\"; done\nexec ssh-keygen \"$@\"\n"))
	s.Commit("1", "ssh", file)
	_, err := verified(t, fetcher(t, Options{AllowFiles: true}), gitSource(s.URL(), branch("main")), sshBy(key))
	wantRefused(t, err, `is for "file", not for git`)
}

// TestSignedTags: by mode the tag, the commit, or both have to be signed; a signed tag under another name is not that tag.
func TestSignedTags(t *testing.T) {
	s := signer(t, "gpg", "ssh-keygen")
	id, key := s.PGP("ana", "never")
	file, sshKey := s.SSH("ed25519")
	s.Commit("1", "", "")
	s.Tag("v1.0.0", "openpgp", id)
	s.Tag("v1.1.0", "ssh", file)
	s.Tag("v1.2.0", "", "")
	s.Git("tag", "v1.3.0")
	s.Commit("2", "openpgp", id)
	s.Tag("v2.0.0", "openpgp", id)
	s.Git("update-ref", "refs/tags/v9.0.0", "refs/tags/v1.0.0")
	f := fetcher(t, Options{AllowFiles: true, CacheDir: t.TempDir()})
	for _, tt := range []struct {
		mode string
		ref  *towlinev1.GitRef
		want string // why it is refused
	}{
		{"Tag", tag("v1.0.0"), ""},
		{"Tag", tag("v1.1.0"), ""},
		{"Tag", semverRef("~1.1"), ""},
		{"HEAD", tag("v1.0.0"), "v1.0.0@sha1:"},
		{"", tag("v1.0.0"), "it has no signature"},
		{"TagAndHEAD", tag("v1.0.0"), "it has no signature"},
		{"TagAndHEAD", tag("v2.0.0"), ""},
		{"", tag("v2.0.0"), ""},
		{"Tag", tag("v1.2.0"), "tag v1.2.0 is not taken: it has no signature"},
		{"Tag", tag("v1.3.0"), "tag v1.3.0 is not taken: it has no message, and so no signature of its own"},
		{"Tag", tag("v9.0.0"), `it is the tag "v1.0.0" of its own word, under another name`},
	} {
		a, err := verified(t, f, gitSource(s.URL(), tt.ref), &towlinev1.Verify{Mode: tt.mode, PgpKeys: []string{key}, SshKeys: []string{sshKey}})
		if tt.want != "" {
			wantRefused(t, err, tt.want)
		} else if err != nil || a.Files["a.yaml"] == nil {
			t.Errorf("%s %v: %v", tt.mode, tt.ref, err)
		}
	}
	s.Commit("3", "", "")
	s.Tag("v1.0.0", "", "") // it is moved
	_, err := verified(t, f, gitSource(s.URL(), tag("v1.0.0")), &towlinev1.Verify{Mode: "Tag", PgpKeys: []string{key}})
	wantRefused(t, err, "it has no signature")
}

// TestSignatureOfAnother: a signature that is moved to another commit is not one of its content.
func TestSignatureOfAnother(t *testing.T) {
	s := signer(t, "gpg", "ssh-keygen")
	id, key := s.PGP("ana", "never")
	file, sshKey := s.SSH("ed25519")
	for format, by := range map[string]string{"openpgp": id, "ssh": file} {
		signed := s.Commit("good", format, by)
		raw := s.Git("cat-file", "commit", signed) + "\n"
		s.Commit("bad", "", "")
		tree := s.Git("rev-parse", "HEAD^{tree}")
		moved := "tree " + tree + raw[strings.Index(raw, "\n"):]
		forged := s.Program("forged", moved)
		s.Git("update-ref", "refs/heads/forged", s.Git("hash-object", "-t", "commit", "-w", forged))
		_, err := verified(t, fetcher(t, Options{AllowFiles: true}), gitSource(s.URL(), branch("forged")), &towlinev1.Verify{PgpKeys: []string{key}, SshKeys: []string{sshKey}})
		wantRefused(t, err, "is not one of its content")
	}
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestCosign: what cosign pushes is found where it puts it, by each kind of key, and nothing else is taken.
func TestCosign(t *testing.T) {
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	const predicate = "https://sigstore.dev/cosign/sign/v1"
	other := ecKey(t)
	for name, key := range map[string]crypto.Signer{"ecdsa": ecKey(t), "ed25519": ed, "rsa": long} {
		for how, push := range map[string]func(reg *sourcetest.Registry, digest, of string){
			"tag": func(reg *sourcetest.Registry, d, of string) {
				reg.CosignTag("shop", d, key, sourcetest.SimplePayload("elsewhere/shop", of))
			},
			"referrer": func(reg *sourcetest.Registry, d, of string) {
				reg.CosignReferrer("shop", d, key, sourcetest.SimplePayload("shop", of))
			},
			"bundle": func(reg *sourcetest.Registry, d, of string) {
				reg.CosignBundle("shop", d, key, sourcetest.Statement(of, predicate))
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				reg := sourcetest.NewRegistry(t, nil)
				keys := &towlinev1.Verify{CosignKeys: []string{sourcetest.PublicPEM(t, key)}}
				others := &towlinev1.Verify{CosignKeys: []string{sourcetest.PublicPEM(t, other)}}
				f := fetcher(t, Options{CacheDir: t.TempDir()})
				src := ociSource(reg.Host, "shop", ociTag("v1"))
				digest := reg.Push("shop", "v1", "application/x", archiveOf(t, "1"))
				_, err := verified(t, f, src, keys)
				wantRefused(t, err, "v1@"+digest+" is not taken: it has no signature of cosign", "lists cosign SHA256:")
				push(reg, digest, "sha256:"+strings.Repeat("a", 64))
				_, err = verified(t, f, src, keys)
				wantRefused(t, err, "is of another digest")
				push(reg, digest, digest)
				a, err := verified(t, f, src, &towlinev1.Verify{CosignKeys: []string{others.CosignKeys[0], keys.CosignKeys[0]}})
				if err != nil || string(a.Files["a.yaml"]) != "1" {
					t.Fatalf("%v", err)
				}
				_, err = verified(t, f, src, others)
				wantRefused(t, err, "by another key")
				_, err = verified(t, f, ociSource(reg.Host, "shop", &towlinev1.OciRef{Digest: digest}), others)
				wantRefused(t, err, "shop: "+digest+" is not taken")
				moved := reg.Push("shop", "v1", "application/x", archiveOf(t, "2"))
				_, err = verified(t, f, src, keys)
				wantRefused(t, err, "v1@"+moved+" is not taken: it has no signature")
			})
		}
	}
}

// TestCosignRefusesOtherStatements: the same key attests other things, which are no signature.
func TestCosignRefusesOtherStatements(t *testing.T) {
	reg, key := sourcetest.NewRegistry(t, nil), ecKey(t)
	keys := &towlinev1.Verify{CosignKeys: []string{sourcetest.PublicPEM(t, key)}}
	src, f := ociSource(reg.Host, "shop", ociTag("v1")), fetcher(t, Options{})
	digest := reg.Push("shop", "v1", "application/x", archiveOf(t, "1"))
	reg.CosignBundle("shop", digest, key, sourcetest.Statement(digest, "https://slsa.dev/provenance/v1"))
	_, err := verified(t, f, src, keys)
	wantRefused(t, err, `"https://slsa.dev/provenance/v1", which is no signature`)
	reg.CosignTag("shop", digest, key, []byte(strings.Replace(string(sourcetest.SimplePayload("x", digest)), "cosign container image signature", "other", 1)))
	_, err = verified(t, f, src, keys)
	wantRefused(t, err)
	for range maxSignatures {
		reg.CosignBundle("shop", digest, ecKey(t), sourcetest.Statement(digest, "x"))
	}
	if _, err = verified(t, f, src, keys); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("signatures without end: %v", err)
	}
}

// TestSignedCharts: a chart of a registry is checked as any artifact is.
func TestSignedCharts(t *testing.T) {
	reg, key := sourcetest.NewRegistry(t, nil), ecKey(t)
	src := &towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "oci://" + reg.Host + "/charts", Chart: "web", Version: "1.x", Insecure: true}}
	keys := &towlinev1.Verify{CosignKeys: []string{sourcetest.PublicPEM(t, key)}}
	digest := reg.Push("charts/web", "1.2.0", "application/vnd.cncf.helm.config.v1+json", sourcetest.Layer{Type: chartLayer, Data: chart(t, "1.2.0")})
	_, err := verified(t, fetcher(t, Options{}), src, keys)
	wantRefused(t, err, "1.2.0@"+digest+" is not taken")
	reg.CosignTag("charts/web", digest, key, sourcetest.SimplePayload("web", digest))
	if a, err := verified(t, fetcher(t, Options{}), src, keys); err != nil || a.Files["Chart.yaml"] == nil {
		t.Errorf("%v", err)
	}
}

// TestKeysThatAreNone: each key that cannot be one is refused before anything is fetched.
func TestKeysThatAreNone(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for want, v := range map[string]*towlinev1.Verify{
		"source.verify.pgpKeys: [0] is no armored PGP key: export it with gpg --armor --export KEY":     pgp("nonsense"),
		"source.verify.sshKeys: [1] has no key: write the line of a .pub file":                          sshBy("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj", "# none"),
		`"ssh-ed25519 nonsense" is no SSH public key`:                                                   sshBy("ssh-ed25519 nonsense"),
		"is an authority of certificates, which are not read":                                           sshBy("* cert-authority ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj"),
		`namespaces "file" leaves out git`:                                                              sshBy(`* namespaces="file" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj`),
		`option "no-touch-required" is not known`:                                                       sshBy(`* no-touch-required ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj`),
		"source.verify.cosignKeys: [0] is no public key in PEM: write what is in cosign.pub":            {CosignKeys: []string{"nonsense"}},
		"source.verify.cosignKeys: [0] is an RSA key of 1024 bits; at least 2048 are needed":            {CosignKeys: []string{sourcetest.PublicPEM(t, weak)}},
		"source.verify.cosignKeys: [0] is a CERTIFICATE, not a PUBLIC KEY: write what is in cosign.pub": {CosignKeys: []string{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}},
		"source.verify: has no key: list those that may sign, or leave it out":                          {},
	} {
		if _, err := verified(t, fetcher(t, Options{}), gitSource("http://127.0.0.1:1/repo.git", nil), v); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
