package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// An agent that starts while the API server has a bad moment must not stay blind for a kind.
func TestFailedDiscoveryAtTheStartIsTriedAgain(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	var failed atomic.Int64
	r.count.upset(func(q *http.Request) error {
		if (q.URL.Path == "/api/v1" || q.URL.Path == "/apis/apps/v1") && failed.Add(1) <= 4 {
			return fmt.Errorf("connection refused")
		}
		return nil
	})
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "unknown and why", func(x fleet.SyncStatus) bool {
		return !x.Ready && len(x.States) == 2 && x.States[0].Health == fleet.HealthUnknown && len(x.Exceptions) > 0 &&
			strings.Contains(x.Exceptions[0].Message, "connection refused")
	})
	r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"edited"}}`)
	r.eventually("the edit is corrected", func() bool {
		u := r.get("v1", "configmaps", "a")
		data, _ := u.Object["data"].(map[string]any)
		return data["k"] == "v"
	})
	r.ready(s)
}

// People's questions must not hold up the module: a server that hangs on them is left.
func TestServerThatHangsOnADiagnosisHoldsUpNothing(t *testing.T) {
	r := newRig(t)
	asked := make(chan struct{}, 100)
	r.count.upset(func(q *http.Request) error {
		if !strings.HasSuffix(q.URL.Path, "/pods") {
			return nil
		}
		asked <- struct{}{}
		<-q.Context().Done()
		return q.Context().Err()
	})
	stuck := deployment("stuck", 1)
	stuck = strings.ReplaceAll(stuck, "containers: [", "nodeSelector: {no: where}, containers: [")
	s := r.bundle("shop", nil, configMap("a", "k: v"), stuck)
	r.set([]fleet.Sync{s})
	<-asked
	r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"edited"}}`)
	r.eventually("the edit is corrected", func() bool {
		u := r.get("v1", "configmaps", "a")
		data, _ := u.Object["data"].(map[string]any)
		return data["k"] == "v"
	})
}
