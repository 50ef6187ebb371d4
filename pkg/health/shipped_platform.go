package health

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// The judgements of single kinds of networks, messaging, storage and secrets. Each reports whether it decides;
// otherwise the rest of its rule does.

// gatewayHealth takes the conditions of a gateway and of its listeners.
func gatewayHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	var s signs
	s.conditions(o, listOf(o.status, "conditions"))
	s.entries(o, "listeners")
	if o.kind != "Gateway" && len(listOf(o.status, "listeners")) == 0 {
		s.add(progressing("NoListeners", "no listener is reported yet"))
	}
	if r, ok := s.verdict(); ok {
		return r, true
	}
	return progressing(ReasonNoStatus, "its controller has not said yet whether it is accepted"), true
}

// gatewayRouteHealth takes the conditions that each parent or ancestor gave. A route without parents is for nobody.
func gatewayRouteHealth(o *object) (Result, bool) {
	if strings.HasSuffix(o.kind, "Route") && len(listOf(o.spec, "parentRefs")) == 0 && o.empty() {
		return healthy(), true
	}
	var s signs
	s.entries(o, "parents")
	s.entries(o, "ancestors")
	s.unansweredGateways(o)
	if r, ok := s.verdict(); ok {
		return r, true
	}
	return progressing(ReasonNoStatus, "no gateway says yet whether it accepts it"), true
}

// unansweredGateways are those of the route that say nothing of its newest generation, while others do. One that spoke of an older
// generation is slow and will speak again; one that never spoke may not be in this cluster, and is waited for only as long as a first
// status is. Not every mesh answers for a Service.
func (s *signs) unansweredGateways(o *object) {
	answers := listOf(o.status, "parents")
	if len(answers) == 0 {
		return
	}
	for _, x := range listOf(o.spec, "parentRefs") {
		want, _ := x.(map[string]any)
		known, answered := o.answers(answers, want)
		if kind := text(want, "kind"); answered || kind != "" && kind != "Gateway" {
			continue
		}
		r, waits := o.graced(progressing("NotAccepted", text(want, "name")+": does not say yet whether it accepts it"))
		if known {
			r.Until, waits = time.Time{}, true
		}
		if waits {
			s.add(r)
		}
	}
}

// answers reports whether a parent that a route names has an entry in the status, and whether one speaks of the newest generation.
func (o *object) answers(entries []any, want map[string]any) (known, answered bool) {
	for _, x := range entries {
		e, _ := x.(map[string]any)
		ref := mapOf(e, "parentRef")
		if text(ref, "name") != text(want, "name") || o.namespaceOf(ref) != o.namespaceOf(want) {
			continue
		}
		known = true
		answered = answered || o.allStale(listOf(e, "conditions")).kind == ""
	}
	return known, answered
}

// istioErrors are what the analysis of the mesh found, where it is on.
func istioErrors(o *object) (Result, bool) {
	for _, x := range listOf(o.status, "validationMessages") {
		m, _ := x.(map[string]any)
		if kind := mapOf(m, "type"); strings.EqualFold(text(m, "level"), "error") {
			return degraded(nonEmpty(text(kind, "name"), "Error"), nonEmpty(text(m, "documentationUrl"), "the analysis of the mesh found an error: "+text(kind, "code"))), true
		}
	}
	return Result{}, false
}

// istioOperatorCounts: some versions write the number of a state instead of its name.
func istioOperatorCounts(o *object) (Result, bool) {
	n, ok := number(o.status, "status")
	switch {
	case !ok:
		return Result{}, false
	case n == 3:
		return healthy(), true
	case n == 4:
		return degraded("ERROR", "a component is in an error"), true
	}
	return progressing("RECONCILING", fmt.Sprintf("the components are in state %d", n)), true
}

// domainFails: a certificate is provisioned on while one of its domains fails, for instance as it does not lead to the load balancer.
func domainFails(o *object) (Result, bool) {
	for _, x := range listOf(o.status, "domainStatus") {
		m, _ := x.(map[string]any)
		if status := text(m, "status"); hasPrefix(status, "Failed") {
			return degraded(status, text(m, "domain")+" is "+status), true
		}
	}
	return Result{}, false
}

// ciliumHealth: some conditions are numbers, with the status Unknown; of the others all are trouble when True.
func ciliumHealth(o *object) (Result, bool) {
	list := listOf(o.status, "conditions")
	for _, x := range list {
		switch c := conditionOf(x); {
		case !c.is("True"):
		case o.stale(c):
			return o.old(c.observed), true
		default:
			return c.isBad(), true
		}
	}
	if c := o.allStale(list); c.kind != "" {
		return o.old(c.observed), true
	}
	return healthy(), !o.empty()
}

// kongUnused: a plugin that nothing uses is pending for ever.
func kongUnused(o *object) (Result, bool) {
	c := o.condition("Programmed")
	if c.kind == "" || c.is("True") || c.reason != "Pending" || o.stale(c) {
		return Result{}, false
	}
	if r, waits := o.graced(progressing(c.reason, c.message)); waits {
		return r, true
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "it is pending: nothing may use it"}, true
}

// calicoWaits: what is not available is on its way unless something says that it fails.
func calicoWaits(o *object) (Result, bool) {
	c, moves := o.condition("Ready"), o.condition("Progressing")
	if moves.is("True") {
		c.message = nonEmpty(moves.message, c.message)
	}
	waits := c.is("False") && c.reason == "NotAvailable" && !o.condition("Degraded").is("True") && !o.stale(c)
	return progressing(c.reason, c.message), waits
}

func threeScaleHealth(o *object) (Result, bool) {
	if strings.EqualFold(nonEmpty(text(o.status, "state"), text(o.status, "developerUserState")), "suspended") {
		return suspended("Suspended", "the application is suspended"), true
	}
	var s signs
	for _, x := range listOf(o.status, "conditions") {
		c := conditionOf(x)
		switch c.kind {
		case "Failed", "Invalid", "Orphan":
			if c.is("True") {
				s.add(degraded(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)))
			}
		case "Synced", "Ready", "Completed":
			s.goodCondition(c)
		case "In-progress":
			s.busyCondition(c)
		case "Waiting":
			if c.is("True") {
				s.add(suspended(nonEmpty(c.reason, c.kind), nonEmpty(c.message, "the account waits for somebody to approve it")))
			}
		}
	}
	if o.kind == "Tenant" && !o.empty() && (count(o.status, "tenantId", 0) == 0 || count(o.status, "adminId", 0) == 0) {
		s.add(progressing("NoTenantId", "the tenant and its administrator have no numbers yet"))
	}
	if v, decided := s.verdict(); decided || o.empty() {
		return v, decided
	}
	return o.graced(progressing("NoReady", "its controller has not said yet whether it is ready"))
}

func glooHealth(o *object) (Result, bool) {
	var s signs
	states := []map[string]any{o.status}
	for _, x := range mapOf(o.status, "statuses") {
		m, _ := x.(map[string]any)
		states = append(states, m)
	}
	for _, m := range states {
		switch state := fmt.Sprint(m["state"]); state {
		case "Accepted", "1":
			s.good = true
		case "Rejected", "2", "Warning", "3":
			s.add(degraded("Rejected", nonEmpty(text(m, "reason"), "the configuration is rejected")))
		case "Pending", "0":
			s.add(progressing("Pending", "the configuration is not taken yet"))
		}
	}
	return s.verdict()
}

// apiManagerHealth goes by the deployments, which are sorted by how they are.
func apiManagerHealth(o *object) (Result, bool) {
	deployments := mapOf(o.status, "deployments")
	starting, stopped := listOf(deployments, "starting"), listOf(deployments, "stopped")
	switch {
	case deployments == nil:
		return Result{}, false
	case len(starting)+len(stopped) > 0:
		return progressing("Starting", fmt.Sprintf("%d deployments start, %d are stopped", len(starting), len(stopped))), true
	}
	return healthy(), len(listOf(deployments, "ready")) > 0
}

// knativeOperatorHealth: what fails while deployments are not available is not known yet.
func knativeOperatorHealth(o *object) (Result, bool) {
	c := o.condition("DeploymentsAvailable")
	return progressing(nonEmpty(c.reason, "DeploymentsNotAvailable"), nonEmpty(c.message, "deployments are not available yet")), c.is("False")
}

// collectorHealth compares the replicas, which are a text such as 1/2. A sidecar has none.
func collectorHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	mode := text(o.spec, "mode")
	have, want, ok := strings.Cut(text(mapOf(o.status, "scale"), "statusReplicas"), "/")
	switch {
	case !ok && mode == "sidecar", ok && have == want && (have != "0" || mode == "daemonset"):
		return healthy(), true
	case !ok:
		return progressing("NoScale", "the replicas are not reported yet"), true
	case have == "0":
		return degraded("NoneReady", "none of "+want+" replicas is ready"), true
	}
	return progressing("LessReady", have+" of "+want+" replicas are ready"), true
}

// grafanaStage: every stage but the last is on the way.
func grafanaStage(o *object) (Result, bool) {
	stage := text(o.status, "stage")
	return progressing(camelKey(stage), "the stage "+stage+" is done"), text(o.status, "stageStatus") == "success" && stage != "complete"
}

func grafanaPartHealth(o *object) (Result, bool) {
	if isTrue(o.status, "NoMatchingInstances") {
		return degraded("NoMatchingInstances", "no Grafana matches"), true
	}
	if uid, ok := o.status["uid"].(string); ok && uid == "" {
		return progressing("NoUID", "it is not in Grafana yet"), true
	}
	for _, x := range listOf(o.status, "conditions") {
		if c := conditionOf(x); c.is("False") && conditionClass(c.kind) != bad {
			return degraded(nonEmpty(c.reason, "Not"+c.kind), c.message), true
		}
	}
	if r, ok := o.conditionsSay(); ok {
		return r, true
	}
	return healthy(), !o.empty()
}

// loggingProblems are those that the logging operator found, or that a check of the configuration did.
func loggingProblems(o *object) (Result, bool) {
	if problems := listOf(o.status, "problems"); len(problems) > 0 {
		return degraded("Problems", fmt.Sprint(problems[0])), true
	}
	for _, taken := range mapOf(o.status, "configCheckResults") {
		if taken == false {
			return degraded("ConfigCheckFailed", "the check of the configuration failed"), true
		}
	}
	return Result{}, false
}

// prometheusOutdated: Available counts the pods that are ready, those of the specification before too.
func prometheusOutdated(o *object) (Result, bool) {
	updated, told := number(o.status, "updatedReplicas")
	all := count(o.status, "replicas", 0)
	rolls := text(mapOf(o.spec, "updateStrategy"), "type") != "OnDelete"
	return progressing("LessUpdated", of(updated, all, "pods are updated")), told && rolls && updated < all && o.condition("Available").is("True") && o.condition("Reconciled").is("True")
}

// scalerWaits: metrics that are not there yet are no fault of what scales by them.
func scalerWaits(o *object) (Result, bool) {
	c := o.condition("Ready")
	return progressing(c.reason, c.message), c.is("False") && c.reason == "HPAMetricsUnavailable"
}

func datadogMetricHealth(o *object) (Result, bool) {
	if c := o.condition("Error"); c.is("True") {
		return degraded(nonEmpty(c.reason, "Error"), c.message), true
	}
	if c := o.condition("Valid"); c.is("False") {
		return degraded(nonEmpty(c.reason, "NotValid"), nonEmpty(c.message, "the metric is not valid")), true
	}
	return healthy(), true
}

func connectorHeld(o *object) (Result, bool) {
	state := text(o.spec, "state")
	return suspended(camelKey(nonEmpty(state, "paused")), "spec.state is "+state), state == "paused" || state == "stopped"
}

// rebalanceTemplate: what others are made of is never done itself.
func rebalanceTemplate(o *object) (Result, bool) {
	return healthy(), o.annotation("strimzi.io/rebalance-template") == "true"
}

// topicReplicas: a topic is ready while its replicas are still what they were.
func topicReplicas(o *object) (Result, bool) {
	change := mapOf(o.status, "replicasChange")
	message := nonEmpty(text(change, "message"), fmt.Sprintf("it gets %d replicas", count(change, "targetReplicas", 0)))
	return progressing("ReplicasChange", message), change != nil && o.condition("Ready").is("True")
}

// connectorTasks: a connector is there when it runs, and none of its tasks has failed.
func connectorTasks(o *object) (Result, bool) {
	failed := count(o.status, "failedTasksCount", 0)
	running := text(o.status, "connectorState")
	switch {
	case failed > 0:
		return degraded("TasksFailed", fmt.Sprintf("%d tasks failed", failed)), true
	case text(o.status, "state") == "CREATED" && running != "RUNNING":
		return progressing(nonEmpty(running, "NotRunning"), "the connector is "+nonEmpty(running, "not running yet")), true
	}
	return Result{}, false
}

// cruiseControlHealth goes by the task of the operation, whose failure some are to ignore.
func cruiseControlHealth(o *object) (Result, bool) {
	task := mapOf(o.status, "currentTask")
	switch state := text(task, "state"); {
	case o.empty():
		return Result{}, false
	case state == "Completed", state == "CompletedWithError" && text(o.spec, "errorPolicy") == "ignore":
		return healthy(), true
	case state == "CompletedWithError":
		return degraded(state, nonEmpty(text(task, "errorMessage"), "the operation failed")), true
	default:
		return progressing(nonEmpty(state, "NotStarted"), "the operation is not completed yet"), true
	}
}

func rabbitHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if c := o.condition("ReconcileSuccess"); c.is("False") {
		return degraded(c.reason, c.message), true
	}
	all := o.condition("AllReplicasReady")
	if all.is("False") && all.reason == "ScaledToZero" && count(o.spec, "replicas", 1) == 0 {
		return suspended(all.reason, nonEmpty(all.message, "scaled to zero")), true
	}
	parts := []condition{o.condition("ClusterAvailable"), all}
	for _, c := range parts {
		if c.is("Unknown") && c.said() == bad {
			return degraded(c.reason, c.message), true
		}
	}
	for _, c := range parts {
		if !c.is("True") {
			return progressing(nonEmpty(c.reason, "NotReady"), nonEmpty(c.message, "the cluster is not formed yet")), true
		}
	}
	return healthy(), true
}

func snapshotHealth(o *object) (Result, bool) {
	if isTrue(o.status, "readyToUse") {
		return healthy(), true
	}
	if failed := mapOf(o.status, "error"); failed != nil {
		return degraded("Error", nonEmpty(text(failed, "message"), "the snapshot failed")), true
	}
	return progressing("NotReadyToUse", "the snapshot is not ready to use yet"), true
}

func cephHealth(o *object) (Result, bool) {
	ceph := mapOf(o.status, "ceph")
	switch h := text(ceph, "health"); h {
	case "HEALTH_ERR", "HEALTH_WARN":
		return degraded(h, cephDetails(ceph)), true
	case "HEALTH_OK":
		return Result{}, false // what the state says
	}
	if state := text(o.status, "state"); state == "Error" {
		return degraded(state, text(o.status, "message")), true
	}
	return progressing(nonEmpty(text(o.status, "state"), ReasonNoStatus), nonEmpty(text(o.status, "message"), "the cluster does not say yet how it is")), true
}

func cephDetails(ceph map[string]any) string {
	first := ""
	for name, x := range mapOf(ceph, "details") {
		m, _ := x.(map[string]any)
		if line := name + ": " + text(m, "message"); first == "" || line < first {
			first = line
		}
	}
	return nonEmpty(first, "the cluster reports "+text(ceph, "health"))
}

// minioHealth: what is initialized may have lost drives since.
func minioHealth(o *object) (Result, bool) {
	state, drives := text(o.status, "currentState"), text(o.status, "healthStatus")
	switch {
	case state == "":
		return Result{}, false
	case state == "Initialized" && has("red yellow", drives):
		return degraded(camelKey(drives), nonEmpty(text(o.status, "healthMessage"), fmt.Sprintf("%d drives are offline", count(o.status, "drivesOffline", 0)))), true
	case state == "Initialized":
		return healthy(), true
	case hasPrefix(state, "Provisioning", "Waiting", "Updating", "Restarting"):
		return progressing(camel(state), state), true
	}
	return degraded(camel(state), state), true
}

func astraHealth(o *object) (Result, bool) {
	for _, kind := range []string{"Error", "Failed"} {
		if c := o.condition(kind); c.is("True") {
			return degraded(nonEmpty(c.reason, kind), nonEmpty(c.message, kind)), true
		}
	}
	if message := text(o.status, "error"); message != "" {
		return degraded("Error", message), true
	}
	if state := text(o.status, "state"); o.kind == "AppVault" && phaseClass(state) == good && !strings.EqualFold(state, "available") {
		return progressing(state, "a vault is there when status.state is Available"), true
	}
	return Result{}, false
}

func dataVolumeHealth(o *object) (Result, bool) {
	if c := o.condition("Running"); c.is("False") && c.reason == "Error" && text(o.status, "phase") != "Succeeded" {
		return degraded(c.reason, c.message), true
	}
	return Result{}, false
}

// externalSecretOutdated: Ready has no generation, but the version that was synced last begins with one. What is never synced again
// after the first time says nothing by it.
func externalSecretOutdated(o *object) (Result, bool) {
	if c := o.condition("Ready"); c.is("True") && c.reason == "SecretMissing" { // so some versions say that what it adds to is not there
		return degraded(c.reason, c.message), true
	}
	generation, _, told := strings.Cut(text(o.status, "syncedResourceVersion"), "-")
	seen, err := strconv.ParseInt(generation, 10, 64)
	ready, policy := o.condition("Ready"), text(o.spec, "refreshPolicy")
	every, broken := time.ParseDuration(text(o.spec, "refreshInterval"))
	once := policy == "CreatedOnce" || policy != "OnChange" && broken == nil && every <= 0 || isTrue(mapOf(o.spec, "target"), "immutable")
	if !told || err != nil || once || seen >= o.generation || !ready.is("True") || ready.reason == "SecretDeleted" {
		return Result{}, false
	}
	return o.old(seen), true
}

// clusterExternalSecretHealth goes by the last condition: the controller appends one for each state.
func clusterExternalSecretHealth(o *object) (Result, bool) {
	list := listOf(o.status, "conditions")
	if len(list) == 0 {
		return progressing(ReasonNoStatus, "no secret is provided yet"), true
	}
	c := conditionOf(list[len(list)-1])
	switch {
	case c.kind == "Ready" && c.is("True"):
		return healthy(), true
	case c.kind == "Ready", c.is("True"):
		return degraded(nonEmpty(c.reason, c.kind), nonEmpty(c.message, failedNamespaces(o))), true
	}
	return progressing(nonEmpty(c.reason, "Waiting"), c.message), true
}

func failedNamespaces(o *object) string {
	for _, x := range listOf(o.status, "failedNamespaces") {
		m, _ := x.(map[string]any)
		return text(m, "namespace") + ": " + text(m, "reason")
	}
	return "some namespaces do not have the secret"
}

func vaultValid(o *object) (Result, bool) {
	valid, ok := o.status["valid"].(bool)
	switch {
	case !ok:
		return Result{}, false
	case valid:
		return healthy(), true
	}
	return degraded("NotValid", nonEmpty(text(o.status, "error"), "the configuration is not valid")), true
}

// vaultSecretHealth: conditions where the version writes them; otherwise what is noted of the secret that was read. What is there
// may be of before: the generation that was read last counts.
func vaultSecretHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	r, told := o.conditionsSay()
	if told && r.Health != fleet.HealthHealthy {
		return r, true
	}
	if seen, ok := number(o.status, "lastGeneration"); ok && seen < o.generation {
		return o.old(seen), true
	}
	if told {
		return r, true
	}
	noted := text(o.status, "secretMAC")
	switch o.kind {
	case "VaultDynamicSecret":
		noted = text(mapOf(o.status, "secretLease"), "id")
	case "VaultPKISecret":
		noted = text(o.status, "serialNumber")
	}
	if hmac, told := o.spec["hmacSecretData"].(bool); noted != "" || told && !hmac {
		return healthy(), true
	}
	return degraded("NotRead", "no secret was read: the service account may not, or there is none; see the events"), true
}

func enabledHealth(o *object) (Result, bool) {
	enabled, ok := o.spec["enabled"].(bool)
	if enabled {
		return healthy(), true
	}
	return suspended("Disabled", "spec.enabled is false"), ok
}

func bankVaultsHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if c := o.condition("Healthy"); c.kind != "" && !c.is("True") {
		return degraded(nonEmpty(c.reason, "NotHealthy"), nonEmpty(c.message, text(o.status, "message"))), true
	}
	if text(o.status, "leader") == "" {
		return progressing("NoLeader", "the vault has no leader yet"), true
	}
	return healthy(), true
}

func unknownState(reason, message string) Result {
	return Result{Health: fleet.HealthUnknown, Reason: nonEmpty(reason, "Unknown"), Message: message}
}

// emqxHealth: the steps that a cluster has gone through stay True, the newest first. That is what it is at.
func emqxHealth(o *object) (Result, bool) {
	for _, x := range listOf(o.status, "conditions") {
		switch c := conditionOf(x); {
		case !c.is("True"):
		case c.kind == "Ready" || c.kind == "Running":
			return healthy(), true
		default:
			return progressing(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)), true
		}
	}
	return Result{}, false
}
