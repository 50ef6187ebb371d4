package engine

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/blobs"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
)

// maxCompares is etcd's default limit of comparisons in a transaction, less one for the fence of what is in doubt. It holds for every backend, so that an Update
// that works in a test works with an etcd of someone else.
const maxCompares = 127

// draft is the store.Writer of one run of an update's function: what it read and what it wants to write.
type draft struct {
	owner  store.Owner
	snap   *snapshot
	reads  map[string]int64 // mod revision of what was read; 0: not there
	writes map[string]*write
	wholes []string // prefixes under which nothing may have been made or changed
	fences []store.Fence
	grows  bool
	epoch  *uint64 // GC epoch that the blobs were put under
	err    error   // the first misuse or corrupt read

	nonce   uint64
	selfKey string // a key that it changes: the commit compares it, so that it happens once at most. A put, if there is one
}

type write struct {
	value   proto.Message // nil: delete
	payload []byte
	sum     uint32
}

func newDraft(snap *snapshot, owner store.Owner) *draft {
	return &draft{owner: owner, snap: snap, reads: make(map[string]int64), writes: make(map[string]*write)}
}

func (d *draft) run(fn func(store.Writer) error) error {
	err := fn(d)
	if d.err != nil {
		return d.err
	}
	return err
}

func (d *draft) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *draft) Revision() int64 { return d.snap.revision }

func (d *draft) Get(key string) (store.Entry, bool) {
	r := d.snap.find(key)
	d.reads[key] = revisionOf(r)
	if w, ok := d.writes[key]; ok {
		return w.entry(key, r), w.value != nil
	}
	if r == nil || r.absent() {
		return store.Entry{}, false
	}
	if !r.readable() {
		d.fail(r.corrupt())
		return store.Entry{}, false
	}
	return r.Entry, true
}

// Peek shows the record with the draft's own change.
func (d *draft) Peek(key string) (store.Entry, bool) {
	if w, ok := d.writes[key]; ok {
		return w.entry(key, d.snap.find(key)), w.value != nil
	}
	return d.snap.peek(key)
}

// Assigned are those of the snapshot and those that the draft writes itself.
func (d *draft) Assigned(m fleet.ModuleRef) (clusters []fleet.ClusterName, known bool) {
	if clusters, known = d.snap.newest.assigned(m, d.snap.revision); !known {
		return nil, false
	}
	for key := range d.writes {
		if !strings.HasPrefix(key, store.DesiredPrefix) {
			continue
		}
		if c, ref, ok := store.SplitClusterModule(key); ok && ref == m {
			clusters = append(clusters, c)
		}
	}
	return clusters, true
}

func revisionOf(r *record) int64 {
	if r == nil {
		return 0
	}
	return r.ModRevision
}

// entry is the record as it will be, with the revisions that it has now.
func (w *write) entry(key string, r *record) store.Entry {
	if w.value == nil {
		return store.Entry{}
	}
	e := store.Entry{Key: key, Value: w.value}
	if r != nil {
		e.ModRevision, e.CreateRevision = r.ModRevision, r.CreateRevision
	}
	return e
}

// Scan shows the snapshot with the draft's own changes.
func (d *draft) Scan(prefix string, fn func(store.Entry) bool) {
	own := d.ownKeys(prefix)
	more := true
	emit := func(key string) {
		if w := d.writes[key]; w.value != nil {
			more = fn(w.entry(key, d.snap.find(key)))
		}
	}
	d.snap.scan(prefix, func(r *record) bool {
		for more && len(own) > 0 && own[0] < r.Key {
			emit(own[0])
			own = own[1:]
		}
		if !more {
			return false
		}
		if len(own) > 0 && own[0] == r.Key {
			emit(own[0])
			own = own[1:]
			return more
		}
		more = fn(r.Entry)
		return more
	})
	for more && len(own) > 0 {
		emit(own[0])
		own = own[1:]
	}
}

// Damaged are those of the snapshot that the update does not write itself. The commit depends on them.
func (d *draft) Damaged(prefix string) []store.Damage {
	all := d.snap.damaged(prefix)
	for _, x := range all {
		d.reads[x.Key] = revisionOf(d.snap.find(x.Key))
	}
	return slices.DeleteFunc(all, func(x store.Damage) bool { return d.writes[x.Key] != nil })
}

func (d *draft) ownKeys(prefix string) []string {
	var own []string
	for k := range d.writes {
		if strings.HasPrefix(k, prefix) {
			own = append(own, k)
		}
	}
	sort.Strings(own)
	return own
}

func (d *draft) Put(key string, value proto.Message) {
	if err := d.owner.MayPut(key); err != nil {
		d.fail(err)
		return
	}
	payload, err := payloadOf(key, value)
	if err != nil {
		d.fail(err)
		return
	}
	d.writes[key] = &write{value: value, payload: payload, sum: envelope.Checksum(payload)}
}

func (d *draft) Grows() { d.grows = true }

func (d *draft) Unchanged(prefix string) {
	if !slices.Contains(d.wholes, prefix) {
		d.wholes = append(d.wholes, prefix)
	}
}

func (d *draft) Delete(key string) {
	if err := d.owner.MayDelete(key); err != nil {
		d.fail(err)
		return
	}
	d.writes[key] = &write{}
}

func (d *draft) Fence(f store.Fence) {
	if err := f.Check(); err != nil {
		d.fail(err)
		return
	}
	d.fences = append(d.fences, f)
}

// compareOf is the fence in the words of the backend.
func compareOf(f store.Fence) backend.Compare {
	if f.CreateRevision != 0 {
		return backend.Compare{Key: recordSpace + f.Key, Created: true, Revision: f.CreateRevision}
	}
	return backend.Compare{Key: recordSpace + f.Key, Revision: f.ModRevision}
}

func (d *draft) References(epoch uint64) {
	if d.epoch != nil && *d.epoch != epoch {
		d.fail(fleet.Errorf(fleet.ErrConflict, "blobs were put under epochs %d and %d: put them again under one", *d.epoch, epoch))
		return
	}
	d.epoch = &epoch
}

// part is what is to be committed: what differs from the snapshot, and with it the deletions of what is not there yet, as far as there is room: it may
// come before the commit.
func (d *draft) part() (backend.Part, error) {
	var p backend.Part
	var absent []backend.Op
	bytes, selfDeletes := 0, false
	for _, key := range slices.Sorted(maps.Keys(d.writes)) {
		w, r := d.writes[key], d.snap.find(key)
		if !w.changes(r) {
			if w.value == nil {
				absent = append(absent, backend.Op{Key: recordSpace + key, Delete: true})
			}
			continue
		}
		op := backend.Op{Key: recordSpace + key, Delete: w.value == nil}
		if d.selfKey == "" || (selfDeletes && !op.Delete) {
			d.selfKey, selfDeletes = key, op.Delete
		}
		bytes += len(w.payload) + len(key) + backend.OpOverhead
		p.Then = append(p.Then, op)
	}
	if len(p.Then) == 0 {
		return p, nil
	}
	if d.owner == store.Leader && len(d.fences) == 0 {
		return p, fleet.Errorf(fleet.ErrInvalid, "%s: the leader writes under its fence only", d.selfKey)
	}
	if len(p.Then) > store.MaxOps {
		return p, fleet.Errorf(fleet.ErrExhausted, "update has %d changes, more than %d", len(p.Then), store.MaxOps)
	}
	if bytes > maxUpdateBytes {
		return p, fleet.Errorf(fleet.ErrExhausted, "update has %d bytes, more than %d", bytes, maxUpdateBytes)
	}
	p.Then = append(p.Then, absent[:min(len(absent), store.MaxOps-len(p.Then))]...)
	d.sealAll(&p)
	d.guard(&p)
	if len(p.If) > maxCompares {
		return p, fleet.Errorf(fleet.ErrExhausted, "update gets %d keys, more than %d: get only those that it rests on", len(p.If), maxCompares)
	}
	return p, nil
}

// maxUpdateBytes is etcd's default limit of a request, less what surrounds the values.
const maxUpdateBytes = 1_400_000

func (w *write) changes(r *record) bool {
	if w.value == nil {
		return r != nil
	}
	return !r.holds(w.payload, w.sum)
}

func (d *draft) sealAll(p *backend.Part) {
	d.nonce = envelope.DrawNonce()
	for i, op := range p.Then {
		if op.Delete {
			continue
		}
		key := strings.TrimPrefix(op.Key, recordSpace)
		nonce := uint64(0)
		if key == d.selfKey {
			nonce = d.nonce
		}
		w := d.writes[key]
		p.Then[i].Value = seal(key, w.payload, w.sum, nonce)
	}
}

// guard adds the comparisons: what was read, the fences, the GC epoch, and the key that tells a repeat from the first.
func (d *draft) guard(p *backend.Part) {
	d.reads[d.selfKey] = revisionOf(d.snap.find(d.selfKey))
	for _, key := range slices.Sorted(maps.Keys(d.reads)) {
		p.If = append(p.If, backend.Compare{Key: recordSpace + key, Revision: d.reads[key]})
	}
	for _, prefix := range d.wholes {
		p.If = append(p.If, backend.Compare{Key: recordSpace + prefix, Prefix: true, AtMost: true, Revision: d.snap.revision})
	}
	for _, f := range d.fences {
		p.If = append(p.If, compareOf(f))
	}
	if d.epoch != nil {
		p.If = append(p.If, backend.Compare{Key: blobs.EpochKey, Revision: int64(*d.epoch)})
	}
}

// suspects are the keys that verdict asks for.
func (d *draft) suspects() []string {
	keys := []string{blobs.EpochKey}
	for _, f := range d.fences {
		keys = append(keys, recordSpace+f.Key)
	}
	return keys
}

// verdict says why a draft that was not committed must not be made anew; nil: a key that it read has changed.
func (d *draft) verdict(found map[string]backend.KV) error {
	for _, f := range d.fences {
		if c := compareOf(f); !c.Holds(found[c.Key]) {
			return fleet.Errorf(fleet.ErrStale, "fence %s no longer holds", f.Key)
		}
	}
	if d.epoch != nil && found[blobs.EpochKey].Mod != int64(*d.epoch) {
		return fleet.Errorf(fleet.ErrConflict, "blobs were collected since epoch %d: put them again", *d.epoch)
	}
	return nil
}
