package worker

import (
	"slices"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestDropWaitsForTheOperatorsWord: a revision changes an object of a custom kind whose status says no generation, and drops what it used. That it
// was ready before tells nothing of the change: what it used stays until its operator has written, and what that says counts.
func TestDropWaitsForTheOperatorsWord(t *testing.T) {
	r := newRig(t)
	kind := r.bundle("kind", nil, databaseKind)
	r.set([]fleet.Sync{kind})
	r.ready(kind)
	says := func(status, reason string) {
		r.patch(r.ns+".example.com/v1", "databases", "db", "operator", `{"status":{"conditions":[{"type":"Ready","status":"`+status+`","reason":"`+reason+`"}]}}`, "status")
	}
	one := r.bundle("one", nil, configMap("db-1", "k: v"), databaseOf("db-1", "a: b"))
	r.set([]fleet.Sync{kind, one})
	r.wait("one", "applied", func(x fleet.SyncStatus) bool { return x.Generation == one.Generation && x.Phase == fleet.PhaseApplied })
	says("True", "Serves")
	r.ready(one)

	second := time.NewTimer(time.Second) // times of writes are of whole seconds, and one in the second of the change counts as after it
	defer second.Stop()
	<-second.C
	next := r.bundle("one", nil, configMap("db-2", "k: v"), databaseOf("db-2", "a: b"))
	r.set([]fleet.Sync{kind, next})
	kept := func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && !x.Ready && slices.Equal(names(x.Extras, plan.ReasonAwaitingReady), []string{"db-1"})
	}
	r.wait("one", "waiting for the operator", kept)
	says("False", "Migrating")
	r.wait("one", "waiting while it works", func(x fleet.SyncStatus) bool { return kept(x) && x.Reason == "Migrating" })
	if r.get("v1", "configmaps", "db-1") == nil {
		t.Error("what the operator uses is gone")
	}
	says("True", "Serves")
	r.ready(next)
	r.eventually("what nothing uses goes", func() bool { return r.get("v1", "configmaps", "db-1") == nil })
}
