package session

import (
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// The API server that has the agent's state hangs, and the hub starts anew: the agent has its session again, says at once that it does not
// see the cluster, and goes on showing life, so that the hub does not take it for gone.
func TestStateThatHangsKeepsNoSessionFromGoingOn(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.settle()
		state.mu.Lock()
		state.hangs = true
		state.mu.Unlock()
		s.end <- fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping")
		s = h.next()
		s.welcome(2)
		for range 12 {
			s.beat()
			heard := time.After(30 * time.Second) // the hub's patience
			for alive := false; !alive; {
				select {
				case f := <-s.frames:
					_, alive = f.GetFrame().(*agentv1.ConnectRequest_Heartbeat)
				case <-s.gone:
					t.Fatal("the agent has ended the session")
				case <-heard:
					t.Fatal("the agent shows no life")
				}
			}
		}
	})
}

// The API server that has the agent's state is away for a while: what the hub sent meanwhile is taken when it answers, and not when the tries,
// which have become rare, come to it.
func TestIndexIsTakenWhenTheStateCanBeWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state, again := newState(), make(chan struct{}, 1)
		a := start(t, h, state, func(o *Options) { o.StateAgain = again })
		defer a.stop()
		fails := func(err error) {
			state.mu.Lock()
			defer state.mu.Unlock()
			state.fail = err
		}
		s := h.next()
		s.welcome(1)
		fails(fleet.Errorf(fleet.ErrUnavailable, "connection refused"))
		s.index(index(h.sync("web", 5, "a")))
		for ends := time.Now().Add(20 * time.Second); time.Now().Before(ends); {
			s.beat()
			<-time.After(time.Second)
		}
		fails(nil)
		back := time.Now()
		again <- struct{}{}
		s.ack()
		if took := time.Since(back); took > time.Second {
			t.Errorf("the index is taken %s after the state can be written again", took)
		}
	})
}
