package control

import (
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A put says where the module is to be. Until its source is there, and its own rollout comes to a cluster, the revision that was
// rolled out last says it: with its stages and gates, and with its clusters.
func TestPutWithoutARevisionMovesNobody(t *testing.T) {
	for _, state := range []rollout.RunState{rollout.Pending, rollout.Failed} {
		t.Run(string(state), func(t *testing.T) {
			l := newLeader(t)
			l.narrowed(member("a", true, false), member("b", true, false), member("c", true, false))
			l.again()
			l.members(member("new", false, false))
			l.put(func(w store.Writer) {
				rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
				next := proto.CloneOf(rec)
				next.Module.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a", "b", "new"}}
				w.Put(store.ModuleKey(shop), next)
				ro := rolloutRecord(3, string(state))
				ro.Rollout.Revision = 0
				w.Put(rolloutKey(shop, ro), ro)
			})
			l.again()
			if d := l.desired("c"); d.GetTombstone() != nil || d.GetSync().GetRevision() != 2 {
				t.Errorf("c: %v, want r2", d)
			}
			if d := l.desired("new"); d != nil {
				t.Errorf("new: %v, want nothing", d)
			}
		})
	}
}

// A module whose put failed at its source does not come: it does not stand in for the last one that a cluster has. While the
// source is being fetched nobody knows, so nothing leaves, and nobody is asked.
func TestModuleThatFailedAtItsSourceIsNotToCome(t *testing.T) {
	for state, reason := range map[rollout.RunState]string{rollout.Pending: "", rollout.Failed: rollout.ReasonConfirm} {
		t.Run(string(state), func(t *testing.T) {
			l := newLeader(t)
			l.narrowed(member("a", true, false), member("b", true, false), member("c", false, false))
			base := fleet.ModuleRef{Project: "default", Name: "base"}
			l.put(func(w store.Writer) {
				rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(base))
				next := proto.CloneOf(rec)
				w.Put(store.ModuleKey(base), next)
				ro := rolloutRecord(1, string(state))
				ro.Rollout.Revision = 0
				w.Delete(store.RolloutKey(base, 1))
				w.Put(rolloutKey(base, ro), ro)
			})
			l.again()
			if head := l.rollout(2).State.Head; head.Reason != reason {
				t.Errorf("waits for %s, want %s: %+v", head.Reason, reason, head)
			}
			l.keeps("c", "before it is known")
		})
	}
}

// A put says that another program is to assign the module. Until it has a revision, or for ever if it gets none, the hub goes on
// with the rollout that it has.
func TestPutThatIsToBeExternalStopsNoRollout(t *testing.T) {
	for _, state := range []rollout.RunState{rollout.Pending, rollout.Failed} {
		t.Run(string(state), func(t *testing.T) {
			l := newLeader(t)
			l.narrowed(member("a", true, false), member("b", true, false))
			l.put(func(w store.Writer) {
				rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
				next := proto.CloneOf(rec)
				next.Module.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
				w.Put(store.ModuleKey(shop), next)
				ro := rolloutRecord(3, string(state))
				ro.Rollout.Revision, ro.Rollout.Strategy = 0, next.Module.Spec.Rollout
				w.Put(rolloutKey(shop, ro), ro)
			})
			l.again()
			if d := l.desired("a"); d.GetSync().GetRevision() != 2 {
				t.Errorf("a: %v, want r2", d)
			}
		})
	}
}
