package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
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
	for _, args := range [][]string{{"rollout", "status", "shop", "--watch=false"}, {"rollout", "status", "shop"}} {
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
