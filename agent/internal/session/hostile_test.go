package session

import (
	"math"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// A hub's numbers are taken within reason: one that is broken sends no agent away for weeks, nor makes it wait for weeks.
func TestNumbersOfTheHubAreTakenWithinReason(t *testing.T) {
	const most = 10 * time.Minute
	endless := func(w *agentv1.Welcome) { w.HeartbeatMillis, w.ReconnectSpreadMillis = math.MaxUint32, math.MaxUint32 }
	for name, lose := range map[string]func(*hubSession){
		"drain": func(s *hubSession) {
			s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Drain{Drain: &agentv1.Drain{ReconnectAfterMillis: math.MaxUint32}}})
		},
		"spread":    func(s *hubSession) { s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut") },
		"heartbeat": func(s *hubSession) { <-s.gone },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				a := start(t, h, newState())
				defer a.stop()
				s := h.next()
				s.welcome(1, endless)
				<-time.After(time.Minute)
				at := time.Now()
				go lose(s)
				h.next()
				if away := time.Since(at); away > most {
					t.Errorf("back after %s, want at most %s", away, most)
				}
			})
		})
	}
}

// Only the hub that the agent follows may take its cluster out of the fleet.
func TestAnotherHubTakesNoClusterOutOfTheFleet(t *testing.T) {
	for name, other := range map[string]func(*agentv1.Welcome){
		"id":          func(w *agentv1.Welcome) { w.HubId = "hub-2" },
		"incarnation": func(w *agentv1.Welcome) { w.Incarnation = "two" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				a := start(t, h, newState())
				defer a.stop()
				s := h.next()
				s.welcome(1)
				s.index(index(h.sync("web", 5, "a")))
				s.ack()
				a.settle()
				s.end <- nil
				s = h.next()
				s.welcome(2, other)
				s.leave()
				if ack := s.ack(); ack.GetCode() != "REGRESSED" {
					t.Errorf("ack %v", ack)
				}
				expect(t, "worker", a.settle())
				if order := a.desired.Held().Leaving; order.Objects != "" {
					t.Errorf("the agent leaves: %v", order)
				}
			})
		})
	}
}
