package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// TestConfirmOfTheShorterList: what the agent waits with grows while a person answers what he was shown. What came to the list is in no answer to
// the shorter one, and is asked for anew, also by an agent that starts meanwhile.
func TestConfirmOfTheShorterList(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			d := newDropping(t)
			d.tell(func(s *fleet.Sync) { s.Held = nil }) // the list grows
			d.waits(30, 30)
			if restart {
				d.stop()
				d.start()
			}
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed, s.PruneShown = true, assemble.HeldKeys(d.ids[15:30]) }) // which answers the list of before
			d.waits(15, 15)
			if restart {
				d.stop()
				d.start()
				d.set(d.current.Syncs)
				d.waits(15, 15)
			}
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed, s.PruneShown = false, nil }) // the hub asks for the rest
			d.waits(15, 15)
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed, s.PruneShown = true, assemble.HeldKeys(d.ids[:15]) })
			d.eventually("what was confirmed then is gone", func() bool { return d.configMaps() == 10 })
		})
	}
}
