package health

import (
	"fmt"
	"slices"
)

// The judgement by numbers of replicas, where a status counts them as that of a Deployment does. Go leaves a zero out where the type says
// omitempty: that none is ready, or none is new, is then told by nothing but the other numbers.

// readyCounts and newCounts are where a status counts the replicas that are ready, and those that are as the specification says.
var (
	readyCounts = []string{"availableReplicas", "readyReplicas", "readyInstances"}
	newCounts   = []string{"updatedReplicas", "upToDateReplicas"}
)

// replicas counts those that are ready and those that are new. Of a kind that is known to count, a number that is missing is a zero.
func (s *signs) replicas(o *object, known bool) {
	known = known || o.leavesOutNone()
	want, wanted := firstNumber(o.spec, "replicas", "instances", "size", "numberOfInstances")
	have, told := firstNumber(o.status, readyCounts...)
	switch {
	case !told && !known:
		s.noneReady(o, want)
		return
	case !wanted:
		return
	case have < want:
		s.add(progressing("LessReady", of(have, want, "replicas are ready")))
		return
	}
	s.newReplicas(o, want)
}

// noneReady is of a status that does not say how many replicas are ready. Where it has another number that only a controller writes that
// counts those too, none is. Where it tells only how many there are, its controller may never tell more, as of kinds that have the number
// for their scale alone.
func (s *signs) noneReady(o *object, want int64) {
	all, lacks := count(o.status, "replicas", 0), count(o.status, "unavailableReplicas", 0)
	_, counts := firstNumber(o.status, newCounts...)
	want = max(want, all, lacks)
	none := progressing("LessReady", of(0, want, "replicas are ready"))
	switch {
	case lacks > 0, counts && all > 0:
		s.add(none)
	case all > 0 && !s.good:
		if r, waits := o.graced(none); waits {
			s.add(r)
		}
	}
}

// newReplicas counts those that are as the specification says. Where a person replaces them, or a partition holds them back, the others
// are as somebody ordered.
func (s *signs) newReplicas(o *object, want int64) {
	updated, told := firstNumber(o.status, newCounts...)
	switch {
	case !told && !o.leavesOutNone(), updated >= want, o.replacedByHand():
		s.good = true
	case updated >= want-o.heldBack():
		s.add(suspended("Partition", "the partition of the update strategy holds "+fmt.Sprint(want-updated)+" replicas back"))
	default:
		s.add(progressing("LessUpdated", of(updated, want, "replicas are updated")))
	}
}

// leavesOutNone reports that the kind counts the pods that are new, and has no such count where there are none: Go leaves a zero out.
func (o *object) leavesOutNone() bool {
	switch o.group {
	case "leaderworkerset.x-k8s.io":
		return o.kind == "LeaderWorkerSet"
	case "slinky.slurm.net":
		return o.kind == "NodeSet"
	case "controlplane.cluster.x-k8s.io":
		return has("RKE2ControlPlane KThreesControlPlane", o.kind) // those of Talos count none at all up to v1alpha3
	}
	return false
}

// updateStrategies are where specifications say how replicas are replaced.
var updateStrategies = [][]string{{"updateStrategy"}, {"strategy"}, {"rolloutStrategy"}, {"rollout", "strategy"}}

// replacedByHand reports that old replicas stay until somebody deletes them.
func (o *object) replacedByHand() bool {
	return slices.ContainsFunc(updateStrategies, func(path []string) bool { return text(mapOf(o.spec, path...), "type") == "OnDelete" })
}

// heldBack is how many replicas a partition keeps as they were.
func (o *object) heldBack() int64 {
	var n int64
	for _, path := range updateStrategies {
		strategy := mapOf(o.spec, path...)
		n = max(n, count(strategy, "partition", 0))
		for _, key := range []string{"rollingUpdate", "rollingUpdateConfiguration"} {
			n = max(n, count(mapOf(strategy, key), "partition", 0))
		}
		sum, subsets := int64(0), mapOf(strategy, "manualUpdate", "partitions") // of a UnitedDeployment
		for name := range subsets {
			sum += count(subsets, name, 0)
		}
		n = max(n, sum)
	}
	return n
}
