package etcd

import (
	"fmt"
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// LowDisk is how much of the disk must be free before the store takes what makes it larger: a file of etcd's log is made with 64 MB,
// and when there is no room for the next one, etcd ends the process.
const LowDisk = 160 << 20

// diskAge is how long a look at the disk is good for.
const diskAge = time.Second

// disk is where the store is, and how much of it is free.
type disk struct {
	dir  string
	free func(dir string) (bytes int64, known bool)

	mu    sync.Mutex
	at    time.Time
	bytes int64
	known bool
}

// short says how much is free if that is not enough.
func (d *disk) short() (bytes int64, short bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.at.IsZero() || now.Sub(d.at) > diskAge {
		d.bytes, d.known = d.free(d.dir)
		d.at = now
	}
	return d.bytes, d.known && d.bytes < LowDisk
}

// exhausted is nil, or says what to do for the disk.
func (d *disk) exhausted() error {
	bytes, short := d.short()
	if !short {
		return nil
	}
	return fleet.Errorf(fleet.ErrExhausted, "the disk of %s is nearly full: %d MiB are free, and nothing that makes the store larger is taken below %d MiB: make room there; reads and deletions go on",
		d.dir, bytes>>20, LowDisk>>20)
}

// blames adds to an error of etcd that its disk is full, if it is.
func (d *disk) blames(err error) error {
	if bytes, short := d.short(); short {
		return fmt.Errorf("%w; the disk has %d MiB free: make room there and start the hub again. What was acknowledged is kept", err, bytes>>20)
	}
	return err
}
