package worker

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"towline.dev/towline/pkg/fleet"
)

// Looking at pods is for people who ask why; it is rare and bounded.
const (
	diagnoseAfter  = 2 * time.Second
	diagnoseEvery  = 15 * time.Second
	diagnoseAtOnce = 4
	diagnosePods   = 20
	diagnoseTime   = 3 * time.Second
)

// diagnose finds out why workloads are not getting ready, and says when to look again. The module waits for it, so it has
// little time.
func (w *worker) diagnose(ctx context.Context, now time.Time) time.Time {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTime)
	defer cancel()
	var again time.Time
	left := diagnoseAtOnce
	for _, it := range w.items {
		if !hasPods(it.entry.ID) || it.state.Health != fleet.HealthProgressing && it.state.Health != fleet.HealthDegraded {
			if it.rare != nil {
				it.rare.pods, it.rare.podsAt = detail{}, time.Time{}
			}
			continue
		}
		t := it.makeRare()
		at := it.since.Add(diagnoseAfter)
		if !t.podsAt.IsZero() {
			at = t.podsAt.Add(diagnoseEvery)
		}
		if now.Before(at) || left == 0 {
			again = earliest(again, at)
			continue
		}
		left--
		t.podsAt = now
		t.pods = w.podTrouble(ctx, it)
		again = earliest(again, now.Add(diagnoseEvery))
	}
	if !again.IsZero() && again.Before(now) {
		again = now.Add(diagnoseAfter)
	}
	return again
}

func hasPods(id fleet.ObjectID) bool {
	return id.Group == "apps" && (id.Kind == "Deployment" || id.Kind == "StatefulSet" || id.Kind == "DaemonSet") || id.Group == "batch" && id.Kind == "Job"
}

// podTrouble is what holds up the first pod of a workload that has trouble.
func (w *worker) podTrouble(ctx context.Context, it *item) detail {
	d, err := w.desiredOf(it)
	if err != nil {
		return detail{}
	}
	object, err := d.Object()
	if err != nil {
		return detail{}
	}
	match, _, _ := unstructured.NestedStringMap(object, "spec", "selector", "matchLabels")
	if it.entry.ID.Kind == "Job" {
		match = map[string]string{"batch.kubernetes.io/job-name": it.entry.ID.Name}
	}
	if len(match) == 0 {
		return detail{}
	}
	pods, err := w.m.client.Pods(ctx, it.entry.ID.Namespace, labels.SelectorFromSet(match).String(), diagnosePods)
	if err != nil {
		return detail{}
	}
	for i := range pods.Items {
		if reason, message := trouble(&pods.Items[i]); reason != "" {
			return detail{reason: reason, message: fmt.Sprintf("%s: pod %s: %s", it.entry.ID, pods.Items[i].Name, message)}
		}
	}
	return detail{}
}

// trouble is why a pod does not run; empty if nothing says so.
func trouble(p *corev1.Pod) (reason, message string) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			waiting := c.State.Waiting
			if waiting == nil || waiting.Reason == "" || waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing" {
				continue
			}
			return waiting.Reason, fmt.Sprintf("%s %s", waiting.Reason, c.Image)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != "" {
			return c.Reason, c.Reason + ": " + c.Message
		}
	}
	return "", ""
}
