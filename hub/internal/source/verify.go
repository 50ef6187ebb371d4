package source

import (
	"context"
	"errors"
	"io"
	"mime"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/memory"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/signature"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// verification is by whom what a source has must be signed. The zero one wants no signature.
type verification struct {
	keys signature.Keys
	mode string
	now  time.Time
	id   string // of the keys that count now, and of the mode
}

// CheckVerify reads the keys of a source.
func CheckVerify(src *towlinev1.Source) error {
	_, err := readVerify(src)
	return err
}

func readVerify(src *towlinev1.Source) (verification, error) {
	v := src.GetVerify()
	if v == nil {
		return verification{}, nil
	}
	keys, err := signature.Read(signature.List{PGP: v.GetPgpKeys(), SSH: v.GetSshKeys(), Cosign: v.GetCosignKeys()})
	if err != nil {
		return verification{}, fleet.Join("verify", err)
	}
	if !keys.Any() {
		return verification{}, fleet.Invalid("verify", "has no key: list those that may sign, or leave it out")
	}
	now := time.Now()
	return verification{keys: keys, mode: v.GetMode(), now: now, id: cacheKey(v.GetMode(), keys.ID(now))}, nil
}

func (v verification) any() bool { return v.keys.Any() }

// tag reports that the tag itself has to be signed.
func (v verification) tag() bool {
	return v.any() && (v.mode == wire.VerifyTag || v.mode == wire.VerifyTagAndHead)
}

// refuse says what is not signed, and by which keys it would have to be.
func (v verification) refuse(what string, why error) error {
	return &UnverifiedError{fleet.Errorf(fleet.ErrDenied, "%s is not taken: %s; source.verify lists %s", what, why, v.keys)}
}

// exactly is an exact ref, and the name that it was found by.
func exactly(by, ref string) string { return strings.TrimPrefix(by+"@", "@") + ref }

// checkGit checks a commit, and the tag that it was found by. Lasts is false of what is signed only for a time.
func (v verification) checkGit(store *memory.Storage, wanted wantedCommit, c gitCommit) (lasts bool, err error) {
	if !v.any() {
		return true, nil
	}
	lasts = true
	if v.tag() {
		proof, err := v.checkTag(store, wanted)
		if err != nil {
			return false, v.refuse("tag "+clip(wanted.by), err)
		}
		lasts = proof.Lasts
	}
	if v.mode != wire.VerifyTag {
		raw, err := rawObject(store, plumbing.CommitObject, c.hash)
		if err != nil {
			return false, err
		}
		proof, err := v.keys.Commit(v.now, raw, c.tree.String())
		if err != nil {
			return false, v.refuse(exactly(clip(wanted.by), "sha1:"+c.hash.String()), err)
		}
		lasts = lasts && proof.Lasts
	}
	return lasts, nil
}

func (v verification) checkTag(store *memory.Storage, wanted wantedCommit) (signature.Proof, error) {
	target, ok := leadsTo(store, plumbing.TagObject, wanted.commit)
	if !ok {
		return signature.Proof{}, errors.New("it has no message, and so no signature of its own")
	}
	raw, err := rawObject(store, plumbing.TagObject, wanted.commit)
	if err != nil {
		return signature.Proof{}, err
	}
	return v.keys.Tag(v.now, raw, wanted.by, target.String())
}

// rawObject is an object as it was sent.
func rawObject(store *memory.Storage, kind plumbing.ObjectType, hash plumbing.Hash) (data []byte, err error) {
	o, err := store.EncodedObject(kind, hash)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "the server does not send %s %s", kind, hash)
	}
	r, err := o.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return io.ReadAll(r)
}

// What cosign puts into a registry.
const (
	simpleSigning       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
	sigstoreBundle      = "application/vnd.dev.sigstore.bundle."
)

// Limits of the signatures of a manifest.
const (
	maxSignatures     = 100
	maxSignatureBytes = 1 << 20 // of one
)

// checkOCI checks that a manifest is signed. Its signatures are looked for where cosign puts them: behind a tag that is made of the digest,
// and among the referrers. Nobody has to be able to list those: what cannot be read is an error only where nothing else is good.
func (v verification) checkOCI(ctx context.Context, repo *remote.Repository, by string, desc ocispec.Descriptor) error {
	if !v.any() {
		return nil
	}
	c := &cosignCheck{v: v, repo: repo, digest: desc.Digest}
	good, tagErr := c.byTag(ctx)
	if good {
		return nil
	}
	good, referrersErr := c.byReferrers(ctx, desc)
	if good {
		return nil
	}
	if err := errors.Join(tagErr, referrersErr); err != nil {
		return err
	}
	if c.why == nil {
		c.why = errors.New("it has no signature of cosign")
	}
	return v.refuse(exactly(by, desc.Digest.String()), c.why)
}

// cosignCheck looks through the signatures of a manifest.
type cosignCheck struct {
	v      verification
	repo   *remote.Repository
	digest digest.Digest
	seen   int
	why    error // why the last signature does not count
}

// byTag looks behind the tag of the digest.
func (c *cosignCheck) byTag(ctx context.Context) (good bool, err error) {
	_, m, err := readManifest(ctx, c.repo, "sha256-"+c.digest.Encoded()+".sig")
	if err != nil {
		return false, unlessAbsent(err)
	}
	return c.layers(ctx, m)
}

// byReferrers looks at what says that it belongs to the manifest.
func (c *cosignCheck) byReferrers(ctx context.Context, desc ocispec.Descriptor) (good bool, err error) {
	var found []ocispec.Descriptor
	err = c.repo.Referrers(ctx, ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}, "", func(page []ocispec.Descriptor) error {
		found = append(found, page...)
		if len(found) > maxTags {
			return fleet.Errorf(fleet.ErrExhausted, "has more than %d referrers", maxTags)
		}
		return nil
	})
	if err != nil {
		return false, unlessAbsent(ociError(err))
	}
	for _, one := range found {
		if one.ArtifactType != "" && !strings.HasPrefix(one.ArtifactType, sigstoreBundle) && !strings.HasPrefix(one.ArtifactType, "application/vnd.dev.cosign.") {
			continue
		}
		if err := c.count(); err != nil {
			return false, err
		}
		_, m, err := readManifest(ctx, c.repo, one.Digest.String())
		if err != nil {
			return false, err
		}
		if good, err = c.layers(ctx, m); good || err != nil {
			return good, err
		}
	}
	return false, nil
}

// layers looks at the signatures in a manifest.
func (c *cosignCheck) layers(ctx context.Context, m ocispec.Manifest) (good bool, err error) {
	for _, layer := range m.Layers {
		kind, _, _ := mime.ParseMediaType(layer.MediaType)
		bundle := strings.HasPrefix(kind, sigstoreBundle)
		if kind != simpleSigning && !bundle {
			continue
		}
		if err := c.count(); err != nil {
			return false, err
		}
		if layer.Size > maxSignatureBytes {
			return false, fleet.Errorf(fleet.ErrExhausted, "has a signature of more than %d MiB", maxSignatureBytes>>20)
		}
		data, err := ociArtifact{repo: c.repo}.fetchLayer(ctx, layer, maxSignatureBytes)
		if err != nil {
			return false, err
		}
		if bundle {
			_, err = c.v.keys.Bundle(c.digest.String(), data)
		} else {
			_, err = c.v.keys.Simple(c.digest.String(), data, layer.Annotations[signatureAnnotation])
		}
		if err == nil {
			return true, nil
		}
		c.why = err
	}
	return false, nil
}

// count keeps whoever may write to the registry from having the hub look at signatures without end.
func (c *cosignCheck) count() error {
	if c.seen++; c.seen > maxSignatures {
		return fleet.Errorf(fleet.ErrExhausted, "has more than %d signatures, and none of those is by a key in source.verify: remove old ones", maxSignatures)
	}
	return nil
}

// unlessAbsent drops the error of what is not there.
func unlessAbsent(err error) error {
	var status *statusError
	if errors.As(err, &status) && status.code == 404 {
		return nil
	}
	return err
}
