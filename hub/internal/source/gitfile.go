package source

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/go-git/go-billy/v5/osfs"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"towline.dev/towline/pkg/fleet"
)

// gitFolder is a repository in a folder of this machine. It is read here, so that no program of it is run.
type gitFolder struct {
	session transport.UploadPackSession
	store   *filesystem.Storage
}

func openGitFolder(dir string) (gitRemote, error) {
	if fi, err := os.Lstat(filepath.Join(dir, ".git")); err == nil && fi.IsDir() { // a link may lead to another repository
		dir = filepath.Join(dir, ".git")
	}
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil {
		return nil, fleet.Errorf(fleet.ErrNotFound, "is no Git repository: check source.git.url")
	}
	store := filesystem.NewStorage(osfs.New(dir, osfs.WithBoundOS()), gitcache.NewObjectLRUDefault())
	session, err := server.NewServer(server.MapLoader{"file:///": store}).NewUploadPackSession(&transport.Endpoint{Protocol: "file", Path: "/"}, nil)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &gitFolder{session, store}, nil
}

func (r *gitFolder) refs(ctx context.Context) (*packp.AdvRefs, error) {
	adv, err := r.session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "its branches and tags cannot be read: %s", clip(err.Error()))
	}
	if adv.Head == nil && len(adv.References) == 0 {
		return nil, fleet.Errorf(fleet.ErrNotFound, "has no commit yet")
	}
	return adv, nil
}

func (r *gitFolder) pack(ctx context.Context, req *packp.UploadPackRequest) (data []byte, err error) {
	resp, err := r.session.UploadPack(ctx, req)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "its files cannot be read: %s", clip(err.Error()))
	}
	defer func() { err = errors.Join(err, resp.Close()) }()
	return readMost(io.Reader(resp), MaxPackBytes, "the files of its commit have more than %d MiB, packed")
}

func (r *gitFolder) close() { _ = r.store.Close() }
