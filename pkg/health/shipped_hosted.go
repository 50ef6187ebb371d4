package health

import "strings"

// The judgements of single kinds of clusters that are hosted by another, and of stages that a person fills. Each reports whether it decides;
// otherwise the rest of its rule does.

// lastOperation: Gardener and its extensions note the generation when they begin with it, and in the last operation how far they are.
func lastOperation(o *object) (Result, bool) {
	operation := mapOf(o.status, "lastOperation")
	message := nonEmpty(text(mapOf(o.status, "lastError"), "description"), text(operation, "description"))
	for _, x := range listOf(o.status, "lastErrors") {
		m, _ := x.(map[string]any)
		message = nonEmpty(text(m, "description"), message)
	}
	switch state := text(operation, "state"); state {
	case "", "Succeeded":
		return Result{}, false
	case "Error", "Failed", "Aborted":
		return degraded(state, nonEmpty(message, "the last operation ended with "+state)), true
	default:
		return progressing(state, nonEmpty(text(operation, "description"), "an operation is under way")), true
	}
}

// tenantOutdated: a control plane is ready with the version of before.
func tenantOutdated(o *object) (Result, bool) {
	version := mapOf(o.status, "kubernetesResources", "version")
	is, want := text(version, "version"), text(mapOf(o.spec, "kubernetes"), "version")
	return progressing("Upgrading", "the control plane does not have version "+want+" yet"), text(version, "status") == "Ready" && upgrades(is, want)
}

// stageEmpty: nothing was promoted to the stage yet, which is up to a person or to the stages before it.
func stageEmpty(o *object) (Result, bool) {
	for _, kind := range []string{"Ready", "Healthy"} {
		c := o.condition(kind)
		empty := c.reason == "NoFreight" || strings.HasPrefix(c.message, "Stage has no current Freight")
		if empty && !c.is("True") && !o.stale(c) {
			return suspended(c.reason, nonEmpty(c.message, "nothing was promoted to the stage yet")), true
		}
	}
	return Result{}, false
}

// hostedHealth: what HyperShift finds wrong with the specification stays so until somebody changes that, while the cluster, or its nodes, go on
// with what was right before.
func hostedHealth(o *object) (Result, bool) {
	var s signs
	for _, x := range listOf(o.status, "conditions") {
		c := conditionOf(x)
		switch {
		case !c.is("False") || o.stale(c) || c.kind == "ValidKubeVirtInfraNetworkMTU": // which only tells that it could be faster
		case c.kind == "ReconciliationActive" && c.reason == "ReconciliationPaused":
			s.add(suspended(c.reason, nonEmpty(c.message, "spec.pausedUntil is set")))
		case has("ReconciliationActive UpdateManagementEnabled AutoscalingEnabled SupportedVersionSkew SupportedHostedCluster PlatformCredentialsFound", c.kind) &&
			reasonClass(c.reason, c.message) == bad, hasPrefix(c.kind, "Valid"):
			s.add(c.isNot())
		}
	}
	return s.verdict()
}

// networkIgnored: a policy that matches no node has nothing to do, and calls itself not available.
func networkIgnored(o *object) (Result, bool) {
	c := o.condition("Ignored")
	return suspended(c.reason, nonEmpty(c.message, "it matches no node")), c.is("True")
}

// ansibleJobHealth goes by the job; the conditions tell of the playbook that starts it.
func ansibleJobHealth(o *object) (Result, bool) {
	failure := o.condition("Failure")
	switch state := text(mapOf(o.status, "ansibleJobResult"), "status"); {
	case state == "successful":
		return healthy(), true
	case state != "" && phaseClass(state) == bad:
		return degraded(camelKey(state), "the job is "+state), true
	case state == "" && failure.is("True"):
		return failure.isBad(), true
	default:
		return progressing(camelKey(nonEmpty(state, "noResult")), "the job is not done"), !o.empty()
	}
}

// clusterPart counts the machines of a part of a cluster, where the status does.
func (s *signs) clusterPart(part string, m map[string]any) {
	if want, ok := number(m, "desiredReplicas"); ok {
		s.machines(part, m, want, want)
	}
}

// karmadaBindingHealth goes by what each cluster reports. One that came with what it depends on has no clusters of its own, and is not scheduled.
func karmadaBindingHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if seen, ok := number(o.status, "schedulerObservedGeneration"); ok && seen < o.generation {
		return o.old(seen), true
	}
	var s signs
	if applied := o.condition("FullyApplied"); applied.kind == "" {
		s.add(progressing("NoFullyApplied", "its controller has not said yet whether it is applied to all clusters"))
	} else {
		s.goodCondition(applied)
	}
	s.goodCondition(o.condition("Scheduled"))
	reports := listOf(o.status, "aggregatedStatus")
	for _, x := range reports {
		m, _ := x.(map[string]any)
		name, failed := text(m, "clusterName"), text(m, "appliedMessage")
		switch {
		case text(m, "health") == "Unhealthy":
			s.add(degraded("Unhealthy", nonEmpty(failed, name+": is unhealthy there")))
		case isTrue(m, "applied"):
		case failed != "":
			s.add(degraded("NotApplied", name+": "+failed))
		default:
			s.add(progressing("NotApplied", name+": is not applied yet"))
		}
	}
	if want := listOf(o.spec, "clusters"); len(reports) > 0 && len(reports) < len(want) {
		s.add(progressing("LessClusters", of(int64(len(reports)), int64(len(want)), "clusters have reported")))
	}
	return s.verdict()
}

// routersMissing: routers are available when some are.
func routersMissing(o *object) (Result, bool) {
	c := o.condition("DeploymentReplicasAllAvailable")
	return progressing(nonEmpty(c.reason, "LessAvailable"), nonEmpty(c.message, "not all routers are available")), c.is("False") && !o.condition("Degraded").is("True")
}

// azureServerStopped: Ready is of what the operator asked Azure for, and stays True of a server or a cluster that somebody has stopped.
func azureServerStopped(o *object) (Result, bool) {
	state := nonEmpty(text(o.status, "state"), text(mapOf(o.status, "powerState"), "code"))
	if c := o.condition("Ready"); !c.is("True") || o.stale(c) {
		return Result{}, false
	}
	switch state {
	case "Stopped", "Stopping":
		return suspended(state, "Azure says that it is "+strings.ToLower(state)), true
	case "Disabled", "Dropping", "Inaccessible":
		return degraded(state, "Azure says that it is "+strings.ToLower(state)), true
	}
	return Result{}, false
}
