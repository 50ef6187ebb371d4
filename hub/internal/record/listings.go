package record

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
)

// maxLeft is how many assignments that are gone are remembered for views that still have them.
const maxLeft = 4096

// Listings is an index of all desired records: which modules are assigned a bundle in any cluster, and which wait for objects of
// a module. A look at one cluster then reads only the records that it is about, however many modules the cluster has.
//
// It follows the feed, so it is never older than the view it is asked under, but may be newer. It names each module for which
// the view has such a record, and perhaps others: the caller reads the records of those that are named under its view. What it
// does not know any more of an old view it does not answer, and the caller scans. It is safe for concurrent use.
type Listings struct {
	store store.Store

	mu    sync.Mutex
	after int64 // the revision of the newest change in it; 0: it has not been built
	since int64 // the oldest revision whose views it answers
	users users // of bundles, by the bytes of the digest
	waits users // for objects of a module, by its full name
	sizes map[fleet.ClusterName]int
	left  []leaver // by revision
	// listed are the assignments since listedAt, when one came or went last; nil: they are to be listed. Never changed in place.
	listed   []assignment
	listedAt int64
}

// users are the modules whose desired records name something.
type users map[string]map[fleet.ModuleRef]*use

// use counts the desired records of a module that name something; left is the revision at which none did any more.
type use struct {
	records int
	left    int64
}

// leaver is a use that ended.
type leaver struct {
	users    users
	name     string
	module   fleet.ModuleRef
	revision int64
}

// NewListings is empty until it is first asked.
func NewListings(s store.Store) *Listings { return &Listings{store: s} }

// assignment is a module that has a bundle in some cluster.
type assignment struct {
	module fleet.ModuleRef
	bundle fleet.Digest
}

// assignments are those of all clusters under the view, and perhaps some that are older or newer. False: they are not known.
func (x *Listings) assignments(r store.Reader) (out []assignment, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.answers(r) {
		return nil, false
	}
	if r.Revision() < x.listedAt {
		return x.list(r.Revision()), true
	}
	if x.listed == nil {
		x.listed = x.list(x.after)
	}
	return x.listed, true
}

func (x *Listings) list(revision int64) (out []assignment) {
	for name, modules := range x.users {
		for ref, u := range modules {
			if u.at(revision) {
				out = append(out, assignment{ref, Digest([]byte(name))})
			}
		}
	}
	return out
}

// size is how many desired records a cluster has, about.
func (x *Listings) size(c fleet.ClusterName) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sizes[c]
}

// Waiting are the modules of a cluster that wait for objects of a module.
func (x *Listings) Waiting(r store.Reader, c fleet.ClusterName, owner fleet.ModuleRef) []fleet.ModuleRef {
	maybe, known := x.waiting(r, owner)
	if !known {
		return waitFor(r, c, owner)
	}
	return slices.DeleteFunc(maybe, func(ref fleet.ModuleRef) bool {
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(c, ref))
		return !waits(d, owner)
	})
}

// waiting are the modules that wait for objects of a module in any cluster; false: it is cheaper to scan one.
func (x *Listings) waiting(r store.Reader, owner fleet.ModuleRef) (out []fleet.ModuleRef, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.answers(r) || len(x.waits[owner.String()]) > maxAsked {
		return nil, false
	}
	for ref, u := range x.waits[owner.String()] {
		if u.at(r.Revision()) {
			out = append(out, ref)
		}
	}
	slices.SortFunc(out, compareNames)
	return out, true
}

// at reports that there may be a record that is counted at the revision.
func (u *use) at(revision int64) bool { return u.records > 0 || u.left > revision }

// compareNames orders modules as the keys of their records are.
func compareNames(a, b fleet.ModuleRef) int { return cmp.Compare(a.String(), b.String()) }

// answers brings the index to the present, and reports that it has all that the view has. The caller holds mu.
func (x *Listings) answers(r store.Reader) bool {
	return x.follow() == nil && x.since <= r.Revision() && r.Revision() <= x.after
}

func (x *Listings) follow() error {
	changes := x.store.Feed(store.DesiredPrefix) // before a view is scanned, so that what comes after that is in it
	if x.after > 0 {
		page, err := changes.Since(x.after)
		if err == nil {
			page.Each(x.change)
			x.after = page.Revision
			x.forget()
			return nil
		}
		if !errors.Is(err, feed.ErrTooOld) {
			return err
		}
	}
	return x.store.View(context.Background(), 0, func(r store.Reader) error {
		x.build(r)
		return nil
	})
}

func (x *Listings) build(r store.Reader) {
	x.users, x.waits, x.sizes, x.left = users{}, users{}, map[fleet.ClusterName]int{}, nil
	x.after, x.since = r.Revision(), r.Revision()
	x.listed, x.listedAt = nil, r.Revision()
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		return x.change(r.Revision(), store.Change{Key: e.Key, Value: d})
	})
}

func (x *Listings) change(revision int64, c store.Change) bool {
	cluster, ref, ok := store.SplitClusterModule(c.Key)
	if !ok {
		return true
	}
	if now, is := c.Value.(*storev1.DesiredRecord); is {
		x.sizes[cluster]++
		x.count(ref, now, 1, revision)
	}
	if was, is := c.Was.(*storev1.DesiredRecord); is {
		x.count(ref, was, -1, revision)
		if x.sizes[cluster]--; x.sizes[cluster] == 0 {
			delete(x.sizes, cluster)
		}
	}
	return true
}

// count counts a desired record of a module n times.
func (x *Listings) count(ref fleet.ModuleRef, d *storev1.DesiredRecord, n int, revision int64) {
	if d.GetSync() == nil {
		return
	}
	x.add(x.users, string(d.GetSync().GetBundle()), ref, n, revision)
	for _, y := range d.GetSync().GetYields() {
		x.add(x.waits, y.GetOwner(), ref, n, revision)
	}
}

func (x *Listings) add(to users, name string, ref fleet.ModuleRef, n int, revision int64) {
	modules := to[name]
	if modules == nil {
		modules = map[fleet.ModuleRef]*use{}
		to[name] = modules
	}
	u := modules[ref]
	if u == nil {
		u = &use{}
		modules[ref] = u
	}
	u.records += n
	if u.records == 0 || u.records == n {
		x.listed, x.listedAt = nil, revision
	}
	if u.records == 0 {
		u.left = revision
		x.left = append(x.left, leaver{to, name, ref, revision})
	}
}

// forget drops the oldest of what is gone, and answers no view any more that may have it.
func (x *Listings) forget() {
	n := 0
	for ; len(x.left)-n > maxLeft; n++ {
		l := x.left[n]
		x.since = max(x.since, l.revision)
		if u := l.users[l.name][l.module]; u == nil || u.records > 0 || u.left != l.revision {
			continue // in use again, or gone again later
		}
		if delete(l.users[l.name], l.module); len(l.users[l.name]) == 0 {
			delete(l.users, l.name)
		}
	}
	x.left = slices.Delete(x.left, 0, n)
}
