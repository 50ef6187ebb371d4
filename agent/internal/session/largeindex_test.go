package session

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestIndexOfManyValues: what a cluster is assigned comes in one index, which an agent without a state needs whole. Many modules with a large value each
// are more than a call may be otherwise.
func TestIndexOfManyValues(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		var syncs []fleet.Sync
		for n := range 100 {
			s := h.sync(fmt.Sprintf("m%03d", n), 5, "a")
			s.Values = map[string]string{"CA": strings.Repeat("x", 62<<10)}
			syncs = append(syncs, s)
		}
		s := h.next()
		s.welcome(1)
		s.index(index(syncs...))
		if ack := s.ack(); ack.GetCode() != "" || ack.GetGeneration() != 5 {
			t.Errorf("answer: %v", ack)
		}
	})
}
