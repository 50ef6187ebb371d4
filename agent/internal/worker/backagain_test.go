package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// A cluster is joined to another hub, which does not list its modules or has not said anything yet, and back to the first one. What carries the
// other's label by then is seen by no watch: it is marked anew, so that an edit is undone and a removal removes.
func TestJoinedToAnotherHubAndBack(t *testing.T) {
	for name, away := range map[string]func(r *rig, first string, s fleet.Sync){
		"which lists nothing of it": func(r *rig, first string, s fleet.Sync) {
			r.rejoin(first + "-other")
			r.m.Set(fleet.Assemblage{Generation: r.gen, Lineage: r.lineage()}, []fleet.Sync{s}) // a stray
			r.carriesItsLabel("a")
			r.rejoin(first)
		},
		"which has said nothing": func(r *rig, first string, s fleet.Sync) {
			r.stop()
			r.hub = first + "-other"
			r.start() // the hubs are those of lineages: the first one only
			r.m.Set(fleet.Assemblage{Generation: r.gen, Lineage: 2, Syncs: []fleet.Sync{s}}, nil)
			r.carriesItsLabel("a")
			r.stop()
			r.hub = first
			r.start()
			r.hubs = append(r.hubs, first)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first := r.hub
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			away(r, first, s)
			same := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{same})
			r.ready(same)
			r.carriesItsLabel("a")
			r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"edited"}}`)
			r.eventually("the edit is undone", func() bool { return r.data("a", "k") == "v" })
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			end := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("v1", "configmaps", "a") != nil {
				t.Errorf("it stayed: %s", end.Message)
			}
		})
	}
}

// carriesItsLabel waits until a ConfigMap carries the label of the hub of now.
func (r *rig) carriesItsLabel(name string) {
	r.t.Helper()
	r.eventually(name+" carries the label of "+r.hub, func() bool {
		u := r.get("v1", "configmaps", name)
		return u != nil && u.GetLabels()[fleet.HubLabel] == r.hub
	})
}

// An object is to be left, which cannot be carried out for a moment, and then it goes after all: the last word does not say that it is kept.
func TestWhatWentAfterAllIsNotCalledKept(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "owner", "namespace": r.ns}})
	owner := r.get("v1", "configmaps", "owner").GetUID()
	r.patch("v1", "configmaps", "a", "controller", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q,"controller":true}]}}`, owner))
	tried := make(chan struct{}, 100)
	r.count.upset(func(q *http.Request) error {
		if q.Header.Get("Content-Type") == string(types.MergePatchType) && strings.HasSuffix(q.URL.Path, "/configmaps/a") {
			tried <- struct{}{}
			return errors.New("connection reset")
		}
		return nil
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	<-tried
	r.patch("v1", "configmaps", "a", "controller", `{"metadata":{"ownerReferences":null}}`)
	end := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") == nil && strings.Contains(end.Message, "kept") {
		t.Errorf("it was deleted, and the last word is: %s", end.Message)
	}
}
