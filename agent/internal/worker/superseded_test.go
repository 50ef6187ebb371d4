package worker

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"towline.dev/towline/pkg/fleet"
)

// TestDeletionHearsOfANewerWordUpToItsRequest: before an object is deleted, what stays is looked at, and freed of it. A rollback or a
// hold that comes meanwhile comes first.
func TestDeletionHearsOfANewerWordUpToItsRequest(t *testing.T) {
	for name, hold := range map[string]bool{"a rollback": false, "a hold": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			objects := []string{configMap("a", "k: v"), configMap("owner", "k: v")}
			s, vault := r.bundle("shop", nil, objects...), r.bundle("vault", nil, certificate("b2xk"))
			r.set([]fleet.Sync{s, vault})
			r.ready(s)
			r.ready(vault)
			owner := r.uidOf("v1", "configmaps", "owner")
			r.ownedBy("secrets", "s", "owner")
			r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			next := r.bundle("shop", nil, objects[0])
			newer := r.again(s)
			if hold {
				newer = r.again(next)
				newer.Hold = true
			}
			var once sync.Once
			r.count.upset(func(q *http.Request) error {
				rec := r.m.inventory.Get(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "owner"})
				if rec != nil && rec.Goes() && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/secrets/s") {
					once.Do(func() {
						r.patch("v1", "secrets", "s", "operator", `{"metadata":{"ownerReferences":null}}`) // so that nothing is to be freed
						r.set([]fleet.Sync{newer, vault})
					})
				}
				return nil
			})
			r.set([]fleet.Sync{next, vault})
			r.wait("shop", "at the newer word", func(x fleet.SyncStatus) bool {
				return x.Generation == newer.Generation && (x.Phase == fleet.PhaseHeld) == hold && (hold || x.Ready)
			})
			if got := r.get("v1", "configmaps", "owner"); got == nil || got.GetUID() != owner || got.GetDeletionTimestamp() != nil {
				t.Errorf("the owner was deleted: %v", got)
			}
		})
	}
}

// TestUsedNamespaceKeepsItsLabelsForANewerWord: a revision drops a Namespace that somebody else made, and the API server is busy when
// the labels are to be taken back. A rollback that comes meanwhile lists them.
func TestUsedNamespaceKeepsItsLabelsForANewerWord(t *testing.T) {
	r := newRig(t)
	used, rest := namespace("$NS", enforce+": restricted"), configMap("a", "k: v")
	s := r.bundle("shop", nil, used, rest)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, rest)
	newer := r.again(s)
	var once sync.Once
	var asked, taken atomic.Bool
	r.count.upset(func(q *http.Request) (err error) {
		if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/namespaces/"+r.ns) {
			return nil
		}
		once.Do(func() {
			asked.Store(true)
			r.set([]fleet.Sync{newer})
			err = apierrors.NewTooManyRequests("busy", 1)
		})
		if err != nil {
			return err
		}
		body, err := io.ReadAll(q.Body)
		q.Body = io.NopCloser(bytes.NewReader(body))
		if !bytes.Contains(body, []byte(enforce)) {
			taken.Store(true)
		}
		return err
	})
	r.set([]fleet.Sync{next})
	r.ready(newer)
	if !asked.Load() {
		t.Fatal("the test shows nothing: nobody asked")
	}
	if taken.Load() || r.namespace(r.ns).GetLabels()[enforce] != "restricted" {
		t.Error("the labels were taken")
	}
}
