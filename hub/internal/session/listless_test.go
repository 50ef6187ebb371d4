package session

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestAgentThatKnowsNoListIsSentNone: what is sent to an agent of before has the digest that it counts itself. It takes a confirm as it did.
func TestAgentThatKnowsNoListIsSentNone(t *testing.T) {
	for _, listless := range []bool{false, true} {
		s := fleet.Sync{PruneConfirmed: true, PruneShown: []uint64{7}}
		x := desired{listless: listless}
		if changed := x.coarsen(&s); changed != listless || (len(s.PruneShown) == 0) != listless || !s.PruneConfirmed {
			t.Errorf("listless %t: changed %t to %+v", listless, changed, s)
		}
	}
}
