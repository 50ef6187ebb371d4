package hub

import (
	"context"
	"io"

	"towline.dev/towline/hub/internal/store/backend"
)

// StandOn has the hub stand on a backend that outlives it.
func StandOn(o *Options, b backend.Backend) { o.backend = b }

// DefaultGrace is how long a hub waits for agents that had a session, unless it is told otherwise.
const DefaultGrace = defaultGrace

// FreeOf has the hub believe that so much of a disk is free.
func FreeOf(o *Options, free func(dir string) (bytes int64, known bool)) { o.diskFree = free }

// Backup is the command, where so much of a disk is free.
func Backup(ctx context.Context, dir, to string, free func(dir string) (bytes int64, known bool)) error {
	return (&backupFlags{dir: dir, to: to, free: free}).run(ctx, io.Discard)
}
