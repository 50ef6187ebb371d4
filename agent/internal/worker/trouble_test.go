package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// An agent that starts while the API server has a bad moment must not stay blind for a kind.
func TestFailedDiscoveryAtTheStartIsTriedAgain(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.count.upset(func(q *http.Request) error {
		if q.URL.Path == "/api/v1" || q.URL.Path == "/apis/apps/v1" {
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
	r.count.upset(nil)
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

// What is gone is said to be gone, also while a request for another object of the module hangs.
func TestRemovalThatHangsHoldsBackNoReport(t *testing.T) {
	for _, policy := range []string{fleet.DeleteDelete, fleet.DeleteOrphan} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), configMap("c", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			hang := make(chan struct{})
			goOn := sync.OnceFunc(func() { close(hang) })
			t.Cleanup(goOn)
			r.count.upset(func(q *http.Request) error {
				if (q.Method == http.MethodDelete || q.Method == http.MethodPatch) && strings.HasSuffix(q.URL.Path, "/configmaps/b") {
					<-hang
				}
				return nil
			})
			r.set(nil, r.tombstone("shop", policy))
			r.wait("shop", "two of three are gone", func(x fleet.SyncStatus) bool {
				return len(x.Extras) == 1 && x.Extras[0].ID.Name == "b"
			})
			goOn()
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		})
	}
}

// restart has the manager run with other options.
func (r *rig) restart(options ...func(*Options)) {
	r.t.Helper()
	r.stop()
	r.options = options
	r.start()
}

// watched reports that a namespaced kind is known in full.
func (r *rig) watched(apiVersion, resource string) bool {
	kind := map[string]string{"configmaps": "ConfigMap", "secrets": "Secret", "jobs": "Job"}[resource]
	r.m.mu.Lock()
	w := r.m.watcher
	r.m.mu.Unlock()
	return w != nil && w.Synced(apply.Resource{GroupVersionResource: gvr(apiVersion, resource), Kind: kind, Namespaced: true})
}

// A kind that cannot be watched any more is unknown, with the reason; what is known of other kinds stays.
func TestKindThatCannotBeWatchedAnyMoreIsUnknown(t *testing.T) {
	r := newRig(t)
	r.restart(func(o *Options) { o.blindAfter = 100 * time.Millisecond })
	s := r.bundle("shop", nil, configMap("a", "k: v"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	// The answers to the writes say that both are fine. A watch that is opened only now would not be cut.
	r.eventually("both kinds are watched", func() bool { return !r.m.Behind() && r.watched("v1", "configmaps") && r.watched("v1", "secrets") })
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && q.URL.Path == "/api/v1/configmaps" {
			return fmt.Errorf("forbidden by a test")
		}
		return nil
	})
	r.conns.cut()
	r.wait("shop", "unknown and why", func(x fleet.SyncStatus) bool {
		return !x.Ready && x.States[0] == fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync} &&
			x.States[1].Fine() && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "NotWatched" && strings.Contains(x.Exceptions[0].Message, "forbidden by a test")
	})
	r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"edited"}}`)
	r.count.upset(nil)
	r.eventually("the edit is corrected", func() bool {
		data, _ := r.get("v1", "configmaps", "a").Object["data"].(map[string]any)
		return data["k"] == "v"
	})
	r.ready(s)
}

// A server that cannot do its work for a while fails no module, and what it could not do is done at once when it can.
func TestTroubleOfTheServerFailsNoModule(t *testing.T) {
	r := newRig(t)
	var reachable atomic.Bool
	reachable.Store(true)
	r.restart(func(o *Options) { o.Reachable = reachable.Load })
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	var refused atomic.Int64
	r.count.upset(func(q *http.Request) error {
		if q.Method != http.MethodPatch {
			return nil
		}
		refused.Add(1)
		return fmt.Errorf("etcdserver: leader changed")
	})
	next := r.bundle("shop", nil, configMap("a", "k: w"))
	r.set([]fleet.Sync{next})
	r.eventually("several tries", func() bool { return refused.Load() > failedTries+1 })
	r.mu.Lock()
	status := r.statuses[s.Module]
	r.mu.Unlock()
	if status.Phase == fleet.PhaseFailed || status.Ready && status.Generation == next.Generation {
		t.Errorf("status %+v", status)
	}
	reachable.Store(false)
	r.count.upset(nil)
	r.m.Reached()
	r.ready(next)
}
