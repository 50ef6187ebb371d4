package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

func backupCommand() *cobra.Command {
	f := backupFlags{free: etcd.FreeBytes}
	c := &cobra.Command{Use: "backup --data-dir DIR --to FILE", Short: "Save the store of a hub that runs into a file", Args: cobra.NoArgs,
		Long: "Asks the hub that runs on DIR for a snapshot of its store, which goes on meanwhile. The file is one of etcd, and what\n" +
			"towline-hub restore reads. The keys of the CA and of the secrets are not in it: keep copies of ca.crt, ca.key and\n" +
			"secrets.key apart from it.",
		Example: "  towline-hub backup --data-dir /var/lib/towline --to /backup/hub.db",
		RunE: func(c *cobra.Command, _ []string) error {
			return f.run(c.Context(), c.OutOrStdout())
		}}
	c.Flags().StringVar(&f.dir, "data-dir", "", "the hub's directory (required)")
	c.Flags().StringVar(&f.to, "to", "", "file to make (required)")
	c.Flags().StringVar(&f.config, "config", "", "configuration of an admin's client, which says where the hub is (default: "+AdminFile+" in --data-dir)")
	c.Flags().BoolVar(&f.force, "force", false, "overwrite the file if it is there")
	_ = c.MarkFlagRequired("data-dir")
	_ = c.MarkFlagRequired("to")
	return c
}

type backupFlags struct {
	dir, config, to string
	force           bool
	free            diskFree
}

// run writes the snapshot beside the file and gives it its name when it is whole.
func (b *backupFlags) run(ctx context.Context, out io.Writer) (err error) {
	to := b.to
	if _, err := os.Stat(to); err == nil && !b.force {
		return fleet.Errorf(fleet.ErrExists, "%s: the file is there; --force overwrites it", to)
	}
	cl, err := client.Dial(ctx, clientOf(b.dir, b.config))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	f, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+partOf+"*") // which only its owner may read
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	var w io.Writer = f
	if etcd.SameDisk(b.dir, filepath.Dir(to)) {
		w = sparing{Writer: f, name: to, dir: b.dir, free: b.free}
	}
	size, err := receiveBackup(ctx, cl.Store, w)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if err := os.Rename(f.Name(), to); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	_, err = fmt.Fprintf(out, "%s: %d bytes\nThe keys are not in it: keep ca.crt, ca.key and %s apart from it.\n", to, size, secretsKeyFile)
	return err
}

// receiveBackup copies a snapshot and checks that it is whole.
func receiveBackup(ctx context.Context, cl towlinev1.StoreServiceClient, w io.Writer) (int64, error) {
	st, err := cl.BackupStore(ctx, &towlinev1.BackupStoreRequest{})
	if err != nil {
		return 0, err
	}
	sum := trailing{hash: sha256.New()}
	for {
		piece, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if _, err := w.Write(piece.GetData()); err != nil {
			return 0, fmt.Errorf("backup: %w", err)
		}
		sum.add(piece.GetData())
	}
	if !sum.whole() {
		return 0, fleet.Errorf(fleet.ErrCorrupt, "backup: what the hub sent does not end with its checksum")
	}
	return sum.size, nil
}

// trailing checks bytes that end with the SHA-256 of those before.
type trailing struct {
	hash hash.Hash
	size int64
	last []byte // at most as many as a sum has
}

func (t *trailing) add(data []byte) {
	t.size += int64(len(data))
	t.last = append(t.last, data...)
	if extra := len(t.last) - sha256.Size; extra > 0 {
		t.hash.Write(t.last[:extra])
		t.last = append([]byte(nil), t.last[extra:]...)
	}
}

func (t *trailing) whole() bool {
	return t.size > sha256.Size && string(t.hash.Sum(nil)) == string(t.last)
}

type restoreFlags struct {
	serveFlags
	from    string
	replace bool
}

func restoreCommand() *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{Use: "restore --data-dir DIR --from FILE", Short: "Make the store of a hub that is stopped from a backup", Args: cobra.NoArgs,
		Long: "Makes the store in DIR from a file that towline-hub backup wrote. The store counts as another one from then on: agents that have\n" +
			"seen nothing of what came after the backup follow it by themselves, and the others keep what they hold until a person says\n" +
			"towline restore accept. A restore itself deletes nothing in any cluster. What was under way in the backup stands still until every\n" +
			"cluster was heard and none is ahead of the backup, or that is said: rollouts, and the removal of modules from clusters.\n\n" +
			"With --etcd-endpoints, restore etcd by its own means first, as with etcdutl snapshot restore, while all hubs are stopped;\n" +
			"this then marks the store in it, and hubs that do not start for they saw it go back start again.",
		Example: "  towline-hub restore --data-dir /var/lib/towline --from /backup/hub.db --replace",
		RunE:    func(c *cobra.Command, _ []string) error { return f.restore(c) }}
	fl := c.Flags()
	fl.StringVar(&f.o.DataDir, "data-dir", "", "the hub's directory (required)")
	fl.StringVar(&f.from, "from", "", "file of the backup; none with --etcd-endpoints")
	fl.BoolVar(&f.replace, "replace", false, "take a store that is there aside, into a folder beside it")
	fl.StringSliceVar(&f.o.EtcdEndpoints, "etcd-endpoints", nil, "endpoints of an etcd of your own, which was restored")
	f.etcdFlags(fl)
	_ = c.MarkFlagRequired("data-dir")
	return c
}

// restoredText is what a person has to look at after a restore.
const restoredText = "What was said after the backup is not so any more: what was revoked, locked, removed, held, paused, aborted or rolled back, and secrets\n" +
	"that were set. Look at the log of the hub, and say it again.\n" +
	"What was under way in the backup stands still when the hub has started, until every cluster was heard and none is ahead of the backup, or\n" +
	"towline restore accept is said: look at towline restore show and towline get rollouts. Modules that were being removed from clusters are\n" +
	"removed there then, also those that were put there again since: hold them before (towline hold module/NAME).\n"

func (f *restoreFlags) restore(c *cobra.Command) error {
	f.o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	f.o.Etcd = f.o.Etcd.fromEnvironment(os.Getenv)
	own := len(f.o.EtcdEndpoints) == 0
	if own != (f.from != "") {
		return fleet.Errorf(fleet.ErrInvalid, "give either --from, or --etcd-endpoints of an etcd that was restored")
	}
	if !own {
		return f.mark(c)
	}
	if info, err := os.Stat(f.from); err != nil || info.IsDir() {
		return fleet.Errorf(fleet.ErrNotFound, "--from %s: is no file that can be read", f.from)
	}
	if err := os.MkdirAll(f.o.DataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	var is *storev1.Hub
	aside, err := etcd.Restore(c.Context(), etcd.RestoreOptions{Log: f.o.Log, Dir: filepath.Join(f.o.DataDir, "etcd"), From: f.from, Replace: f.replace},
		func(b backend.Backend) (err error) {
			s, err := engine.Open(c.Context(), keepOpen{b}, engine.Options{Log: f.o.Log, StandIn: record.StandIn})
			if err != nil {
				return err
			}
			is, err = markRestored(c.Context(), s)
			return errors.Join(err, s.Close())
		})
	if err != nil {
		return err
	}
	out := fmt.Sprintf("restored: store %s of hub %s\n", is.GetIncarnation(), is.GetHubId())
	if aside != "" {
		out += "the store that was there is in " + aside + "\n"
	}
	out += restoredText
	for _, name := range []string{"ca.crt", "ca.key", secretsKeyFile} {
		if _, err := os.Stat(filepath.Join(f.o.DataDir, name)); err != nil {
			out += fmt.Sprintf("There is no %s in %s: put that of before there, or name it to towline-hub serve, before the hub starts.\n", name, f.o.DataDir)
		}
	}
	_, err = fmt.Fprint(c.OutOrStdout(), out)
	return err
}

// mark is a restore of an etcd of one's own, whose bytes are there already. No hub may use it.
func (f *restoreFlags) mark(c *cobra.Command) (err error) {
	s, err := openStore(c.Context(), f.o, engine.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, held, err := s.Leader(c.Context()); err != nil || held {
		if err == nil {
			err = fleet.Errorf(fleet.ErrPrecondition, "a hub uses this etcd, or did until some seconds ago: stop it, and try again")
		}
		return err
	}
	is, err := markRestored(c.Context(), s)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "marked as restored: store %s of hub %s\n"+restoredText, is.GetIncarnation(), is.GetHubId())
	return err
}

// keepOpen is a backend that is closed by somebody else.
type keepOpen struct{ backend.Backend }

func (keepOpen) Close() error { return nil }

// markRestored makes the store another one than that of the backup, and notes what that one was.
func markRestored(ctx context.Context, s *engine.Engine) (is *storev1.Hub, err error) {
	now := time.Now()
	_, err = own(s).Update(ctx, func(w store.Writer) error {
		was, _, ok := store.Get[*storev1.Hub](w, store.HubKey)
		if !ok {
			return fleet.Errorf(fleet.ErrInvalid, "there is no hub in it: it is a backup of something else")
		}
		if was.GetSchema() > storeSchema {
			return newerStore(was.GetSchema())
		}
		is = proto.CloneOf(was)
		is.Incarnation = random(8)
		w.Put(store.HubKey, is)
		record.MarkRestored(w, was, now)
		return nil
	})
	return is, err
}

// newerStore is why a hub does not touch a store.
func newerStore(schema uint32) error {
	return fleet.Errorf(fleet.ErrPrecondition, "the store was written by a newer hub (schema %d; this one knows up to %d): start a hub of that version, or restore a backup of before", schema, storeSchema)
}
