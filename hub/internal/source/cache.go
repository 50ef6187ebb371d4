package source

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// defaultCacheBytes is how much is kept of what was fetched.
const defaultCacheBytes = 1 << 30

// cache keeps artifacts by what cannot change: who asked, where, and the exact ref. What is in it is not fetched again. It may be lost,
// or thrown away, at any time. The zero cache keeps nothing.
type cache struct {
	dir   string
	most  int64
	free  func(dir string) (bytes int64, known bool) // on the disk of a directory; nil: not known
	spare int64                                      // so much has to be free
	mu    sync.Mutex                                 // of what is written and thrown away
}

// cacheKey names an artifact. The parts may hold secrets, so that only their digest is the file's name; each is written with its length,
// so that no two lists of parts are one.
func cacheKey(parts ...string) string {
	var b bytes.Buffer
	for _, p := range parts {
		b.WriteString(strconv.Itoa(len(p)) + ":" + p)
	}
	return fleet.DigestOf(b.Bytes()).String()
}

// get returns an artifact. What is damaged counts as lost, and is removed.
func (c *cache) get(key string) (Artifact, bool) {
	if c.dir == "" {
		return Artifact{}, false
	}
	name := filepath.Join(c.dir, key)
	data, err := os.ReadFile(name)
	if err != nil {
		return Artifact{}, false
	}
	a, err := readCached(data)
	if err != nil {
		_ = os.Remove(name)
		return Artifact{}, false
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now) // it is used: others are thrown away before it
	return a, true
}

// readCached reads what put wrote: the digest in hex, with when it was made, the exact ref, and the archive.
func readCached(data []byte) (Artifact, error) {
	head, archive, found := bytes.Cut(data, []byte("\n"))
	digest, ref, _ := strings.Cut(string(head), " ")
	digest, made, _ := strings.Cut(digest, "@")
	want, err := fleet.ParseDigest(digest)
	if !found || err != nil || fleet.DigestOf(archive) != want {
		return Artifact{}, fleet.Errorf(fleet.ErrCorrupt, "artifact cannot be read: its digest is another")
	}
	files, err := artifact.Decode(archive)
	a := Artifact{Digest: want, Files: files, Archive: archive, Ref: ref}
	if at, bad := strconv.ParseInt(made, 10, 64); bad == nil {
		a.Made = madeAt(at)
	}
	return a, err
}

// short reports that the disk is needed for what may not be thrown away.
func (c *cache) short() bool {
	if c.free == nil {
		return false
	}
	bytes, known := c.free(c.dir)
	return known && bytes < c.spare
}

// put keeps an artifact, and throws away what was not used for longest where all is too much; on a disk that is short, all. That it cannot be
// kept is no error: it is fetched again then.
func (c *cache) put(key string, a Artifact) {
	if c.dir == "" || int64(len(a.Archive)) > c.most {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return
	}
	if c.short() {
		c.evict(time.Now(), 0)
		return
	}
	f, err := os.CreateTemp(c.dir, ".new-*")
	if err != nil {
		return
	}
	head := a.Digest.String()
	if !a.Made.IsZero() {
		head += "@" + strconv.FormatInt(a.Made.Unix(), 10)
	}
	_, err = f.Write(slices.Concat([]byte(head+" "+a.Ref+"\n"), a.Archive))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, key))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	c.evict(time.Now(), c.most)
}

// staleNew is how long a file may be half written before it is one that a hub left behind that died.
const staleNew = time.Hour

// evict throws away what was not used for longest until what is left is no more than most.
func (c *cache) evict(now time.Time, most int64) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var found []fs.FileInfo
	var total int64
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		if strings.HasPrefix(fi.Name(), ".new-") {
			if now.Sub(fi.ModTime()) > staleNew {
				_ = os.Remove(filepath.Join(c.dir, fi.Name()))
			}
			continue
		}
		found, total = append(found, fi), total+fi.Size()
	}
	slices.SortFunc(found, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, fi := range found {
		if total <= most {
			return
		}
		if os.Remove(filepath.Join(c.dir, fi.Name())) == nil {
			total -= fi.Size()
		}
	}
}
