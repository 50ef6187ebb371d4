package store

import (
	"context"
	"strings"
	"sync"

	"github.com/google/btree"

	"towline.dev/towline/pkg/fleet"
)

// NewMemory makes a store that forgets everything when it is closed, for tests and simulation.
func NewMemory(o Options) (Store, error) {
	return Open(context.Background(), NewMemoryBackend(), o)
}

// memoryHistory is how many revisions a memory backend keeps for watches that begin in the past.
const memoryHistory = 10_000

// memoryLimits are etcd's defaults, so that what works here works there.
var memoryLimits = Limits{Ops: 128, Bytes: 1 << 20}

// NewMemoryBackend makes a backend in memory. Several stores may stand on it, as several hubs stand on one etcd; it
// outlives them.
func NewMemoryBackend() Backend {
	return &memory{
		tree:    btree.NewG(treeDegree, func(a, b KV) bool { return a.Key < b.Key }),
		rev:     1,
		changed: make(chan struct{}),
		seats:   newSeats(),
	}
}

type memory struct {
	seats *seats

	mu        sync.Mutex
	tree      *btree.BTreeG[KV]
	rev       int64
	history   []Changes // of the revisions in (compacted, rev], each with changes
	compacted int64
	changed   chan struct{} // closed at the next change
}

func (m *memory) Limits() Limits                 { return memoryLimits }
func (m *memory) Full() error                    { return nil }
func (m *memory) Close() error                   { return nil }
func (m *memory) Progress(context.Context) error { return nil }

func (m *memory) Revision(ctx context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rev, unavailable(ctx.Err())
}

func (m *memory) Elect(ctx context.Context, prefix string, value []byte) (Leadership, error) {
	return m.seats.elect(ctx, m, prefix, value)
}

func (m *memory) Holder(ctx context.Context, prefix string) ([]byte, bool, error) {
	return holder(ctx, m, prefix)
}

func (m *memory) Commit(ctx context.Context, parts []Part) (int64, []bool, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, unavailable(err)
	}
	if err := checkParts(parts, memoryLimits); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	happened := make([]bool, len(parts))
	for i, p := range parts {
		happened[i] = m.holds(p)
	}
	var list []Change
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

func checkParts(parts []Part, l Limits) error {
	written := make(map[string]struct{})
	for _, p := range parts {
		if n := p.size(); n > l.Ops || (len(parts) > 1 && n+len(parts) > l.Ops) {
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

func (m *memory) holds(p Part) bool {
	for _, c := range p.If {
		kv, _ := m.tree.Get(KV{Key: c.Key})
		if !c.holds(kv) {
			return false
		}
	}
	return true
}

func (m *memory) lookup(keys []string) map[string]KV {
	found := make(map[string]KV, len(keys))
	for _, k := range keys {
		if kv, ok := m.tree.Get(KV{Key: k}); ok {
			found[k] = kv
		}
	}
	return found
}

// perform changes the tree at the revision that publish is about to make.
func (m *memory) perform(ops []RawOp) []Change {
	var list []Change
	for _, o := range ops {
		kv := KV{Key: o.Key, Mod: m.rev + 1, Create: m.rev + 1}
		old, there := m.tree.Get(kv)
		if o.Delete {
			if there {
				m.tree.Delete(kv)
				list = append(list, Change{KV: KV{Key: o.Key, Mod: kv.Mod}, Delete: true})
			}
			continue
		}
		if there {
			kv.Create = old.Create
		}
		kv.Value = append([]byte(nil), o.Value...)
		m.tree.ReplaceOrInsert(kv)
		list = append(list, Change{KV: kv})
	}
	return list
}

func (m *memory) publish(list []Change) {
	m.rev++
	m.history = append(m.history, Changes{Revision: m.rev, List: list})
	if over := len(m.history) - memoryHistory; over > memoryHistory/10 {
		m.compacted = m.history[over-1].Revision
		m.history = append([]Changes(nil), m.history[over:]...)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) Get(ctx context.Context, revision int64, keys ...string) (map[string]KV, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, unavailable(err)
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
func (m *memory) past(key string, revision int64) (KV, error) {
	if revision < m.compacted {
		return KV{}, ErrCompacted
	}
	for i := len(m.history) - 1; i >= 0; i-- {
		if m.history[i].Revision > revision {
			continue
		}
		for _, c := range m.history[i].List {
			if c.Key == key && c.Delete {
				return KV{}, nil
			}
			if c.Key == key {
				return c.KV, nil
			}
		}
	}
	if m.compacted > 0 {
		return KV{}, ErrCompacted
	}
	return KV{}, nil
}

// Range returns everything in one page, so it needs no past.
func (m *memory) Range(ctx context.Context, q RangeQuery) (Page, error) {
	if err := ctx.Err(); err != nil {
		return Page{}, unavailable(err)
	}
	m.mu.Lock()
	tree, rev := m.tree.Clone(), m.rev
	m.mu.Unlock()
	page := Page{Revision: rev}
	tree.AscendGreaterOrEqual(KV{Key: max(q.Prefix, q.After)}, func(kv KV) bool {
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

func (m *memory) Watch(ctx context.Context, prefix string, from int64, fn func(Changes)) error {
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

func (m *memory) since(prefix string, from int64) (Changes, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from <= m.compacted {
		return Changes{}, nil, ErrCompacted
	}
	out := Changes{Revision: m.rev}
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

// unavailable marks an error of a context as one after which the outcome is open; nil stays nil.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &openError{err}
}

// openError is an ErrUnavailable that keeps its cause.
type openError struct{ cause error }

func (e *openError) Error() string   { return "store: " + e.cause.Error() }
func (e *openError) Unwrap() []error { return []error{fleet.ErrUnavailable, e.cause} }
