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

// maxCompares is etcd's default limit of comparisons in a transaction. It holds for every backend, so that an Update
// that works in a test works with an etcd of someone else.
const maxCompares = 128

// transaction is the store.Writer of one try of an Update.
type transaction struct {
	owner  store.Owner
	snap   *snapshot
	reads  map[string]int64 // mod revision of what was read; 0: not there
	writes map[string]*write
	fences []store.Fence
	grows  bool
	epoch  *uint64 // GC epoch that the blobs were put under
	err    error   // the first misuse or corrupt read

	nonce       uint64
	selfKey     string // the key whose change tells that the transaction happened
	selfDeletes bool
}

type write struct {
	value   proto.Message // nil: delete
	payload []byte
	sum     uint32
}

func newTransaction(snap *snapshot, owner store.Owner) *transaction {
	return &transaction{owner: owner, snap: snap, reads: make(map[string]int64), writes: make(map[string]*write)}
}

func (t *transaction) run(fn func(store.Writer) error) error {
	err := fn(t)
	if t.err != nil {
		return t.err
	}
	return err
}

func (t *transaction) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *transaction) Revision() int64 { return t.snap.revision }

func (t *transaction) Get(key string) (store.Entry, bool) {
	r := t.snap.find(key)
	t.reads[key] = revisionOf(r)
	if w, ok := t.writes[key]; ok {
		return w.entry(key, r), w.value != nil
	}
	if r == nil || r.absent {
		return store.Entry{}, false
	}
	if !r.readable() {
		t.fail(r.corrupt)
		return store.Entry{}, false
	}
	return r.Entry, true
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

// Scan shows the snapshot with the transaction's own changes.
func (t *transaction) Scan(prefix string, fn func(store.Entry) bool) {
	own := t.ownKeys(prefix)
	more := true
	emit := func(key string) {
		if w := t.writes[key]; w.value != nil {
			more = fn(w.entry(key, t.snap.find(key)))
		}
	}
	t.snap.scan(prefix, func(r *record) bool {
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

func (t *transaction) ownKeys(prefix string) []string {
	var own []string
	for k := range t.writes {
		if strings.HasPrefix(k, prefix) {
			own = append(own, k)
		}
	}
	sort.Strings(own)
	return own
}

func (t *transaction) Put(key string, value proto.Message) {
	if err := t.owner.MayPut(key); err != nil {
		t.fail(err)
		return
	}
	payload, err := payloadOf(key, value)
	if err != nil {
		t.fail(err)
		return
	}
	t.writes[key] = &write{value: value, payload: payload, sum: envelope.Checksum(payload)}
}

func (t *transaction) Grows() { t.grows = true }

func (t *transaction) Delete(key string) {
	if err := t.owner.MayDelete(key); err != nil {
		t.fail(err)
		return
	}
	t.writes[key] = &write{}
}

func (t *transaction) Fence(f store.Fence) {
	if err := f.Check(); err != nil {
		t.fail(err)
		return
	}
	t.fences = append(t.fences, f)
}

// compareOf is the fence in the words of the backend.
func compareOf(f store.Fence) backend.Compare {
	if f.CreateRevision != 0 {
		return backend.Compare{Key: recordSpace + f.Key, Created: true, Revision: f.CreateRevision}
	}
	return backend.Compare{Key: recordSpace + f.Key, Revision: f.ModRevision}
}

func (t *transaction) References(epoch uint64) {
	if t.epoch != nil && *t.epoch != epoch {
		t.fail(fleet.Errorf(fleet.ErrConflict, "blobs were put under epochs %d and %d: put them again under one", *t.epoch, epoch))
		return
	}
	t.epoch = &epoch
}

// part is what is to be committed: only what differs from the snapshot.
func (t *transaction) part() (backend.Part, error) {
	var p backend.Part
	bytes := 0
	for _, key := range slices.Sorted(maps.Keys(t.writes)) {
		w, r := t.writes[key], t.snap.find(key)
		if !w.changes(r) {
			continue
		}
		op := backend.Op{Key: recordSpace + key, Delete: w.value == nil}
		if t.selfKey == "" || (t.selfDeletes && !op.Delete) {
			t.selfKey, t.selfDeletes = key, op.Delete
		}
		bytes += len(w.payload) + len(key) + backend.OpOverhead
		p.Then = append(p.Then, op)
	}
	if len(p.Then) == 0 {
		return p, nil
	}
	if t.owner == store.Leader && len(t.fences) == 0 {
		return p, fleet.Errorf(fleet.ErrInvalid, "%s: the leader writes under its fence only", t.selfKey)
	}
	if len(p.Then) > store.MaxOps {
		return p, fleet.Errorf(fleet.ErrExhausted, "update has %d changes, more than %d", len(p.Then), store.MaxOps)
	}
	if bytes > maxUpdateBytes {
		return p, fleet.Errorf(fleet.ErrExhausted, "update has %d bytes, more than %d", bytes, maxUpdateBytes)
	}
	t.sealAll(&p)
	t.guard(&p)
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

func (t *transaction) sealAll(p *backend.Part) {
	t.nonce = envelope.DrawNonce()
	for i, op := range p.Then {
		if op.Delete {
			continue
		}
		key := strings.TrimPrefix(op.Key, recordSpace)
		nonce := uint64(0)
		if key == t.selfKey {
			nonce = t.nonce
		}
		w := t.writes[key]
		p.Then[i].Value = envelope.Seal(w.payload, w.sum, nonce)
	}
}

// guard adds the comparisons: what was read, the fences, the GC epoch, and the key that tells a repeat from the first.
func (t *transaction) guard(p *backend.Part) {
	t.reads[t.selfKey] = revisionOf(t.snap.find(t.selfKey))
	for _, key := range slices.Sorted(maps.Keys(t.reads)) {
		p.If = append(p.If, backend.Compare{Key: recordSpace + key, Revision: t.reads[key]})
	}
	for _, f := range t.fences {
		p.If = append(p.If, compareOf(f))
	}
	if t.epoch != nil {
		p.If = append(p.If, backend.Compare{Key: blobs.EpochKey, Revision: int64(*t.epoch)})
	}
}

// suspects are the keys that verdict and wasCommitted ask for.
func (t *transaction) suspects() []string {
	keys := []string{recordSpace + t.selfKey, blobs.EpochKey}
	for _, f := range t.fences {
		keys = append(keys, recordSpace+f.Key)
	}
	return keys
}

// verdict says why a transaction that lost must not be tried again; nil: a key that it read has changed.
func (t *transaction) verdict(found map[string]backend.KV) error {
	for _, f := range t.fences {
		if c := compareOf(f); !c.Holds(found[c.Key]) {
			return fleet.Errorf(fleet.ErrStale, "fence %s no longer holds", f.Key)
		}
	}
	if t.epoch != nil && found[blobs.EpochKey].Mod != int64(*t.epoch) {
		return fleet.Errorf(fleet.ErrConflict, "blobs were collected since epoch %d: put them again", *t.epoch)
	}
	return nil
}
