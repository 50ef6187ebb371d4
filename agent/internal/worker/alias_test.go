package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

const (
	coreEvent = `
apiVersion: v1
kind: Event
metadata: {name: e, namespace: $NS}
involvedObject: {apiVersion: v1, kind: ConfigMap, name: a, namespace: $NS}
reason: Said
message: said
type: Normal
action: Say
eventTime: "2026-01-02T03:04:05.000000Z"
reportingComponent: example.com/says
reportingInstance: one
`
	sameEvent = `
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: e, namespace: $NS}
regarding: {apiVersion: v1, kind: ConfigMap, name: a, namespace: $NS}
reason: Said
note: said
type: Normal
action: Say
eventTime: "2026-01-02T03:04:05.000000Z"
reportingController: example.com/says
reportingInstance: one
`
)

// An object that a revision lists in another group of the same objects is not deleted, also if what a revision drops goes
// before anything is applied.
func TestAliasOfAnotherGroup(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, coreEvent, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "events", "e")
	policies := []fleet.Policy{{PruneWhen: fleet.PruneFirst, Conflict: fleet.ConflictForce}}
	s = r.bundle("shop", policies, sameEvent)
	r.set([]fleet.Sync{s})
	r.ready(s)
	if r.uidOf("v1", "events", "e") != uid {
		t.Error("deleted, though it is wanted")
	}
	r.eventually("what the revision drops is gone", func() bool { return r.get("v1", "configmaps", "a") == nil })
}
