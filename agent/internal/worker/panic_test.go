package worker

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// mine is Contents with a bug, which some contents set off.
type mine struct {
	*memory
	mu   sync.Mutex
	laid map[fleet.Digest]bool
}

func (m *mine) lay(d fleet.Digest, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.laid[d] = there
}

func (m *mine) step(d fleet.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.laid[d] {
		panic("a secret of the contents")
	}
}

func (m *mine) Bundle(d fleet.Digest) (fleet.Bundle, error) {
	m.step(d)
	return m.memory.Bundle(d)
}

func (m *mine) Object(d fleet.Digest) ([]byte, error) {
	m.step(d)
	return m.memory.Object(d)
}

// A bug that one module runs into ends neither the agent nor the work on other modules; the module says so, loses nothing,
// and goes on by itself.
func TestPanicStopsOneModule(t *testing.T) {
	m := &mine{laid: map[fleet.Digest]bool{}}
	r := newRig(t)
	r.stop()
	m.memory = r.store
	r.options = append(r.options, func(o *Options) { o.Contents = m })
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "configmaps", "b")

	next := r.bundle("shop", nil, configMap("a", "k: w"), configMap("b", "k: v"))
	m.lay(next.Bundle, true)
	other := r.bundle("other", nil, configMap("c", "k: v"))
	r.set([]fleet.Sync{next, other})
	r.ready(other)
	r.stopped(next)
	m.lay(next.Bundle, false)
	r.ready(next)

	last := r.bundle("shop", nil, configMap("a", "k: x"), configMap("b", "k: v"))
	bundle, _ := r.store.Bundle(last.Bundle)
	m.lay(bundle.Entries[0].Digest, true)
	r.set([]fleet.Sync{last, other})
	r.stopped(last)
	m.lay(bundle.Entries[0].Digest, false)
	r.ready(last)
	if r.data("a", "k") != "x" || r.uidOf("v1", "configmaps", "b") != uid {
		t.Errorf("a has %s, b was %s and is %s", r.data("a", "k"), uid, r.uidOf("v1", "configmaps", "b"))
	}
}

// The same in the middle of a removal.
func TestPanicInARemoval(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/configmaps/a") {
			panic("a secret of the transport")
		}
		return nil
	})
	tomb := r.tombstone("shop", fleet.DeleteDelete)
	r.set(nil, tomb)
	r.stopped(fleet.Sync{Module: s.Module, Generation: tomb.Generation})
	r.count.upset(nil)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// The same in the search for lost objects: what was not seen counts as not seen, so that nothing is deleted before it is.
func TestPanicInTheSearch(t *testing.T) {
	r := aloneRig(t)
	one := r.bundle("one", nil, configMap("a", "k: v"))
	gone := r.bundle("gone", nil, configMap("d", "k: v"))
	r.set([]fleet.Sync{one, gone})
	r.ready(one)
	r.ready(gone)

	r.lose()
	for where, path := range map[string]string{"configmaps": "/configmaps", "APIs": "/apis/apps/v1"} {
		r.stop()
		r.forget()
		r.count.upset(func(q *http.Request) error {
			if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, path) && !strings.Contains(q.URL.Path, "/namespaces/") {
				panic("a secret of the transport")
			}
			return nil
		})
		r.start()
		r.set([]fleet.Sync{one}, r.tombstone("gone", fleet.DeleteDelete))
		s := r.wait("gone", "waiting for the search of "+where, func(s fleet.SyncStatus) bool {
			return s.Reason == plan.ReasonAwaitingSearch && strings.Contains(s.Message, "a bug in the agent")
		})
		if strings.Contains(s.Message, "secret") || r.get("v1", "configmaps", "d") == nil {
			t.Errorf("%s: says %q", where, s.Message)
		}
	}
	r.count.upset(nil)
	r.wait("gone", "removed", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseRemoved })
	r.ready(one)
}

// stopped waits until the module says that it ran into a bug, and not more.
func (r *rig) stopped(s fleet.Sync) {
	r.t.Helper()
	status := r.wait(s.Module.Name, "stopped by a bug", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Reason == apply.ReasonBug
	})
	if !strings.Contains(status.Message, "a bug in the agent") || strings.Contains(status.Message, "secret") {
		r.t.Errorf("says %q", status.Message)
	}
}
