package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// The judgements of single kinds of databases and workloads. Each reports whether it decides; otherwise the rest of its
// rule does.

// cnpgPhases are the phases of CloudNativePG that do not say by their words what they mean. What interrupts the service,
// or waits for somebody, is trouble.
var cnpgPhases = map[string]class{
	"Cluster in healthy state": good,
	"Switchover in progress":   bad, "Failing over": bad, "Waiting for user action": bad, "Cluster upgrade delayed": bad,
	"Upgrading Postgres major version": bad, "Not enough disk space": bad,
	"Cluster cannot execute instance online upgrade due to missing architecture binary":       bad,
	"Unable to create required cluster objects":                                               bad,
	"Cluster cannot proceed to reconciliation due to an unknown plugin being required":        bad,
	"Cluster cannot proceed to reconciliation due to an error while interacting with plugins": bad,
	"Invalid cluster definition":                             bad,
	"Cluster has incomplete or invalid image catalog":        bad,
	"Cluster is unrecoverable and needs manual intervention": bad,
}

func cnpgClusterHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if c := o.condition("cnpg.io/hibernation"); c.is("True") {
		return suspended(nonEmpty(c.reason, "Hibernated"), c.message), true
	} else if c.is("False") {
		return degraded(nonEmpty(c.reason, "NotHibernated"), c.message), true
	}
	phase := text(o.status, "phase")
	message := nonEmpty(text(o.status, "phaseReason"), phase)
	switch cnpgPhases[phase] {
	case good:
		return cnpgDoubts(o), true
	case bad:
		return degraded(camel(phase), message), true
	}
	switch {
	case phase == "":
		return progressing("NoPhase", "status.phase is not written yet"), true
	case phaseClass(phase) == bad:
		return degraded(camel(phase), message), true
	}
	return progressing(camel(phase), message), true
}

// cnpgDoubts is of a cluster in a healthy phase, which has no generation: what is wanted may be new, and some of what was wanted may be
// impossible.
func cnpgDoubts(o *object) Result {
	s := signs{good: true}
	want, ready := count(o.spec, "instances", 0), count(o.status, "readyInstances", 0)
	_, counted := firstNumber(o.status, "instances", "readyInstances")
	switch {
	case upgrades(text(o.status, "image"), text(o.spec, "imageName")):
		s.add(progressing(ReasonOldGeneration, "the instances do not have spec.imageName yet"))
	case counted && ready < want:
		s.add(progressing("LessReady", of(ready, want, "instances are ready")))
	case counted && ready > want && want > 0:
		s.add(progressing("ExtraInstances", fmt.Sprintf("%d instances are too many and end", ready-want)))
	}
	for _, kind := range []string{"ContinuousArchiving", "ConsistentSystemID"} {
		if c := o.condition(kind); c.is("False") {
			s.add(degraded(nonEmpty(c.reason, "Not"+kind), nonEmpty(c.message, kind+" is False")))
		}
	}
	roles := mapOf(o.status, "managedRolesStatus", "cannotReconcile")
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		s.add(degraded("RoleFailed", fmt.Sprint("role ", role, ": ", roles[role])))
	}
	for _, x := range listOf(o.status, "tablespacesStatus") {
		m, _ := x.(map[string]any)
		if failed := text(m, "error"); failed != "" {
			s.add(degraded("TablespaceFailed", "tablespace "+text(m, "name")+": "+failed))
		}
	}
	r, _ := s.verdict()
	return r
}

// appliedHealth: a first failure is retried; one after success is a regression. The generation is only observed with
// success.
func appliedHealth(o *object) (Result, bool) {
	applied, ok := o.status["applied"].(bool)
	observed, seen := number(o.status, "observedGeneration")
	seen = seen && observed >= o.generation || o.generation == 0
	switch {
	case ok && applied && seen:
		return healthy(), true
	case ok && !applied && seen:
		return degraded("NotApplied", nonEmpty(text(o.status, "message"), "it could not be applied")), true
	}
	return progressing("NotApplied", nonEmpty(text(o.status, "message"), "it is not applied yet")), true
}

// druidHealth reads the one condition that the operator keeps of the whole cluster.
func druidHealth(o *object) (Result, bool) {
	node := mapOf(o.status, "druidNodeStatus")
	kind, is := text(node, "druidNodeConditionType"), text(node, "druidNodeConditionStatus")
	message := nonEmpty(text(node, "reason"), kind)
	switch {
	case node == nil:
		return progressing(ReasonNoStatus, "the nodes are not made yet"), true
	case kind == "DruidClusterReady" && is == "True":
		return healthy(), true
	case kind == "DruidNodeErrorState", is == "False":
		return degraded(nonEmpty(kind, "NotReady"), nonEmpty(text(node, "druidNode"), "the cluster")+": "+message), true
	}
	return progressing(nonEmpty(kind, "Provisioning"), message), true
}

// poolerHealth: the operator counts the pods that are there, whether they are ready and new or not, and says no more.
func poolerHealth(o *object) (Result, bool) {
	if want, have := count(o.spec, "instances", 1), count(o.status, "instances", 0); have < want {
		return progressing("LessReady", of(have, want, "instances are there")), true
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its status counts pods, not those that are ready"}, true
}

// crunchyHealth counts the pods of every set of instances: those that the status names and those that the specification wants.
func crunchyHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	var s signs
	if c := o.condition("Progressing"); c.is("False") && c.reason == "Paused" {
		s.add(degraded(c.reason, c.message)) // spec.paused was asked before: somebody has to say what to do about backups
	}
	if isTrue(o.spec, "shutdown") {
		return s.crunchyStops(o), true
	}
	wanted := crunchyWants(o)
	for _, x := range listOf(o.status, "instances") {
		m, _ := x.(map[string]any)
		name := text(m, "name")
		want := max(count(m, "replicas", 0), wanted[name])
		delete(wanted, name)
		ready, updated := count(m, "readyReplicas", 0), count(m, "updatedReplicas", 0)
		switch {
		case ready < want:
			s.add(progressing("LessReady", name+": "+of(ready, want, "instances are ready")))
		case updated < want:
			s.add(progressing("LessUpdated", name+": "+of(updated, want, "instances are updated")))
		}
		s.good = true
	}
	if !s.good {
		s.add(progressing("NoInstances", "no instance is there yet"))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		s.add(progressing("LessReady", name+": "+of(0, wanted[name], "instances are ready")))
	}
	for _, kind := range []string{"PGBackRestRepoHostReady", "ProxyAvailable"} {
		if c := o.condition(kind); c.is("False") {
			s.add(progressing(nonEmpty(c.reason, "Not"+kind), nonEmpty(c.message, kind+" is False")))
		}
	}
	if c := o.condition("PersistentVolumeResizing"); c.kind != "" {
		s.busyCondition(c)
	}
	return s.verdict()
}

// crunchyWants are the numbers of instances by set; a set without a name is called by its place.
func crunchyWants(o *object) map[string]int64 {
	out := map[string]int64{}
	for i, x := range listOf(o.spec, "instances") {
		m, _ := x.(map[string]any)
		out[nonEmpty(text(m, "name"), fmt.Sprintf("%02d", i))] = count(m, "replicas", 1)
	}
	return out
}

func (s *signs) crunchyStops(o *object) Result {
	for _, x := range listOf(o.status, "instances") {
		m, _ := x.(map[string]any)
		if left := count(m, "replicas", 0); left > 0 {
			s.add(progressing("ExtraPods", fmt.Sprintf("%s: %d instances still stop", text(m, "name"), left)))
		}
	}
	if s.progressing.Health == "" {
		s.add(suspended("Shutdown", "spec.shutdown is true"))
	}
	r, _ := s.verdict()
	return r
}

// upgradeWaits: an upgrade begins when somebody has shut the cluster down. One whose cluster has the version says nothing of success.
func upgradeWaits(o *object) (Result, bool) {
	c := o.condition("Progressing")
	switch {
	case o.stale(c), !c.is("False"), o.condition("Succeeded").kind != "":
		return Result{}, false
	case c.reason == "PGUpgradeCompleted":
		return healthy(), true
	case reasonClass(c.reason, "") == bad:
		return degraded(c.reason, c.message), true
	}
	return progressing(c.reason, nonEmpty(c.message, "the upgrade cannot begin yet")), true
}

func elasticsearchHealth(o *object) (Result, bool) {
	switch phase := text(o.status, "phase"); phase {
	case "Invalid":
		return degraded(phase, nonEmpty(o.condition("ReconciliationComplete").message, "the specification is not valid")), true
	case "Stalled":
		return degraded(phase, nonEmpty(o.condition("ReconciliationComplete").message, "a node cannot be shut down")), true
	case "ApplyingChanges", "MigratingData":
		return progressing(phase, nonEmpty(o.condition("ReconciliationComplete").message, "the operator is at "+phase)), true
	}
	have, ok := number(o.status, "availableNodes")
	if !ok {
		return Result{}, false
	}
	want := int64(0)
	for _, x := range listOf(o.spec, "nodeSets") {
		m, _ := x.(map[string]any)
		want += count(m, "count", 1)
	}
	if have < want {
		return progressing("LessReady", of(have, want, "nodes are available")), true
	}
	return elasticUpgrades(o)
}

// elasticUpgrades: green is what is available, also while it has the version of before. The version in the status is the lowest that runs.
func elasticUpgrades(o *object) (Result, bool) {
	is, want := text(o.status, "version"), text(o.spec, "version")
	available := count(o.status, "availableNodes", 0) > 0
	return progressing("Upgrading", "not all nodes have version "+want), upgrades(is, want) && available && text(o.status, "health") == "green"
}

// kruiseBegin is the start of a judgement of the workloads of OpenKruise.
func kruiseBegin(o *object, paused bool) (Result, bool) {
	if o.empty() {
		return progressing(ReasonNoStatus, "its controller has not seen it yet"), true
	}
	if r, old := o.unobserved(); old {
		return r, true
	}
	if paused {
		return suspended("Paused", "the update strategy is paused"), true
	}
	return Result{}, false
}

func cloneSetHealth(o *object) (Result, bool) {
	strategy := mapOf(o.spec, "updateStrategy")
	if r, ok := kruiseBegin(o, isTrue(strategy, "paused")); ok {
		return r, true
	}
	want := count(o.spec, "replicas", 1)
	updated, expected := count(o.status, "updatedReplicas", want), count(o.status, "expectedUpdatedReplicas", want)
	if held(strategy["partition"]) && expected < want && o.generation > 1 {
		return o.atPartition(updated, expected, want), true
	}
	return kruisePods(count(o.status, "updatedAvailableReplicas", 0), updated, want)
}

// atPartition is of a workload of which only some pods are to be updated. That the rest is held back makes none available.
func (o *object) atPartition(updated, expected, want int64) Result {
	available, told := number(o.status, "availableReplicas")
	switch {
	case updated < expected:
		return progressing("LessUpdated", of(updated, expected, "pods are updated"))
	case told && available < want:
		return progressing("LessAvailable", of(available, want, "pods are available"))
	}
	return suspended("Partition", "the partition of the update strategy holds the rest back")
}

// held reports that a partition keeps pods at the old revision.
func held(partition any) bool {
	switch p := partition.(type) {
	case int64:
		return p != 0
	case string:
		return strings.TrimSuffix(p, "%") != "0" && p != ""
	}
	return false
}

func kruisePods(available, updated, want int64) (Result, bool) {
	switch {
	case available >= want:
		return healthy(), true
	case updated < want:
		return progressing("LessUpdated", of(updated, want, "pods are updated")), true
	}
	return degraded("LessAvailable", of(available, want, "updated pods are available")), true
}

func kruiseStatefulSetHealth(o *object) (Result, bool) {
	rolling := mapOf(o.spec, "updateStrategy", "rollingUpdate")
	if r, ok := kruiseBegin(o, isTrue(rolling, "paused")); ok {
		return r, true
	}
	want := count(o.spec, "replicas", 1)
	updated := count(o.status, "updatedReplicas", want)
	if partition := count(rolling, "partition", 0); partition > 0 && o.generation > 1 {
		return o.atPartition(updated, want-partition, want), true
	}
	return kruisePods(count(o.status, "updatedAvailableReplicas", count(o.status, "updatedReadyReplicas", 0)), updated, want)
}

func kruiseDaemonSetHealth(o *object) (Result, bool) {
	rolling := mapOf(o.spec, "updateStrategy", "rollingUpdate")
	if r, ok := kruiseBegin(o, isTrue(rolling, "paused")); ok {
		return r, true
	}
	want, updated := count(o.status, "desiredNumberScheduled", 0), count(o.status, "updatedNumberScheduled", 0)
	available := count(o.status, "numberAvailable", 0)
	switch {
	case updated >= want, text(mapOf(o.spec, "updateStrategy"), "type") == "OnDelete":
		return kruisePods(available, updated, want)
	case held(rolling["partition"]) && o.generation > 1:
		if available < want {
			return progressing("LessAvailable", of(available, want, "pods are available")), true
		}
		return suspended("Partition", fmt.Sprintf("the partition %v of the update strategy holds the rest back", rolling["partition"])), true
	}
	return progressing("LessUpdated", of(updated, want, "pods are updated")), true // those of the old template may be available
}

func broadcastJobHealth(o *object) (Result, bool) {
	if isTrue(o.spec, "paused") {
		return suspended("Paused", "spec.paused is true"), true
	}
	if o.empty() {
		return Result{}, false
	}
	desired := count(o.status, "desired", 0)
	switch failed := count(o.status, "failed", 0); {
	case failed > 0, text(o.status, "phase") == "failed":
		return degraded("Failed", fmt.Sprintf("%d of %d pods failed", failed, desired)), true
	case desired > 0 && count(o.status, "succeeded", 0) >= desired:
		return healthy(), true
	}
	return progressing("Running", of(count(o.status, "succeeded", 0), desired, "pods have succeeded")), true
}

func advancedCronJobHealth(o *object) (Result, bool) {
	if len(listOf(o.status, "active")) > 0 {
		return progressing("Running", "a job runs"), true
	}
	return healthy(), text(o.status, "lastScheduleTime") != "" || !o.empty()
}

// virtualMachineHealth knows that a machine that should stand still is fine when it does, and that one that runs takes up some changes
// only when somebody starts it again.
func virtualMachineHealth(o *object) (Result, bool) {
	if o.condition("Paused").is("True") {
		return suspended("Paused", "the machine is paused"), true
	}
	running, _ := o.spec["running"].(bool)
	_, told := o.spec["running"].(bool)
	strategy := text(o.spec, "runStrategy")
	stopped := told && !running || strategy == "Halted"
	state := text(o.status, "printableStatus")
	ready := o.condition("Ready")
	runs := ready.is("True") && !has("Stopped Stopping Terminating", state) // the condition is that of the instance, which may be over
	switch {
	case phaseClass(state) == bad && !hasPrefix(state, "Stop"), hasPrefix(state, "Err", "CrashLoop"):
		return degraded(state, nonEmpty(ready.message, "the machine is "+state)), true
	case runs && !stopped && (o.condition("RestartRequired").is("True") || count(o.status, "observedGeneration", o.generation) < o.generation):
		return suspended("RestartRequired", nonEmpty(o.condition("RestartRequired").message, "what changed waits for the next start of the machine")), true
	case runs && !stopped:
		return healthy(), true
	case o.condition("Failure").is("True") && !stopped:
		return degraded(nonEmpty(o.condition("Failure").reason, "Failure"), nonEmpty(o.condition("Failure").message, "the machine cannot be made")), true
	case isTrue(o.status, "created"), runs, has("Stopping Starting Provisioning Terminating", state):
		return progressing(nonEmpty(state, "Changing"), nonEmpty(ready.message, "the machine starts or stops")), true
	case stopped:
		return healthy(), true
	case !o.empty() && (running || strategy == "Always" || state == "WaitingForVolumeBinding"):
		return progressing(nonEmpty(state, "NotStarted"), nonEmpty(ready.message, "the machine is not started yet")), true
	case has("RerunOnFailure Once", strategy) && state == "Stopped":
		if waits, still := o.graced(progressing(state, "the machine is not started yet")); still { // nothing tells it from one that has run
			return waits, true
		}
		return suspended(state, nonEmpty(ready.message, "the machine is stopped")), true
	case ready.is("False"):
		return suspended(nonEmpty(state, "Stopped"), nonEmpty(ready.message, "the machine is stopped")), true
	}
	return Result{}, false
}

func machineInstanceHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	phase := text(o.status, "phase")
	ready := o.condition("Ready")
	switch {
	case phase == "Failed":
		return degraded(phase, nonEmpty(ready.message, "the machine failed")), true
	case phase == "Succeeded":
		return suspended(phase, "the machine was shut down"), true
	case phase == "Unknown":
		return unknownState(phase, "the node does not answer for the machine"), true
	case phase == "", phase == "Pending", phase == "Scheduling", phase == "Scheduled", phase == "WaitingForSync":
		return progressing(nonEmpty(phase, "Pending"), nonEmpty(ready.message, "the machine is not running yet")), true
	case o.condition("Paused").is("True"):
		return suspended("Paused", "the machine is paused"), true
	case ready.is("True"):
		return healthy(), true
	}
	return degraded(nonEmpty(ready.reason, "NotReady"), nonEmpty(ready.message, "the machine is not ready")), true
}

// mongoUpgrades: the version in the status is the last that was brought to all members.
func mongoUpgrades(o *object) (Result, bool) {
	is, want := text(o.status, "version"), text(o.spec, "version")
	return progressing("Upgrading", "not all members have version "+want), upgrades(is, want) && text(o.status, "phase") == "Running"
}

// upgrades reports that what runs, or was resolved, is of another version than the one that is wanted. Nothing is known where either is not said.
func upgrades(is, want string) bool { return is != "" && want != "" && is != want }

// mariaPending: a server is ready before what it begins with, or is resized to, is there, and with the specification of before, which it keeps until somebody ends its pods where the strategy
// says so.
func mariaPending(o *object) (Result, bool) {
	for _, kind := range []string{"BackupRestored", "Initialized", "StorageResized", "ReplicationConfigured", "GaleraConfigured"} {
		if c := o.condition(kind); c.is("False") && !o.stale(c) {
			return c.isNot(), true
		}
	}
	c := o.condition("Updated")
	pending := c.is("False") && c.reason == "PendingUpdate"
	if o.condition("Ready").is("True") && has("OnDelete Never", text(mapOf(o.spec, "updateStrategy"), "type")) {
		return suspended(c.reason, "spec.updateStrategy leaves the update to somebody"), pending
	}
	return progressing(c.reason, nonEmpty(c.message, "the update is pending")), pending
}

// mariaScheduled: what runs by a schedule and has not run through yet waits for its time: there is no backup, and no rollout can wait for the night.
// A failed run has the same reason.
func mariaScheduled(o *object) (Result, bool) {
	c := o.condition("Complete")
	waits := mapOf(o.spec, "schedule") != nil && c.is("False") && c.reason == "CronJobScheduled" && c.message == "Scheduled"
	return suspended(c.reason, "its schedule has not run through yet"), waits
}

// pipelinePending: somebody holds the run back.
func pipelinePending(o *object) (Result, bool) {
	return suspended("PipelineRunPending", "spec.status is PipelineRunPending"), text(o.spec, "status") == "PipelineRunPending"
}

// vitessHealth goes through the keyspaces and cells, for which there is no summary. Unless its updates are immediate, they wait for
// somebody to release them.
func vitessHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	s := signs{good: true}
	keyspaces, cells := mapOf(o.status, "keyspaces"), mapOf(o.status, "cells")
	for _, name := range slices.Sorted(maps.Keys(keyspaces)) {
		m, _ := keyspaces[name].(map[string]any)
		want, ready, updated := count(m, "desiredTablets", 0), count(m, "readyTablets", 0), count(m, "updatedTablets", 0)
		switch {
		case ready < want:
			s.add(progressing("LessReady", name+": "+of(ready, want, "tablets are ready")))
		case updated >= want:
		case text(mapOf(o.spec, "updateStrategy"), "type") == "Immediate":
			s.add(progressing("LessUpdated", name+": "+of(updated, want, "tablets are updated")))
		default:
			s.add(suspended("PendingChanges", name+": the changes of some tablets wait to be released"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cells)) {
		m, _ := cells[name].(map[string]any)
		if text(m, "gatewayAvailable") != "True" {
			s.add(progressing("GatewayNotAvailable", name+": the gateway is not available"))
		}
	}
	return s.verdict()
}

// planHealth: once a plan is complete, the reason may still be that of a job that failed before. With no concurrency no node is begun,
// and a plan that begins none may call itself complete. Before its window opens nobody is at it, as its owner ordered.
func planHealth(o *object) (Result, bool) {
	complete := o.condition("Complete")
	known := o.condition("Validated").is("True") && o.condition("LatestResolved").is("True")
	switch {
	case !known || complete.kind == "":
		return Result{}, false
	case count(o.spec, "concurrency", 0) == 0:
		return suspended("NoConcurrency", "spec.concurrency is 0: no node is begun"), true
	case outdated(o):
		return progressing(ReasonOldGeneration, "spec.version is not resolved yet"), true
	case complete.is("True"):
		return healthy(), true
	case complete.reason == "SyncJob", complete.reason == "Resolved":
		return progressing(complete.reason, nonEmpty(complete.message, "jobs run on the nodes")), true
	case complete.reason == "Waiting":
		return suspended(complete.reason, nonEmpty(complete.message, "waits for its window")), true
	}
	return Result{}, false
}

// outdated reports that a plan speaks of another version than the one that it names: its conditions have no generation.
func outdated(o *object) bool {
	return upgrades(text(o.status, "latestVersion"), strings.ReplaceAll(text(o.spec, "version"), "+", "-"))
}

// chartJobMade: that the job was made says nothing of its end, and nothing else in the status does.
func chartJobMade(o *object) (Result, bool) {
	r := Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its status says that the job was made, not how it ended"}
	return r, o.condition("JobCreated").is("True") && !o.condition("Failed").is("True")
}

// universeHealth goes by the state of a universe of YugabyteDB, where the version writes one.
func universeHealth(o *object) (Result, bool) {
	state := text(o.status, "universeState")
	switch {
	case state == "":
		return Result{}, false
	case state == "Ready":
		return healthy(), true
	case state == "Paused":
		return suspended(state, "the universe is paused"), true
	case strings.HasPrefix(state, "Error"):
		return degraded(camel(state), "the universe is "+state), true
	}
	return progressing(camel(state), "the universe is "+state), true
}

// temporalClientHealth: a client is there when it has its secret.
func temporalClientHealth(o *object) (Result, bool) {
	if text(mapOf(o.status, "secretRef"), "name") != "" {
		return healthy(), true
	}
	return progressing("NoSecret", "its secret is not made yet"), !o.empty()
}

// atlasHealth: the reason is the step that failed, unless it is one of those that wait.
func atlasHealth(o *object) (Result, bool) {
	c := o.condition("Ready")
	switch {
	case !c.is("False") || o.stale(c):
		return Result{}, false
	case c.reason == "Reconciling", c.reason == "GettingDevDB":
		return progressing(c.reason, c.message), true
	case c.reason == "ApprovalPending":
		return suspended(c.reason, nonEmpty(c.message, "the plan waits for somebody to approve it")), true
	}
	return degraded(nonEmpty(c.reason, "NotReady"), nonEmpty(c.message, "Ready is False")), true
}
