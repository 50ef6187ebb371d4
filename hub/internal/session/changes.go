package session

import (
	"errors"
	"sync"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
)

// maxChanges is how many changes of desired records are kept at least, of all clusters together. A session that missed more reads
// all records of its cluster.
const maxChanges = 1 << 14

// changes says which desired records of a cluster changed between two views of the store. It follows the feed, which has each change
// of the class in the order of its revision, before any view shows it: what it names between two views is all that differs between
// them. It is safe for concurrent use.
type changes struct {
	feed *feed.Feed[store.Change]

	mu    sync.Mutex
	after int64 // up to which revision the changes are in it
	since int64 // changes up to this revision are not all kept
	// recent are the newest changes, and older those before: when recent is full it becomes older, and what that was is dropped.
	recent, older changed
}

// changed are the changes of each cluster, by revision.
type changed struct {
	of     map[fleet.ClusterName][]change
	number int
	newest int64 // the revision of the last one
}

type change struct {
	revision int64
	key      string
}

// between are the keys of a cluster whose records may differ between the view of a revision and the present one; each may be named
// more than once. False: not all are known, and the caller reads all.
func (x *changes) between(c fleet.ClusterName, revision int64, r store.Reader) (keys []string, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.after < r.Revision() && x.follow() != nil {
		return nil, false
	}
	if revision < x.since || revision > r.Revision() || r.Revision() > x.after {
		return nil, false
	}
	for _, some := range [][]change{x.older.of[c], x.recent.of[c]} {
		for _, ch := range some {
			if ch.revision > revision && ch.revision <= r.Revision() {
				keys = append(keys, ch.key)
			}
		}
	}
	return keys, true
}

// follow brings it to the present. The caller holds mu.
func (x *changes) follow() error {
	page, err := x.feed.Since(x.after)
	if errors.Is(err, feed.ErrTooOld) {
		if page, err = x.feed.Now(); err == nil {
			x.recent, x.older, x.since = changed{}, changed{}, page.Revision
		}
	}
	if err != nil {
		return err
	}
	page.Each(func(revision int64, c store.Change) bool {
		x.add(revision, c.Key)
		return true
	})
	x.after = page.Revision
	return nil
}

func (x *changes) add(revision int64, key string) {
	if x.recent.number >= maxChanges {
		x.since = max(x.since, x.older.newest)
		x.older, x.recent = x.recent, changed{}
	}
	if x.recent.of == nil {
		x.recent.of = map[fleet.ClusterName][]change{}
	}
	c := clusterOf(key)
	x.recent.of[c] = append(x.recent.of[c], change{revision, key})
	x.recent.number++
	x.recent.newest = revision
}
