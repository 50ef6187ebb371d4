package health

import (
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// Of judges an object by itself: when it was written is not known, so every grace still runs.
func Of(obj map[string]any) Result { return Judge(obj, Facts{}, nil) }

func (o *object) compute() Result {
	u := &unstructured.Unstructured{Object: o.fields}
	if r, ok := suspended(u); ok {
		return r
	}
	if r, ok := failing(u); ok {
		return r
	}
	computed, err := status.Compute(u)
	if err != nil {
		return Result{Health: fleet.HealthUnknown, Reason: "Unreadable", Message: err.Error()}
	}
	switch computed.Status {
	case status.CurrentStatus:
		return Result{Health: fleet.HealthHealthy}
	case status.FailedStatus:
		return Result{Health: fleet.HealthDegraded, Reason: reason(computed, "Failed"), Message: computed.Message}
	default:
		return Result{Health: fleet.HealthProgressing, Reason: reason(computed, "Progressing"), Message: computed.Message}
	}
}

// suspended tells objects that a person stopped on purpose from those that work towards something.
func suspended(u *unstructured.Unstructured) (Result, bool) {
	gvk := u.GroupVersionKind()
	switch gvk.Group + "/" + gvk.Kind {
	case "batch/CronJob":
		if on, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend"); on {
			return Result{Health: fleet.HealthSuspended, Reason: "Suspended", Message: "spec.suspend is true: no jobs are started"}, true
		}
	case "batch/Job":
		on, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
		if on && condition(u, "Complete") != "True" && condition(u, "Failed") != "True" {
			return Result{Health: fleet.HealthSuspended, Reason: "Suspended", Message: "spec.suspend is true: no pods are started"}, true
		}
	case "apps/Deployment":
		on, _, _ := unstructured.NestedBool(u.Object, "spec", "paused")
		if !on {
			return Result{}, false
		}
		if computed, err := status.Compute(u); err == nil && computed.Status == status.InProgressStatus {
			return Result{Health: fleet.HealthSuspended, Reason: "Paused", Message: "spec.paused is true: the rollout stands still"}, true
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
			return Result{Health: fleet.HealthDegraded, Reason: "Lost", Message: "the bound volume is gone"}, true
		}
	case "apps/Deployment":
		if condition(u, "ReplicaFailure") == "True" {
			return Result{Health: fleet.HealthDegraded, Reason: "ReplicaFailure", Message: clip(conditionMessage(u, "ReplicaFailure"))}, true
		}
	}
	return Result{}, false
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
