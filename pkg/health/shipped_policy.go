package health

import (
	"maps"
	"slices"
	"strings"
)

// The judgements of single kinds of policies and of tenants. Each reports whether it decides; otherwise the rest of its rule does.

func kyvernoHealth(o *object) (Result, bool) {
	conditions := listOf(mapOf(o.status, "conditionStatus"), "conditions")
	if conditions == nil {
		conditions = listOf(o.status, "conditions")
	}
	if c := o.allStale(conditions); c.kind != "" {
		return o.old(c.observed), true
	}
	if c := conditionIn(conditions, "Ready"); c.kind != "" {
		if c.is("True") {
			return healthy(), true
		}
		return degraded(nonEmpty(c.reason, "NotReady"), nonEmpty(c.message, "the policy is not loaded")), true
	}
	for _, m := range []map[string]any{mapOf(o.status, "conditionStatus"), o.status} {
		if is, ok := m["ready"].(bool); ok && is {
			return healthy(), true
		} else if ok {
			return kyvernoNotReady(text(m, "message"), conditions), true
		}
	}
	return Result{}, false
}

// kyvernoNotReady goes by the messages: the reason is Failed as well of what is only not done yet.
func kyvernoNotReady(message string, conditions []any) Result {
	for _, x := range conditions {
		if c := conditionOf(x); c.is("False") && reasonClass("", c.message) == bad {
			return degraded("Not"+c.kind, c.message)
		}
	}
	return progressing("NotReady", nonEmpty(message, "the policy is not loaded yet"))
}

func gatekeeperTemplateHealth(o *object) (Result, bool) {
	if r, failed := gatekeeperErrors(o); failed {
		return r, true
	}
	if created, ok := o.status["created"].(bool); ok && created {
		return healthy(), true
	}
	return progressing("NotCreated", "the constraint kind is not made yet"), true
}

func gatekeeperHealth(o *object) (Result, bool) {
	if r, failed := gatekeeperErrors(o); failed {
		return r, true
	}
	pods := listOf(o.status, "byPod")
	for _, x := range pods {
		m, _ := x.(map[string]any)
		if enforced, ok := m["enforced"].(bool); ok && !enforced {
			return progressing("NotEnforced", text(m, "id")+" does not enforce it yet"), true
		}
	}
	if len(pods) == 0 {
		return progressing(ReasonNoStatus, "no gatekeeper has taken it yet"), true
	}
	return healthy(), true
}

// gatekeeperErrors are those of the newest generation; a pod that speaks of an older one has not taken it yet.
func gatekeeperErrors(o *object) (Result, bool) {
	old := int64(0)
	for _, x := range listOf(o.status, "byPod") {
		m, _ := x.(map[string]any)
		if seen := count(m, "observedGeneration", 0); seen != 0 && seen < o.generation {
			old = seen
			continue
		}
		for _, e := range listOf(m, "errors") {
			f, _ := e.(map[string]any)
			return degraded(nonEmpty(camel(text(f, "code")), "Error"), nonEmpty(text(f, "message"), "it is not taken")), true
		}
	}
	return o.old(old), old != 0
}

// capsuleNotReady is of what is not ready, where the version of Capsule says so.
func capsuleNotReady(o *object) (Result, bool) {
	c := o.condition("Ready")
	if o.stale(c) {
		return o.old(c.observed), true
	}
	return c.isNot(), c.kind != "" && !c.is("True")
}

// capsulePoolHealth: a pool is ready, too, when claims wait for what it does not have.
func capsulePoolHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if list := mapOf(o.status, "exhaustions"); len(list) > 0 {
		return degraded("Exhausted", "claims wait for more "+strings.Join(slices.Sorted(maps.Keys(list)), ", ")), true
	}
	return capsuleNotReady(o)
}

// capsuleClaimHealth: a claim is ready when it has a pool, and bound when it has its share of it. One that nothing uses is called not bound. Older
// versions have one condition, of what was last.
func capsuleClaimHealth(o *object) (Result, bool) {
	list := listOf(o.status, "conditions")
	if one := mapOf(o.status, "condition"); list == nil && one != nil {
		list = []any{one}
	}
	var s signs
	for _, x := range list {
		if c := conditionOf(x); c.kind != "Bound" || c.reason != "Unused" {
			s.goodCondition(c)
		}
	}
	if r, ok := s.verdict(); ok || o.empty() {
		return r, ok
	}
	return progressing("NotBound", "no pool has taken the claim yet"), true
}
