package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestRevisionSaysThatTheSourceGoesBack: a commit that is signed may be an old one that somebody put back.
func TestRevisionSaysThatTheSourceGoesBack(t *testing.T) {
	const back = "the source goes back to main@sha1:abc, which r1 had"
	rev := &v1.Revision{Metadata: &v1.Metadata{Name: "shop-r3", Project: "default", ChangedBy: "follow"}, Module: "shop", Number: 3, ResolvedRef: "main@sha1:abc", GoesBack: back, SourceTime: ago(day)}
	hub := &fakeHub{modules: surfaceModules(), revisions: []*v1.Revision{rev}}
	for _, args := range [][]string{{"get", "revisions", "shop"}, {"describe", "revision", "shop-r3"}} {
		if got := hub.run(t, run{}, args...); got.code != 0 || !strings.Contains(got.out, back) {
			t.Errorf("%v: exit %d, %s%s", args, got.code, got.out, got.err)
		}
	}
}

// TestRolloutStatusOfAModuleThatIsDeleted: its newest rollout may have succeeded, and is not what becomes of it.
func TestRolloutStatusOfAModuleThatIsDeleted(t *testing.T) {
	for _, args := range [][]string{{"rollout", "status", "shop", "--watch=false"}, {"rollout", "status", "shop"}, {"rollout", "wait", "shop"}} {
		for _, deleted := range []bool{true, false} {
			hub := &fakeHub{modules: surfaceModules(), rollouts: []*v1.Rollout{ended("Succeeded", nil)}, watch: watching(ended("Succeeded", nil))}
			for _, m := range hub.modules {
				if m.GetMetadata().GetName() == "shop" && deleted {
					m.Metadata.DeletionTimestamp = ago(day)
				}
			}
			if got := hub.run(t, run{}, args...); got.code != 0 || strings.Contains(got.err, "module shop is being deleted, since ") != deleted {
				t.Errorf("%v: exit %d, %s%s", args, got.code, got.out, got.err)
			}
		}
	}
}

// TestModuleThatLeavesItsObjectsIsNotSaidToDeleteThem: a deletion with --orphan is told apart wherever one is shown.
func TestModuleThatLeavesItsObjectsIsNotSaidToDeleteThem(t *testing.T) {
	for args, want := range map[string]string{
		"get modules edge-lb":               "Deleting: leaves 36 objects in 3 away clusters",
		"describe module edge-lb":           "Deleting: leaves 36 objects in 3 away clusters",
		"rollout wait edge-lb --timeout 1s": "and leaves what it has; what follows is of before",
	} {
		hub := &fakeHub{modules: surfaceModules(), rollouts: []*v1.Rollout{ended("Succeeded", nil)}, watch: watching(ended("Succeeded", nil))}
		for _, m := range hub.modules {
			if m.GetMetadata().GetName() == "edge-lb" {
				m.Status.RolloutFacts = &v1.Facts{Code: fleet.DeleteOrphan}
			}
		}
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code != 0 || !strings.Contains(got.out+got.err, want) {
			t.Errorf("%s: exit %d, %s%s", args, got.code, got.out, got.err)
		}
	}
}

// TestFailuresOfWhatWasRolledBack: those that failed are back by then, and count as such, so that none is left to count.
func TestFailuresOfWhatWasRolledBack(t *testing.T) {
	for reason, want := range map[string]string{rollout.ReasonFailures: "More failures than the 0 tolerated; 0 clusters failed on the way back.", "": "Failures 0, tolerated 0."} {
		hub := &fakeHub{modules: surfaceModules(), rollouts: []*v1.Rollout{ended("RolledBack", func(s *v1.RolloutStatus) { s.Reason, s.Failed, s.Tolerated = reason, 0, 0 })}}
		if got := hub.run(t, run{}, "rollout", "status", "shop", "--watch=false"); got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("%q: exit %d, %s%s", reason, got.code, got.out, got.err)
		}
	}
}

// TestLabelThatIsSetAndRemovedAtOnce: which of the two is meant nobody knows, and modules may go by the one that is not.
func TestLabelThatIsSetAndRemovedAtOnce(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{}, "cluster", "label", "prod-eu-01", "ring=canary", "ring-", "--yes")
	if got.code != exitUsage || !strings.Contains(got.err, "label ring: is set and removed by the same command") || asked[*v1.PutClusterRequest](hub) != nil {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
}

// TestRemovalOfAHeldCluster: it stands still until the hold ends, which "removing" alone would keep from who waits for it.
func TestRemovalOfAHeldCluster(t *testing.T) {
	for _, held := range []bool{true, false} {
		hub := fullHub()
		name := hub.clusters[2].GetMetadata().GetName()
		if hub.clusters[2].Status.Holds = nil; held {
			hub.clusters[2].Status.Holds = []*v1.Hold{{Kind: "Freeze", Cluster: name, By: "ana"}}
		}
		got := hub.run(t, run{}, "cluster", "remove", name)
		if got.code != 0 || strings.Contains(got.err, "what is held there stands still, and the cluster is forgotten when that ends") != held {
			t.Errorf("held %t: exit %d, %s%s", held, got.code, got.out, got.err)
		}
	}
}
