package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

func maps30(finalized int) (out []string) {
	for i := range 30 {
		o := configMap(fmt.Sprintf("cm-%02d", i), "k: v")
		if i < finalized {
			o = strings.Replace(o, "namespace: $NS}", "namespace: $NS, finalizers: [example.com/wait]}", 1)
		}
		out = append(out, o)
	}
	return out
}

func (r *rig) unfinalize(n int) {
	for i := range n {
		_, _ = r.res("v1", "configmaps", r.ns).Patch(context.Background(), fmt.Sprintf("cm-%02d", i), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
}

func (r *rig) configMaps() int {
	r.t.Helper()
	list, err := r.res("v1", "configmaps", r.ns).List(context.Background(), metav1.ListOptions{LabelSelector: fleet.HubLabel + "=" + r.hub})
	if err != nil {
		r.t.Fatal(err)
	}
	return len(list.Items)
}

// TestGuardOverParts: nine that go first and nine that wait for readiness are one change.
func TestGuardOverParts(t *testing.T) {
	r := newRig(t)
	objects := maps30(0)
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	var first []string
	for i := range 9 {
		first = append(first, fmt.Sprintf("cm-%02d", i))
	}
	next := r.bundle("shop", []fleet.Policy{{Match: fleet.PolicyMatch{Names: first}, PruneWhen: fleet.PruneFirst}},
		append(objects[18:], strings.ReplaceAll(deployment("web", 1), "nginx:1", "never-ready:1"))...)
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && (x.Waiting() > 0 || len(x.Extras) == 9)
	})
	if n := r.configMaps(); n != 30 || status.Waiting() != 18 {
		t.Errorf("%d objects are left, %d are held", n, status.Waiting())
	}
}

// TestGuardOverRevisionsAndRestarts: a revision that comes before the last one's objects are gone drops more of the same.
func TestGuardOverRevisionsAndRestarts(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			objects := maps30(1)
			defer r.unfinalize(1)
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			second := r.bundle("shop", nil, objects[9:]...)
			r.set([]fleet.Sync{second})
			r.wait("shop", "nine less", func(x fleet.SyncStatus) bool {
				return x.Generation == second.Generation && x.Ready && len(x.Extras) == 1 && x.Extras[0].Reason == "Terminating"
			})
			if restart {
				r.stop()
				r.start()
			}
			third := r.bundle("shop", nil, objects[18:]...)
			r.set([]fleet.Sync{third})
			status := r.wait("shop", "held", func(x fleet.SyncStatus) bool {
				return x.Generation == third.Generation && x.Ready && x.Waiting() > 0
			})
			if n := r.configMaps(); n != 22 || status.Waiting() != 9 {
				t.Errorf("%d objects are left, %d are held", n, status.Waiting())
			}
			third.PruneConfirmed = true
			r.set([]fleet.Sync{third})
			r.eventually("what was confirmed is gone", func() bool { return r.configMaps() == 13 })
			r.unfinalize(1)
			r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 })

			fourth := r.bundle("shop", nil, objects[25:]...)
			r.set([]fleet.Sync{fourth})
			r.wait("shop", "pruned again", func(x fleet.SyncStatus) bool {
				return x.Generation == fourth.Generation && x.Ready && len(x.Extras) == 0
			})
		})
	}
}

// refuse has the API server refuse what it is asked for.
func (r *rig) refuse(what func(*http.Request) bool) {
	r.count.upset(func(q *http.Request) error {
		if what(q) {
			return errors.New("refused by a test")
		}
		return nil
	})
}

// asks: so many of what a sync drops wait for a confirm.
func (r *rig) asks(s fleet.Sync, n int) {
	r.t.Helper()
	status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && (x.Waiting() > 0 || x.Extra() == 0)
	})
	if status.Waiting() != n {
		r.t.Errorf("%d wait for a confirm; %+v", status.Waiting(), status.Extras)
	}
}

// A leave that was cut short, and a join after it, do not let a later revision drop what it wants.
func TestGuardAfterALeaveThatWasCutShort(t *testing.T) {
	r := newRig(t)
	objects := maps30(0)
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.refuse(func(q *http.Request) bool {
		return q.Method == http.MethodPatch && q.Header.Get("Content-Type") == string(types.MergePatchType)
	})
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveKeep})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoving && x.Message != "" })
	r.count.upset(nil)
	r.forget()
	r.rejoin(r.hub + "-2")
	s = r.bundle("shop", nil, objects[:8]...)
	r.set([]fleet.Sync{s})
	r.asks(s, 22)
}

// What one hub dropped and a person confirmed to it, and the API server refused to delete, is no word on what the next hub drops, whose
// numbers are higher.
func TestGuardOfTheNextHub(t *testing.T) {
	r := newRig(t)
	objects := maps30(0)
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.refuse(func(q *http.Request) bool { return q.Method == http.MethodDelete })
	next := r.bundle("shop", nil, objects[18:]...)
	r.set([]fleet.Sync{next})
	r.asks(next, 18)
	next.PruneConfirmed = true
	r.set([]fleet.Sync{next})
	r.eventually("all are to be deleted", func() bool {
		n := 0
		for _, rec := range r.m.inventory.Module(next.Module) {
			if rec.Goes() {
				n++
			}
		}
		return n == 18
	})
	generation := r.gen
	r.rejoin(r.hub + "-2")
	r.count.upset(nil)
	r.gen = generation
	s = r.bundle("shop", nil, objects[18:]...)
	r.set([]fleet.Sync{s})
	r.asks(s, 18)
	s.PruneConfirmed = true
	r.set([]fleet.Sync{s})
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Ready && x.Waiting() == 0 && x.Extra() == 0 })
}
