package engine

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/btree"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

const treeDegree = 32

// item is a record in the tree. The key is beside it, so that a look-up reads no records but the one that it finds.
type item struct {
	key    string
	record *record
}

func less(a, b item) bool { return a.key < b.key }

// snapshot is all records at one revision. It never changes.
type snapshot struct {
	tree     *btree.BTreeG[item]
	newest   *newest
	revision int64
	corrupt  bool // some record is; mostly none
}

// find returns the record, corrupt ones too, or nil.
func (s *snapshot) find(key string) *record {
	if r, known := s.newest.at(key, s.revision); known {
		return r
	}
	found, _ := s.tree.Get(item{key: key})
	return found.record
}

// newest is the newest version of each record, for look-ups: where the tree has many records, a walk down to one waits for memory at
// each comparison.
type newest struct {
	mu      sync.RWMutex
	shelves [3]map[string]map[string]*record // by what shelfOf says, then by key; no shelf is empty
	deleted int64                            // the revision of the newest deletion of any
}

// shelfOf is where a record is: beside those that are looked up one after the other. These are those of its class, and of what is
// kept for each module in each cluster those of its module. However many there are of others, the table of one shelf stays small
// enough to be near.
func shelfOf(key string) (kind int, name string) {
	switch {
	case strings.HasPrefix(key, store.DesiredPrefix):
		kind = 1
	case strings.HasPrefix(key, store.ObservedPrefix):
		kind = 2
	}
	class, rest, _ := strings.Cut(key, "/")
	if kind == 0 {
		return kind, class
	}
	_, module, _ := strings.Cut(rest, "/")
	return kind, module
}

// at is a record at a revision that is shown, nil if there is none then; false: it has changed since, or may have been deleted.
func (n *newest) at(key string, revision int64) (r *record, known bool) {
	kind, shelf := shelfOf(key)
	n.mu.RLock()
	defer n.mu.RUnlock()
	if r = n.shelves[kind][shelf][key]; r == nil {
		return nil, n.deleted <= revision
	}
	return r, r.ModRevision <= revision
}

// assigned are the clusters of which there is a desired record of the module, at any revision from that one on; false: some may have been
// deleted since.
func (n *newest) assigned(m fleet.ModuleRef, revision int64) (clusters []fleet.ClusterName, known bool) {
	kind, shelf := shelfOf(store.DesiredKey("", m))
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.deleted > revision {
		return nil, false
	}
	records := n.shelves[kind][shelf]
	clusters = make([]fleet.ClusterName, 0, len(records))
	for key := range records {
		if c, _, ok := store.SplitClusterModule(key); ok {
			clusters = append(clusters, c)
		}
	}
	return clusters, true
}

// take takes a change over, before any snapshot has that.
func (n *newest) take(s step) {
	kind, shelf := shelfOf(s.key)
	n.mu.Lock()
	defer n.mu.Unlock()
	records := n.shelves[kind][shelf]
	if s.rec == nil {
		if delete(records, s.key); len(records) == 0 {
			delete(n.shelves[kind], shelf)
		}
		n.deleted = max(n.deleted, s.revision)
		return
	}
	if records == nil {
		if n.shelves[kind] == nil {
			n.shelves[kind] = map[string]map[string]*record{}
		}
		records = map[string]*record{}
		n.shelves[kind][strings.Clone(shelf)] = records
	}
	records[s.rec.Key] = s.rec
}

// peek returns the record if it can be read.
func (s *snapshot) peek(key string) (store.Entry, bool) {
	r := s.find(key)
	if r == nil || !r.readable() {
		return store.Entry{}, false
	}
	return r.Entry, true
}

// scan calls fn for the sound records under the prefix.
func (s *snapshot) scan(prefix string, fn func(*record) bool) {
	s.tree.AscendGreaterOrEqual(item{key: prefix}, func(i item) bool {
		if !strings.HasPrefix(i.key, prefix) {
			return false
		}
		return !i.record.readable() || fn(i.record)
	})
}

// damaged are the records under the prefix that are not sound.
func (s *snapshot) damaged(prefix string) []store.Damage {
	if !s.corrupt {
		return nil
	}
	var out []store.Damage
	s.tree.AscendGreaterOrEqual(item{key: prefix}, func(i item) bool {
		r := i.record
		if !strings.HasPrefix(i.key, prefix) {
			return false
		}
		if !r.readable() && !r.absent() {
			out = append(out, store.Damage{Key: r.Key, Why: r.corrupt()})
		}
		return true
	})
	return out
}

// view is a store.Reader on a snapshot that remembers whether a corrupt record was asked for.
type view struct {
	*snapshot
	corrupt error
}

func (v *view) Get(key string) (store.Entry, bool) {
	r := v.find(key)
	if r == nil || r.absent() {
		return store.Entry{}, false
	}
	if !r.readable() {
		v.corrupt = r.corrupt()
		return store.Entry{}, false
	}
	return r.Entry, true
}

// Assigned implements store.Assigner.
func (v *view) Assigned(m fleet.ModuleRef) ([]fleet.ClusterName, bool) {
	return v.newest.assigned(m, v.revision)
}

func (v *view) Peek(key string) (store.Entry, bool) { return v.peek(key) }

func (v *view) Scan(prefix string, fn func(store.Entry) bool) {
	v.scan(prefix, func(r *record) bool { return fn(r.Entry) })
}

func (v *view) Damaged(prefix string) []store.Damage { return v.damaged(prefix) }

func (v *view) Revision() int64 { return v.revision }

// model is the read model. One goroutine, that of follow, changes it; anyone reads the current snapshot without a lock.
type model struct {
	log     *slog.Logger
	standIn StandIn
	shared  pools
	current atomic.Pointer[snapshot]
	corrupt atomic.Int64

	mu      sync.Mutex
	tree    *btree.BTreeG[item]
	newest  newest
	waiters map[*waiter]struct{}
	history history
	subs    subscribers
	feeds   feeds
	closed  bool
}

type waiter struct {
	revision int64
	arrived  chan struct{}
}

func newModel(log *slog.Logger, standIn StandIn) *model {
	m := &model{
		log:     log,
		standIn: standIn,
		shared:  newPools(),
		tree:    btree.NewG(treeDegree, less),
		waiters: make(map[*waiter]struct{}),
		subs:    newSubscribers(),
	}
	m.current.Store(&snapshot{tree: m.tree.Clone(), newest: &m.newest})
	return m
}

func (m *model) snapshot() *snapshot { return m.current.Load() }

// apply takes over changes of the record space.
func (m *model) apply(c backend.Changes) {
	steps, past := m.decode(c.List)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.history.add(past)
	m.advance(steps, c.Revision)
}

// step is a change of the tree.
type step struct {
	key      string
	rec      *record // nil: delete
	revision int64   // of the change
}

// decode reads the changes, without the lock.
func (m *model) decode(list []backend.Change) ([]step, []change) {
	steps, past := make([]step, 0, len(list)), make([]change, 0, len(list))
	for _, c := range list {
		s := step{key: recordKey(c.Key), revision: c.Mod}
		var nonce uint64
		if !c.Delete {
			if s.rec, nonce = newRecordOf(s.key, c.KV, m.standIn, m.shared); s.rec == nil {
				continue
			}
		}
		steps = append(steps, s)
		past = append(past, change{key: s.key, revision: c.Mod, created: c.Create, nonce: nonce, deleted: c.Delete})
	}
	return steps, past
}

// advance brings the model, the feeds and the subscriptions to the revision.
func (m *model) advance(steps []step, revision int64) {
	for _, s := range steps {
		m.newest.take(s)
		m.feeds.add(s, m.set(s.key, s.rec))
	}
	m.publish(revision)
	m.feeds.wake()
	for _, s := range steps {
		m.subs.mark(s.key, revision)
	}
}

// set puts a record in, or takes it out when it is nil, and returns the one that was there.
func (m *model) set(key string, r *record) (old *record) {
	var was item
	if r == nil {
		was, _ = m.tree.Delete(item{key: key})
	} else {
		was, _ = m.tree.ReplaceOrInsert(item{key, r})
	}
	old = was.record
	if old != nil && old.damage != nil {
		m.corrupt.Add(-1)
	}
	if r != nil && r.damage != nil {
		m.corrupt.Add(1)
		m.log.Error("store: record is quarantined", "key", key, "revision", r.ModRevision, "error", r.corrupt())
	}
	return old
}

func (m *model) publish(revision int64) {
	m.current.Store(&snapshot{tree: m.tree.Clone(), newest: &m.newest, revision: revision, corrupt: m.corrupt.Load() > 0})
	for w := range m.waiters {
		if w.revision <= revision {
			close(w.arrived)
			delete(m.waiters, w)
		}
	}
}

// replace makes the model equal to a complete list at one revision; what was not there before or has another revision
// is a change, what is in the model only was deleted.
func (m *model) replace(kvs []backend.KV, revision int64) {
	now := m.snapshot()
	var list []backend.Change
	listed := make(map[string]struct{}, len(kvs))
	for _, kv := range kvs {
		key := recordKey(kv.Key)
		listed[key] = struct{}{}
		if old := now.find(key); old == nil || old.ModRevision != kv.Mod {
			list = append(list, backend.Change{KV: kv})
		}
	}
	now.tree.Ascend(func(i item) bool {
		if _, ok := listed[i.key]; !ok {
			list = append(list, backend.Change{KV: backend.KV{Key: recordSpace + i.key, Mod: revision}, Delete: true})
		}
		return true
	})
	steps, past := m.decode(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.history.gap(revision)
	for i := range steps {
		steps[i].revision = revision // in the order of a list, revisions are in none
	}
	if now.revision > 0 {
		m.history.add(past)
	}
	m.advance(steps, revision)
}

// arrival returns a channel that is closed once the model has the revision, and a function that gives up.
func (m *model) arrival(revision int64) (<-chan struct{}, func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &waiter{revision: revision, arrived: make(chan struct{})}
	if m.snapshot().revision >= revision {
		close(w.arrived)
		return w.arrived, func() {}
	}
	m.waiters[w] = struct{}{}
	return w.arrived, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiters, w)
	}
}

// subscribe takes the snapshot and starts the subscription at the same instant.
func (m *model) subscribe(prefixes []string) (*snapshot, *subscription) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sub := newSubscription(m, prefixes)
	if m.closed {
		sub.keys.Close()
		return m.snapshot(), sub
	}
	m.subs.add(sub)
	return m.snapshot(), sub
}

func (m *model) unsubscribe(sub *subscription) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs.remove(sub)
}

// close ends all subscriptions, those to come too.
func (m *model) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.subs.close()
	m.feeds.close()
}
