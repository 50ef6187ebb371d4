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
