// Package memory is a backend of the store that forgets everything when its process ends, for tests and simulation. It
// owns the map, its history and its watches; it must not know what is kept in it.
package memory

import (
	"context"
	"strings"
	"sync"

	"github.com/google/btree"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// keptRevisions is how many revisions a memory backend keeps for watches that begin in the past.
const keptRevisions = 10_000

// degree is that of the tree.
const degree = 32

// limits are etcd's defaults, so that what works here works there.
var limits = backend.Limits{Ops: 128, Bytes: 1 << 20}

// New makes a backend in memory. Several stores may stand on it, as several hubs stand on one etcd; it
// outlives them.
func New() backend.Backend {
	return &memory{
		tree:    btree.NewG(degree, func(a, b backend.KV) bool { return a.Key < b.Key }),
		rev:     1,
		changed: make(chan struct{}),
		seats:   backend.NewSeats(),
	}
}

type memory struct {
	seats *backend.Seats

	mu        sync.Mutex
	tree      *btree.BTreeG[backend.KV]
	rev       int64
	history   []backend.Changes // of the revisions in (compacted, rev], each with changes
	compacted int64
	changed   chan struct{} // closed at the next change
}

func (m *memory) Limits() backend.Limits         { return limits }
func (m *memory) Full() error                    { return nil }
func (m *memory) Usage() backend.Usage           { return backend.Usage{} }
func (m *memory) Close() error                   { return nil }
func (m *memory) Progress(context.Context) error { return nil }

func (m *memory) Revision(ctx context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rev, backend.Open(ctx.Err())
}

func (m *memory) Announce(ctx context.Context, key string, value []byte) (backend.Announcement, error) {
	return backend.AnnounceAlone(ctx, m, key, value)
}

func (m *memory) Elect(ctx context.Context, prefix string, value []byte) (backend.Leadership, error) {
	return m.seats.Elect(ctx, m, prefix, value)
}

func (m *memory) Holder(ctx context.Context, prefix string) ([]byte, bool, error) {
	return backend.Holder(ctx, m, prefix)
}

func (m *memory) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, backend.Open(err)
	}
	if err := checkParts(parts, limits); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	happened := make([]bool, len(parts))
	for i, p := range parts {
		happened[i] = m.holds(p)
	}
	var list []backend.Change
	for i, p := range parts {
		if happened[i] {
			list = append(list, m.perform(p.Then)...)
		}
	}
	if len(list) > 0 {
		m.publish(list)
	}
	return m.rev, happened, nil
}

func checkParts(parts []backend.Part, l backend.Limits) error {
	written := make(map[string]struct{})
	for _, p := range parts {
		if n := p.Size(); n > l.Ops || (len(parts) > 1 && n+len(parts) > l.Ops) {
			return fleet.Errorf(fleet.ErrInvalid, "transaction with %d parts, one of %d operations, is over %d", len(parts), n, l.Ops)
		}
		for _, o := range p.Then {
			if _, twice := written[o.Key]; twice {
				return fleet.Errorf(fleet.ErrInvalid, "%s: written twice in one transaction", o.Key)
			}
			written[o.Key] = struct{}{}
		}
	}
	return nil
}

func (m *memory) holds(p backend.Part) bool {
	for _, c := range p.If {
		if !m.compare(c) {
			return false
		}
	}
	return true
}

func (m *memory) compare(c backend.Compare) bool {
	if !c.Prefix {
		kv, _ := m.tree.Get(backend.KV{Key: c.Key})
		return c.Holds(kv)
	}
	holds := true
	m.tree.AscendGreaterOrEqual(backend.KV{Key: c.Key}, func(kv backend.KV) bool {
		if !strings.HasPrefix(kv.Key, c.Key) {
			return false
		}
		holds = c.Holds(kv)
		return holds
	})
	return holds
}

func (m *memory) lookup(keys []string) map[string]backend.KV {
	found := make(map[string]backend.KV, len(keys))
	for _, k := range keys {
		if kv, ok := m.tree.Get(backend.KV{Key: k}); ok {
			found[k] = kv
		}
	}
	return found
}

// perform changes the tree at the revision that publish is about to make.
func (m *memory) perform(ops []backend.Op) []backend.Change {
	var list []backend.Change
	for _, o := range ops {
		kv := backend.KV{Key: o.Key, Mod: m.rev + 1, Create: m.rev + 1}
		old, there := m.tree.Get(kv)
		if o.Delete {
			if there {
				m.tree.Delete(kv)
				list = append(list, backend.Change{KV: backend.KV{Key: o.Key, Mod: kv.Mod}, Delete: true})
			}
			continue
		}
		if there {
			kv.Create = old.Create
		}
		kv.Value = append([]byte(nil), o.Value...)
		m.tree.ReplaceOrInsert(kv)
		list = append(list, backend.Change{KV: kv})
	}
	return list
}

func (m *memory) publish(list []backend.Change) {
	m.rev++
	m.history = append(m.history, backend.Changes{Revision: m.rev, List: list})
	if over := len(m.history) - keptRevisions; over > keptRevisions/10 {
		m.compacted = m.history[over-1].Revision
		m.history = append([]backend.Changes(nil), m.history[over:]...)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) Get(ctx context.Context, revision int64, keys ...string) (map[string]backend.KV, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, backend.Open(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.lookup(keys)
	if revision == 0 || revision >= m.rev {
		return found, m.rev, nil
	}
	for _, k := range keys {
		if found[k].Mod <= revision && found[k].Mod > 0 {
			continue
		}
		kv, err := m.past(k, revision)
		if err != nil {
			return nil, 0, err
		}
		delete(found, k)
		if kv.Mod > 0 {
			found[k] = kv
		}
	}
	return found, m.rev, nil
}

// past is the key as it was at an older revision.
func (m *memory) past(key string, revision int64) (backend.KV, error) {
	if revision < m.compacted {
		return backend.KV{}, backend.ErrCompacted
	}
	for i := len(m.history) - 1; i >= 0; i-- {
		if m.history[i].Revision > revision {
			continue
		}
		for _, c := range m.history[i].List {
			if c.Key == key && c.Delete {
				return backend.KV{}, nil
			}
			if c.Key == key {
				return c.KV, nil
			}
		}
	}
	if m.compacted > 0 {
		return backend.KV{}, backend.ErrCompacted
	}
	return backend.KV{}, nil
}

// Range returns everything in one page, so it needs no past.
func (m *memory) Range(ctx context.Context, q backend.RangeQuery) (backend.Page, error) {
	if err := ctx.Err(); err != nil {
		return backend.Page{}, backend.Open(err)
	}
	m.mu.Lock()
	tree, rev := m.tree.Clone(), m.rev
	m.mu.Unlock()
	page := backend.Page{Revision: rev}
	tree.AscendGreaterOrEqual(backend.KV{Key: max(q.Prefix, q.After)}, func(kv backend.KV) bool {
		if !strings.HasPrefix(kv.Key, q.Prefix) {
			return false
		}
		if kv.Key != q.After {
			page.KVs = append(page.KVs, kv)
		}
		return true
	})
	return page, nil
}

func (m *memory) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	for {
		changes, changed, err := m.since(prefix, from)
		if err != nil {
			return err
		}
		if changes.Revision >= from {
			fn(changes)
			from = changes.Revision + 1
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *memory) since(prefix string, from int64) (backend.Changes, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from <= m.compacted {
		return backend.Changes{}, nil, backend.ErrCompacted
	}
	out := backend.Changes{Revision: m.rev}
	start := len(m.history)
	for start > 0 && m.history[start-1].Revision >= from {
		start--
	}
	for _, c := range m.history[start:] {
		for _, change := range c.List {
			if strings.HasPrefix(change.Key, prefix) {
				out.List = append(out.List, change)
			}
		}
	}
	return out, m.changed, nil
}
