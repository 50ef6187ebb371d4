package worker

import (
	"context"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// noUID has the server give its objects no UID, as one may that keeps them elsewhere.
func (a *aggregate) noUID() {
	a.with(func(a *aggregate) {
		a.shows = func(obj map[string]any) { unstructured.RemoveNestedField(obj, "metadata", "uid") }
	})
}

// What was written to an API server that gives objects no UID is there, though it can neither be watched over nor deleted safely. Its module is not
// called removed before it is gone, unless it is to be left.
func TestObjectWithoutAUIDIsNotCalledRemoved(t *testing.T) {
	for _, policy := range []string{fleet.DeleteDelete, fleet.DeleteOrphan} {
		t.Run(policy, func(t *testing.T) {
			r := aloneRig(t)
			a := r.aggregated("Widget")
			a.noUID()
			s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
			r.set([]fleet.Sync{s})
			r.wait("shop", "told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && !x.Ready })
			if len(a.names()) != 1 {
				t.Fatal("nothing was written")
			}
			r.set(nil, r.tombstone("shop", policy))
			removed := func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved }
			if policy == fleet.DeleteDelete {
				x := r.wait("shop", "removed, or told of the object", func(x fleet.SyncStatus) bool {
					return removed(x) || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "no UID")
				})
				if removed(x) {
					t.Fatal("the module is called removed, and its object is there")
				}
				a.with(func(a *aggregate) { clear(a.objects) })
			}
			r.wait("shop", "removed", removed)
		})
	}
}

// Objects without a UID are each one in a namespace.
func TestObjectsWithoutUIDsKeepTheirNamespace(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Gadget", "Widget")
	ns := r.ns + "-in"
	s := r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	t.Cleanup(func() {
		_ = r.res("v1", "namespaces", "").Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	now := metav1.Now()
	for resource, leaves := range map[string]*metav1.Time{"gadgets": nil, "widgets": &now} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": a.gv(), "kind": a.kinds[resource]}}
		u.SetName("hers")
		u.SetNamespace(ns)
		u.SetDeletionTimestamp(leaves)
		if _, err := r.res(a.gv(), resource, ns).Create(context.Background(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a.noUID()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	x := r.wait("shop", "removed, or waiting", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "hers")
	})
	if x.Phase != fleet.PhaseRemoved || !strings.Contains(x.Message, "Gadget hers") {
		t.Errorf("status %+v", x)
	}
}

// An API server that gives an object under another name than it was written by says nothing of what was asked for. It is told, the server is not
// asked over and over, and nothing is deleted.
func TestObjectUnderAnotherNameIsToldOf(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Widget")
	a.with(func(a *aggregate) {
		a.shows = func(obj map[string]any) {
			u := unstructured.Unstructured{Object: obj}
			u.SetName(strings.ToUpper(u.GetName()))
		}
	})
	r.count.take()
	s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
	r.set([]fleet.Sync{s})
	for _, tries := range []string{"it is made", "another revision"} {
		x := r.wait("shop", "told, "+tries, func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && (x.Ready || strings.Contains(x.Message, "its names have to be as they were written"))
		})
		if x.Ready {
			t.Errorf("%s: status %+v", tries, x)
		}
		if counts, _ := r.count.take(); counts["GET"]+counts["PATCH"] > 60 {
			t.Errorf("%s: %d requests", tries, counts["GET"]+counts["PATCH"])
		}
		s = r.bundle("shop", nil, a.manifest("Widget", "a", "k: w"))
		r.set([]fleet.Sync{s})
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "not removed, and told why", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoving && len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "its names have to be")
	})
	if len(a.names()) != 1 {
		t.Errorf("there is %v", a.names())
	}
}

// An API server of its own that begins anew with an older copy, or that counts versions anew whenever it begins, says nothing of the cluster's store:
// nobody is told that this was restored. A restore of the cluster is told of all the same.
func TestAPIServerThatBeginsAnewIsNotTheCluster(t *testing.T) {
	r := aloneRig(t)
	var restored atomic.Int64
	r.restart(func(o *Options) { o.Restored = func() { restored.Add(1) } })
	a := r.aggregated("Widget")
	s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	a.away()
	a.back()
	r.eventually("it is seen that it counts anew", func() bool { return strings.Contains(r.heard.String(), "everything is looked at anew") })
	next := r.bundle("shop", nil, a.manifest("Widget", "a", "k: w"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if len(a.names()) != 1 || restored.Load() != 0 {
		t.Errorf("there is %v; the cluster is said to be restored %d times", a.names(), restored.Load())
	}
	r.m.WentBack()
	r.eventually("a restore of the cluster is told", func() bool { return restored.Load() == 1 })
}

// refuseRegistrations has the first reads of the API's registration refused.
func (a *aggregate) refuseRegistrations(first int64) {
	var n atomic.Int64
	a.r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/apiservices/v1."+a.group) && n.Add(1) <= first {
			return inPlace{http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"may not","code":403}`}
		}
		return nil
	})
}

// The cluster's API server refuses everybody until it has read its roles. That it refuses to say who serves an API says nothing of that: what is with a
// server of its own stays there when that is not registered any more. An agent that may never know it is not kept from its work.
func TestRefusedRegistrationSaysNothingOfWhoServes(t *testing.T) {
	for name, first := range map[string]int64{"at first": 1, "for good": math.MaxInt64} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			a := r.aggregated("Widget")
			a.refuseRegistrations(first)
			r.restart()
			s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
			r.neverFails("shop", s)
			if first > 1 {
				return
			}
			if err := r.res("apiregistration.k8s.io/v1", "apiservices", "").Delete(t.Context(), "v1."+a.group, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			r.eventually("the API is not served", func() bool {
				_, err := r.res(a.gv(), "widgets", r.ns).List(t.Context(), metav1.ListOptions{})
				return err != nil
			})
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "removed, or waiting for the API server", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "(APIService v1."+a.group)
			})
			if x.Phase == fleet.PhaseRemoved {
				t.Errorf("the module is called removed, and there is %v", a.names())
			}
		})
	}
}

// An agent that has lost its records does not know whether there is what is with an API server that is away. It says so, and not that it is missing.
func TestWhatIsWithAnAPIServerThatIsAwayIsUnknown(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Widget")
	s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	a.away()
	r.loseState()
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })
	if got := x.States[0]; got.Sync != fleet.SyncUnknown || got.Health != fleet.HealthUnknown {
		t.Errorf("the object is said to be %s, %s: %s", got.Sync, got.Health, x.Message)
	}
	a.back()
	r.ready(s)
}
