package worker

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestObjectsOfAHubThatNeverSpoke: the agent is installed anew, with nothing of what it knew, for another hub. What the one before wrote
// is said, and stays; what somebody copied is nobody's.
func TestObjectsOfAHubThatNeverSpoke(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "copy", "namespace": r.ns,
		"labels":      map[string]any{fleet.HubLabel: r.hub},
		"annotations": map[string]any{fleet.OwnerAnnotation: fleet.OwnerMark(s.Module, "uid-1", r.configMapID("copy"))}}})
	before := r.hub
	said := make(chan []OtherHub, 100)
	r.stop()
	r.store, r.hub = newMemory(), r.hub+"-2"
	r.hubs, r.gen = []string{r.hub}, 0
	r.options = append(r.options, func(o *Options) { o.Others = func(_ context.Context, x []OtherHub, _ int) { said <- x } })
	r.start()
	find := func() (of OtherHub) {
		t.Helper()
		var list []OtherHub
		select {
		case list = <-said:
		case <-time.After(r.patience()):
			t.Fatal("nothing is said")
		}
		for _, x := range list { // of all tests that use the cluster
			if x.ID == r.hub {
				t.Error("the hub of the agent counts as another one")
			}
			if x.ID == before {
				of = x
			}
		}
		return of
	}
	if got, want := find(), (OtherHub{ID: before, Objects: 2, Such: r.configMapID("a"), Module: s.Module}); got != want {
		t.Errorf("said %+v, want %+v", got, want)
	}
	other := r.bundle("other", nil, configMap("c", "k: v"))
	r.set([]fleet.Sync{other})
	r.ready(other)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	for _, name := range []string{"a", "b", "c"} {
		if r.get("v1", "configmaps", name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	r.stop()
	said = make(chan []OtherHub, 100) // the one that is stopped may have said it again, as other tests come and go
	r.hubs = append([]string{before}, r.hubs...)
	r.store = newMemory()
	r.start()
	if got := find(); got.Objects != 0 {
		t.Errorf("a hub that the agent had counts as one that it never had: %+v", got)
	}
}

// TestObjectsOfAHubThatNeverSpokeBesideAKindThatIsForbidden: what can be seen of another hub is said at once, and how many kinds were not
// seen; when the right is given, it is said whole.
func TestObjectsOfAHubThatNeverSpokeBesideAKindThatIsForbidden(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), plainSecret("s"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	before := r.hub
	type word struct{ objects, unseen int }
	said := make(chan word, 100)
	r.stop()
	r.store, r.hub = newMemory(), r.hub+"-2"
	r.hubs, r.gen = []string{r.hub}, 0
	r.options = append(r.options, func(o *Options) {
		o.Others = func(_ context.Context, list []OtherHub, unseen int) {
			for _, x := range list { // of all tests that use the cluster
				if x.ID == before {
					said <- word{x.Objects, unseen}
				}
			}
		}
	})
	var forbidden atomic.Bool
	forbidden.Store(true)
	r.answers(func(q *http.Request) *http.Response {
		if !forbidden.Load() || q.URL.Path != "/api/v1/secrets" {
			return nil
		}
		return answer(q, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no list for you","reason":"Forbidden","code":403}`)
	})
	r.start()
	hear := func(want word) {
		t.Helper()
		for deadline := time.After(r.patience()); ; {
			select {
			case got := <-said:
				if got == want {
					return
				}
				t.Logf("said %+v", got)
			case <-deadline:
				t.Fatalf("%+v is not said", want)
			}
		}
	}
	hear(word{objects: 1, unseen: 1})
	forbidden.Store(false)
	r.m.finder.begin(t.Context(), "a test gives the right")
	hear(word{objects: 2})
}
