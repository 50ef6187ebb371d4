package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestScenario28WhatIsRecordedIsKept: of what a module has in a cluster one object is missing, one was changed, one is only made once
// and was changed, and two are not listed any more. The first is made, the second put back, the third left, and the last two go. An
// object whose owner mark somebody changed to another module's is still the module's, by its UID, and gets its mark back; so does none
// that is another object under the name.
func TestScenario28WhatIsRecordedIsKept(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"once"}}, ApplyOnce: &fleet.ApplyOnce{Paths: []string{fleet.OnceAll}}}}
	kept := []string{configMap("missing", "k: v"), configMap("changed", "k: v"), configMap("once", "k: v"), configMap("marked", "k: v"), configMap("another", "k: v")}
	s := r.bundle("shop", policies, append(kept, configMap("gone1", "k: v"), configMap("gone2", "k: v"))...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	mark := r.get("v1", "configmaps", "marked").GetAnnotations()[fleet.OwnerAnnotation]
	r.m.Freeze(true, "so that all comes at once")
	r.delete("v1", "configmaps", "missing")
	r.patch("v1", "configmaps", "changed", "ana", `{"data":{"k":"hers"}}`)
	r.patch("v1", "configmaps", "once", "ana", `{"data":{"k":"hers"}}`)
	r.patch("v1", "configmaps", "marked", "ana", `{"metadata":{"annotations":{"towline.dev/owner":"default/desk@uid-1"}}}`)
	r.delete("v1", "configmaps", "another")
	r.foreign("another", "k", "theirs")
	next := r.bundle("shop", policies, kept...)
	r.set([]fleet.Sync{next})
	r.m.Freeze(false, "")
	r.wait("shop", "all but the one that is somebody else's", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && !x.Ready && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Conflict"
	})
	r.eventually("all else is put right", func() bool {
		return r.data("missing", "k") == "v" && r.data("changed", "k") == "v" && r.get("v1", "configmaps", "marked").GetAnnotations()[fleet.OwnerAnnotation] == mark
	})
	for name, want := range map[string]string{"once": "hers", "another": "theirs"} {
		if got := r.data(name, "k"); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	r.delete("v1", "configmaps", "another")
	r.ready(next)
	r.eventually("what is not listed goes when all is ready", func() bool {
		return r.get("v1", "configmaps", "gone1") == nil && r.get("v1", "configmaps", "gone2") == nil
	})
}

// TestScenario35PolicyOfWhatIsThereAlready: an object that was applied under prune: OnUpdate is kept when the policy becomes Never: by a
// revision that drops it, and when the module goes, which takes its marks off.
func TestScenario35PolicyOfWhatIsThereAlready(t *testing.T) {
	r := newRig(t)
	never := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"b"}}, Prune: fleet.PruneNever}}
	for _, policies := range [][]fleet.Policy{nil, never} {
		s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
	}
	uid := r.uidOf("v1", "configmaps", "b")
	s := r.bundle("shop", nil, configMap("a", "k: v2"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "kept", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && len(x.Extras) == 1 && x.Extras[0].ID.Name == "b" && x.Extras[0].Reason == plan.ReasonKept
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if got := r.uidOf("v1", "configmaps", "b"); got != uid || r.marked("b") || r.get("v1", "configmaps", "a") != nil {
		t.Errorf("b is %s, was %s; marked %t", got, uid, r.marked("b"))
	}
}
