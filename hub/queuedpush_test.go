package hub_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestQueuedPushThatIsFollowedByAnotherIsHeir: a push is queued behind the rollout that runs; the next push lists an object
// that another module lets go after that. The queued rollout takes what is there when its turn comes (docs/sources.md), so that it is
// to have the object.
func TestQueuedPushThatIsFollowedByAnotherIsHeir(t *testing.T) {
	for name, known := range map[string]bool{"what the first lists is known": true, "not yet": false} {
		t.Run(name, func(t *testing.T) {
			w := newHeirsOf(t, listing("one", "a", "m", "x"))
			push := func(repo *sourcetest.Repo, files ...string) {
				repo.Branch("main", deployed(listing("two", files...).GetSpec().GetSource().GetInline().GetFiles()))
			}
			repo := sourcetest.NewRepo(t)
			push(repo, "b")
			var asked atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				repo.Handler().ServeHTTP(rw, r)
				asked.Add(1)
			}))
			t.Cleanup(srv.Close)
			w.put(queueing(following("two", srv.URL)))
			w.awaitTracker("two", "c", "ready", ready)
			w.until("two", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
			push(repo, "b", "b2")
			before := asked.Load()
			came, err := w.resync("two")
			must(t, err)
			if known {
				w.put(listing("one", "a", "m"))
			} else {
				w.put(listing("one", "a", "m", "x", "y"))
			}
			w.awaitTracker("one", "c", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 })
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for deadline := time.Now().Add(30 * time.Second); asked.Load() == before; <-tick.C { // what is queued is fetched
				if time.Now().After(deadline) {
					t.Fatal("nobody has looked at what was pushed")
				}
			}
			push(repo, "b", "m")
			again, err := w.resync("two")
			must(t, err)
			if came.GetRollout() != "two/2" || again.GetRollout() != "two/2" {
				t.Fatalf("pushed: %v, then %v", came, again)
			}
			w.put(listing("one", "a"))
			w.awaitHeir("c", "one", "m", "two")
		})
	}
}
