package hub

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"

	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/fleet"
)

// diskFree is how much a process may still write on the disk of a directory, if that is known.
type diskFree func(dir string) (bytes int64, known bool)

// sourcesFolder is where in the data directory is kept what sources have sent. It may be thrown away at any time.
const sourcesFolder = "sources"

// spareDisk is how much of the disk has to be free for what may be thrown away: the store takes nothing any more well before.
const spareDisk = 2 * etcd.LowDisk

// partOf is the name of what a backup has written so far.
const partOf = ".part-"

var partName = regexp.MustCompile(regexp.QuoteMeta(partOf) + `[0-9]+$`)

// makeRoom removes what may be thrown away, before a store is opened that may not find the room to start: what is left of backups whose program
// was killed; of a backup that still runs the hub has ended, and it ends, too. And what is kept of sources, where the disk is nearly full.
func makeRoom(dir string, free diskFree, log *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !partName.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("hub: what is left of a backup: %w", err)
		}
		log.Info("what was left of a backup that did not end is removed", "file", path)
	}
	if bytes, known := free(dir); !known || bytes >= spareDisk {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(dir, sourcesFolder)); err != nil {
		return fmt.Errorf("hub: what is kept of sources: %w", err)
	}
	return nil
}

// sparing writes to the disk of a hub's store as long as that leaves the store the room that it needs: without it, the hub ends.
type sparing struct {
	io.Writer
	name string
	dir  string // of the hub
	free diskFree
}

func (s sparing) Write(p []byte) (int, error) {
	if bytes, known := s.free(s.dir); known && bytes < etcd.LowDisk+int64(len(p)) {
		return 0, fleet.Errorf(fleet.ErrExhausted, "%s: is on the disk of the hub's store, of which %d MiB are free, and the hub needs %d MiB of them: write the backup to another disk",
			s.name, bytes>>20, etcd.LowDisk>>20)
	}
	return s.Writer.Write(p)
}
