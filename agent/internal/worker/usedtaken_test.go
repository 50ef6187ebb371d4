package worker

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// TestUsedNamespaceIsAdoptedBeforeItsFirstLabels: an agent is about to put labels on a Namespace that it uses, and before they arrive another one
// adopts it, whose field manager is the same: its labels and marks stay.
func TestUsedNamespaceIsAdoptedBeforeItsFirstLabels(t *testing.T) {
	ours, theirs, p := aloneRig(t), second(t), newPause()
	shared := ours.shared()
	ours.stop()
	ours.answers(func(q *http.Request) *http.Response {
		if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/namespaces/"+shared) {
			body, err := io.ReadAll(q.Body)
			if err != nil {
				t.Error(err)
			}
			q.Body = io.NopCloser(bytes.NewReader(body))
			if bytes.Contains(body, []byte(`"uid":`)) { // not the one that is to make it, were it not there
				p.wait()
			}
		}
		return nil
	})
	ours.start()
	s := ours.bundle("shop", nil, namespace(shared, "a: used"))
	ours.set([]fleet.Sync{s})
	p.at(ours, func() {
		taken := theirs.bundle("site", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, namespace(shared, enforce+": restricted"))
		theirs.set([]fleet.Sync{taken})
		theirs.ready(taken)
		theirs.stop()
	})
	ours.decided(s)
	if l := ours.namespace(shared).GetLabels(); l[enforce] != "restricted" || l[fleet.HubLabel] != theirs.hub {
		t.Errorf("labels %v", l)
	}
}

// TestUsedNamespaceIsNotForgottenByALookAtAnotherCluster: an API server of another cluster, which has no such Namespace, answers as one is not to be
// used any more. It is not forgotten: what was applied to it is taken back when the first one answers again.
func TestUsedNamespaceIsNotForgottenByALookAtAnotherCluster(t *testing.T) {
	f, r := &doubtfulFence{openFence: 1, asked: make(chan string, 1)}, newRig(t)
	shared := r.shared()
	r.stop()
	var another atomic.Bool
	r.answers(func(q *http.Request) *http.Response {
		if another.Load() && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/namespaces/"+shared) {
			q.URL.Path += "-none"
		}
		return nil
	})
	r.options = append(r.options, func(o *Options) { o.Fence = f })
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: v"), namespace(shared, "a: used"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for len(f.asked) > 0 {
		<-f.asked
	}
	f.doubts.Store(true)
	another.Store(true)
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (x.Reason == "NotLeader" || x.Ready && len(r.m.inventory.Module(s.Module)) == 1)
	})
	if got := len(r.m.inventory.Module(s.Module)); got != 2 {
		t.Errorf("%d records of 2", got)
	}
	another.Store(false) // no look at the other cluster is proved, also not the one that is under way
	r.eventually("its labels are taken back", func() bool { return r.namespace(shared).GetLabels()["a"] == "" })
	r.eventually("it is forgotten", func() bool { return len(r.m.inventory.Module(s.Module)) == 1 })
	if err := r.res("v1", "namespaces", "").Delete(context.Background(), shared, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
