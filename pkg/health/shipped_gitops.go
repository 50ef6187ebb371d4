package health

import (
	"reflect"
	"strconv"
	"strings"
)

// The judgements of kinds that bring other objects into a cluster from a source: Argo CD's applications and Flux. Each reports whether
// it decides; otherwise the rest of its rule does.

// applicationHealth finds what keeps Argo CD from comparing or syncing an application. The health that it writes is of what is
// in the cluster, which stays healthy when nothing new comes. The conditions have no status: one that is over is not listed.
func applicationHealth(o *object) (Result, bool) {
	if skipped, _ := strconv.ParseBool(o.annotation("argocd.argoproj.io/skip-reconcile")); skipped {
		return suspended("Paused", "annotation argocd.argoproj.io/skip-reconcile: nobody compares or syncs it"), true
	}
	for _, x := range listOf(o.status, "conditions") {
		m, _ := x.(map[string]any)
		if kind := text(m, "type"); strings.HasSuffix(kind, "Error") {
			return degraded(kind, text(m, "message")), true
		}
	}
	if r, old := o.comparedBefore(); old {
		return r, true
	}
	return o.applicationSyncs()
}

// comparedBefore: the status of an application has no generation, but it says which sources it was compared with. Argo CD compares
// again until they are those of the specification.
func (o *object) comparedBefore() (Result, bool) {
	compared := mapOf(o.status, "sync", "comparedTo")
	before := func(field string) (Result, bool) {
		return progressing(ReasonOldGeneration, "the status speaks of another spec."+field), true
	}
	if sources := listOf(o.spec, "sources"); len(sources) > 0 {
		if was := listOf(compared, "sources"); len(was) > 0 && !sameSource(sources, was) {
			return before("sources")
		}
		return Result{}, false
	}
	source, was := mapOf(o.spec, "source"), mapOf(compared, "source")
	if text(source, "repoURL") == "" || text(was, "repoURL") == "" {
		return Result{}, false
	}
	for _, key := range []string{"repoURL", "targetRevision", "path", "chart", "helm", "kustomize", "directory", "plugin"} {
		if !sameSource(source[key], was[key]) {
			return before("source." + key)
		}
	}
	return Result{}, false
}

// sameSource compares what was written with what Argo CD keeps of it, where a value that says nothing is left out.
func sameSource(a, b any) bool {
	if saysNothing(a) || saysNothing(b) {
		return saysNothing(a) && saysNothing(b)
	}
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		for k := range m {
			if ok = ok && sameSource(a[k], m[k]); !ok {
				return false
			}
		}
		for k := range a {
			ok = ok && sameSource(a[k], m[k])
		}
		return ok
	case []any:
		list, ok := b.([]any)
		ok = ok && len(a) == len(list)
		for i := 0; ok && i < len(a); i++ {
			ok = sameSource(a[i], list[i])
		}
		return ok
	}
	return reflect.DeepEqual(a, b)
}

// saysNothing reports that a value is one that is the same as none.
func saysNothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, x := range v {
			if !saysNothing(x) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return reflect.ValueOf(v).IsZero()
}

// applicationSyncs: what was there before is healthy while a sync is to begin or goes on, and after one that failed. Argo CD takes the field
// operation away when the sync has ended. Beside that OutOfSync is no reason: where nothing is under way, somebody is to sync by hand, a sync window
// is shut, or the difference is one that stays after each sync.
func (o *object) applicationSyncs() (Result, bool) {
	state := mapOf(o.status, "operationState")
	message := text(state, "message")
	switch phase := text(state, "phase"); {
	case len(mapOf(o.fields, "operation")) > 0 && phase != "Running" && phase != "Terminating":
		return progressing("Syncing", "a sync was asked for and has not begun"), text(mapOf(o.status, "health"), "status") == "Healthy"
	case phase == "Running", phase == "Terminating":
		return progressing("Syncing", nonEmpty(message, "a sync is "+phase)), text(mapOf(o.status, "health"), "status") == "Healthy"
	case (phase == "Failed" || phase == "Error") && text(mapOf(o.status, "sync"), "status") == "OutOfSync":
		return degraded("Sync"+phase, nonEmpty(message, "the last sync ended with "+phase)), true
	}
	return Result{}, false
}

// fluxRetries: what only waits for its source, or begins again for a newer one, has not failed.
func fluxRetries(o *object) (Result, bool) {
	c := o.condition("Ready")
	waits := c.reason == "HealthCheckCanceled" || strings.HasPrefix(c.message, "Source artifact not found, retrying")
	return progressing(c.reason, c.message), c.is("False") && waits && !o.stale(c) && !o.condition("Stalled").is("True")
}

// helmRepositoryHealth knows that a repository of the type oci has no status.
func helmRepositoryHealth(o *object) (Result, bool) {
	if text(o.spec, "type") == "oci" {
		return healthy(), true
	}
	return Result{}, false
}

// terraformWaits: a plan is carried out when somebody approves it, unless all are.
func terraformWaits(o *object) (Result, bool) {
	c := o.condition("Ready")
	if !c.is("Unknown") || c.reason != "TerraformPlannedWithChanges" || o.stale(c) {
		return Result{}, false
	}
	approved, pending := text(o.spec, "approvePlan"), text(mapOf(o.status, "plan"), "pending")
	goes := approved == "auto" || isTrue(o.spec, "force") || approved != "" && strings.HasPrefix(pending, approved)
	if goes && !isTrue(o.spec, "planOnly") {
		return progressing(c.reason, nonEmpty(c.message, "the plan is carried out")), true
	}
	return suspended(c.reason, nonEmpty(c.message, "somebody has to approve the plan")), true
}
