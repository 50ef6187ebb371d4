package cli

import (
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestRemovalFromAClusterThatIsNotSeen: a removal that waits for an API server is told in a sentence, with the cause, also where the hub says none.
func TestRemovalFromAClusterThatIsNotSeen(t *testing.T) {
	a := &app{}
	for why, want := range map[string]string{
		"the API server is not reached": "removed when its agent sees the cluster again: the API server is not reached",
		"":                              "removed when its agent sees the cluster again",
	} {
		if got := a.trackerSays(&v1.Tracker{Reason: fleet.TrackerNotSeen, Removing: true, Message: why}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
