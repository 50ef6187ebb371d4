package session

import (
	"slices"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestLeaveIsPersistedAndEndsAllIndexes(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.settle()
		leave := &agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: &agentv1.Leave{Objects: "delete"}}}
		s.send(leave)
		s.send(leave)
		expect(t, "worker", a.settle(), "leave delete")
		a.reports.Report(fleet.SyncStatus{Module: ref("lost"), Phase: fleet.PhaseRemoved})
		if _, got := s.status(time.Second); !slices.Contains(got, "lost@0") {
			t.Errorf("reported %v, and nothing of a module that nobody listed", got)
		}
		held := &agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: &agentv1.Leave{Objects: "delete", Hold: true}}}
		s.send(held)
		expect(t, "worker under a hold", a.settle(), "leave delete, held")
		s.send(leave)
		expect(t, "worker after the hold", a.settle(), "leave delete")
		s.index(index(h.sync("web", 9, "b")))
		expect(t, "worker after the leave", a.settle())
		expect(t, "answer, for which the hub waits", refusals(s.ack()), "default/web@9")
		a.reports.Report(fleet.SyncStatus{Module: ref("web"), Phase: fleet.PhaseRemoved})
		s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 was removed") // the hub forgets it: no freeze, the agent is through
		expect(t, "worker after the end", a.settle())
		a.stop()
		b := start(t, h, state)
		defer b.stop()
		expect(t, "worker after a restart", b.settle(), "set web@5", "leave delete")
		s = h.next()
		s.welcome(2)
		s.index(index(h.sync("web", 9, "b")))
		expect(t, "worker after an index of a hub that forgot the leave", b.settle())
		b.reports.Report(fleet.SyncStatus{Module: ref("lost"), Phase: fleet.PhaseRemoved})
		if _, got := s.status(time.Second); !slices.Contains(got, "lost@0") {
			t.Errorf("after a restart %v is reported", got)
		}
	})
}

// Who is forgotten by force while it deletes stops: the hub waits for one that is not through, unless a person says otherwise.
func TestAgentThatIsForgottenWhileItDeletesStops(t *testing.T) {
	for objects, want := range map[string][]string{"delete": {"freeze true cluster c1 was removed"}, "keep": nil} {
		bubble(t, func(t *testing.T, h *hub) {
			a := start(t, h, newState())
			defer a.stop()
			s := h.next()
			s.welcome(1)
			s.index(index(h.sync("web", 5, "a"), h.sync("api", 5, "b")))
			s.ack()
			s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: &agentv1.Leave{Objects: objects}}})
			a.reports.Report(fleet.SyncStatus{Module: ref("web"), Phase: fleet.PhaseRemoved})
			a.settle()
			s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 was removed")
			expect(t, "worker that is told to "+objects, a.settle(), want...)
		})
	}
}

// Nor does one that knows of no module of its own: what its objects are is found out by their marks, and deleted as that goes on.
func TestAgentThatKnowsNoModuleStopsWhenItIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index())
		s.ack()
		s.leave()
		a.settle()
		s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 was removed")
		expect(t, "worker", a.settle(), "freeze true cluster c1 was removed")
	})
}

// A lock stops a removal that is under way, also over a restart, until the cluster is unlocked.
func TestLockedAgentDoesNotGoOnLeaving(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		const locked, alert = "cluster c1: is locked", "the hub refuses this client certificate" // it is told so once
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.leave()
		a.settle()
		h.set(func() { h.refuse = fleet.Errorf(fleet.ErrDenied, alert) })
		s.end <- fleet.With(fleet.Errorf(fleet.ErrDenied, locked), fleet.Hint{Unmet: fleet.PreconditionUnlocked})
		expect(t, "worker", a.settle(), "freeze true "+locked)
		<-time.After(10 * time.Minute)
		a.stop()
		b := start(t, h, state)
		defer b.stop()
		expect(t, "worker after a restart", b.settle(), "freeze true "+alert, "set web@5", "leave delete", "freeze true "+alert)
		<-time.After(10 * time.Minute)
		if got := b.settle(); slices.Contains(got, "freeze false ") {
			t.Errorf("worker while it is refused: %q", got)
		}
		h.set(func() { h.refuse = nil })
		h.next().welcome(2)
		if got := b.settle(); !slices.Contains(got, "freeze false ") {
			t.Errorf("worker after the welcome: %q", got)
		}
	})
}
