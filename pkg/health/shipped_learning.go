package health

// The judgements of single kinds that train, search and serve models, and of the jobs that they are made of. Each reports whether it
// decides; otherwise the rest of its rule does.

func jobSetHealth(o *object) (Result, bool) {
	if o.condition("Completed").is("True") {
		return healthy(), true
	}
	if c := o.condition("Failed"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message), true
	}
	return progressing("Running", "the jobs are not complete"), true
}

// trainingJobHealth reads the conditions of Kubeflow's jobs, of which the last that is True is the state.
func trainingJobHealth(o *object) (Result, bool) {
	if isTrue(mapOf(o.spec, "runPolicy"), "suspend") {
		return suspended("Suspended", "spec.runPolicy.suspend is true"), true
	}
	if c := o.condition("Failed"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message), true
	}
	if o.condition("Succeeded").is("True") {
		return healthy(), true
	}
	return progressing("Running", "the job is not done"), true
}

// trainJobRefused: jobs that cannot be made are no jobs that fail.
func trainJobRefused(o *object) (Result, bool) {
	c := o.condition("Created")
	refused := c.is("False") && reasonClass(c.reason, "") == bad && !o.stale(c) && !o.condition("Complete").is("True")
	return degraded(c.reason, nonEmpty(c.message, "the jobs cannot be made")), refused
}

// searchHealth is of Katib's experiments and trials. What once began again is called Restarting ever after.
func searchHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	for _, kind := range []string{"Failed", "Killed"} {
		if c := o.condition(kind); c.is("True") {
			return degraded(nonEmpty(c.reason, kind), nonEmpty(c.message, kind)), true
		}
	}
	done := o.condition("Succeeded")
	switch {
	case done.is("True"), o.condition("EarlyStopped").is("True"):
		return healthy(), true
	case done.is("False"):
		return degraded(nonEmpty(done.reason, "NotSucceeded"), nonEmpty(done.message, "it has ended without its metrics")), true
	}
	c := o.condition("Running")
	return progressing(nonEmpty(c.reason, "NotDone"), nonEmpty(c.message, "it is not done")), true
}

// suggestionHealth: what suggests runs until nobody asks it any more.
func suggestionHealth(o *object) (Result, bool) {
	if c := o.condition("Failed"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message), true
	}
	c := o.condition("Running")
	if o.condition("Succeeded").is("True") || c.is("True") && !o.condition("DeploymentReady").is("False") {
		return healthy(), true
	}
	return progressing(nonEmpty(c.reason, "NotRunning"), nonEmpty(c.message, "it does not run yet")), true
}

// notebookHealth: a notebook is one pod, whose container it shows.
func notebookHealth(o *object) (Result, bool) {
	if stopped := o.annotation("kubeflow-resource-stopped"); stopped != "" {
		return suspended("Stopped", "annotation kubeflow-resource-stopped: "+stopped), true
	}
	if o.empty() || count(o.status, "readyReplicas", 0) > 0 {
		return healthy(), !o.empty()
	}
	waiting, ended := mapOf(o.status, "containerState", "waiting"), mapOf(o.status, "containerState", "terminated")
	switch reason := text(waiting, "reason"); {
	case hasPrefix(reason, "Err") || hasSuffix(reason, "Error", "BackOff") || reason == "InvalidImageName":
		return degraded(reason, nonEmpty(text(waiting, "message"), reason)), true
	case ended != nil && text(ended, "reason") != "Completed":
		return degraded(nonEmpty(text(ended, "reason"), "Terminated"), nonEmpty(text(ended, "message"), "its container has ended")), true
	default:
		return progressing(nonEmpty(reason, "NotReady"), nonEmpty(text(waiting, "message"), "its pod is not ready yet")), true
	}
}

// profileFailed: each failure is noted by a condition without a status.
func profileFailed(o *object) (Result, bool) {
	list := listOf(o.status, "conditions")
	if len(list) == 0 {
		return Result{}, false
	}
	c := conditionOf(list[len(list)-1])
	return degraded(c.kind, nonEmpty(c.message, "the profile cannot be carried out")), c.kind == "Failed" && c.status != "False"
}

// inferenceHealth knows a service that somebody stopped, and a newest model that is not the one that serves.
func inferenceHealth(o *object) (Result, bool) {
	if o.annotation("serving.kserve.io/stop") == "true" || o.condition("Stopped").is("True") {
		return suspended("Stopped", "the service is stopped"), true
	}
	model := mapOf(o.status, "modelStatus")
	switch state := text(model, "transitionStatus"); state {
	case "BlockedByFailedLoad", "InvalidSpec":
		return degraded(state, nonEmpty(text(mapOf(model, "lastFailureInfo"), "message"), "the newest model is not loaded")), true
	case "InProgress":
		c := o.condition("Ready")
		return progressing(state, "the newest model is loaded"), c.is("True")
	}
	return Result{}, false
}

// modelCacheHealth counts the nodes that have the model; a zero is left out.
func modelCacheHealth(o *object) (Result, bool) {
	copies := mapOf(o.status, "copies")
	if copies == nil {
		return progressing("NoCopies", "no node has the model yet"), !o.empty()
	}
	failed, have, want := count(copies, "failed", 0), count(copies, "available", 0), count(copies, "total", 0)
	switch {
	case failed > 0:
		return degraded("DownloadFailed", of(failed, want, "nodes could not get the model")), true
	case have < want:
		return progressing("LessAvailable", of(have, want, "nodes have the model")), true
	}
	return healthy(), true
}

// sparkHealth takes an application that runs with all of its executors for healthy. Where Spark makes them as they are needed, it may
// have ended all that it had.
func sparkHealth(o *object) (Result, bool) {
	if text(mapOf(o.status, "applicationState"), "state") != "RUNNING" {
		return Result{}, false
	}
	executors := mapOf(o.status, "executorState")
	states := map[string]int64{}
	for name := range executors {
		states[text(executors, name)]++
	}
	want := count(mapOf(o.spec, "executor"), "instances", 1)
	if dynamic := mapOf(o.spec, "dynamicAllocation"); isTrue(dynamic, "enabled") {
		want = count(dynamic, "minExecutors", 0)
		if want == 0 && (states["COMPLETED"] == 0 || states["PENDING"]+states["FAILED"] > 0) {
			want = 1
		}
	}
	if running := states["RUNNING"]; running < want {
		return progressing("LessExecutors", of(running, want, "executors run")), true
	}
	return healthy(), true
}
