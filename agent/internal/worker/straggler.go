package worker

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// stragglers are objects with the mark of this agent that no record has: something put them back when the agent had forgotten them, as from
// a backup. Nothing but a look at all that the object says can tell one from a copy.
type stragglers struct {
	wake chan struct{}

	mu     sync.Mutex
	met    map[fleet.ObjectID]bool
	copies map[string]bool // the UIDs of those that are none
}

// stragglePause has much that is put back at once be looked at together. maxCopies bounds what is remembered.
const (
	stragglePause = time.Second
	maxCopies     = 1024
)

// meet takes note of an object that a watch shows, and that no record has. It returns at once.
func (s *stragglers) meet(id fleet.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.met == nil {
		s.met = map[fleet.ObjectID]bool{}
	}
	s.met[id] = true
	dirty.Poke(s.wake)
}

func (s *stragglers) take() []fleet.ObjectID {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.SortedFunc(maps.Keys(s.met), fleet.ObjectID.Compare)
	s.met = nil
	return out
}

func (s *stragglers) isCopy(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copies[uid]
}

func (s *stragglers) copied(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copies == nil || len(s.copies) >= maxCopies {
		s.copies = map[string]bool{}
	}
	s.copies[uid] = true
}

// followStragglers looks at what the watches show, and again at what could not be looked at.
func (m *Manager) followStragglers(ctx context.Context) {
	tries, pause := backoff.New(backoff.Policy{Min: stragglePause, Max: time.Minute}, rand.Float64), stragglePause
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.stragglers.wake:
		}
		if backoff.Wait(ctx, pause) != nil {
			return
		}
		failed := false
		for _, id := range m.stragglers.take() {
			if err := guarded(m.o.Log, func() error { return m.straggler(ctx, id) }); err != nil {
				m.o.Log.Debug("object with our marks that no record has cannot be looked at", "object", id.String(), "error", err)
				m.stragglers.meet(id)
				failed = true
			}
		}
		if pause = tries.Next(); !failed {
			tries.Reset()
			pause = stragglePause
		}
	}
}

// straggler has an object that no record has be its module's again, as a search would find it: what the module does not list of that waits
// for a confirm.
func (m *Manager) straggler(ctx context.Context, id fleet.ObjectID) error {
	if m.inventory.Get(id) != nil || fleet.OfAgent(id, m.o.Namespace) != "" {
		return nil
	}
	res, f := m.watcher.Shown(id)
	if f == nil || f.Terminating || !f.Made || m.stragglers.isCopy(f.UID) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	live, err := m.client.GetMeta(bounded, res, namespaceOf(res, id), id.Name)
	if kube.IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if live.DeletionTimestamp != nil || string(live.UID) != f.UID {
		return nil // of which an event tells
	}
	if err := m.finder.find(bounded, res, live); err != nil {
		return err
	}
	if m.inventory.Get(id) == nil {
		m.stragglers.copied(f.UID)
		return nil
	}
	m.o.Log.Warn("object of this agent is there again that it had forgotten; if its module omits it, it waits for a confirm", "object", id.String(), "uid", f.UID)
	dirty.Poke(m.signal) // its module may need a worker
	return nil
}
