package health

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// NotThrough is the answer of Old where the status only tells that an update is not through yet.
const NotThrough = -1

// Old is how many pods of an older template a workload has by its own status, whatever its health: one that stands still in the middle
// of an update (paused, at a partition or a step, OnDelete) may be as it should be, and its old pods still use what they began with.
// It is NotThrough where the status speaks of an older generation, a workload of Kubernetes has none yet, or it says that the old template
// may have pods again. Of a CronJob the runs are counted that began with an older template. Other objects have none, but for custom
// resources that count replicas as a Deployment does.
func Old(obj map[string]any) int {
	o := newObject(obj, Facts{})
	switch {
	case o.group == "apps" || o.group == "extensions":
		return o.oldOfBuiltin() // a new one may take up pods that were left of the one before
	case len(o.status) == 0 && o.generation <= 1:
		return 0
	case o.group == "argoproj.io" && o.kind == "Rollout":
		return o.oldOfRollout()
	case o.group == "apps.kruise.io" && o.kind == "DaemonSet":
		return o.oldUnless(o.toldOld(), o.oldDaemons())
	case o.group == "apps.kruise.io" && o.kind == "SidecarSet":
		return o.oldUnless(o.toldOld(), o.oldSidecars())
	case o.group == "batch" && o.kind == "CronJob":
		return o.oldUnless(false, o.oldRuns())
	case builtinGroup(o.group):
		return 0
	}
	if _, held := o.held(); held && (o.toldOld() || o.allStale(listOf(o.status, "conditions")).kind != "") {
		return NotThrough // who is told to stand still has not come to what the object says
	}
	updated, counted := firstNumber(o.status, newCounts...)
	if all, ok := number(o.status, "replicas"); ok && (counted || o.leavesOutNone()) {
		return o.oldUnless(o.toldOld(), all-updated)
	}
	return 0
}

func (o *object) oldOfBuiltin() int {
	_, unseen := o.unseen()
	switch o.kind {
	case "Deployment":
		return o.oldUnless(unseen, o.deploymentReplicas()-count(o.status, "updatedReplicas", 0))
	case "StatefulSet":
		return o.oldUnless(unseen, count(o.status, "replicas", 0)-count(o.status, "updatedReplicas", 0))
	case "DaemonSet":
		return o.oldUnless(unseen, o.oldDaemons())
	}
	return 0
}

// deploymentReplicas are the pods of a Deployment, with those that are to be: while it is paused, its old ReplicaSet makes again what is
// deleted or evicted. One that has run nothing yet makes none while it is paused.
func (o *object) deploymentReplicas() int64 {
	have := count(o.status, "replicas", 0)
	if !isTrue(o.spec, "paused") || text(mapOf(o.meta, "annotations"), "deployment.kubernetes.io/revision") == "" {
		return have
	}
	return max(have, count(o.spec, "replicas", 1))
}

// toldOld reports that the status says that it speaks of an older generation.
func (o *object) toldOld() bool {
	_, old := o.unobserved()
	return old
}

// oldUnless is a number of old pods, unless what it was counted from is not of now.
func (o *object) oldUnless(stale bool, n int64) int {
	if stale {
		return NotThrough
	}
	return int(min(max(0, n), math.MaxInt16))
}

// oldDaemons counts the pods of a DaemonSet on the nodes that it is to be on. Where nobody but a person replaces them, those that stay
// where it is not to be any more may be old, too.
func (o *object) oldDaemons() int64 {
	have := count(o.status, "currentNumberScheduled", count(o.status, "desiredNumberScheduled", 0))
	n := have - count(o.status, "updatedNumberScheduled", 0)
	if text(mapOf(o.spec, "updateStrategy"), "type") == "OnDelete" {
		n += count(o.status, "numberMisscheduled", 0)
	}
	return n
}

// oldOfRollout knows that what is stable yet gets its pods back when the update is aborted.
func (o *object) oldOfRollout() int {
	all := count(o.status, "replicas", 0)
	n := o.oldUnless(o.rolloutBehind() != "", all-count(o.status, "updatedReplicas", 0))
	if stable := o.stableReplicaSet(); n == 0 && all > 0 && stable != "" && stable != text(o.status, "currentPodHash") {
		return NotThrough
	}
	return n
}

// cronLag is how long after a change a CronJob's controller may still start runs of the template before it: it reads from its cache, and
// its clock is not the API server's, who says when the change was.
const cronLag = 30 * time.Second

// oldRuns counts the runs of a CronJob that were scheduled before it was changed last, or as good as then: the Job of one makes pods of its
// own template as long as it goes on, suspended or not. Who changed what is not known; a change that left the template alone counts, too.
// A run of which nobody knows when it was scheduled may be as old as any.
func (o *object) oldRuns() (n int64) {
	changed := o.written("")
	if o.generation <= 1 || changed.IsZero() {
		return 0 // no other template was ever there, or nobody knows
	}
	for _, x := range listOf(o.status, "active") {
		run, _ := x.(map[string]any)
		if at, known := scheduled(text(run, "name")); !known || !at.After(changed.Add(cronLag)) {
			n++
		}
	}
	return n
}

// scheduled is for when a CronJob's controller has scheduled a run: the minute, since 1970, ends the name of the Job.
func scheduled(job string) (at time.Time, known bool) {
	minute, err := strconv.ParseInt(job[strings.LastIndexByte(job, '-')+1:], 10, 64)
	return time.Unix(minute*60, 0), err == nil
}

// rolloutBehind says of what the status of an Argo Rollout has not seen the newest; empty: it has.
func (o *object) rolloutBehind() string {
	if n, err := strconv.ParseInt(text(o.status, "observedGeneration"), 10, 64); err == nil && n < o.generation {
		return o.old(n).Message
	}
	seen := text(o.status, "workloadObservedGeneration")
	if want := o.annotation("rollout.argoproj.io/workload-generation"); seen != "" && o.spec["workloadRef"] != nil && want != "" && want != seen {
		return "the newest workload is not seen yet"
	}
	return ""
}

func (o *object) stableReplicaSet() string {
	return nonEmpty(text(o.status, "stableRS"), text(mapOf(o.status, "canary"), "stableRS"))
}
