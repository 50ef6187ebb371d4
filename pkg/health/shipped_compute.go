package health

import "strings"

// The judgements of single kinds that compute: streams, batches and the queues before them. Each reports whether it decides; otherwise
// the rest of its rule does.

func flinkHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if message := text(o.status, "error"); message != "" {
		return degraded("Error", message), true // it is cleared once the job is well: beside a stable one it is why the newest is refused
	}
	switch text(o.status, "lifecycleState") {
	case "STABLE", "DEPLOYED":
		if r, ok := flinkCluster(o); ok {
			return r, true
		}
		return flinkJob(o), true
	case "SUSPENDED":
		return suspended("Suspended", "the job is suspended"), true
	case "FAILED", "ROLLED_BACK":
		return degraded(camelKey(strings.ToLower(text(o.status, "lifecycleState"))), "the job is not what is wanted"), true
	case "":
	default:
		return progressing(text(o.status, "lifecycleState"), "the job is on its way"), true
	}
	reconciliation := mapOf(o.status, "reconciliationStatus")
	job := text(mapOf(o.status, "jobStatus"), "state")
	stopped := text(mapOf(o.spec, "job"), "state") == "suspended"
	switch {
	case stopped && (job == "SUSPENDED" || job == "FINISHED" || job == "" && text(reconciliation, "lastReconciledSpec") == ""):
		return suspended("Suspended", "spec.job.state is suspended"), true
	case o.kind == "FlinkSessionJob" && job != "" && reconciliation == nil:
		return flinkJob(o), true
	}
	switch jobManager := text(o.status, "jobManagerDeploymentStatus"); {
	case jobManager == "ERROR":
		return degraded(jobManager, nonEmpty(text(reconciliation, "error"), "the job manager failed")), true
	case isTrue(reconciliation, "success"), text(reconciliation, "state") == "DEPLOYED" && (jobManager == "" || jobManager == "READY"):
		return flinkJob(o), true
	}
	return progressing("Deploying", "the job manager is not ready yet"), true
}

// flinkCluster is about the job manager, which is all that a cluster for sessions has.
func flinkCluster(o *object) (Result, bool) {
	switch state := text(o.status, "jobManagerDeploymentStatus"); state {
	case "ERROR":
		return degraded(state, "the job manager failed"), true
	case "DEPLOYING", "DEPLOYED_NOT_READY", "MISSING":
		return progressing(camel(state), "the job manager is "+state), text(mapOf(o.status, "jobStatus"), "state") == ""
	}
	return Result{}, false
}

func flinkJob(o *object) Result {
	switch state := text(mapOf(o.status, "jobStatus"), "state"); state {
	case "FAILED", "FAILING", "CANCELED", "CANCELLING":
		return degraded(state, "the job is "+state)
	case "RECONCILING", "CREATED", "INITIALIZING", "RESTARTING":
		return progressing(state, "the job is "+state)
	case "SUSPENDED":
		return suspended("Suspended", "the job is suspended")
	}
	return healthy()
}

// flinkBlueGreenTrouble: once one side is active, a job that starts again and again is a crash loop. An error that is noted
// beside an active side is of something else, for instance of a savepoint.
func flinkBlueGreenTrouble(o *object) (Result, bool) {
	job := text(mapOf(o.status, "jobStatus"), "state")
	switch {
	case text(mapOf(o.status, "reconciliationStatus"), "state") == "ROLLING_BACK":
		return progressing("RollingBack", nonEmpty(text(o.status, "error"), "the upgrade is rolled back")), true
	case text(mapOf(o.status, "reconciliationStatus"), "state") == "ROLLED_BACK":
		return degraded("RolledBack", nonEmpty(text(o.status, "error"), "the upgrade was rolled back")), true
	case !hasPrefix(text(o.status, "blueGreenState"), "ACTIVE_"):
		return Result{}, false
	case job == "RESTARTING":
		return degraded(job, "the job starts again and again"), true
	case has("FAILED FAILING RECONCILING", job):
		return progressing(job, "the operator recovers the job"), true
	}
	return Result{}, false
}

// rayClusterHealth: once its pods have been ready a cluster is called ready, whatever becomes of its workers. What the autoscaler wants
// beyond the least is its own matter.
func rayClusterHealth(o *object) (Result, bool) {
	state := text(o.status, "state")
	if o.empty() || o.condition("ReplicaFailure").is("True") || state != "" && state != "ready" {
		return Result{}, false
	}
	if state == "" {
		return progressing("NoPhase", "status.state is not written yet"), true
	}
	want := count(o.status, "desiredWorkerReplicas", 0)
	if isTrue(o.spec, "enableInTreeAutoscaling") {
		want = min(want, count(o.status, "minWorkerReplicas", 0))
	}
	have, said := number(o.status, "readyWorkerReplicas")
	if !said && len(listOf(o.status, "conditions")) == 0 { // an operator of before conditions counts only those that run; one of today leaves out a zero
		have = count(o.status, "availableWorkerReplicas", 0)
	}
	return progressing("LessWorkers", of(have, want, "workers are ready")), have < want
}

// rayJobFailed: what is complete may have ended badly.
func rayJobFailed(o *object) (Result, bool) {
	state := text(o.status, "jobStatus")
	ended := text(o.status, "jobDeploymentStatus") == "Complete" && has("FAILED STOPPED", state)
	return degraded(state, nonEmpty(text(o.status, "message"), "the job is "+state)), ended
}

// chaosHealth: what is to go wrong goes wrong until its time is over, or for good.
func chaosHealth(o *object) (Result, bool) {
	if o.condition("Selected").kind == "" {
		return Result{}, false
	}
	stops := text(mapOf(o.status, "experiment"), "desiredPhase") == "Stop"
	switch {
	case o.condition("Paused").is("True"), o.annotation("experiment.chaos-mesh.org/pause") == "true":
		return suspended("Paused", "the experiment is paused"), true
	case o.condition("Selected").is("False"):
		return degraded("NotSelected", "nothing matches the selector"), true
	case stops && !o.condition("AllRecovered").is("True"):
		return progressing("Recovering", "not all that was chosen has recovered"), true
	case !stops && !o.condition("AllInjected").is("True"):
		return progressing("Injecting", "not all that was chosen has its fault"), true
	}
	return healthy(), true
}

// queueStopped: a queue stands still where somebody says so and nothing else is wrong.
func queueStopped(o *object) (Result, bool) {
	c := o.condition("Active")
	ordered := has("Hold HoldAndDrain", text(o.spec, "stopPolicy"))
	return suspended(c.reason, nonEmpty(c.message, "spec.stopPolicy stops it")), ordered && c.is("False") && c.reason == "Stopped" && !strings.Contains(c.message, ",")
}

// functionSleeps: a function that nobody calls may be scaled down to nothing, and is ready all the same.
func functionSleeps(o *object) (Result, bool) {
	replicas, said := number(o.status, "replicas")
	sleeps := said && replicas == 0 && o.condition("Ready").is("True") && !o.condition("Stalled").is("True")
	return suspended("ScaledToZero", "nothing of it runs until it is called"), sleeps
}
