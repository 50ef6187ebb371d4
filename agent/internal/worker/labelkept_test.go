package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// A policy that lets claims go unless they have a label lets none go that has it: neither when a revision drops it, nor when a
// field is changed that cannot be, nor with the module.
func TestClaimThatItsLabelKeeps(t *testing.T) {
	r := newRig(t)
	claim := func(size string) string {
		return `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: $NS, labels: {keep: "yes"}}
spec: {accessModes: [ReadWriteOnce], storageClassName: "` + size + `", resources: {requests: {storage: 1Gi}}}
`
	}
	unkept := fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"},
		Labels: &fleet.Selector{MatchExpressions: []fleet.Requirement{{Key: "keep", Operator: "DoesNotExist"}}}}
	policies := []fleet.Policy{{Match: unkept, Prune: fleet.PruneOnUpdate, Recreate: fleet.RecreateIfImmutable}, {Recreate: fleet.RecreateIfImmutable}}
	s := r.bundle("shop", policies, configMap("a", "k: v"), claim("slow"))
	r.set([]fleet.Sync{s})
	r.eventually("the claim is there", func() bool { return r.get("v1", "persistentvolumeclaims", "data") != nil })
	uid := r.get("v1", "persistentvolumeclaims", "data").GetUID()
	stays := func(when string) {
		t.Helper()
		if u := r.get("v1", "persistentvolumeclaims", "data"); u == nil || u.GetUID() != uid || u.GetDeletionTimestamp() != nil {
			t.Fatalf("%s: the claim is deleted", when)
		}
	}
	s = r.bundle("shop", policies, configMap("a", "k: v"), claim("fast"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed })
	stays("a field that cannot be changed")

	s = r.bundle("shop", policies, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "settled", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonKept
	})
	stays("a revision that drops it")
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	stays("its module is deleted")
}

// Somebody labels a live object so that a policy keeps it. A revision that drops it says so, and what was said holds when the
// module is deleted.
func TestLabelThatSomebodyPutKeepsTheObject(t *testing.T) {
	r := newRig(t)
	keep := fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"keep": "yes"}}}
	for _, policy := range []fleet.Policy{{Match: keep, Prune: fleet.PruneNever}, {Match: keep, Delete: fleet.DeleteOrphan, Prune: fleet.PruneNever}} {
		policies := []fleet.Policy{policy}
		s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"labels":{"keep":"yes"}}}`)
		s = r.bundle("shop", policies, configMap("a", "k: v"))
		r.set([]fleet.Sync{s})
		r.wait("shop", "settled", func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.Ready && (len(x.Extras) == 0 || x.Extras[0].Reason == plan.ReasonKept)
		})
		r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
		r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		if r.get("v1", "configmaps", "b") == nil {
			t.Errorf("%+v: what was said to be kept was deleted with the module", policy)
		}
		r.set(nil)
	}
}
