package health

import "fmt"

// The judgements of what OpenKruise brings into the pods and onto the nodes of others. Each reports whether it decides; otherwise the rest
// of its rule does.

// sidecarSetHealth counts the pods that have the newest sidecars. Whether those are ready is also a matter of the other containers.
func sidecarSetHealth(o *object) (Result, bool) {
	strategy := mapOf(o.spec, "updateStrategy")
	matched, updated := count(o.status, "matchedPods", 0), count(o.status, "updatedPods", 0)
	_, some := strategy["selector"].(map[string]any)
	switch {
	case o.empty():
		return Result{}, false
	case updated >= matched, text(strategy, "type") == "NotUpdate":
		return healthy(), true
	case isTrue(strategy, "paused"):
		return suspended("Paused", "the update strategy is paused"), true
	case held(strategy["partition"]), some:
		return suspended("Partition", fmt.Sprintf("the update strategy leaves %d pods as they are", matched-updated)), true
	}
	return progressing("LessUpdated", of(updated, matched, "pods have the newest sidecars")), true
}

// oldSidecars counts the pods that have the sidecars of before.
func (o *object) oldSidecars() int64 {
	return count(o.status, "matchedPods", 0) - count(o.status, "updatedPods", 0)
}

// imagePullHealth counts the nodes that have the image.
func imagePullHealth(o *object) (Result, bool) {
	desired, have, failed := count(o.status, "desired", 0), count(o.status, "succeeded", 0), count(o.status, "failed", 0)
	switch {
	case o.empty():
		return Result{}, false
	case failed > 0:
		return degraded("PullFailed", nonEmpty(text(o.status, "message"), of(failed, desired, "nodes could not pull the image"))), true
	case have < desired:
		return progressing("LessPulled", of(have, desired, "nodes have the image")), true
	}
	return healthy(), true
}
