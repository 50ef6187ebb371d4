package worker

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// beforeVersion has the API server answer each read of an object as one does that has the group and not this version of it, or not this kind: one of
// several whose upgrade is still to come. It reports whether any was.
func (r *rig) beforeVersion(object string) (stop func(), answered func() bool) {
	var on, seen atomic.Bool
	on.Store(true)
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/"+object) && on.Load() {
				seen.Store(true)
				q = q.Clone(q.Context())
				q.URL.Path = strings.Replace(q.URL.Path, "/v1/", "/v0/", 1)
			}
			return next.RoundTrip(q)
		})
	})
	return func() { on.Store(false) }, seen.Load
}

func budgetOf(name string) string {
	return "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {minAvailable: 1}\n"
}

// TestServerThatDoesNotHaveTheVersionYet: an API server that has the group of a kind and not its version says 404 in a Status of its own, as it does
// of an object that is not there. It says nothing of the object.
func TestServerThatDoesNotHaveTheVersionYet(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, budgetOf("a"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	stop, answered := r.beforeVersion("poddisruptionbudgets/a")
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("it was answered so", answered)
	x := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 })
	if x.Phase == fleet.PhaseRemoved && r.get("policy/v1", "poddisruptionbudgets", "a") != nil {
		t.Fatal("the module is called removed, and its object is there")
	}
	stop()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("policy/v1", "poddisruptionbudgets", "a") != nil {
		t.Error("the module is called removed, and its object is there")
	}
}

// TestWriteThatIsSentElsewhere: what stands before the API server answers a write with another address to go to. Whoever goes there asks for the
// object, and does not write it.
func TestWriteThatIsSentElsewhere(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v1"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	var sent atomic.Bool
	r.answers(func(q *http.Request) *http.Response {
		if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/a") || sent.Swap(true) {
			return nil
		}
		a := answer(q, http.StatusFound, "")
		a.Header.Set("Location", q.URL.String())
		return a
	})
	r.start()
	next := r.bundle("shop", nil, configMap("a", "k: v2"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if !sent.Load() {
		t.Fatal("no write was sent elsewhere")
	}
	if got := r.data("a", "k"); got != "v2" {
		t.Errorf("ready, and it is %q", got)
	}
}

// TestSearchOfAServerThatIsNotReady: what an API server of its own does not answer for may never come back, and nobody waits for that. What the
// cluster's own API server has is another thing: it says the same while it starts, and so does what stands before it.
func TestSearchOfAServerThatIsNotReady(t *testing.T) {
	const starts = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the request has been made before all known HTTP paths have been installed, please try again",
		"reason":"ServiceUnavailable","details":{"retryAfterSeconds":5},"code":503}`
	for name, path := range map[string]string{"a list": "/api/v1/configmaps", "its kinds": "/api/v1"} {
		for by, body := range map[string]string{"it starts": starts, "a page": "<html>503</html>"} {
			t.Run(name+", "+by, func(t *testing.T) {
				r := newRig(t)
				s := r.bundle("shop", nil, configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.lose()
				var answered atomic.Bool
				r.answers(func(q *http.Request) *http.Response {
					if q.URL.Path != path || answered.Swap(true) {
						return nil
					}
					return answer(q, http.StatusServiceUnavailable, body)
				})
				r.start()
				r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
				if !answered.Load() {
					t.Fatal("nothing was answered so")
				}
				if r.get("v1", "configmaps", "a") != nil {
					t.Error("the module is called removed, and its object is there")
				}
			})
		}
	}
}

// TestWatchedKindBehindAPage: a page that says 404 in place of the list of what a module only watches says nothing of the kind. That it has gone is
// said when the cluster does not have it.
func TestWatchedKindBehindAPage(t *testing.T) {
	r := newRig(t)
	r.define("databases", "Database", "v1")
	r.create(r.group()+"/v1", "databases", r.ns, r.custom("v1", "Database", r.ns, "db"))
	r.restart(func(o *Options) { o.blindAfter = 100 * time.Millisecond })
	s := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), nil, r.database())
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("it is watched", func() bool { return !r.m.Behind() })
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/databases") {
			return inPlace{http.StatusNotFound, "404 page not found\n"}
		}
		return nil
	})
	r.conns.cut()
	x := r.wait("shop", "unsure", func(x fleet.SyncStatus) bool {
		return !x.Ready && len(x.Exceptions) == 1 && x.Watched[0].Health != fleet.HealthHealthy
	})
	if x.Watched[0].Health != fleet.HealthUnknown || x.Exceptions[0].Reason != "NotWatched" {
		t.Errorf("behind a page: %+v, %+v", x.Watched, x.Exceptions)
	}
	r.count.upset(nil)
	r.ready(s)
	r.undefine("databases")
	x = r.wait("shop", "told that the kind has gone", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == apply.ReasonNoKind
	})
	if x.Watched[0].Health != fleet.HealthMissing {
		t.Errorf("of a kind that has gone: %+v, %+v", x.Watched, x.Exceptions)
	}
}

// TestServerWithoutWordsForWhatIsGone: an API server of its own says 404 with no Status of what it does not have. What was deleted is gone all the
// same, as a list of it tells.
func TestServerWithoutWordsForWhatIsGone(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Widget")
	s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"), a.manifest("Widget", "b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	a.with(func(a *aggregate) {
		a.instead = func(w http.ResponseWriter, q *http.Request) bool {
			_, name, of := strings.Cut(q.URL.Path, "/widgets/")
			a.mu.Lock()
			defer a.mu.Unlock()
			if !of || q.Method != http.MethodGet || a.objects["widgets/"+r.ns+"/"+name] != nil {
				return false
			}
			http.NotFound(w, q)
			return true
		}
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if left := a.names(); len(left) > 0 {
		t.Errorf("the module is called removed, and there is %v", left)
	}
}
