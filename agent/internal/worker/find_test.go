package worker

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/render"
)

// lose takes the whole state of the manager away, and the Lease with it.
func (r *rig) lose() {
	r.t.Helper()
	r.stop()
	r.store.mu.Lock()
	clear(r.store.files)
	r.store.mu.Unlock()
	r.starts = 0
}

// blind has the search for objects of a resource fail.
func (r *rig) blind(resource string) {
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/"+resource) && strings.Contains(q.Header.Get("Accept"), "PartialObjectMetadataList") {
			return errors.New("connection reset by a test")
		}
		return nil
	})
}

func names(extras []fleet.ExtraObject, reason string) (out []string) {
	for _, x := range extras {
		if x.Reason == reason {
			out = append(out, x.ID.Name)
		}
	}
	return out
}

// An agent without a Lease and without a state of before finds what it wrote once: nothing of it is forgotten, and nothing
// is deleted without a person.
func TestLeaseAndStateLost(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "k: v"), configMap("b", "k: v"), configMap("moved", "k: v"))
	left := r.bundle("left", nil, configMap("c", "k: v"))
	gone := r.bundle("gone", nil, configMap("d", "k: v"))
	r.set([]fleet.Sync{one, left, gone})
	r.ready(one)
	r.ready(left)
	r.ready(gone)
	uid := r.get("v1", "configmaps", "moved").GetUID()

	r.lose()
	r.start()
	one = r.bundle("one", nil, configMap("a", "k: v"))
	two := r.bundle("two", nil, configMap("moved", "k: v"), configMap("e", "k: v"))
	dead := r.tombstone("gone", fleet.DeleteDelete)
	r.set([]fleet.Sync{one, two}, dead)
	s := r.wait("one", "ready, with what it omits", func(s fleet.SyncStatus) bool { return s.Ready && s.Waiting() == 1 })
	if got := names(s.Extras, plan.ReasonAwaitingConfirm); !slices.Equal(got, []string{"b"}) {
		t.Errorf("extras %+v", s.Extras)
	}
	s = r.wait("left", "found", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseStray && len(s.Extras) == 1 })
	if s.Extras[0].ID.Name != "c" || r.get("v1", "configmaps", "c") == nil {
		t.Errorf("a module that nobody lists: %+v", s)
	}
	r.wait("gone", "removed", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "d") != nil {
		t.Error("a module counts as removed while its object is there")
	}
	r.ready(two)
	if u := r.get("v1", "configmaps", "moved"); u == nil || u.GetUID() != uid || !strings.Contains(u.GetAnnotations()[fleet.OwnerAnnotation], "two") {
		t.Errorf("what moved meanwhile: %v", u)
	}
	if r.get("v1", "configmaps", "b") == nil {
		t.Fatal("b was deleted without a confirm")
	}
	one.PruneConfirmed = true
	r.set([]fleet.Sync{one, two}, dead)
	r.eventually("b goes once that is confirmed", func() bool { return r.get("v1", "configmaps", "b") == nil })
}

// TestWhatAChartKeepsIsKeptWithoutAState: an object of a kind without namespaces, of which the hub cannot know that, is kept by its chart
// (helm.sh/resource-policy). So it is when its module goes in a cluster whose agent has lost its state.
func TestWhatAChartKeepsIsKeptWithoutAState(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { r.undefine("gadgets") })
	r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", r.object(scopeCluster()))
	text := strings.ReplaceAll(strings.Replace(zone, ", namespace: $NS", "", 1), "$NS", r.ns)
	objects, err := manifest.ParseSet(map[string][]byte{"a.yaml": []byte(text)}, manifest.Options{Namespace: r.ns})
	if err != nil {
		t.Fatal(err)
	}
	objects[0].Keep = true
	policies, err := render.ChartPolicies(nil, objects)
	if err != nil {
		t.Fatal(err)
	}
	s := r.bundle("shop", policies, zone, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	_, uid := r.zone()
	r.lose()
	r.start()
	r.set(nil, r.tombstoneOf(policies))
	r.wait("shop", "removed", isRemoved)
	if _, now := r.zone(); now != uid {
		t.Error("it was deleted, though its chart keeps it")
	}
}

// While the search fails, objects are applied, and nothing is said to be gone. It is repeated until it succeeds, after a
// restart as well.
func TestSearchIsRepeated(t *testing.T) {
	r := aloneRig(t)
	one := r.bundle("one", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	gone := r.bundle("gone", nil, configMap("d", "k: v"))
	r.set([]fleet.Sync{one, gone})
	r.ready(one)
	r.ready(gone)

	r.lose()
	r.blind("configmaps")
	r.start()
	one = r.bundle("one", nil, configMap("a", "k: w"))
	dead := r.tombstone("gone", fleet.DeleteDelete)
	for restart := range 2 {
		r.set([]fleet.Sync{one}, dead)
		r.ready(one)
		s := r.wait("gone", "waiting for the search", func(s fleet.SyncStatus) bool {
			return s.Phase == fleet.PhaseRemoving && s.Reason == plan.ReasonAwaitingSearch && strings.Contains(s.Message, "configmaps") && s.MoreExtras
		})
		if strings.Contains(s.Message, "secrets") {
			t.Errorf("it waits for more: %s", s.Message)
		}
		if restart == 0 {
			r.stop()
			r.forget()
			r.start()
		}
	}
	if r.get("v1", "configmaps", "d") == nil || r.get("v1", "configmaps", "b") == nil {
		t.Error("something was deleted before all was found")
	}
	r.count.upset(nil)
	r.wait("gone", "removed", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseRemoved })
	s := r.wait("one", "said to wait for a confirm", func(s fleet.SyncStatus) bool { return s.Waiting() == 1 && !s.MoreExtras })
	if got := names(s.Extras, plan.ReasonAwaitingConfirm); !slices.Equal(got, []string{"b"}) || r.get("v1", "configmaps", "d") != nil {
		t.Errorf("extras %+v", s.Extras)
	}
	r.eventually("the search is over", func() bool {
		_, err := r.store.Read(t.Context(), findName)
		return errors.Is(err, fleet.ErrNotFound)
	})
}

// forget drops what was reported.
func (r *rig) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.statuses)
}

// The first start in a cluster, and every one without anything to own, costs one look and nothing else.
func TestSearchOfANewCluster(t *testing.T) {
	r := aloneRig(t)
	r.lose()
	r.start()
	r.eventually("the search is over", func() bool { return r.m.searching() == "" })
	counts, paths := r.count.take()
	for verb := range counts {
		if verb != http.MethodGet && verb != "WATCH" && verb != http.MethodPost {
			t.Errorf("%s: %q", verb, paths)
		}
	}
	seen := map[string]int{}
	for _, p := range paths {
		if seen[p]++; seen[p] > 2 {
			t.Errorf("%d × %s", seen[p], p)
		}
	}
	one := r.bundle("one", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	r.stop()
	r.count.take()
	r.start()
	r.set([]fleet.Sync{one})
	r.ready(one)
	if counts, paths := r.count.take(); counts[http.MethodGet] > 5 {
		t.Errorf("a restart with an inventory searches: %q", paths)
	}
}

// An API whose server is gone may never come back: the search names it and goes on trying, and nobody waits for that.
func TestSearchBesideABrokenAPI(t *testing.T) {
	r := aloneRig(t)
	one := r.bundle("one", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	r.register()
	r.lose()
	r.start()
	dead := r.tombstone("one", fleet.DeleteDelete)
	r.set(nil, dead)
	r.wait("one", "removed", func(s fleet.SyncStatus) bool { return s.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "b") != nil {
		t.Error("something stays")
	}
	r.eventually("it says what it does not see", func() bool { return strings.Contains(r.heard.String(), "broken-"+r.group()) })
	if _, err := r.store.Read(t.Context(), findName); err != nil {
		t.Errorf("the search counts as done: %v", err)
	}
}

// A right to list a kind that is missing while lost objects are searched for may be given later: what is found then is not
// forgotten.
func TestSearchWithoutTheRightToList(t *testing.T) {
	r := newRig(t)
	allow := r.limited()
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.lose()
	allow(`["get"]`)
	var denied, listed atomic.Bool
	r.count.upset(func(q *http.Request) error {
		if q.URL.Path == "/api/v1/configmaps" && !listed.Load() {
			denied.Store(true)
		}
		if strings.Contains(q.URL.Path, "/configmaps") {
			q.Header.Set("Impersonate-User", agentFor+r.ns)
		}
		if q.URL.Path == "/api/v1/secrets" && !listed.Load() { // verdicts wait for this one
			return errors.New("connection reset by a test")
		}
		return nil
	})
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("the list was denied", denied.Load)
	r.wait("shop", "searched for", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "configmaps") })
	allow(mayAll)
	listed.Store(true)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("the module is called removed, and its object is there")
	}
}

// Nothing waits for a kind that the agent may not list. That objects of it may be left is said.
func TestRemovalWithoutTheRightToSearch(t *testing.T) {
	r := newRig(t)
	allow := r.limited()
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.lose()
	allow(`["get"]`)
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !strings.Contains(x.Message, "could not search") || !strings.Contains(x.Message, "configmaps") {
		t.Errorf("message %q", x.Message)
	}
}

// TestSearchOfAServerThatHasJustStarted: until an API server has read who may do what it refuses everything. A module whose object it did not
// list then is not called removed.
func TestSearchOfAServerThatHasJustStarted(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.lose()
	var refused atomic.Bool
	r.answers(func(q *http.Request) *http.Response {
		if q.URL.Path != "/api/v1/configmaps" || refused.Swap(true) {
			return nil
		}
		return answer(q, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"roles are not read yet","reason":"Forbidden","code":403}`)
	})
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !refused.Load() {
		t.Fatal("nothing was refused")
	}
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("the module is called removed, and its object is there")
	}
}

func TestHowSoonTheSearchGoesOn(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no"))
	page := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "get", schema.GroupResource{}, "", "a page", 0, true)
	}
	unknown := page(http.StatusNotFound)
	now := time.Now()
	for _, tc := range []struct {
		refused time.Duration // for how long; 0: it was not before
		unknown bool          // by an API server that did not know its path
		errs    []error
		own     bool // of the API server itself
		wait    bool
		pause   time.Duration
	}{
		{0, false, []error{forbidden}, false, true, time.Second},
		{apply.RefusedFor - 1, false, []error{forbidden}, false, true, 1},
		{apply.RefusedFor, false, []error{forbidden}, true, false, findDenied},
		{apply.RefusedFor, false, []error{forbidden, errors.New("reset")}, false, true, time.Second},
		{apply.RefusedFor, false, []error{forbidden, apierrors.NewServiceUnavailable("down")}, false, false, time.Second},
		{apply.RefusedFor, false, []error{forbidden, apierrors.NewServiceUnavailable("starts")}, true, true, time.Second},
		{apply.RefusedFor, false, []error{page(http.StatusForbidden)}, false, true, time.Second},
		{apply.RefusedFor, true, []error{page(http.StatusForbidden)}, false, true, time.Second},
		{0, false, []error{unknown}, false, true, time.Second},
		{unknownFor - 1, true, []error{unknown}, false, true, 1},
		{unknownFor, true, []error{unknown}, true, false, findDenied}, // of an API that lists what it does not serve
		{unknownFor, false, []error{unknown}, false, true, time.Second},
		{unknownFor, true, []error{forbidden}, false, true, time.Second},
	} {
		var u unseen
		before := refusals{}
		if tc.refused > 0 {
			before[apply.CRDs.GroupResource()] = refusal{now.Add(-tc.refused), tc.unknown}
		}
		for _, err := range tc.errs {
			u.take(apply.CRDs.GroupResource(), err, !tc.own, before, now)
		}
		if u.wait != tc.wait || u.pause(time.Second) != tc.pause || len(u.missed) != len(tc.errs) {
			t.Errorf("%v, refused for %s: %+v, again after %s", tc.errs, tc.refused, u, u.pause(time.Second))
		}
	}
}

// Whether refusals are for good is known as soon as it can be, however long the search has tried before: a removal waits for that.
func TestRefusedKindsAreAskedForInTime(t *testing.T) {
	forbidden, now := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no")), time.Now()
	refused := refusals{apply.CRDs.GroupResource(): {since: now.Add(-apply.RefusedFor + 3*time.Second)}}
	var u unseen
	u.take(apply.CRDs.GroupResource(), forbidden, false, refused, now)
	if first := u.pause(time.Minute); first != 3*time.Second {
		t.Errorf("one kind: again after %s", first)
	}
	u.take(schema.GroupResource{Resource: "secrets"}, forbidden, false, refused, now)
	if both := u.pause(time.Minute); both != apply.RefusedFor {
		t.Errorf("and one that was not refused before: again after %s", both)
	}
	if soon := u.pause(time.Second); soon != time.Second {
		t.Errorf("while the search is young: again after %s", soon)
	}
}

// An API server that starts again and again is none that refuses for good: what else fails in between begins the row of refusals anew.
func TestRefusalsWithOtherErrorsBetween(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no"))
	for _, between := range []error{errors.New("connection refused"), apierrors.NewServiceUnavailable("starts")} {
		refused, begin := refusals{}, time.Now()
		for i, err := range []error{forbidden, between, forbidden} {
			var u unseen
			if u.take(apply.CRDs.GroupResource(), err, true, refused, begin.Add(time.Duration(i)*apply.RefusedFor)); u.denied > 0 {
				t.Errorf("%v between: refusal %d counts as the want of a right", between, i)
			}
		}
	}
}

// TestFoundObjectThatSomebodyChanged: an agent has lost its records, what was found of one module is changed by somebody, and another
// module, or its own again, comes to list it. No record says which fields are whose: what may have been the module's is.
func TestFoundObjectThatSomebodyChanged(t *testing.T) {
	for _, taker := range []string{"one", "two"} {
		t.Run(taker, func(t *testing.T) {
			r := newRig(t)
			one := r.bundle("one", nil, configMap("a", "k: v"), configMap("b", "k: v"))
			r.set([]fleet.Sync{one})
			r.ready(one)
			r.stop()
			r.store.mu.Lock()
			r.store.files = map[string][]byte{}
			r.store.mu.Unlock()
			r.forget()
			r.start()
			one = r.bundle("one", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{one})
			r.wait("one", "asking", func(x fleet.SyncStatus) bool {
				return x.Ready && slices.Equal(names(x.Extras, plan.ReasonAwaitingConfirm), []string{"b"})
			})
			r.patch("v1", "configmaps", "b", "ana", `{"data":{"k":"hers"}}`)
			next := r.bundle(taker, nil, configMap("b", "k: next"))
			if taker == "one" {
				r.set([]fleet.Sync{next})
			} else {
				r.set([]fleet.Sync{one, next})
			}
			r.ready(next)
			if got := r.data("b", "k"); got != "next" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestSearchOfAServerThatDoesNotKnowAKind: one of several API servers does not serve a kind yet, or what stands before it does not know its path. That
// is no kind without objects: a module whose object it did not list then is not called removed.
func TestSearchOfAServerThatDoesNotKnowAKind(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.lose()
	var unknown atomic.Bool
	r.count.upset(func(q *http.Request) error {
		if q.URL.Path != "/api/v1/configmaps" || unknown.Swap(true) {
			return nil
		}
		return inPlace{http.StatusNotFound, "404 page not found\n"}
	})
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !unknown.Load() {
		t.Fatal("nothing was unknown")
	}
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("the module is called removed, and its object is there")
	}
}

// TestSearchByAServerThatRefusesAtFirst: one of several API servers has just started. It does not list a kind yet, and then refuses to say who serves
// it. That does not make it another server's kind, for which nobody would wait.
func TestSearchByAServerThatRefusesAtFirst(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.lose()
	var refused atomic.Bool
	r.count.upset(func(q *http.Request) error {
		switch {
		case refused.Load():
		case q.URL.Path == "/api/v1/configmaps":
			return inPlace{http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","message":"starts","code":503}`}
		case q.URL.Path == "/apis/apiregistration.k8s.io/v1/apiservices/v1.":
			refused.Store(true)
			return inPlace{http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"may not","code":403}`}
		}
		return nil
	})
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !refused.Load() {
		t.Fatal("nothing was refused")
	}
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("the module is called removed, and its object is there")
	}
}
