package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// Snapshot is what is kept as it is at one moment, in etcd's format: it ends with the SHA-256 of what comes before.
func (b *keyspace) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	if b.embedded == nil {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "the store is in an etcd of one's own, which holds more than this: back that up, as with etcdctl snapshot save")
	}
	r, err := b.client.Snapshot(ctx)
	if err != nil {
		return nil, b.failure(err)
	}
	return r, nil
}

// RestoreOptions say what a store is made from, and where.
type RestoreOptions struct {
	// Log takes what etcd has to say; nil: nothing is said.
	Log *slog.Logger
	// Dir is Options.Dir.
	Dir string
	// From is a file with a Snapshot.
	From string
	// Replace takes a store that is there aside; else that is an error.
	Replace bool
}

// The folders of a store's directory: the store, the one that a restore makes, and those that were taken aside, with the time.
const (
	storeFolder   = "etcd"
	restoreFolder = "restoring"
	asideFormat   = storeFolder + ".before-20060102T150405Z"
)

// revisionBump is by how much a restored store counts on beyond the snapshot: no revision of it is given to something else than before,
// unless there were more since.
const revisionBump = 1 << 30

// Restore makes a store from a snapshot. What is there already is not touched before the new store is whole and mark, which may change
// it, has returned. It returns where the old store is now; empty: there was none.
func Restore(ctx context.Context, o RestoreOptions, mark func(backend.Backend) error) (aside string, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	old, made := filepath.Join(o.Dir, storeFolder), filepath.Join(o.Dir, restoreFolder)
	_, statErr := os.Stat(old)
	if statErr == nil && !o.Replace {
		return "", fleet.Errorf(fleet.ErrPrecondition, "%s: there is a store already; --replace takes it aside", o.Dir)
	}
	if err := os.RemoveAll(made); err != nil { // of a restore that did not end
		return "", fmt.Errorf("restore: %w", err)
	}
	if err := unpack(ctx, o, made, mark); err != nil {
		return "", errors.Join(fmt.Errorf("restore from %s: %w", o.From, err), os.RemoveAll(made))
	}
	if statErr == nil {
		aside = filepath.Join(o.Dir, time.Now().UTC().Format(asideFormat))
		if err := os.Rename(old, aside); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(made, storeFolder), old); err != nil {
		return aside, fmt.Errorf("restore: %w", err)
	}
	return aside, errors.Join(os.RemoveAll(made), syncDir(o.Dir))
}

// unpack makes the store of the snapshot in a directory of its own, and has it marked.
func unpack(ctx context.Context, o RestoreOptions, dir string, mark func(backend.Backend) error) error {
	cfg := embed.NewConfig()
	var peers []string
	for _, u := range cfg.AdvertisePeerUrls {
		peers = append(peers, u.String())
	}
	err := snapshot.NewV3(zapTo(o.Log)).Restore(snapshot.RestoreConfig{SnapshotPath: o.From, Name: memberName, OutputDataDir: filepath.Join(dir, storeFolder),
		PeerURLs: peers, InitialCluster: cfg.InitialClusterFromName(memberName), InitialClusterToken: cfg.InitialClusterToken,
		RevisionBump: revisionBump, MarkCompacted: true})
	if err != nil {
		return err
	}
	b, err := Open(ctx, Options{Log: o.Log, Dir: dir})
	if err != nil {
		return err
	}
	return errors.Join(mark(b), b.Close())
}

// interrupted says that the directory has no store because a restore did not end.
func interrupted(dir string) error {
	if fileutil.Exist(filepath.Join(dir, storeFolder)) || !fileutil.Exist(filepath.Join(dir, restoreFolder)) {
		return nil
	}
	return fleet.Errorf(fleet.ErrPrecondition, "%s: a restore of the store did not end, and there is none: restore again", dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
