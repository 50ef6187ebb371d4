package worker

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestHoldAfterTheAPIServerWasAway: a revision comes while the API server does not answer, and is held before it does. What is held says how it
// is: not that the API server is away, which is over, nor that a Namespace which all can see is missing.
func TestHoldAfterTheAPIServerWasAway(t *testing.T) {
	r := newRig(t)
	objects := func(v string) []string {
		return []string{"apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS}\n", configMap("a", "k: "+v)}
	}
	s := r.bundle("shop", nil, objects("v")...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.count.upset(func(q *http.Request) error {
		if q.URL.Query().Get("watch") != "" {
			return nil
		}
		return errors.New("connect: connection refused")
	})
	away := func(x fleet.SyncStatus) bool {
		for _, e := range x.Exceptions {
			if strings.Contains(e.Message, "connection refused") {
				return true
			}
		}
		return false
	}
	next := r.bundle("shop", nil, objects("w")...)
	r.set([]fleet.Sync{next})
	r.wait("shop", "not reached", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && away(x) })
	r.holdCluster(true)
	r.count.upset(nil)
	r.wait("shop", "held, nothing of the API server, and the Namespace there", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseHeld && !away(x) && x.States[1].Health == fleet.HealthHealthy
	})
	r.holdCluster(false)
	r.ready(next)
}
