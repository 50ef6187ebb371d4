package counts

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
)

// dirt is what has changed since the cells were made.
type dirt struct {
	all    bool
	places map[fleet.ClusterName]bool // what is known of the cluster as a whole
	cells  map[fleet.ClusterName]map[fleet.ModuleRef]bool
	// clusters and modules are those whose own records have changed, or the rollouts and revisions of a module.
	clusters map[fleet.ClusterName]bool
	modules  map[fleet.ModuleRef]bool
}

func newDirt(places map[fleet.ClusterName]bool) dirt {
	return dirt{places: places, cells: map[fleet.ClusterName]map[fleet.ModuleRef]bool{}, clusters: map[fleet.ClusterName]bool{}, modules: map[fleet.ModuleRef]bool{}}
}

func (d *dirt) empty() bool {
	return !d.all && len(d.places)+len(d.cells)+len(d.clusters)+len(d.modules) == 0
}

func (d *dirt) add(prefix, key string) {
	switch prefix {
	case store.DesiredPrefix, store.ObservedPrefix:
	case store.ModulePrefix, store.StartPrefix, store.RolloutPrefix, store.RevisionPrefix:
		if ref, ok := store.SplitModule(key); ok {
			d.modules[ref] = true
		}
		return
	case store.ClusterPrefix:
		d.clusters[fleet.ClusterName(strings.TrimPrefix(key, prefix))] = true
		return
	case store.AcceptedKey: // a word about all clusters, once in the life of a store
		d.all = true
		return
	default:
		d.places[fleet.ClusterName(strings.TrimPrefix(key, prefix))] = true
		return
	}
	c, ref, ok := store.SplitClusterModule(key)
	if !ok {
		return
	}
	if d.cells[c] == nil {
		d.cells[c] = map[fleet.ModuleRef]bool{}
	}
	d.cells[c][ref] = true
}

// refresh brings the index to the store's present revision.
func (x *Index) refresh(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := newDirt(x.takeTouched())
	d.all = x.after == nil
	after, err := x.follow(&d)
	if err != nil {
		x.giveBack(d.places)
		return err
	}
	if d.empty() {
		x.after = after
		return nil
	}
	err = x.store.View(ctx, slices.Max(after), func(r store.Reader) error {
		r = store.Untracked(r) // a record that is damaged is as none, and fails no other one's list
		if d.all {
			x.rebuild(r)
			return nil
		}
		x.update(r, &d)
		return nil
	})
	if err != nil {
		x.giveBack(d.places)
		return err
	}
	x.after = after
	return nil
}

// follow collects what changed in the classes since, and says up to where.
func (x *Index) follow(d *dirt) ([]int64, error) {
	after := make([]int64, len(followed))
	for i, prefix := range followed {
		f := x.store.Feed(prefix)
		since := int64(0)
		if x.after != nil {
			since = x.after[i]
		}
		page, err := f.Since(since)
		if errors.Is(err, feed.ErrTooOld) {
			d.all = true
			page, err = f.Now()
		}
		if err != nil {
			return nil, err
		}
		after[i] = page.Revision
		page.Each(func(_ int64, c store.Change) bool {
			d.add(prefix, c.Key)
			return !d.all
		})
	}
	return after, nil
}

func (x *Index) takeTouched() map[fleet.ClusterName]bool {
	x.touch.Lock()
	defer x.touch.Unlock()
	taken := x.touched
	x.touched = map[fleet.ClusterName]bool{}
	return taken
}

// giveBack remembers what was taken and could not be looked at.
func (x *Index) giveBack(places map[fleet.ClusterName]bool) {
	for c := range places {
		x.Touch(c)
	}
}

func (x *Index) rebuild(r store.Reader) {
	x.clusters, x.modules, x.names, x.refs = map[fleet.ClusterName]*cluster{}, map[fleet.ModuleRef]*module{}, nil, nil
	x.cells = map[Cell]*shared{}
	x.placings, x.lands = map[fleet.ModuleRef]*placing{}, map[fleet.ClusterName]*land{}
	d := newDirt(nil)
	for _, prefix := range []string{store.DesiredPrefix, store.ObservedPrefix, store.ClusterPrefix, store.ModulePrefix} {
		r.Scan(prefix, func(e store.Entry) bool {
			d.add(prefix, e.Key)
			return true
		})
	}
	x.update(r, &d)
	for _, k := range x.clusters { // what grew step by step has room that mostly nobody needs
		k.refs = slices.Clone(k.refs)
	}
	for _, m := range x.modules {
		m.clusters = slices.Clone(m.clusters)
	}
}

// update looks again at what is dirty.
func (x *Index) update(r store.Reader, d *dirt) {
	for c := range d.places {
		if _, known := x.clusters[c]; known && d.cells[c] == nil {
			d.cells[c] = map[fleet.ModuleRef]bool{}
		}
	}
	for _, c := range slices.Sorted(maps.Keys(d.cells)) { // so that what is new goes behind what is there
		x.updateCluster(r, c, d.cells[c])
	}
	x.updateUnassigned(r, d)
}

// updateCluster makes the cells of some modules anew, and all if what is known of the cluster as a whole differs for them. That
// may be seen before anybody says so: all cells of a cluster are of the place that is kept.
func (x *Index) updateCluster(r store.Reader, c fleet.ClusterName, refs map[fleet.ModuleRef]bool) {
	place := record.At(r, c, x.connected(c))
	k, known := x.clusters[c]
	switch {
	case !known:
		k = &cluster{cells: map[fleet.ModuleRef]*Cell{}}
		x.clusters[c], x.names = k, insert(x.names, c, compareNames)
	case !place.SameAs(k.place):
		for ref := range k.cells {
			refs[ref] = true
		}
	case len(refs) == 0:
		return
	}
	for ref := range refs {
		x.put(c, k, ref, place)
		k.noteStray(r, c, ref)
	}
	k.place = place.Keep()
	if k.finish(); len(k.cells) == 0 && len(k.strays) == 0 {
		delete(x.clusters, c)
		x.names = without(x.names, c, compareNames)
	}
}

// put makes a cell anew.
func (x *Index) put(c fleet.ClusterName, k *cluster, ref fleet.ModuleRef, place *record.Place) {
	old, had := k.cells[ref]
	t, has := place.Track(ref)
	if !had && !has {
		return
	}
	m := x.modules[ref]
	if m == nil {
		m = &module{sum: Module{written: map[int64]int{}, bundles: map[fleet.Digest]int{}}}
		x.modules[ref], x.refs = m, insert(x.refs, ref, compareRefs)
	}
	if had {
		m.sum.count(*old, -1)
		k.sum.count(*old, -1)
		defer x.release(*old)
	}
	if !has {
		delete(k.cells, ref)
		k.renew(old, nil)
		k.refs, m.clusters = without(k.refs, ref, compareRefs), without(m.clusters, c, compareNames)
		if len(m.clusters) == 0 {
			delete(x.modules, ref)
			x.refs = without(x.refs, ref, compareRefs)
		}
		return
	}
	cell := cellOf(t)
	k.cells[ref] = x.keep(cell)
	m.sum.count(cell, 1)
	k.sum.count(cell, 1)
	k.renew(old, &cell)
	if !had {
		k.refs, m.clusters = insert(k.refs, ref, compareRefs), insert(m.clusters, c, compareNames)
	}
}

func cellOf(t record.Tracked) Cell {
	c := Cell{Revision: t.Revision(), Generation: t.Generation(), Counts: t.Tracker.Counts, Health: t.Tracker.Health,
		Class: tracker.Classify(t.Tracker), Fine: t.Tracker.Fine(), Written: t.Tracker.Written, Removing: t.Tracker.Removing,
		Hold: t.Desired.GetSync().GetHold() || t.Desired.GetTombstone().GetHold() && t.Desired.GetProblem() == "", Seen: t.Input.Seen(), Held: len(t.HeldThere()),
		Watched: t.Desired.GetSync().GetWatched() > 0, Unsure: t.Input.Leaving() || record.Damaged(t.Desired), Corrected: len(t.Observed.GetCorrections()) > 0,
		Uncounted: !t.Tracker.Current && t.Input.Reported()}
	if s := t.Desired.GetSync(); s != nil {
		c.Rows, c.Bundle = int(s.GetObjects()+s.GetWatched()), record.Digest(s.GetBundle())
	} else if t.Input.Before != nil { // what comes when the one of before is gone is listed already
		c.Rows, c.Bundle = t.Input.Desired.Objects, t.Input.Desired.Bundle
	}
	if o := t.Input.Observed; o != nil && o.Extra() > 0 {
		// One that is listed again since the report has one row, not two.
		c.Rows, c.Extras, c.Unsure = c.Rows+o.Extra(), true, c.Unsure || !c.Bundle.IsZero()
	}
	if was := t.Tracker.Then; was != nil { // a cluster had what was wanted there when it was heard
		c.WasDrifted, c.WasFine = was.Counts.Drifted, was.Ready
	}
	return c
}

// count adds a cell n times.
func (m *Module) count(c Cell, n int) {
	m.Clusters += n
	m.Objects += n * c.Counts.Objects
	m.Drifted += n * c.Counts.Drifted
	m.Unjudged += n * c.Counts.Unjudged
	m.Held += n * c.Held
	if c.Hold {
		m.Holds += n
	}
	if c.Extras || c.Unsure || c.Watched {
		m.Unlisted += n
	}
	if m.bundles[c.Bundle] += n; m.bundles[c.Bundle] == 0 {
		delete(m.bundles, c.Bundle)
	}
	switch c.Class {
	case tracker.Healthy:
		m.Healthy += n
	case tracker.Progressing:
		m.Progressing += n
	case tracker.Bad:
		m.Bad += n
	case tracker.Away:
		m.Away += n
	case tracker.Ahead:
		m.Ahead += n
	}
	if c.Removing || !c.Written {
		return
	}
	if m.written[c.Revision] += n; m.written[c.Revision] == 0 {
		delete(m.written, c.Revision)
	}
}

// noteStray remembers whether the agent reports the module without having been given it.
func (k *cluster) noteStray(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) {
	o, _, _ := store.Get[*storev1.ObservedRecord](r, store.ObservedKey(c, ref))
	if o.GetStatus().GetPhase() != string(fleet.PhaseStray) {
		delete(k.strays, ref)
		return
	}
	if k.strays == nil {
		k.strays = map[fleet.ModuleRef]bool{}
	}
	k.strays[ref] = true
}

// finish makes what of the sum is no sum.
func (k *cluster) finish() {
	k.sum.Modules, k.sum.Strays = len(k.cells), nil
	if k.older {
		k.older, k.sum.Generation = false, 0
		for _, c := range k.cells {
			k.sum.Generation = max(k.sum.Generation, c.Generation)
		}
	}
	for ref := range k.strays {
		k.sum.Strays = append(k.sum.Strays, ref.String())
	}
	slices.Sort(k.sum.Strays)
}

// renew puts a cell in the place of an old one in the newest generation; nil: there is none.
func (k *cluster) renew(old, now *Cell) {
	switch {
	case now != nil && now.Generation >= k.sum.Generation:
		k.sum.Generation = now.Generation
	case old != nil && old.Generation == k.sum.Generation:
		k.older = true
	}
}

// count adds a cell n times, but for its generation.
func (s *Cluster) count(c Cell, n int) {
	s.Drifted += n * c.Counts.Drifted
	s.WasDrifted += n * c.WasDrifted
	s.Bad += n * c.Counts.Bad
	s.Held += n * c.Held
	if c.Unsure {
		s.Unsure += n
	} else {
		s.Rows += n * c.Rows
	}
	if !c.Seen && (c.Rows > 0 || c.Unsure) {
		s.Unseen += n
	}
	if c.Extras {
		s.Extras += n
	}
	if c.Corrected {
		s.Corrected += n
	}
	if c.Uncounted {
		s.Uncounted += n
	}
	if c.Fine {
		s.Healthy += n
	}
	if c.WasFine {
		s.WasHealthy += n
	}
}
