package rollout_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestAwaitSet is the table of when a module counts as ready in a set of clusters, and what is said if it does not.
func TestAwaitSet(t *testing.T) {
	since := rollout.At(epoch.Add(-time.Hour))
	ready := func(c string) rollout.Standing {
		return rollout.Standing{Cluster: fleet.ClusterName(c), Placed: true, Wants: 2, Revision: 2, Ready: true}
	}
	with := func(s rollout.Standing, change func(*rollout.Standing)) rollout.Standing {
		change(&s)
		return s
	}
	waits := func(total int, clusters ...rollout.AwaitedCluster) *rollout.AwaitedSet {
		return &rollout.AwaitedSet{Module: "crds", Selector: "role=control", Total: total, Waiting: len(clusters), Clusters: clusters}
	}
	for name, c := range map[string]struct {
		matched int
		all     []rollout.Standing
		want    *rollout.AwaitedSet
	}{
		"ready in all": {2, []rollout.Standing{ready("a"), ready("b")}, nil},
		"the selector matches nobody: nothing is there to be ready": {0, nil,
			&rollout.AwaitedSet{Module: "crds", Selector: "role=control", Code: rollout.SetNoCluster}},
		"it is placed in none of those": {2, []rollout.Standing{{Cluster: "a"}, {Cluster: "b"}},
			&rollout.AwaitedSet{Module: "crds", Selector: "role=control", Code: rollout.SetNotPlaced}},
		"clusters in which it is not placed do not count": {2, []rollout.Standing{ready("a"), {Cluster: "b"}}, nil},
		"it has not come there yet": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Revision, s.Ready = 0, false })},
			waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: rollout.ReasonNotReached, Revision: 2})},
		"in the middle of its rollout, ready at what was before": {2, []rollout.Standing{ready("a"), with(ready("b"), func(s *rollout.Standing) { s.Revision = 1 })},
			waits(2, rollout.AwaitedCluster{Cluster: "b", Reason: rollout.ReasonNotReached, Revision: 2})},
		"it keeps what it has, by a pin or after an abort": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Wants, s.Revision = 0, 1 })}, nil},
		"not ready there": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Ready, s.Reason, s.Since, s.Detail = false, "Degraded", since, "0 of 1" })},
			waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: "Degraded", Since: since, Detail: "0 of 1"})},
		"not ready, and nobody says why": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Ready = false })},
			waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: rollout.ReasonNotReady})},
		"away: that is what is said, also where its turn has not come": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) {
			s.Ready, s.Revision, s.Reason, s.Since = false, 1, rollout.ReasonDisconnected, since
		})}, waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: rollout.ReasonDisconnected, Revision: 2, Since: since})},
		"cordoned before its turn": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Ready, s.Revision, s.Reason = false, 1, rollout.ReasonCordoned })},
			waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: rollout.ReasonCordoned, Revision: 2})},
		"nothing is there, and nothing is to come by itself": {1, []rollout.Standing{with(ready("a"), func(s *rollout.Standing) { s.Wants, s.Revision, s.Ready = 0, 0, false })},
			waits(1, rollout.AwaitedCluster{Cluster: "a", Reason: rollout.ReasonNotReady})},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, rollout.AwaitSet("crds", "role=control", c.matched, c.all)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAwaitSetNamesFew: of many clusters a few are named, and all are counted.
func TestAwaitSetNamesFew(t *testing.T) {
	var all []rollout.Standing
	for _, c := range expand("c1..c9") {
		all = append(all, rollout.Standing{Cluster: fleet.ClusterName(c), Placed: true})
	}
	got := rollout.AwaitSet("crds", "", 9, all)
	if got.Total != 9 || got.Waiting != 9 || len(got.Clusters) != 5 || got.Clusters[0].Cluster != "c1" {
		t.Errorf("%+v", got)
	}
}
