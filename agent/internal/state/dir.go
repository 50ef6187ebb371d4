package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"towline.dev/towline/pkg/fleet"
)

const (
	lockName = ".lock"
	suffix   = ".state"
	temp     = ".tmp-"
)

// Dir is a Store in files: one file for each name, written beside it, synced and renamed. One process has it at a time.
type Dir struct {
	path string
	lock *os.File

	mu     sync.Mutex
	tenure Tenure // the zero one before Take
	noted  bool   // it is on the disk
}

var _ Store = (*Dir)(nil)

// OpenDir makes the directory if it is missing and locks it. Close unlocks it.
func OpenDir(path string) (*Dir, error) {
	if path == "" {
		return nil, fleet.Invalid("state directory", "is required; use --state-dir DIR")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		lock, err = os.Open(filepath.Join(path, lockName)) // what was written once is read all the same
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fleet.Errorf(fleet.ErrExists, "state directory %s: another agent uses it; stop that one, or use another --state-dir", path)
		}
		return nil, fmt.Errorf("state directory %s: lock: %w", path, err)
	}
	d := &Dir{path: path, lock: lock}
	d.sweep()
	return d, nil
}

// Close unlocks the directory.
func (d *Dir) Close() error { return d.lock.Close() }

// sweep removes what a crash left half written. Nobody reads that, so what cannot be removed may stay.
func (d *Dir) sweep() {
	_ = filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasPrefix(e.Name(), temp) {
			_ = os.Remove(path)
		}
		return nil
	})
}

// Read implements Store.
func (d *Dir) Read(_ context.Context, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(d.file(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, notFound(name)
	case err != nil:
		return nil, fmt.Errorf("state %s: %w", name, err)
	}
	return unseal(name, b)
}

// Write implements Store.
func (d *Dir) Write(ctx context.Context, name string, data []byte) error {
	return d.WriteAll(ctx, Item{name, data})
}

// Tenure implements Store. A record of it that is damaged is none: the Lease knows the epoch as well.
func (d *Dir) Tenure(ctx context.Context) (Tenure, error) {
	var t Tenure
	raw, err := d.Read(ctx, tenureName)
	switch {
	case errors.Is(err, fleet.ErrNotFound), errors.Is(err, fleet.ErrCorrupt):
		return t, nil
	case err != nil:
		return t, err
	}
	if json.Unmarshal(raw, &t) != nil {
		return Tenure{}, nil
	}
	return t, nil
}

// Take implements Store. A disk that takes no writes now does not keep the state from being read: the tenure is noted
// before the next write then.
func (d *Dir) Take(ctx context.Context, t Tenure) error {
	old, err := d.Tenure(ctx)
	if err == nil {
		err = t.follows(old)
	}
	if err != nil {
		return fmt.Errorf("state directory %s: %w", d.path, err)
	}
	d.mu.Lock()
	d.tenure, d.noted = t, old == t
	d.mu.Unlock()
	_ = d.mine(ctx) // or before the next write, which says what is wrong
	return nil
}

// mine notes the tenure before the first write under it, and says why nothing may be written any more: the lock keeps
// other processes away only where the file system has locks.
func (d *Dir) mine(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tenure == (Tenure{}) {
		return nil
	}
	old, err := d.Tenure(ctx)
	if err == nil {
		err = d.tenure.follows(old)
	}
	if err != nil || d.noted && old == d.tenure {
		return err
	}
	raw, err := json.Marshal(d.tenure)
	if err == nil {
		err = d.writeAll(Item{tenureName, raw})
	}
	d.noted = err == nil
	return err
}

// WriteAll implements Store. The disk takes the bytes of all at once; only the name of the last waits for the others.
func (d *Dir) WriteAll(ctx context.Context, items ...Item) error {
	if err := d.mine(ctx); err != nil {
		return fmt.Errorf("state directory %s: %w", d.path, err)
	}
	return d.writeAll(items...)
}

func (d *Dir) writeAll(items ...Item) error {
	staged := make([]string, len(items))
	defer func() {
		for _, path := range staged {
			if path != "" {
				_ = os.Remove(path)
			}
		}
	}()
	var g errgroup.Group
	g.SetLimit(maxStaging)
	for i, it := range items {
		g.Go(func() (err error) {
			if staged[i], err = d.stage(it); err != nil {
				err = fmt.Errorf("state %s: %w", it.Name, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, it := range items {
		if err := os.Rename(staged[i], d.file(it.Name)); err != nil {
			return fmt.Errorf("state %s: %w", it.Name, err)
		}
		staged[i] = ""
		dir := filepath.Dir(d.file(it.Name))
		if i+2 < len(items) && filepath.Dir(d.file(items[i+1].Name)) == dir {
			continue // synced after the next one, which is not the last
		}
		if err := syncDir(dir); err != nil {
			return fmt.Errorf("state %s: %w", it.Name, err)
		}
	}
	return nil
}

// maxStaging is how many files are written at a time.
const maxStaging = 8

// stage writes the bytes beside where they go, and returns where.
func (d *Dir) stage(it Item) (string, error) {
	if err := checkWrite(it.Name, it.Data); err != nil {
		return "", err
	}
	dir := filepath.Dir(d.file(it.Name))
	if err := d.makeDirs(dir); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, temp+"*") // 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(seal(it.Data))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return f.Name(), err
}

// makeDirs makes what is missing and syncs each parent, so that a crash does not lose a directory with its files.
func (d *Dir) makeDirs(dir string) error {
	if dir == d.path {
		return nil
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Remove implements Store.
func (d *Dir) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := d.mine(ctx); err != nil {
		return fmt.Errorf("state directory %s: %w", d.path, err)
	}
	path := d.file(name)
	err := os.Remove(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("state %s: %w", name, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("state %s: %w", name, err)
	}
	return nil
}

// List implements Store.
func (d *Dir) List(_ context.Context, prefix string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() || !strings.HasSuffix(path, suffix) {
			return nil
		}
		rel, err := filepath.Rel(d.path, strings.TrimSuffix(path, suffix))
		if err != nil {
			return err
		}
		if name, ok := unescape(filepath.ToSlash(rel)); ok && name != tenureName && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("state: list %q: %w", prefix, err)
	}
	slices.Sort(names)
	return names, nil
}

// file is where a name is kept: every word a directory, the last one a file. Words are escaped, so that none is ".." and
// no file, which has a suffix, has the name of a directory, which has no dot.
func (d *Dir) file(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(escape(name))) + suffix
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '/'
}

func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		var c byte
		if i+3 > len(s) {
			return "", false
		}
		if _, err := fmt.Sscanf(s[i+1:i+3], "%02X", &c); err != nil {
			return "", false
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String(), true
}
