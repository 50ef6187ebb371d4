package worker

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// pageFor has one read of ConfigMap a, as soon as it is set off, answered with a page that says 404: of a proxy, or of one of several API servers that
// does not serve the version yet. Until then the kind cannot be listed, as where the watch has only just begun.
func (r *rig) pageFor() (setOff func(), answered func() bool) {
	var left atomic.Int64
	r.count.upset(func(q *http.Request) error {
		switch {
		case q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps/a") && left.CompareAndSwap(1, 2):
			return inPlace{http.StatusNotFound, "404 page not found\n"}
		case left.Load() > 0 && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps"):
			return errors.New("connection reset by a test")
		}
		return nil
	})
	return func() { left.Store(1) }, func() bool { return left.Load() == 2 }
}

// TestPageIsNoObjectThatIsGone: a page that says 404 in place of the object says nothing of it: what others have of it by a policy stays theirs, as does
// what they changed where the policy leaves that, also as it goes to another module; and what its annotation holds is not written.
func TestPageIsNoObjectThatIsGone(t *testing.T) {
	reports := []fleet.Policy{{Drift: fleet.DriftReport}}
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		own      string
		next     func(r *rig) []fleet.Sync
		after    string
	}{
		"ignored fields": {ignoring("/data/own"), "made", func(r *rig) []fleet.Sync {
			return []fleet.Sync{r.bundle("shop", ignoring("/data/own"), configMap("a", "k: v2, own: other"))}
		}, "v2 theirs"},
		"drift that is left, in other hands": {reports, "made", func(r *rig) []fleet.Sync {
			return []fleet.Sync{r.bundle("shop", reports, configMap("b", "k: v")), r.bundle("other", reports, configMap("a", "k: v1, own: made"))}
		}, "v1 theirs"},
		"a hold": {nil, "theirs", func(r *rig) []fleet.Sync {
			r.stop()
			r.notes("a", fleet.HoldAnnotation, "mine")
			r.start()
			return []fleet.Sync{r.bundle("shop", nil, configMap("a", "k: v2, own: other"))}
		}, "v1 theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first := r.bundle("shop", tc.policies, configMap("a", "k: v1, own: "+tc.own))
			r.set([]fleet.Sync{first})
			r.ready(first)
			r.patch("v1", "configmaps", "a", "somebody", `{"data":{"own":"theirs"}}`)
			setOff, answered := r.pageFor()
			setOff()
			r.set(tc.next(r))
			r.eventually("the page was seen", answered)
			r.count.upset(nil)
			for _, s := range r.current.Syncs {
				r.wait(s.Module.Name, "through", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && (x.Phase == fleet.PhaseApplied || len(x.Exceptions) == 1 && x.Exceptions[0].Reason == plan.ReasonHeld)
				})
			}
			if got := r.data("a", "k") + " " + r.data("a", "own"); got != tc.after {
				t.Errorf("it is %s, and not %s", got, tc.after)
			}
		})
	}
}

// TestHeldAfterAPageSaysSo: an object of which a page was read, and of which the watch then tells that it is held, is said to be held: nothing is tried
// any more that could end what the page had said.
func TestHeldAfterAPageSaysSo(t *testing.T) {
	r := newRig(t)
	first := r.bundle("shop", nil, configMap("a", "k: v1"))
	r.set([]fleet.Sync{first})
	r.ready(first)
	r.stop()
	r.notes("a", fleet.HoldAnnotation, "mine")
	var lists atomic.Bool
	r.count.upset(func(q *http.Request) error {
		switch {
		case q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps/a"):
			return inPlace{http.StatusNotFound, "404 page not found\n"}
		case !lists.Load() && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/configmaps"):
			return errors.New("connection reset by a test")
		}
		return nil
	})
	r.start()
	next := r.bundle("shop", nil, configMap("a", "k: v2"))
	r.set([]fleet.Sync{next})
	says := func(reason string) func(fleet.SyncStatus) bool {
		return func(x fleet.SyncStatus) bool {
			return x.Generation == next.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == reason
		}
	}
	r.wait("shop", "by the page", says(apply.ReasonNoKind))
	lists.Store(true)
	r.wait("shop", "held", says(plan.ReasonHeld))
}
