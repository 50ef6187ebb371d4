package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// keeper is what takes secrets: it notes beside what the worker is told when they are kept, and when they are in use.
type keeper struct {
	started chan struct{} // a is there
	a       *agent
	fail    atomic.Pointer[error]
}

// kept is the record of what was kept last.
const keptName = "kept-secrets"

func (k *keeper) option(o *Options) {
	o.Secrets = func(ctx context.Context, _ string, _ uint64, all []*agentv1.SealedSecret) (func(func()), error) {
		<-k.started
		if fail := k.fail.Load(); fail != nil {
			return nil, *fail
		}
		var names []string
		for _, s := range all {
			names = append(names, s.GetName())
		}
		text := strings.Join(names, ",")
		if err := k.a.state.Write(ctx, keptName, []byte(text)); err != nil {
			return nil, err
		}
		k.a.worker.note("keep %s", text)
		return func(begin func()) {
			k.a.worker.note("use %s", text)
			begin()
		}, nil
	}
}

// startKeeping starts an agent that takes secrets.
func startKeeping(t *testing.T, h *hub, state *memory) (*agent, *keeper) {
	t.Helper()
	k := &keeper{started: make(chan struct{})}
	k.a = start(t, h, state, k.option)
	close(k.started)
	return k.a, k
}

// secrets sends one secret of each name, for the agent that has what the index results in; nil: as an older hub does.
func (s *hubSession) secrets(in *agentv1.Index, names ...string) {
	s.t.Helper()
	for i, name := range names {
		f := &agentv1.Secrets{First: i == 0, Last: i == len(names)-1, Secrets: []*agentv1.SealedSecret{{Project: "default", Name: name}}}
		if i == 0 {
			f.ResultsIn = in.GetResultsIn()
		}
		s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Secrets{Secrets: f}})
	}
}

// TestSecretsAreInUseBeforeTheIndexThatTheyGoWith: they are kept when the index is judged, before it is, and are in use before anybody works
// by it. Alone they are taken where the index is held already, also by a new process, and also where a part of it was refused.
func TestSecretsAreInUseBeforeTheIndexThatTheyGoWith(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a, _ := startKeeping(t, h, state)
		s := h.next()
		s.welcome(1)
		first := index(h.sync("web", 5, "a"))
		s.secrets(first, "x", "y")
		expect(t, "before the index", a.settle(), "set ")
		s.index(first)
		s.ack()
		expect(t, "with the index", a.settle(), "keep x,y", "use x,y", "set web@5")
		s.secrets(first, "alone")
		expect(t, "alone", a.settle(), "keep alone", "use alone")
		bad := h.sync("bad", 6, "a")
		bad.Objects = 7
		second := index(h.sync("web", 5, "a"), bad)
		s.secrets(second, "two")
		expect(t, "before the second", a.settle())
		s.index(second)
		if ack := s.ack(); len(ack.GetRefused()) != 1 {
			t.Errorf("ack %v", ack)
		}
		expect(t, "with the second", a.settle(), "keep two", "use two", "set web@5")
		s.secrets(second, "more")
		expect(t, "of what was taken in part", a.settle(), "keep more", "use more")
		s.index(first)
		s.ack()
		a.settle()
		a.stop()

		b, _ := startKeeping(t, h, state)
		defer b.stop()
		expect(t, "before any hub", b.settle(), "set web@5")
		s = h.next()
		s.welcome(2)
		s.secrets(first, "again")
		expect(t, "after a restart", b.settle(), "keep again", "use again")
	})
}

// TestSecretsOfAStaleHubAreNotTaken: neither with its index nor alone; and not those of another store.
func TestSecretsOfAStaleHubAreNotTaken(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a, _ := startKeeping(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(7)
		in := index(h.sync("web", 5, "a"))
		s.index(in)
		s.ack()
		a.settle()
		for name, change := range map[string]func(*agentv1.Welcome){
			"epoch":       func(w *agentv1.Welcome) { w.Epoch = 7 },
			"regressed":   func(w *agentv1.Welcome) { w.Regressed = "older than the cluster" },
			"incarnation": func(w *agentv1.Welcome) { w.Incarnation = "two" },
			"another hub": func(w *agentv1.Welcome) { w.HubId = "hub-2" },
		} {
			s.end <- nil
			s = h.next()
			s.welcome(8, change)
			s.secrets(in, "alone")
			s.secrets(nil, "of an older hub")
			expect(t, name, a.settle())
			newer := index(h.sync("web", 9, "b"))
			s.secrets(newer, "with")
			s.index(newer)
			if ack := s.ack(); ack.GetCode() != "REGRESSED" {
				t.Errorf("%s: ack %v", name, ack)
			}
			s.secrets(nil, "of an older hub, after its index")
			expect(t, name, a.settle())
		}
		s.end <- nil
		s = h.next()
		s.welcome(9)
		older := index(h.sync("web", 4, "a"))
		s.secrets(older, "of an older set")
		s.index(older)
		if ack := s.ack(); ack.GetCode() != "REGRESSED" {
			t.Errorf("ack %v", ack)
		}
		expect(t, "an older generation", a.settle())
	})
}

// TestSecretsThatCannotBeKeptKeepTheIndexBack: the agent neither works nor would after a crash by a revision with the values of before.
func TestSecretsThatCannotBeKeptKeepTheIndexBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a, k := startKeeping(t, h, state)
		s := h.next()
		s.welcome(1)
		first := index(h.sync("web", 5, "a"))
		s.secrets(first, "one")
		s.index(first)
		s.ack()
		a.settle()
		full := errors.New("disk full")
		k.fail.Store(&full)
		second := index(h.sync("web", 6, "b"))
		s.secrets(second, "two")
		s.index(second)
		expect(t, "worker", a.settle())
		if got := openDesired(t, state).Held().Assemblage.Syncs; len(got) != 1 || got[0].Generation != 5 {
			t.Errorf("on the disk: %v", got)
		}
		k.fail.Store(nil)
		s.ack()
		expect(t, "worker", a.settle(), "keep two", "use two", "set web@6")
		a.stop()
	})
}

// TestCrashBetweenSecretsAndIndex: at each write to the state at which the agent may end, no newer index stands beside older secrets.
func TestCrashBetweenSecretsAndIndex(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a, _ := startKeeping(t, h, state)
		s := h.next()
		s.welcome(1)
		first := index(h.sync("web", 5, "a"))
		s.secrets(first, "one")
		s.index(first)
		s.ack()
		a.settle()
		writes := 0
		state.mu.Lock()
		state.written = func() {
			writes++
			crashed := &memory{values: map[string][]byte{}}
			for name, data := range state.values {
				crashed.values[name] = slices.Clone(data)
			}
			held := openDesired(t, crashed).Held().Assemblage.Syncs
			if string(crashed.values[keptName]) == "one" && held[0].Generation == 6 {
				t.Error("after a crash the newer revision is held with the older secrets")
			}
		}
		state.mu.Unlock()
		second := index(h.sync("web", 6, "b"))
		s.secrets(second, "two")
		s.index(second)
		s.ack()
		a.settle()
		a.stop()
		if writes < 2 {
			t.Errorf("%d writes were seen", writes)
		}
	})
}

// TestSecretsOfAnOlderHub: one that sends the index first, and does not say what the secrets go with, has them taken as they come.
func TestSecretsOfAnOlderHub(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a, _ := startKeeping(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.secrets(nil, "one")
		expect(t, "worker", a.settle(), "set ", "set web@5", "keep one", "use one")
	})
}

// TestNewestSecretsCount: of secrets that came while contents of an index were still being fetched, the newest go with it.
func TestNewestSecretsCount(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a, _ := startKeeping(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		in := index(h.sync("web", 5, "a"))
		stall := make(chan struct{})
		h.set(func() { h.stall = stall })
		s.secrets(in, "one")
		s.index(in)
		expect(t, "while it fetches", a.settle(), "set ")
		s.secrets(in, "two")
		expect(t, "while it fetches", a.settle())
		h.set(func() { h.stall = nil })
		close(stall)
		s.ack()
		synctest.Wait()
		got := a.worker.take()
		if !slices.Equal(got, []string{"keep one", "use one", "set web@5", "keep two", "use two"}) && !slices.Equal(got, []string{"keep two", "use two", "set web@5"}) {
			t.Errorf("worker %q", got)
		}
	})
}
