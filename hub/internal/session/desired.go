package session

import (
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// desired is what a cluster should have, as its records were read last. All keys are looked at under one view, and only records that
// changed are read again: an agent that is told of a change without those before it would delete what one module lets go because
// another one has it by then.
type desired struct {
	log   logger
	given uint64 // the last generation given in the fleet, when the records were read
	read  []reading
	made  target // of what was read, with the hold and the floor
	hold  bool
	floor uint64
	stale bool // made is not of what was read
}

// reading is a desired record as it was read; it is the same as long as its revision is.
type reading struct {
	key       string
	revision  int64
	sync      *fleet.Sync
	tombstone *fleet.Tombstone
	floor     uint64 // of a record that is not valid
	// sentSync and sentTombstone are those of the record, as they go over the wire.
	sentSync      *agentv1.Sync
	sentTombstone *agentv1.Tombstone
}

// readAll looks at all records of the cluster. What has the same revision as before stays the same value.
func (x *desired) readAll(r store.Reader, c fleet.ClusterName) {
	before := x.read
	x.read = make([]reading, 0, len(before)+1)
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		for len(before) > 0 && before[0].key < e.Key {
			before, x.stale = before[1:], true
		}
		if len(before) > 0 && before[0].key == e.Key && before[0].revision == e.ModRevision {
			x.read, before = append(x.read, before[0]), before[1:]
			return true
		}
		x.read, x.stale = append(x.read, x.readRecord(d, e)), true
		return true
	})
	x.stale = x.stale || len(before) > 0
}

// readRecord reads one record. One that is not valid keeps only its own module back: the agent keeps what it has of that,
// because it is no longer listed and has no tombstone.
func (x *desired) readRecord(d *storev1.DesiredRecord, e store.Entry) reading {
	out := reading{key: e.Key, revision: e.ModRevision}
	var err error
	switch {
	case d.GetTombstone() != nil:
		var t fleet.Tombstone
		if t, err = wire.TombstoneFromProto(d.GetTombstone()); err == nil {
			out.tombstone, out.sentTombstone = &t, d.GetTombstone()
		}
	case d.GetSync() != nil:
		var s fleet.Sync
		if s, err = wire.SyncFromProto(d.GetSync()); err == nil {
			out.sync, out.sentSync = &s, d.GetSync()
		}
	}
	if err != nil {
		x.log.Warn("not sent: the record is not valid", "key", e.Key, "error", err)
		out.floor = max(d.GetTombstone().GetGeneration(), d.GetSync().GetGeneration())
	}
	if record.Damaged(d) {
		out.floor = x.given // any generation up to this one may have been in it
	}
	return out
}

// as is the target of what was read, with what is known of the cluster as a whole: whether it is held, and its floor.
func (x *desired) as(hold bool, floor uint64) target {
	if !x.stale && x.hold == hold && x.floor == floor {
		return x.made
	}
	x.stale, x.hold, x.floor = false, hold, floor
	var t target
	t.syncs = make([]*agentv1.Sync, 0, len(x.read))
	syncs, tombstones := make([]*fleet.Sync, 0, len(x.read)), []*fleet.Tombstone(nil)
	for i := range x.read {
		got := &x.read[i]
		floor = max(floor, got.floor)
		switch {
		case got.tombstone != nil:
			tombstones, t.tombstones = append(tombstones, got.tombstone), append(t.tombstones, got.sentTombstone)
		case got.sync != nil:
			syncs, t.syncs = append(syncs, got.sync), append(t.syncs, got.sentSync)
		}
	}
	t.assemblage = assemble.List(syncs, tombstones, hold, floor)
	x.made = t
	return t
}
