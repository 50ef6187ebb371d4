package session

import (
	"slices"
	"strings"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// desired is what a cluster should have under one view of the store. Under the next view only those records are read again that
// changed between the two, and all of these: an agent that is told of a change without those before it would delete what one module
// lets go because another one has it by then.
type desired struct {
	log   logger
	given uint64 // the last generation given in the fleet, when the records were read
	at    int64  // the revision of the view; 0: there was none
	read  []reading
	// syncs and tombstones are those that were read as the digest takes them, one after the other.
	syncs, tombstones []byte
	made              target // of what was read, with the hold and the floor
	hold              bool
	floor             uint64
	stale             bool // made is not of what was read
	// coarse says that the agent knows no holds of single objects: the module is held for it as a whole.
	coarse bool
	// listless says that the agent knows no list of what was confirmed: it takes a confirm for all that it waits with.
	listless bool
	// unordered says that the agent knows no order of modules: it is not sent any.
	unordered bool
	// cluster says since when this one has the name: what was to be removed by then is not in it, and what was deleted by then does not come.
	cluster *storev1.ClusterRecord
	// keeps says that no module is removed for now: all tombstones are held.
	keeps bool
	// replaced are the syncs that stand in the place of another one in what made is of otherwise, by their index in read. They
	// say nothing while it is stale.
	replaced []int
}

// reading is a desired record as it was read; it is the same as long as its revision is.
type reading struct {
	key       string
	revision  int64
	sync      *fleet.Sync
	tombstone *fleet.Tombstone
	// generation is that of the sync or the tombstone; of a record that is not valid, the newest that may have been in it.
	generation uint64
	encoded    int // bytes that it takes in syncs or tombstones
	// elsewhere says that it is of another cluster that had the name, and is not told.
	elsewhere bool
	// unread says that nobody knows what the cluster is to have of the module, or whether it is to be removed.
	unread bool
	// sentSync and sentTombstone are those of the record, as they go over the wire.
	sentSync      *agentv1.Sync
	sentTombstone *agentv1.Tombstone
}

// keep has no module be removed, or lets those be removed that are to be. All tombstones are read again when that changes.
func (x *desired) keep(all bool) {
	if x.keeps == all {
		return
	}
	x.keeps, x.at = all, 0
	for i := range x.read {
		if x.read[i].tombstone != nil {
			x.read[i].revision = 0
		}
	}
}

// follow brings what is known to the view.
func (x *desired) follow(r store.Reader, c fleet.ClusterName, log *changes) {
	keys, known := log.between(c, x.at, r)
	if x.at == 0 || !known {
		x.readAll(r, c)
	} else {
		for _, key := range keys {
			x.readAgain(r, key)
		}
	}
	x.readSpared(r)
	x.at = r.Revision()
}

// spares reports that something is not told because it is of another cluster that had the name.
func (x *desired) spares() bool {
	return slices.ContainsFunc(x.read, func(got reading) bool { return got.elsewhere })
}

// unread are the modules whose records cannot be read, or are not valid.
func (x *desired) unread() (out []fleet.ModuleRef) {
	for i := range x.read {
		if !x.read[i].unread {
			continue
		}
		if _, ref, ok := store.SplitClusterModule(x.read[i].key); ok {
			out = append(out, ref)
		}
	}
	return out
}

// readSpared looks at what is not told because a catalog is deleted with its modules: one of them that somebody has taken over since is told again.
func (x *desired) readSpared(r store.Reader) {
	for at := range x.read {
		if !x.read[at].elsewhere {
			continue
		}
		d, e, ok := store.Get[*storev1.DesiredRecord](store.Untracked(r), x.read[at].key)
		if !ok {
			continue
		}
		if again := x.readRecord(r, d, e); !again.elsewhere {
			x.replace(at, again)
		}
	}
}

// readAll looks at all records of the cluster. What has the same revision as before stays the same value.
func (x *desired) readAll(r store.Reader, c fleet.ClusterName) {
	before := x.read
	x.read, x.syncs, x.tombstones, x.stale = make([]reading, 0, len(before)+1), nil, nil, true
	x.cluster = record.Anew(r, c)
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		for len(before) > 0 && before[0].key < e.Key {
			before = before[1:]
		}
		if len(before) > 0 && before[0].key == e.Key && before[0].revision == e.ModRevision {
			x.insert(len(x.read), before[0])
		} else {
			x.insert(len(x.read), x.readRecord(r, d, e))
		}
		return true
	})
}

// readAgain looks at the record of a key.
func (x *desired) readAgain(r store.Reader, key string) {
	at, had := slices.BinarySearchFunc(x.read, key, func(got reading, key string) int { return strings.Compare(got.key, key) })
	d, e, has := store.Get[*storev1.DesiredRecord](store.Untracked(r), key)
	switch {
	case has && had && x.read[at].revision == e.ModRevision:
	case has && had:
		x.replace(at, x.readRecord(r, d, e))
	case has:
		x.insert(at, x.readRecord(r, d, e))
	case had:
		x.drop(at)
	}
}

// replace puts a reading in the place of another one, which is mostly as long and moves nothing.
func (x *desired) replace(at int, got reading) {
	if (x.read[at].tombstone != nil) != (got.tombstone != nil) {
		x.drop(at)
		x.insert(at, got)
		return
	}
	b := got.encode()
	in, offset := x.encoding(&got, at)
	*in = slices.Replace(*in, offset, offset+x.read[at].encoded, b...)
	if was := &x.read[at]; was.sync == nil || got.sync == nil || got.generation < was.generation {
		x.stale = true
	}
	x.read[at], x.replaced = got, append(x.replaced, at)
}

func (x *desired) insert(at int, got reading) {
	b := got.encode()
	in, offset := x.encoding(&got, at)
	*in = slices.Insert(*in, offset, b...)
	x.read, x.stale = slices.Insert(x.read, at, got), true
}

func (x *desired) drop(at int) {
	got := &x.read[at]
	in, offset := x.encoding(got, at)
	*in = slices.Delete(*in, offset, offset+got.encoded)
	x.read, x.stale = slices.Delete(x.read, at, at+1), true
}

// encode makes what it takes in the encoding, and notes how long that is.
func (r *reading) encode() (b []byte) {
	switch {
	case r.tombstone != nil:
		b = assemble.AppendTombstone(nil, r.tombstone)
	case r.sync != nil:
		b = assemble.AppendSync(make([]byte, 0, 160), r.sync) // most are no longer
	}
	r.encoded = len(b)
	return b
}

// encoding is where a reading belongs that has or gets an index.
func (x *desired) encoding(got *reading, at int) (in *[]byte, offset int) {
	in = &x.syncs
	if got.tombstone != nil {
		in = &x.tombstones
	}
	if at == len(x.read) {
		return in, len(*in)
	}
	for i := range x.read[:at] {
		if before := &x.read[i]; (before.tombstone != nil) == (got.tombstone != nil) {
			offset += before.encoded
		}
	}
	return in, offset
}

// readRecord reads one record. One that is not valid keeps only its own module back: the agent keeps what it has of that,
// because it is no longer listed and has no tombstone.
func (x *desired) readRecord(r store.Reader, d *storev1.DesiredRecord, e store.Entry) reading {
	out := reading{key: e.Key, revision: e.ModRevision}
	var err error
	switch {
	case record.Elsewhere(d, x.deleted(r, d, e.Key), x.cluster): // the leader is about to forget it
		out.generation, out.elsewhere = record.GivenGeneration(d), true
	case d.GetTombstone() != nil:
		var t fleet.Tombstone
		if t, err = wire.TombstoneFromProto(d.GetTombstone()); err == nil {
			err = belongs(e.Key, t.Module)
		}
		if err == nil {
			out.tombstone, out.sentTombstone, out.generation = &t, d.GetTombstone(), t.Generation
		}
		if err == nil && x.unordered && len(t.DependsOn) > 0 {
			t.DependsOn = nil
			out.sentTombstone = wire.TombstoneToProto(t)
		}
	case d.GetSync() != nil:
		var s fleet.Sync
		if s, err = wire.SyncFromProto(d.GetSync()); err == nil {
			err = belongs(e.Key, s.Module)
		}
		if err == nil {
			out.sync, out.sentSync, out.generation = &s, d.GetSync(), s.Generation
		}
		if err == nil && x.coarsen(&s) {
			out.sentSync = wire.SyncToProto(s)
		}
	}
	if out.tombstone != nil && x.keeps && !out.tombstone.Hold {
		out.tombstone.Hold = true
		out.sentTombstone = wire.TombstoneToProto(*out.tombstone)
	}
	if err != nil {
		x.log.Warn("not sent: the record is not valid", "key", e.Key, "error", err)
		out.unread = true
		out.generation = max(d.GetTombstone().GetGeneration(), d.GetSync().GetGeneration())
	}
	if record.Damaged(d) {
		out.unread = true
		out.generation = max(out.generation, x.given) // any generation up to this one may have been in it
	}
	return out
}

// deleted are the DeletedTakes of the module of a sync that was given before another cluster took the name; nil: of any other, for which nobody asks.
func (x *desired) deleted(r store.Reader, d *storev1.DesiredRecord, key string) *uint64 {
	_, ref, ok := store.SplitClusterModule(key)
	if !ok || d.GetSync() == nil || record.GivenGeneration(d) > x.cluster.GetAnewGeneration() {
		return nil
	}
	r = store.Untracked(r)
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	return record.DeletedTakes(r, ref, rec)
}

// coarsen takes out of a sync what the agent does not know, and reports whether there was anything of that.
func (x *desired) coarsen(s *fleet.Sync) bool {
	held, ordered := x.coarse && len(s.Held) > 0, x.unordered && len(s.DependsOn) > 0
	if held {
		s.Hold, s.Held = true, nil
	}
	if ordered {
		s.DependsOn = nil
	}
	shown := x.listless && len(s.PruneShown) > 0
	if shown {
		s.PruneShown = nil
	}
	return held || ordered || shown
}

// belongs says why a module cannot be in the record of a key: syncs go in the order of the keys, and each module has one.
func belongs(key string, module fleet.ModuleRef) error {
	if _, ref, _ := store.SplitClusterModule(key); ref != module {
		return fleet.Errorf(fleet.ErrCorrupt, "%s: is of module %s", key, module)
	}
	return nil
}

// as is the target of what was read, with what is known of the cluster as a whole: whether it is held, and its floor.
func (x *desired) as(hold bool, floor uint64) target {
	same := !x.stale && x.hold == hold && x.floor == floor
	if same && len(x.replaced) == 0 {
		return x.made
	}
	var t target
	if same && len(x.read) == len(x.made.syncs) {
		t = x.amended()
	} else {
		t = x.whole(floor)
	}
	x.stale, x.replaced, x.hold, x.floor = false, x.replaced[:0], hold, floor
	a := &t.assemblage
	a.Hold = hold
	a.Digest = assemble.DigestOf(assemble.Encoded{Count: len(a.Syncs), Bytes: x.syncs}, assemble.Encoded{Count: len(a.Tombstones), Bytes: x.tombstones}, hold)
	x.made = t
	return t
}

// whole is a target of all that was read, without its digest.
func (x *desired) whole(floor uint64) target {
	t := target{syncs: make([]*agentv1.Sync, 0, len(x.read))}
	a := assemble.Listed{Generation: floor, Syncs: make([]*fleet.Sync, 0, len(x.read))}
	for i := range x.read {
		got := &x.read[i]
		a.Generation = max(a.Generation, got.generation)
		switch {
		case got.tombstone != nil:
			a.Tombstones, t.tombstones = append(a.Tombstones, got.tombstone), append(t.tombstones, got.sentTombstone)
		case got.sync != nil:
			a.Syncs, t.syncs = append(a.Syncs, got.sync), append(t.syncs, got.sentSync)
		}
	}
	t.assemblage = a
	return t
}

// amended is the target that was made last, with the syncs that were replaced since: of many modules that a cluster has, a change
// touches few. All that was read is syncs then, and none was replaced by an older one.
func (x *desired) amended() target {
	t := x.made
	t.syncs, t.assemblage.Syncs = slices.Clone(t.syncs), slices.Clone(t.assemblage.Syncs)
	for _, at := range x.replaced {
		got := &x.read[at]
		t.syncs[at], t.assemblage.Syncs[at] = got.sentSync, got.sync
		t.assemblage.Generation = max(t.assemblage.Generation, got.generation)
	}
	return t
}
