package session

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// A hub that starts anew every few seconds has its agents back within two seconds, each time.
func TestAgentComesBackSoonEachTime(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState(), func(o *Options) { o.Random = func() float64 { return 0 } }) // the longest waits
		defer a.stop()
		for epoch := uint64(1); epoch < 30; epoch++ {
			up := time.Now()
			s := h.next()
			if took := time.Since(up); took > 2*time.Second {
				t.Errorf("back after %s, at the hub's start number %d", took, epoch)
			}
			s.welcome(epoch)
			<-time.After(3 * time.Second)
			h.set(func() { h.down = true })
			s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
			<-time.After(time.Second)
			h.set(func() { h.down = false })
		}
	})
}

// A hub that welcomes its agents and drops them at once is not dialed without end.
func TestHubThatDropsItsAgentsIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		began, sessions := time.Now(), 0
		for ; time.Since(began) < 10*time.Minute; sessions++ {
			s := h.next()
			s.welcome(uint64(sessions + 1))
			<-time.After(500 * time.Millisecond)
			s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
		}
		if sessions > 40 {
			t.Errorf("%d sessions in ten minutes", sessions)
		}
	})
}
