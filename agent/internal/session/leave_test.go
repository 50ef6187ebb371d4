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
		s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 was removed") // the hub forgets it: no freeze, the leave goes on
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
