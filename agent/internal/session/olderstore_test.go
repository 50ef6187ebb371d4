package session

import (
	"context"
	"slices"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// notGoneBy are welcomes of stores that the agent does not go by.
var notGoneBy = map[string]func(*agentv1.Welcome){
	"the hub says that it regressed": func(w *agentv1.Welcome) { w.Epoch, w.Regressed = 9, "its store is older" },
	"its epoch is old":               func(w *agentv1.Welcome) { w.Epoch = 1 },
	"another incarnation":            func(w *agentv1.Welcome) { w.Epoch, w.Incarnation = 9, "two" },
}

// A lock stops a removal with all objects. Then the hub's store is put back to before the lock: the agent takes nothing of it, and must not
// take from it that it may delete again.
func TestOlderStoreEndsNoFreeze(t *testing.T) {
	for name, older := range notGoneBy {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				state := newState()
				a := start(t, h, state)
				defer a.stop()
				s := h.next()
				s.welcome(1)
				s.index(index(h.sync("web", 5, "a")))
				s.ack()
				s.leave()
				a.settle()
				h.set(func() { h.refuse = fleet.Errorf(fleet.ErrDenied, "refused") })
				s.end <- fleet.With(fleet.Errorf(fleet.ErrDenied, "cluster c1: is locked"), fleet.Hint{Unmet: fleet.PreconditionUnlocked})
				expect(t, "worker", a.settle(), "freeze true cluster c1: is locked")
				h.set(func() { h.refuse = nil })
				h.next().welcome(1, older)
				if got := a.settle(); slices.Contains(got, "freeze false ") {
					t.Errorf("an older store has the agent go on deleting: %q", got)
				}
			})
		})
	}
}

// The CA is being exchanged: the agent trusts both. A hub with an older store, of which the agent takes nothing, must not take the new one from it.
func TestOlderStoreBringsNoCAs(t *testing.T) {
	for name, older := range notGoneBy {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				var told int
				a := start(t, h, newState(), func(o *Options) {
					o.TrustCAs = func(_ context.Context, ca [][]byte) error { told = len(ca); return nil }
				})
				defer a.stop()
				s := h.next()
				s.welcome(1, func(w *agentv1.Welcome) { w.Ca = [][]byte{[]byte("A"), []byte("B")} })
				s.index(index(h.sync("web", 5, "a")))
				s.ack()
				a.settle()
				s.end <- nil
				h.next().welcome(1, func(w *agentv1.Welcome) { w.Ca = [][]byte{[]byte("A")} }, older)
				a.settle()
				if told != 2 {
					t.Errorf("the agent trusts %d CAs", told)
				}
			})
		})
	}
}

// A hold stops a removal. Then the hub's store is put back to before the hold: its order to leave, which had none, does not end that. One that holds
// more is taken.
func TestOlderStoreEndsNoHoldOfARemoval(t *testing.T) {
	for name, older := range notGoneBy {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				a := start(t, h, newState())
				defer a.stop()
				s := h.next()
				s.welcome(1)
				s.index(index(h.sync("web", 5, "a")))
				s.ack()
				s.leaveBy(&agentv1.Leave{Objects: "delete", Held: []string{"default/web"}})
				a.settle()
				s.end <- nil
				s = h.next()
				s.welcome(1, older)
				s.leave()
				if got := a.settle(); slices.Contains(got, "leave delete") {
					t.Errorf("an older store has the agent go on deleting: %q", got)
				}
				s.leaveBy(&agentv1.Leave{Objects: "delete", Hold: true})
				if got := a.settle(); name != "another incarnation" && !slices.Contains(got, "leave delete, held") { // of which no order is taken
					t.Errorf("a hold is not taken: %q", got)
				}
			})
		})
	}
}
