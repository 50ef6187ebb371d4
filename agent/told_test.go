package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// What is told for a while is told from when it was seen last, not first.
func TestToldSinceItWasSeenLast(t *testing.T) {
	for name, tc := range map[string]struct {
		of   fleet.ConditionType
		time time.Duration
		see  func(*Agent)
	}{
		"two agents":       {fleet.ConditionTwoAgents, twinMemory, (*Agent).twin},
		"cluster restored": {fleet.ConditionClusterRestored, restoredFor, (*Agent).tellRestored},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := New(Options{Hubs: []string{"hub.example.com:7443"}, Config: &rest.Config{}})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // and once more after it was over
					for range 4 {
						tc.see(a)
						<-time.After(tc.time - time.Second)
						if !a.conditions.Holds(tc.of) {
							t.Error("it is not told any more, a moment after it was seen")
						}
					}
					<-time.After(2 * time.Second)
					if a.conditions.Holds(tc.of) {
						t.Error("it is told for good")
					}
				}
			})
		})
	}
}
