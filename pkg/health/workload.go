package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// unseen reports that a workload's controller has not written what it makes of the newest generation. These controllers
// always do, so that a generation which is greater is of another object of the name, whose status somebody put on this one.
func (o *object) unseen() (Result, bool) {
	observed, ok := number(o.status, "observedGeneration")
	switch {
	case ok && observed != o.generation && o.generation > 0:
		return o.old(observed), true
	case len(o.status) == 0, !ok && o.generation > 0:
		return progressing(ReasonNoStatus, "its controller has not seen it yet"), true
	}
	return Result{}, false
}

func of(have, want int64, what string) string { return fmt.Sprintf("%d of %d %s", have, want, what) }

func deploymentHealth(o *object) Result {
	if isTrue(o.spec, "paused") {
		return suspended("Paused", "spec.paused is true: the rollout stands still")
	}
	if r, unseen := o.unseen(); unseen {
		return r
	}
	if c := o.condition("Progressing"); c.reason == "ProgressDeadlineExceeded" {
		return degraded(c.reason, nonEmpty(c.message, "the rollout takes longer than progressDeadlineSeconds"))
	}
	if c := o.condition("ReplicaFailure"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message)
	}
	want := count(o.spec, "replicas", 1)
	all, updated, available := count(o.status, "replicas", 0), count(o.status, "updatedReplicas", 0), count(o.status, "availableReplicas", 0)
	switch {
	case updated < want:
		return progressing("LessUpdated", of(updated, want, "pods are updated"))
	case all > updated:
		return progressing("OldPods", of(all-updated, all, "pods are old and end"))
	case all > want:
		return progressing("ExtraPods", fmt.Sprintf("%d pods are too many and end", all-want))
	case available < updated:
		return progressing("LessAvailable", of(available, updated, "updated pods are available"))
	}
	return o.deploymentDoubts()
}

// deploymentDoubts is of a deployment whose numbers are as they should be: its controller may say still that it is not.
func (o *object) deploymentDoubts() Result {
	for _, kind := range []string{"Progressing", "Available"} {
		c := o.condition(kind)
		switch {
		case c.is("False") && kind == "Progressing" && reasonClass(c.reason, "") == bad:
			return degraded(c.reason, c.message)
		case c.is("False"):
			return progressing(nonEmpty(c.reason, "Not"+kind), c.message)
		}
	}
	return healthy()
}

func statefulSetHealth(o *object) Result {
	if r, unseen := o.unseen(); unseen {
		return r
	}
	want := count(o.spec, "replicas", 1)
	all, ready, updated := count(o.status, "replicas", 0), count(o.status, "readyReplicas", 0), count(o.status, "updatedReplicas", 0)
	if ready < want {
		return progressing("LessReady", of(ready, want, "pods are ready"))
	}
	if available, ok := number(o.status, "availableReplicas"); ok && available < want && count(o.spec, "minReadySeconds", 0) > 0 {
		return progressing("LessAvailable", of(available, want, "pods are available"))
	}
	if all > want {
		return progressing("ExtraPods", fmt.Sprintf("%d pods are too many and end", all-want))
	}
	strategy := mapOf(o.spec, "updateStrategy")
	if text(strategy, "type") == "OnDelete" {
		return healthy()
	}
	if rolling, ok := strategy["rollingUpdate"].(map[string]any); ok {
		if partition := count(rolling, "partition", 0); updated < want-partition {
			return progressing("LessUpdated", of(updated, want-partition, "pods are updated"))
		}
		return healthy()
	}
	if current, ok := number(o.status, "currentReplicas"); ok && current < want && updated < want {
		return progressing("LessUpdated", of(current, want, "pods are of the current revision"))
	}
	if a, b := text(o.status, "currentRevision"), text(o.status, "updateRevision"); a != b {
		return progressing("LessUpdated", fmt.Sprintf("%d pods are updated to %s", updated, b))
	}
	return healthy()
}

func daemonSetHealth(o *object) Result {
	if r, unseen := o.unseen(); unseen {
		return r
	}
	want, counted := number(o.status, "desiredNumberScheduled")
	updated, available := count(o.status, "updatedNumberScheduled", 0), count(o.status, "numberAvailable", 0)
	ready := count(o.status, "numberReady", want)
	switch {
	case !counted:
		return progressing(ReasonNoStatus, "its controller has not counted the nodes yet")
	case updated < want && text(mapOf(o.spec, "updateStrategy"), "type") != "OnDelete":
		return progressing("LessUpdated", of(updated, want, "pods are updated"))
	case available < want:
		return progressing("LessAvailable", of(available, want, "pods are available"))
	case ready < want:
		return progressing("LessReady", of(ready, want, "pods are ready"))
	}
	return healthy()
}

// replicaSetHealth is for replication controllers, too.
func replicaSetHealth(o *object) Result {
	if r, unseen := o.unseen(); unseen {
		return r
	}
	if c := o.condition("ReplicaFailure"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message)
	}
	want := count(o.spec, "replicas", 1)
	if available := count(o.status, "availableReplicas", 0); available < want {
		return progressing("LessAvailable", of(available, want, "pods are available"))
	}
	if ready := count(o.status, "readyReplicas", want); ready < want {
		return progressing("LessReady", of(ready, want, "pods are ready"))
	}
	if all := count(o.status, "replicas", 0); all > want {
		return progressing("ExtraPods", fmt.Sprintf("%d pods are too many and end", all-want))
	}
	return healthy()
}

func podHealth(o *object) Result {
	switch phase := text(o.status, "phase"); phase {
	case "Succeeded":
		return healthy()
	case "Failed":
		return o.podFailure()
	case "Pending", "Running":
		if r, stuck := o.stuckContainer(); stuck {
			return r
		}
		if phase == "Pending" {
			return o.pendingPod()
		}
		return o.runningPod()
	case "":
		return progressing(ReasonNoStatus, "the pod is not seen by its node yet")
	default:
		return Result{Health: fleet.HealthUnknown, Reason: "Unknown", Message: nonEmpty(text(o.status, "message"), "the node does not answer for the pod")}
	}
}

func (o *object) pendingPod() Result {
	if c := o.condition("PodScheduled"); c.is("False") {
		return progressing(c.reason, c.message)
	}
	return progressing("Pending", nonEmpty(text(o.status, "message"), "the pod has not started yet"))
}

// runningPod takes a pod of finite life for Progressing until it has ended, ready or not.
func (o *object) runningPod() Result {
	if policy := text(o.spec, "restartPolicy"); policy == "Never" || policy == "OnFailure" {
		if o.annotation("argocd.argoproj.io/ignore-restart-policy") != "true" || o.annotation("argocd.argoproj.io/hook") != "" {
			return progressing("Running", "the pod runs to its end (restartPolicy "+policy+")")
		}
	}
	ready := o.condition("Ready")
	if ready.is("True") {
		return o.readyPod()
	}
	for _, x := range listOf(o.status, "containerStatuses") {
		c, _ := x.(map[string]any)
		if ended := mapOf(c, "lastState", "terminated"); ended != nil && !isTrue(c, "ready") {
			return degraded(nonEmpty(text(ended, "reason"), "Restarted"), fmt.Sprintf("container %s is not ready; restarted %d times, last with exit code %d",
				text(c, "name"), count(c, "restartCount", 0), count(ended, "exitCode", 0)))
		}
	}
	return progressing(nonEmpty(ready.reason, "NotReady"), nonEmpty(ready.message, "the pod is not ready yet"))
}

// readyPod is of a pod that is ready as it was before our last change until its node has carried that out: it sees a change before it ends a
// container of another image, which may take until the pod's grace period is over.
func (o *object) readyPod() Result {
	if r, old := o.unobserved(); old {
		return r
	}
	images := map[string]string{}
	for _, x := range slices.Concat(listOf(o.spec, "initContainers"), listOf(o.spec, "containers")) { // of the first those run on that are sidecars
		c, _ := x.(map[string]any)
		images[text(c, "name")] = text(c, "image")
	}
	for _, x := range slices.Concat(listOf(o.status, "initContainerStatuses"), listOf(o.status, "containerStatuses")) {
		c, _ := x.(map[string]any)
		began, err := time.Parse(time.RFC3339, text(mapOf(c, "state", "running"), "startedAt"))
		if err != nil || !began.Before(o.facts.Changed) || runs(c, images[text(c, "name")]) {
			continue
		}
		old := progressing("OldImage", fmt.Sprintf("container %s runs %s, started before the change", text(c, "name"), text(c, "image")))
		if r, waits := o.graced(old); waits { // an image may have several names
			return r
		}
	}
	return o.unheard(healthy())
}

// runs reports that what a node says of a container is of this image, by its name or digest alone.
func runs(container map[string]any, image string) bool {
	for _, name := range []string{image, image + ":latest"} {
		if said := text(container, "image"); said == name || strings.HasSuffix(said, "/"+name) {
			return true
		}
	}
	_, digest, named := strings.Cut(image, "@")
	return named && strings.HasSuffix(text(container, "imageID"), digest)
}

// stuckContainer finds a container that cannot start: a wrong image, a wrong configuration, a crash loop.
func (o *object) stuckContainer() (Result, bool) {
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, x := range listOf(o.status, list) {
			c, _ := x.(map[string]any)
			waiting := mapOf(c, "state", "waiting")
			reason := text(waiting, "reason")
			if !strings.HasPrefix(reason, "Err") && !strings.HasSuffix(reason, "Error") && !strings.HasSuffix(reason, "BackOff") &&
				reason != "InvalidImageName" {
				continue
			}
			return degraded(reason, fmt.Sprintf("container %s (%s): %s", text(c, "name"), text(c, "image"), nonEmpty(text(waiting, "message"), reason))), true
		}
	}
	return Result{}, false
}

func (o *object) podFailure() Result {
	if message := text(o.status, "message"); message != "" {
		return degraded(nonEmpty(text(o.status, "reason"), "Failed"), message)
	}
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, x := range listOf(o.status, list) {
			c, _ := x.(map[string]any)
			ended := mapOf(c, "state", "terminated")
			if code := count(ended, "exitCode", 0); code != 0 {
				return degraded(nonEmpty(text(ended, "reason"), "Failed"),
					nonEmpty(text(ended, "message"), fmt.Sprintf("container %s ended with exit code %d", text(c, "name"), code)))
			}
		}
	}
	return degraded(nonEmpty(text(o.status, "reason"), "Failed"), "the pod failed")
}
