package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/report"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestDrainAndRotation(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState(), func(o *Options) { o.Hubs = []string{"hub:1", "hub:2"} })
		defer a.stop()
		s := h.next()
		s.welcome(1)
		<-time.After(time.Minute / 4)
		at := time.Now()
		s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Drain{Drain: &agentv1.Drain{ReconnectAfterMillis: 3000, Reason: "upgrade"}}})
		h.next()
		if waited := time.Since(at); waited != 4*time.Second { // 3 s and half of the spread of 2 s
			t.Errorf("came back after %s, want 4s", waited)
		}
		expect(t, "dials", h.dials, "hub:2", "hub:1")
	})
}

// A hub tells the addresses of the others; those that cannot be dialed are not taken.
func TestHubsThatTheWelcomeTellsAreTriedToo(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState(), func(o *Options) { o.Hubs = []string{"hub:1"} })
		defer a.stop()
		s := h.next()
		s.welcome(1, func(w *agentv1.Welcome) { w.Hubs = []string{"hub:1", "nonsense", "hub:2", "hub:2", ":3"} })
		<-time.After(15 * time.Second)
		h.set(func() { h.down = true })
		s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
		<-time.After(10 * time.Second)
		h.set(func() { expect(t, "dials", h.dials[:4], "hub:1", "hub:2", "hub:1", "hub:2") })
	})
}

func TestUnreachableHubsAreTriedInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		h.down = true
		a := start(t, h, newState(), func(o *Options) { o.Hubs = []string{"hub:1", "hub:2", "hub:3"} })
		defer a.stop()
		<-time.After(2 * time.Second)
		h.set(func() { expect(t, "dials", h.dials[:4], "hub:2", "hub:3", "hub:1", "hub:2") })
	})
}

func TestReconnectIsSpreadAfterALongSessionAndBacksOffAfterShortOnes(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		<-time.After(15 * time.Second)
		var waits []string
		for epoch := uint64(2); epoch < 7; epoch++ {
			at := time.Now()
			s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
			s = h.next()
			waits = append(waits, time.Since(at).String())
			s.welcome(epoch)
			synctest.Wait()
		}
		expect(t, "waits", waits, "1s", "200ms", "400ms", "800ms", "1.6s")
	})
}

func TestSilentHubIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		at := time.Now()
		<-s.gone
		if d := time.Since(at); d < 30*time.Second || d > 40*time.Second {
			t.Errorf("left after %s, want three heartbeats", d)
		}
	})
}

func TestHeartbeatsKeepTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		beats := 0
		for range 360 {
			<-time.After(10 * time.Second)
			s.beat()
			for len(s.frames) > 0 {
				if f := <-s.frames; f.GetHeartbeat() != nil {
					beats++
				}
			}
		}
		if beats < 350 || beats > 362 {
			t.Errorf("%d heartbeats in an hour", beats)
		}
		select {
		case <-s.gone:
			t.Error("the session ended")
		default:
		}
	})
}

func TestHubThatDoesNotWelcomeIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		at := time.Now()
		<-s.gone
		if d := time.Since(at); d != helloTimeout {
			t.Errorf("left after %s, want %s", d, helloTimeout)
		}
	})
}

func TestErrorsThatAreNoRefusalDoNotFreeze(t *testing.T) {
	for name, err := range map[string]error{
		"must join again": fleet.Errorf(fleet.ErrUnknownUser, "the certificate expired"),
		"other instance":  fleet.Errorf(fleet.ErrExists, "another instance is connected"),
		"overload":        fleet.Errorf(fleet.ErrExhausted, "too many"),
		"newer session":   fleet.Errorf(fleet.ErrStale, "a newer session took over"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				h.refuse = err
				a := start(t, h, newState())
				defer a.stop()
				<-time.After(10 * time.Minute)
				expect(t, "worker", a.settle(), "set ")
				if len(h.dials) < 5 {
					t.Errorf("only %d tries", len(h.dials))
				}
			})
		})
	}
}

// A hub that takes nothing does not stop the agent from accepting, and gets only the newest status afterwards.
func TestSlowHub(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.status(time.Second)
		for i := range 1000 { // nothing is acknowledged
			st := ready(ref("web"), 5)
			st.Message = strings.Repeat("x", i%200)
			a.reports.Report(st)
			<-time.After(100 * time.Millisecond)
			if i%50 == 0 {
				s.beat()
			}
		}
		if n := len(s.frames); n > 80 {
			t.Errorf("%d frames were sent without an acknowledgement", n)
		}
		s.index(index(h.sync("web", 9, "b")))
		synctest.Wait()
		expect(t, "worker", a.worker.take(), "set ", "set web@5", "set web@9")
	})
}

func TestRenewedCertificateConnectsAnewAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.status(time.Second)
		at := time.Now()
		a.renewed <- struct{}{}
		s = h.next()
		if d := time.Since(at); d > 100*time.Millisecond {
			t.Errorf("connected anew after %s", d)
		}
		s.welcome(2, known)
		if frames, _ := s.status(time.Second); frames != 0 {
			t.Errorf("%d status frames", frames)
		}
	})
}

func TestStopSaysFarewell(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.status(time.Second)
		st := ready(ref("web"), 5)
		st.Ready, st.Phase = false, fleet.PhaseFailed
		a.reports.Report(st)
		at := time.Now()
		a.stop()
		if d := time.Since(at); d > 2*farewell {
			t.Errorf("stopping took %s", d)
		}
		synctest.Wait()
		var last *agentv1.Status
		for len(s.frames) > 0 {
			if x := (<-s.frames).GetStatus(); x != nil {
				last = x
			}
		}
		if last == nil || last.GetSyncs()[0].GetPhase() != "Failed" {
			t.Errorf("the last status did not arrive: %v", last)
		}
	})
}

func TestPrepareThatFailsDialsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState(), func(o *Options) {
			o.Prepare = func(context.Context) error { return fleet.Errorf(fleet.ErrPrecondition, "join token expired") }
		})
		defer a.stop()
		<-time.After(time.Hour)
		if len(h.dials) > 0 {
			t.Error("dialed without an identity")
		}
		expect(t, "worker", a.settle(), "set ")
	})
}

func TestRestartEndsTheLoop(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		l, err := New(Options{Hubs: []string{"hub:1"}, Dial: h.dial, Desired: openDesired(t, newState()), Reports: report.New(fleet.Digest{}),
			Worker: &recorder{}, ClusterUID: "uid-1", Prepare: func(context.Context) error { return fmt.Errorf("another hub: %w", ErrRestart) }})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Run(t.Context()); !errors.Is(err, ErrRestart) {
			t.Errorf("error %v", err)
		}
	})
}

func TestRefusedSeesThroughForgedAlerts(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"revoked":              {fleet.Errorf(fleet.ErrDenied, "the hub refuses this client certificate (error reading server preface: remote error: tls: bad certificate)"), true},
		"before the handshake": {fleet.Errorf(fleet.ErrDenied, "the hub refuses this client certificate (authentication handshake failed: remote error: tls: bad certificate)"), false},
		"unreachable":          {fleet.Errorf(fleet.ErrUnavailable, "hub unreachable"), false},
		"ended":                {nil, false},
		"odd":                  {errors.New("odd"), false},
	} {
		if got := refused(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
