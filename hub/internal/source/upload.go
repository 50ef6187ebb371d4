package source

import (
	"context"
	"errors"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// uploaded reads files that were uploaded before. Whoever stored them has looked at them as at an archive of a server.
func (f *Fetcher) uploaded(ctx context.Context, src *towlinev1.UploadSource) (Artifact, error) {
	if src.GetDigest() == "" {
		return Artifact{}, noUpload()
	}
	d, err := fleet.ParseDigest(src.GetDigest())
	if err != nil {
		return Artifact{}, fleet.Invalid("source.upload.digest", err.Error())
	}
	if f.opts.Uploaded == nil {
		return Artifact{}, fleet.Errorf(fleet.ErrUnavailable, "source.upload: this hub holds no uploads")
	}
	archive, err := f.opts.Uploaded(ctx, d)
	if errors.Is(err, fleet.ErrNotFound) {
		return Artifact{}, fleet.Errorf(fleet.ErrPrecondition, "source.upload.digest: the hub does not have the files %s any more: apply the module with --from DIR", d.Short())
	}
	if err != nil {
		return Artifact{}, err
	}
	files, err := artifact.Decode(archive)
	if err != nil {
		return Artifact{}, fleet.Join("source.upload", err)
	}
	return Artifact{Digest: d, Files: files, Archive: archive}, nil
}

func noUpload() error {
	return fleet.Invalid("source.upload", "has no files yet: apply the module with --from DIR")
}
