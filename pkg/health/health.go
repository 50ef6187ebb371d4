// Package health says how a live object is: healthy, on its way, broken, suspended or leaving. It owns that judgement
// for every kind; it must not know who applied the object, nor fetch anything.
package health

import (
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// maxMessage bounds a message in bytes; statuses with thousands of objects travel over the wire.
const maxMessage = 256

// Result is the health of one object, with a CamelCase reason and a sentence where it is not healthy.
type Result struct {
	Health  fleet.Health
	Reason  string
	Message string
}

// Of judges a live object as the API server returns it, whole numbers as int64. It never changes obj. An object that cannot be judged is
// Unknown.
func Of(obj map[string]any) Result {
	u := &unstructured.Unstructured{Object: obj}
	if at := u.GetDeletionTimestamp(); at != nil {
		return Result{fleet.HealthTerminating, "Terminating", terminating(u)}
	}
	if r, ok := suspended(u); ok {
		return r
	}
	if r, ok := failing(u); ok {
		return r
	}
	computed, err := status.Compute(u)
	if err != nil {
		return Result{fleet.HealthUnknown, "Unreadable", clip(err.Error())}
	}
	switch computed.Status {
	case status.CurrentStatus:
		return Result{Health: fleet.HealthHealthy}
	case status.InProgressStatus:
		return Result{fleet.HealthProgressing, reason(computed, "Progressing"), clip(computed.Message)}
	case status.FailedStatus:
		return Result{fleet.HealthDegraded, reason(computed, "Failed"), clip(computed.Message)}
	case status.TerminatingStatus:
		return Result{fleet.HealthTerminating, "Terminating", clip(computed.Message)}
	case status.NotFoundStatus:
		return Result{fleet.HealthMissing, "Missing", clip(computed.Message)}
	default:
		return Result{fleet.HealthUnknown, "Unknown", clip(computed.Message)}
	}
}

// suspended tells objects that a person stopped on purpose from those that work towards something.
func suspended(u *unstructured.Unstructured) (Result, bool) {
	gvk := u.GroupVersionKind()
	switch gvk.Group + "/" + gvk.Kind {
	case "batch/CronJob":
		if on, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend"); on {
			return Result{fleet.HealthSuspended, "Suspended", "spec.suspend is true: no jobs are started"}, true
		}
	case "batch/Job":
		on, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
		if on && condition(u, "Complete") != "True" && condition(u, "Failed") != "True" {
			return Result{fleet.HealthSuspended, "Suspended", "spec.suspend is true: no pods are started"}, true
		}
	case "apps/Deployment":
		on, _, _ := unstructured.NestedBool(u.Object, "spec", "paused")
		if !on {
			return Result{}, false
		}
		if computed, err := status.Compute(u); err == nil && computed.Status == status.InProgressStatus {
			return Result{fleet.HealthSuspended, "Paused", "spec.paused is true: the rollout stands still"}, true
		}
	}
	return Result{}, false
}

// failing finds failures that kstatus takes for progress.
func failing(u *unstructured.Unstructured) (Result, bool) {
	gvk := u.GroupVersionKind()
	switch gvk.Group + "/" + gvk.Kind {
	case "/PersistentVolumeClaim":
		if phase, _, _ := unstructured.NestedString(u.Object, "status", "phase"); phase == "Lost" {
			return Result{fleet.HealthDegraded, "Lost", "the bound volume is gone"}, true
		}
	case "apps/Deployment":
		if condition(u, "ReplicaFailure") == "True" {
			return Result{fleet.HealthDegraded, "ReplicaFailure", clip(conditionMessage(u, "ReplicaFailure"))}, true
		}
	}
	return Result{}, false
}

func terminating(u *unstructured.Unstructured) string {
	if f := u.GetFinalizers(); len(f) > 0 {
		return clip("is being deleted; waits for finalizers " + strings.Join(f, ", "))
	}
	return "is being deleted"
}

func condition(u *unstructured.Unstructured, kind string) string {
	return conditionField(u, kind, "status")
}

func conditionMessage(u *unstructured.Unstructured, kind string) string {
	return conditionField(u, kind, "message")
}

func conditionField(u *unstructured.Unstructured, kind, field string) string {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range list {
		m, ok := c.(map[string]any)
		if !ok || m["type"] != kind {
			continue
		}
		text, _ := m[field].(string)
		return text
	}
	return ""
}

// reason is the one that kstatus gives in its synthetic condition.
func reason(r *status.Result, fallback string) string {
	for _, c := range r.Conditions {
		if c.Reason != "" {
			return c.Reason
		}
	}
	return fallback
}

func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-3], "") + "…"
}
