package health

import (
	"fmt"
	"maps"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// The judgements of single kinds of the delivery tools. Each reports whether it decides; otherwise the rest of its rule
// does.

// certificateHealth tells the first issuance, which reads like a failure, from one that failed. What failed for an older generation
// stays in the status where the newest wants the certificate that is there.
func certificateHealth(o *object) (Result, bool) {
	if c := o.condition("Issuing"); c.is("False") && c.reason == "Failed" && !o.stale(c) {
		return degraded(c.reason, c.message), true
	}
	if c := o.condition("Issuing"); c.is("True") && !o.stale(c) {
		return progressing(nonEmpty(c.reason, "Issuing"), nonEmpty(c.message, "the certificate is issued")), true
	}
	if c := o.condition("Ready"); c.is("False") && strings.HasPrefix(c.message, "Issuing certificate") {
		return progressing("Issuing", c.message), true
	}
	return Result{}, false
}

// cronWorkflowHealth: what its own condition stopped is not run again until somebody changes it.
func cronWorkflowHealth(o *object) (Result, bool) {
	for _, kind := range []string{"SpecError", "SubmissionError"} {
		if c := o.condition(kind); c.is("True") {
			return degraded(nonEmpty(c.reason, kind), c.message), true
		}
	}
	if phase := text(o.status, "phase"); phase == "Stopped" {
		return suspended(phase, "spec.stopStrategy has stopped it"), true
	}
	return healthy(), true
}

// argoRolloutHealth reads observedGeneration as a number where it is one; older versions wrote a hash.
func argoRolloutHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if behind := o.rolloutBehind(); behind != "" {
		return progressing(ReasonOldGeneration, behind), true
	}
	if r, ok := rolloutTrouble(o); ok {
		return r, true
	}
	if phase := text(o.status, "phase"); phase != "" {
		return rolloutPhase(o, phase), true
	}
	return rolloutProgress(o), true
}

func rolloutTrouble(o *object) (Result, bool) {
	if c := o.condition("InvalidSpec"); c.kind != "" && !c.is("False") {
		return degraded(c.kind, c.message), true
	}
	if c := o.condition("Progressing"); c.reason == "RolloutAborted" || c.reason == "ProgressDeadlineExceeded" {
		return degraded(c.reason, c.message), true
	}
	if isTrue(o.status, "abort") {
		return degraded("RolloutAborted", nonEmpty(text(o.status, "message"), "the rollout was aborted")), true
	}
	return Result{}, false
}

func rolloutPhase(o *object, phase string) Result {
	message := nonEmpty(text(o.status, "message"), "status.phase is "+phase)
	switch phase {
	case "Healthy":
		return healthy()
	case "Degraded":
		return degraded(phase, message)
	case "Paused":
		if isTrue(o.status, "controllerPause") && len(listOf(o.status, "pauseConditions")) == 0 {
			return progressing("Unpausing", "somebody lets the rollout go on, which its controller has not seen yet")
		}
		return suspended(phase, message)
	}
	return progressing(phase, message)
}

// rolloutProgress is for versions before status.phase.
func rolloutProgress(o *object) Result {
	if len(listOf(o.status, "pauseConditions")) > 0 || isTrue(o.status, "verifyingPreview") {
		return suspended("Paused", "the rollout is paused")
	}
	hash := text(o.status, "currentPodHash")
	if hash == "" {
		return progressing(ReasonNoStatus, "the rollout is not reconciled yet")
	}
	want, updated := count(o.spec, "replicas", 1), count(o.status, "updatedReplicas", 0)
	if updated < want {
		return progressing("LessUpdated", of(updated, want, "pods are updated"))
	}
	if available := count(o.status, "availableReplicas", 0); available < updated {
		return progressing("LessAvailable", of(available, updated, "updated pods are available"))
	}
	stable := o.stableReplicaSet()
	if mapOf(o.spec, "strategy")["blueGreen"] != nil {
		active := nonEmpty(text(mapOf(o.status, "blueGreen"), "activeSelector"), text(o.status, "activeSelector"))
		if active != hash || stable != "" && stable != hash {
			return progressing("Cutover", "the active service does not point to the newest pods yet")
		}
		return healthy()
	}
	if all := count(o.status, "replicas", 0); all > updated {
		return progressing("OldPods", of(all-updated, all, "pods are old and end"))
	}
	if stable != hash {
		return progressing("Steps", "the steps of the canary are not through")
	}
	return healthy()
}

// kruiseRolloutHealth reads the condition that tells a rollout that stands from one that goes on.
func kruiseRolloutHealth(o *object) (Result, bool) {
	c := o.condition("Progressing")
	switch c.reason {
	case "Paused":
		return suspended(c.reason, c.message), true
	case "Cancelling":
		return progressing(c.reason, c.message), true
	}
	if step := text(mapOf(o.status, "canaryStatus"), "currentStepState"); step == "StepPaused" {
		return suspended(step, "a step of the rollout waits for somebody"), true
	}
	return Result{}, false
}

// reconciled reports the judgement of a promoter's Ready condition, if that is not that all is well.
func reconciled(o *object) (Result, bool) {
	c := o.condition("Ready")
	switch {
	case o.empty(), c.kind == "":
		return progressing("NotReady", "is not reconciled yet"), true
	case o.stale(c):
		return o.old(c.observed), true
	case c.is("False") && c.reason == "ReconciliationError":
		return degraded(c.reason, c.message), true
	}
	return Result{}, false
}

func promotionHealth(o *object) (Result, bool) {
	if r, ok := reconciled(o); ok {
		return r, true
	}
	environments := listOf(o.status, "environments")
	if len(environments) == 0 {
		return degraded("NoEnvironments", "no environments are configured"), true
	}
	first, pending := "", ""
	for i, x := range environments {
		e, _ := x.(map[string]any)
		active, proposed := dryCommit(e, "active"), dryCommit(e, "proposed")
		if i == 0 {
			first = proposed
		}
		switch {
		case active == "" || proposed == "":
			return progressing("NoCommit", text(e, "branch")+": has no commit yet"), true
		case proposed != first:
			return progressing("Hydrating", "the environments do not propose the same commit yet"), true
		case active != proposed:
			pending = nonEmpty(pending, text(e, "branch"))
		}
	}
	if pending != "" {
		return progressing("Promoting", pending+": "+shortened(first)+" is not active yet"), true
	}
	return healthy(), true
}

func transferHealth(o *object) (Result, bool) {
	if r, ok := reconciled(o); ok {
		return r, true
	}
	active, proposed := dryCommit(o.status, "active"), dryCommit(o.status, "proposed")
	switch {
	case active == "" || proposed == "":
		return progressing("NoCommit", "has no commit yet"), true
	case active != proposed:
		return progressing("Promoting", shortened(proposed)+" is not active yet"), true
	}
	return healthy(), true
}

func dryCommit(e map[string]any, side string) string {
	m := mapOf(e, side)
	return nonEmpty(text(mapOf(m, "note"), "drySha"), text(mapOf(m, "dry"), "sha"))
}

func shortened(sha string) string { return sha[:min(len(sha), 7)] }

func trackedApplications(o *object) (Result, bool) {
	if r, ok := reconciled(o); ok {
		return r, true
	}
	if len(listOf(o.status, "applicationsSelected")) == 0 {
		return degraded("NoApplications", "selects no applications"), true
	}
	return healthy(), true
}

func promotedEnvironments(o *object) (Result, bool) {
	c := o.condition("Ready")
	if o.empty() || !c.is("True") || o.stale(c) {
		return Result{}, false
	}
	var s signs
	for _, x := range listOf(o.status, "environments") {
		e, _ := x.(map[string]any)
		switch text(e, "phase") {
		case "success":
		case "failure":
			s.add(degraded("Failure", text(e, "branch")+": the check failed"))
		default:
			s.add(progressing("Pending", text(e, "branch")+": the check is pending"))
		}
	}
	s.good = true
	return s.verdict()
}

// numaflowHealth takes any condition that is False for trouble.
func numaflowHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if text(mapOf(o.meta, "labels"), "numaplane.numaproj.io/progressive-result-state") == "failed" {
		return degraded("ProgressiveFailed", "the progressive upgrade failed"), true
	}
	if phase := text(o.status, "phase"); phase == "Failed" {
		return degraded(phase, text(o.status, "message")), true
	}
	for _, x := range listOf(o.status, "conditions") {
		if c := conditionOf(x); c.is("False") {
			return degraded(nonEmpty(c.reason, "Not"+c.kind), nonEmpty(c.message, c.kind+" is False")), true
		}
	}
	return Result{}, false
}

// numaplaneHealth: a child that is on its way, or of which nothing is known, makes the rollout wait, though its own phase is Deployed.
// Of one that is paused nothing is known either: that is the rest of the rule's.
func numaplaneHealth(o *object) (Result, bool) {
	c := o.condition("ChildResourcesHealthy")
	paused := o.condition("PipelinePausingOrPaused").is("True") || o.condition("MonoVertexPausingOrPaused").is("True")
	unknown := c.is("Unknown") && !paused && text(o.status, "phase") != "Failed"
	return progressing(nonEmpty(c.reason, "ChildResourcesUnknown"), c.message), !o.stale(c) && (unknown || c.is("False") && c.reason == "Progressing")
}

// providerConfigHealth: a configuration that is in use or not is as good; its conditions count if it has some.
func providerConfigHealth(o *object) (Result, bool) {
	if len(listOf(o.status, "conditions")) == 0 {
		return healthy(), true
	}
	return Result{}, false
}

func crossplaneTrouble(o *object) (Result, bool) {
	for _, kind := range []string{"LastAsyncOperation", "Synced"} {
		if c := o.condition(kind); c.is("False") && !o.stale(c) {
			return degraded(nonEmpty(c.reason, kind), nonEmpty(c.message, kind+" is False")), true
		}
	}
	return Result{}, false
}

// resourceInactive: a kind that no policy activates is there as it should be.
func resourceInactive(o *object) (Result, bool) {
	c := o.condition("Established")
	return healthy(), c.is("False") && c.reason == "InactiveManagedResource" && !o.stale(c) && text(o.spec, "state") != "Active"
}

func configConnectorHealth(o *object) (Result, bool) {
	is, ok := o.status["healthy"].(bool)
	switch {
	case !ok:
		return progressing(ReasonNoStatus, "the installation is not reconciled yet"), true
	case is:
		return healthy(), true
	}
	message := "the installation is not healthy"
	if errors := listOf(o.status, "errors"); len(errors) > 0 {
		message = fmt.Sprint(errors[0])
	}
	return degraded("NotHealthy", message), true
}

// cnrmHealth goes by the reasons of Config Connector: what waits for another resource is under way, not stopped.
func cnrmHealth(o *object) (Result, bool) {
	c := o.condition("Ready")
	if o.stale(c) {
		return o.old(c.observed), true
	}
	switch c.reason {
	case "UpdateFailed", "DependencyNotFound", "DependencyInvalid", "ManagementConflict", "DeleteFailed":
		return degraded(c.reason, c.message), true
	case "DependencyNotReady", "Updating", "Deleting", "AcquisitionInProgress":
		return progressing(c.reason, c.message), true
	case "UpToDate":
		if c.is("True") {
			return healthy(), true
		}
	}
	return Result{}, false
}

// azureOther: not everything of these groups is a resource that the Azure Service Operator makes, and says whether it is Ready.
func azureOther(o *object) (Result, bool) {
	if o.empty() || o.condition("Ready").kind != "" {
		return Result{}, false
	}
	return o.statusSays()
}

// clusterAPITrouble finds what Cluster API writes of final failures; templates have no status.
func clusterAPITrouble(o *object) (Result, bool) {
	if o.empty() {
		return healthy(), hasSuffix(o.kind, "Template", "Identity")
	}
	if message := nonEmpty(text(o.status, "failureMessage"), text(o.status, "errorMessage")); message != "" {
		return degraded(nonEmpty(text(o.status, "failureReason"), text(o.status, "errorReason"), "Failed"), message), true
	}
	return Result{}, false
}

// providerHealth is of the parts of a cluster that a provider of Cluster API makes. The contract has them say when they are there, and Go
// leaves out a false.
func providerHealth(o *object) (Result, bool) {
	if r, ok := clusterAPITrouble(o); ok || o.empty() {
		return r, ok
	}
	done := mapOf(o.status, "initialization")
	for _, key := range []string{"provisioned", "dataSecretCreated"} {
		if is, told := done[key].(bool); told && !is {
			return progressing("NotInitialized", "status.initialization."+key+" is false"), true
		}
	}
	_, told := o.status["ready"]
	part := o.group == "bootstrap.cluster.x-k8s.io" && hasSuffix(o.kind, "Config") || o.group != "bootstrap.cluster.x-k8s.io" && hasSuffix(o.kind, "Machine", "Cluster")
	missing := part && !told && len(done) == 0 && o.condition("Ready").kind == ""
	return progressing("NotReady", "its provider has not said yet that it is ready"), missing
}

// clusterAPIHealth counts the machines, whatever the conditions say: those of a cluster by its parts. An older version of an object has what the
// newer one would say beside its own.
func clusterAPIHealth(o *object) (Result, bool) {
	if r, ok := clusterAPITrouble(o); ok || o.empty() {
		return r, ok
	}
	var s, newer signs
	s.everything(o)
	newer.conditions(o, listOf(mapOf(o.status, "v1beta2"), "conditions"))
	s.take(newer, "")
	if o.kind == "Cluster" {
		for _, part := range []string{"controlPlane", "workers"} {
			s.clusterPart(part, mapOf(o.status, part))
			s.clusterPart(part, mapOf(o.status, "v1beta2", part))
		}
	} else if want, ok := number(o.spec, "replicas"); ok {
		updated := want
		if o.replacedByHand() {
			updated = 0
		}
		s.machines("", o.countedNone(), want, updated)
		if _, said := number(o.status, "readyReplicas"); !said && want > 0 && has("KubeadmControlPlane MachineDeployment MachineSet", o.kind) {
			s.add(progressing("LessReady", of(0, want, "machines are ready")))
		}
	}
	return s.verdict()
}

// countedNone is the status with the numbers that Go leaves out where they are zero.
func (o *object) countedNone() map[string]any {
	if _, told := firstNumber(o.status, newCounts...); told || !o.leavesOutNone() {
		return o.status
	}
	status := maps.Clone(o.status)
	status["updatedReplicas"] = int64(0)
	return status
}

// machines counts those that are there, ready and new, as far as the status does.
func (s *signs) machines(part string, have map[string]any, want, wantNew int64) {
	counted := false
	for _, x := range []struct {
		field, reason, what string
		want                int64
	}{
		{"replicas", "LessMachines", "machines are there", want},
		{"readyReplicas", "LessReady", "machines are ready", want},
		{"availableReplicas", "LessAvailable", "machines are available", want},
		{"updatedReplicas", "LessUpdated", "machines are updated", wantNew},
		{"upToDateReplicas", "LessUpdated", "machines are updated", wantNew},
	} {
		n, ok := number(have, x.field)
		counted = counted || ok && n > 0
		if ok && n < x.want {
			s.working = true
			s.add(progressing(x.reason, strings.TrimSpace(part+" "+of(n, x.want, x.what))))
		}
	}
	if n := count(have, "unavailableReplicas", 0); n > 0 { // a zero of the others may be left out
		s.working = true
		s.add(progressing("LessAvailable", strings.TrimSpace(fmt.Sprintf("%s %d machines are not available", part, n))))
	}
	if !counted && want > 0 { // zeros may all be left out
		s.working = true
		s.add(progressing("LessMachines", strings.TrimSpace(part+" "+of(0, want, "machines are there"))))
	}
	if all := count(have, "replicas", 0); all > want {
		s.working = true
		s.add(progressing("ExtraMachines", strings.TrimSpace(fmt.Sprintf("%s %d machines are too many and end", part, all-want))))
	}
	s.good = true
}

// resourceSetMatches: a set that no cluster matches says nothing but that it was looked at.
func resourceSetMatches(o *object) (Result, bool) {
	if seen, ok := number(o.status, "observedGeneration"); !ok || seen < o.generation || len(listOf(o.status, "conditions")) > 0 {
		return Result{}, false
	}
	if r, waits := o.graced(progressing("NoResourcesApplied", "no cluster matches it yet")); waits {
		return r, true
	}
	return healthy(), true
}

func machineHealthCheckHealth(o *object) (Result, bool) {
	expected, ok := number(o.status, "expectedMachines")
	if !ok {
		return Result{}, false
	}
	have := count(o.status, "currentHealthy", 0)
	if have < expected {
		return degraded("Unhealthy", of(have, expected, "machines are healthy")), true
	}
	return healthy(), true
}

func bareMetalHealth(o *object) (Result, bool) {
	if message := text(o.status, "errorMessage"); message != "" {
		return degraded(nonEmpty(camel(text(o.status, "errorType")), "Error"), message), true
	}
	switch state := text(mapOf(o.status, "provisioning"), "state"); state {
	case "":
		return Result{}, false
	case "available", "provisioned", "externally provisioned", "unmanaged", "ready":
		return healthy(), true
	default:
		return progressing(camel(state), "the host is "+state), true
	}
}

// compliantHealth is of policies of Open Cluster Management.
func compliantHealth(o *object) (Result, bool) {
	if isTrue(o.spec, "disabled") {
		return healthy(), true
	}
	compliant := text(o.status, "compliant")
	switch {
	case compliant == "" && o.status["status"] == nil && len(listOf(o.status, "placement")) > 0:
		return healthy(), true // it is for no cluster
	case compliant == "", compliant == "Pending":
		return progressing(nonEmpty(compliant, ReasonNoStatus), "no cluster has reported yet"), true
	case compliant == "Compliant":
		return healthy(), true
	}
	return degraded(compliant, nonCompliant(o)), true
}

func nonCompliant(o *object) string {
	for _, x := range listOf(o.status, "status") {
		if e, _ := x.(map[string]any); text(e, "compliant") != "Compliant" {
			return "not compliant: cluster " + text(e, "clustername")
		}
	}
	return "not compliant"
}

// olmSubscriptionHealth reads the conditions of a subscription, which are only there for trouble.
func olmSubscriptionHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	var s signs
	for _, x := range listOf(o.status, "conditions") {
		c := conditionOf(x)
		switch {
		case !c.is("True"):
		case c.kind == "InstallPlanPending":
			s.add(progressing(nonEmpty(c.reason, c.kind), nonEmpty(c.message, "an install plan is pending")))
		case c.kind == "InstallPlanMissing" && c.reason != "ReferencedInstallPlanNotFound", c.kind == "CatalogSourcesUnhealthy",
			c.kind == "InstallPlanFailed", c.kind == "ResolutionFailed", c.kind == "BundleUnpackFailed":
			s.add(c.isBad())
		}
	}
	switch state := text(o.status, "state"); {
	case state == "UpgradePending" && text(o.spec, "installPlanApproval") == "Manual" && text(o.status, "installedCSV") != "":
		return healthyOr(s), true // an upgrade that waits for a person is no fault of what runs
	case state == "" && text(o.status, "installedCSV") == "":
		s.add(progressing(ReasonNoStatus, "no install plan is there yet"))
	}
	s.good = true
	return s.verdict()
}

func healthyOr(s signs) Result {
	if s.degraded.Health != "" {
		return s.degraded
	}
	return healthy()
}

func deploymentConfigHealth(o *object) (Result, bool) {
	list := listOf(o.status, "conditions")
	if len(list) == 0 {
		return Result{}, false
	}
	available, moving := conditionIn(list, "Available"), conditionIn(list, "Progressing")
	switch {
	case available.is("True") && (moving.status == "" || moving.is("True") && moving.reason == "NewReplicationControllerAvailable"):
		return healthy(), true // Available counts the pods of the version before as well
	case available.is("True") && !moving.is("False"), moving.is("True"), moving.is("Unknown"):
		worst := available
		if available.is("True") {
			worst = moving
		}
		return progressing(worst.reason, worst.message), true
	}
	return degraded(nonEmpty(moving.reason, available.reason), nonEmpty(moving.message, available.message)), true
}

func routeHealth(o *object) (Result, bool) {
	ingress := listOf(o.status, "ingress")
	if len(ingress) == 0 {
		return progressing("NotAdmitted", "no router has admitted the route yet"), true
	}
	var s signs
	for _, x := range ingress {
		e, _ := x.(map[string]any)
		var own signs
		own.conditions(o, listOf(e, "conditions"))
		s.take(own, text(e, "routerName"))
		if c := conditionIn(listOf(e, "conditions"), "Admitted"); c.is("False") {
			s.add(degraded(nonEmpty(c.reason, "NotAdmitted"), text(e, "routerName")+": "+nonEmpty(c.message, "the router refuses the route")))
		}
	}
	if r, ok := s.verdict(); ok {
		return r, true
	}
	return Result{Health: fleet.HealthProgressing, Reason: "NotAdmitted", Message: "no router has admitted the route yet"}, true
}

// nodePoolFails: a pool is ready although none of the nodes that it starts joins the cluster; and one whose node class fails may wait for good
// for a word on whether it is ready.
func nodePoolFails(o *object) (Result, bool) {
	if c := o.condition("NodeClassReady"); c.is("False") && !o.stale(c) && !o.condition("Ready").is("True") {
		return degraded(nonEmpty(c.reason, "NodeClassNotReady"), nonEmpty(c.message, "its node class is not ready")), true
	}
	c := o.condition("NodeRegistrationHealthy")
	return degraded(nonEmpty(c.reason, "NodesFail"), nonEmpty(c.message, "nodes do not join the cluster")), c.is("False") && !o.stale(c)
}

// packageHeld: where a person activates the revisions, a new one waits for that person.
func packageHeld(o *object) (Result, bool) {
	c := o.condition("Installed")
	if c.is("False") && c.reason == "InactivePackageRevision" && text(o.spec, "revisionActivationPolicy") == "Manual" {
		return suspended(c.reason, "spec.revisionActivationPolicy is Manual: somebody has to activate the newest revision"), true
	}
	return crossplaneTrouble(o)
}

// extensionHealth: what is installed or served may be of before; Progressing tells what became of the newest.
func extensionHealth(o *object) (Result, bool) {
	if text(o.spec, "availabilityMode") == "Unavailable" && o.condition("Serving").is("False") {
		return suspended("Unavailable", "spec.availabilityMode is Unavailable"), true
	}
	c := o.condition("Progressing")
	switch {
	case !o.condition("Installed").is("True") && !o.condition("Serving").is("True"):
		return Result{}, false
	case o.stale(c):
		return o.old(c.observed), true
	case c.is("True") && !c.settled():
		return progressing(c.reason, c.message), true
	case c.is("False") && reasonClass(c.reason, "") == bad:
		return degraded(c.reason, c.message), true
	}
	return Result{}, false
}
