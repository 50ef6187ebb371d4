package health

import "fmt"

// The judgements of single kinds of Solr, OpenSearch, ArangoDB and some others. Each reports whether it decides; otherwise the rest of its rule does.

func solrHealth(o *object) (Result, bool) {
	want, have := count(o.spec, "replicas", 3), count(o.status, "readyReplicas", 0)
	if have < want {
		return progressing("LessReady", of(have, want, "nodes are ready")), !o.empty()
	}
	version := text(o.status, "targetVersion")
	updated, ok := number(o.status, "upToDateNodes")
	switch {
	case version == "" && (!ok || updated >= want):
		return healthy(), true
	case text(mapOf(o.spec, "updateStrategy"), "method") == "Manual":
		return suspended("LessUpdated", of(updated, want, "nodes are updated; spec.updateStrategy leaves the others to somebody")), true
	}
	if version != "" {
		return progressing("Upgrading", "not all nodes have version "+version), true
	}
	return progressing("LessUpdated", of(updated, want, "nodes are updated")), true
}

func solrBackupHealth(o *object) (Result, bool) {
	switch {
	case o.empty():
		return Result{}, false
	case !isTrue(o.status, "finished"):
		return progressing("NotFinished", "the backup is not finished yet"), true
	case !isTrue(o.status, "successful"):
		return degraded("NotSuccessful", "the backup was not successful"), true
	}
	return healthy(), true
}

// opensearchRestarts: between two restarts for a change of the configuration a cluster is green too. The operator notes the end of them only
// where they are the first of the components.
func opensearchRestarts(o *object) (Result, bool) {
	list := listOf(o.status, "componentsStatus")
	if len(list) == 0 || text(o.status, "health") != "green" {
		return Result{}, false
	}
	m, _ := list[0].(map[string]any)
	restarts := has("RollingRestart Restarter", text(m, "component")) && text(m, "status") == "InProgress"
	return progressing("Restarting", nonEmpty(text(m, "description"), "the nodes restart one after the other")), restarts
}

// opensearchUpgrades: between the restarts of two nodes a cluster is green.
func opensearchUpgrades(o *object) (Result, bool) {
	is, want := text(o.status, "version"), text(mapOf(o.spec, "general"), "version")
	if r, restarts := opensearchRestarts(o); restarts {
		return r, true
	}
	upgrades := text(o.status, "phase") == "UPGRADING" || is != "" && want != "" && is != want
	return progressing("Upgrading", "not all nodes have version "+want), upgrades && text(o.status, "health") == "green"
}

// arangoOutdated: a deployment is ready with the specification of before.
func arangoOutdated(o *object) (Result, bool) {
	if phase := text(o.status, "phase"); phase == "Failed" {
		return degraded(phase, nonEmpty(text(o.status, "reason"), "the deployment cannot be recovered")), true
	}
	c := o.condition("UpToDate")
	fine := o.condition("Ready").is("True") && !o.condition("BootstrapFailed").is("True") && !o.condition("PodSchedulingFailure").is("True")
	return progressing(nonEmpty(camel(c.reason), "NotUpToDate"), nonEmpty(c.message, "the newest specification is not applied yet")), fine && c.is("False")
}

// dragonflyRolls: an instance is ready while its pods are replaced one after the other.
func dragonflyRolls(o *object) (Result, bool) {
	return progressing("RollingUpdate", "its pods are updated"), isTrue(o.status, "isRollingUpdate")
}

// infinispanShut: a cluster without members is not well formed.
func infinispanShut(o *object) (Result, bool) {
	shut := count(o.spec, "replicas", 1) == 0 && o.condition("GracefulShutdown").is("True")
	return suspended("GracefulShutdown", "spec.replicas is 0"), shut
}

// stackableHeld: what stands still by spec.clusterOperation is called available.
func stackableHeld(o *object) (Result, bool) {
	for _, key := range []string{"reconciliationPaused", "stopped"} {
		if isTrue(mapOf(o.spec, "clusterOperation"), key) {
			return suspended(camelKey(key), "spec.clusterOperation."+key+" is true"), true
		}
	}
	return Result{}, false
}

// tidbLogBackup: a backup of the log is never complete, but runs until somebody stops it.
func tidbLogBackup(o *object) (Result, bool) {
	bad := o.condition("Failed").is("True") || o.condition("Invalid").is("True")
	return healthy(), text(o.spec, "backupMode") == "log" && o.condition("Running").is("True") && !bad
}

// foundationHealth is of a FoundationDBCluster, which leaves out what is not so. It says of each generation that is not through yet what it
// waits for, and takes back that the one of now was through. While a change is carried out the database may stop for a moment. Data that is moved
// is safe where all of it has its copies.
func foundationHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	done, is := count(mapOf(o.status, "generations"), "reconciled", 0), mapOf(o.status, "health")
	served, changes := done > 0 || isTrue(o.status, "configured"), done > 0 && done < o.generation
	switch {
	case served && !changes && !isTrue(is, "available"):
		return degraded("NotAvailable", "the database does not take reads and writes"), true
	case done < o.generation:
		return progressing("NotReconciled", o.old(done).Message), true
	case !isTrue(is, "available"):
		return progressing("NotAvailable", "the database does not take reads and writes yet"), true
	case !isTrue(is, "fullReplication"):
		return degraded("NotReplicated", "not all data has its copies"), true
	case !isTrue(is, "healthy"):
		return progressing("NotHealthy", "the database moves data"), true
	}
	return healthy(), true
}

// mirrorTasks: a mirror is called ready whatever becomes of the tasks of its connectors.
func mirrorTasks(o *object) (Result, bool) {
	for _, x := range listOf(o.status, "connectors") {
		connector, _ := x.(map[string]any)
		name := text(connector, "name")
		if text(mapOf(connector, "connector"), "state") == "FAILED" {
			return degraded("ConnectorFailed", "connector "+name+" has failed"), true
		}
		for _, y := range listOf(connector, "tasks") {
			if task, _ := y.(map[string]any); text(task, "state") == "FAILED" {
				return degraded("TaskFailed", fmt.Sprintf("task %d of connector %s has failed", count(task, "id", 0), name)), true
			}
		}
	}
	return Result{}, false
}

// slothHealth is of rules that are made, or are not.
func slothHealth(o *object) (Result, bool) {
	made, told := o.status["promOpRulesGenerated"].(bool)
	if told && !made {
		return degraded("NotGenerated", "its rules cannot be made"), true
	}
	return healthy(), told
}
