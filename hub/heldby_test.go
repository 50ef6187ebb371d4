package hub

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
)

// Of a hold whose record cannot be read nothing is known but its id: that it ended is no word about a cluster.
func TestHoldThatCannotBeReadIsOfNoCluster(t *testing.T) {
	standIn, _ := record.StandIn(store.HoldPrefix+"freeze-1", errors.New("a bit is flipped"))
	hold, ok := standIn.(*storev1.HoldRecord)
	if !ok {
		t.Fatalf("%T stands for it", standIn)
	}
	if kind, name := heldBy(hold.GetHold()); kind != "hold" || name != "freeze-1" {
		t.Errorf("it is of %s %q", kind, name)
	}
}
