package api

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// uploaded are the files of a module whose source is upload; nil: it has another source.
type uploaded struct {
	ref    fleet.ModuleRef
	digest fleet.Digest
	// meant says that the module did not name them: they are those that it has.
	meant bool
	// epoch under which they were touched.
	epoch uint64
}

// settle is a module with the files that it means, which are on the hub and stay there for now.
func (a *API) settle(ctx context.Context, m *wire.Module, in *towlinev1.Module) (*towlinev1.Module, *uploaded, error) {
	source := in.GetSpec().GetSource().GetUpload()
	if source == nil {
		return in, nil, nil
	}
	u := &uploaded{ref: m.Ref}
	var err error
	if u.epoch, err = a.o.Store.Blobs().Epoch(ctx); err != nil {
		return nil, nil, err
	}
	if source.GetDigest() == "" {
		u.meant = true
		if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
			source = uploadOf(r, m.Ref)
			return nil
		}); err != nil {
			return nil, nil, err
		}
		if source.GetDigest() == "" {
			return nil, nil, fleet.Invalid("spec.source.upload", "has no files on the hub yet: apply it with --from DIR")
		}
		in = proto.CloneOf(in)
		in.Spec.Source.Upload.Digest, m.Source = source.GetDigest(), in.Spec.Source
	}
	if u.digest, err = fleet.ParseDigest(source.GetDigest()); err != nil {
		return nil, nil, fleet.Invalid("spec.source.upload.digest", err.Error())
	}
	err = a.o.Store.Blobs().Keep(ctx, u.digest, a.now().Add(keptUpload))
	if errors.Is(err, fleet.ErrNotFound) {
		err = fleet.Errorf(fleet.ErrPrecondition, "spec.source.upload.digest: the hub does not have the files %s, or not any more: apply the module with --from DIR", u.digest.Short())
	}
	return in, u, err
}

// uploadOf is the upload that a module has.
func uploadOf(r store.Reader, ref fleet.ModuleRef) *towlinev1.UploadSource {
	rec, _, exists := moduleRecord(r, ref)
	if !exists || rec.GetDeleting() != "" {
		return nil
	}
	return rec.GetModule().GetSpec().GetSource().GetUpload()
}

// refer has a commit fail if the files may have been collected, or are not those any more that were meant.
func (u *uploaded) refer(w store.Writer) error {
	if u == nil {
		return nil
	}
	if u.meant && uploadOf(w, u.ref).GetDigest() != u.digest.String() {
		return errOtherFiles
	}
	w.References(u.epoch)
	return nil
}

// errOtherFiles says that somebody else has given the module other files since it was looked at.
var errOtherFiles = fleet.Errorf(fleet.ErrConflict, "somebody else has put other files meanwhile")

// outdated reports that a put failed because of what happened to the files meanwhile: it is right to look at them again.
func (a *API) outdated(ctx context.Context, u *uploaded, err error) bool {
	if u == nil || !errors.Is(err, fleet.ErrConflict) {
		return false
	}
	epoch, unread := a.o.Store.Blobs().Epoch(ctx)
	return errors.Is(err, errOtherFiles) || unread == nil && epoch != u.epoch
}
