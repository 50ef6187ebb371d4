package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// Looking at pods is for people who ask why; it is rare and bounded.
const (
	diagnoseAfter  = 2 * time.Second
	diagnoseEvery  = 15 * time.Second
	diagnoseAtOnce = 4
	diagnosePods   = 250
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
		f, _ := w.print(it)
		if f == nil || f.Reason == health.ReasonOldGeneration {
			again = earliest(again, now.Add(diagnoseAfter)) // its pods are not yet those of what it says
			continue
		}
		left--
		t.podsAt = now
		t.pods = w.podTrouble(ctx, it, f)
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

// podTrouble is what holds up the first pod of a workload that has trouble. Other pods may match its labels, and those of an older template
// hold up nothing.
func (w *worker) podTrouble(ctx context.Context, it *item, f *watch.Fingerprint) detail {
	selector, err := w.podSelector(it)
	if err != nil || selector == "" {
		return detail{}
	}
	pods, err := w.m.client.Pods(ctx, it.entry.ID.Namespace, selector, diagnosePods)
	if err != nil {
		return detail{}
	}
	owned := map[types.UID]bool{types.UID(f.UID): true}
	own := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !w.owns(ctx, &p, owned) })
	if it.entry.ID.Kind == "Deployment" {
		own = newest(own)
	}
	for i := range own {
		if reason, message := trouble(&own[i]); reason != "" {
			return detail{reason: reason, message: fmt.Sprintf("%s: pod %s: %s", it.entry.ID, own[i].Name, message)}
		}
	}
	return detail{}
}

// owns reports that a pod is known to be of a workload.
func (w *worker) owns(ctx context.Context, p *corev1.Pod, owned map[types.UID]bool) bool {
	own, err := w.m.ownedBy(ctx, &p.ObjectMeta, owned)
	return err == nil && own
}

// podSelector selects the pods of a workload as it is wanted, and maybe others; empty: it cannot be told.
func (w *worker) podSelector(it *item) (string, error) {
	if it.entry.ID.Kind == "Job" {
		return labels.SelectorFromSet(labels.Set{"batch.kubernetes.io/job-name": it.entry.ID.Name}).String(), nil
	}
	d, err := w.desiredOf(it)
	if err != nil {
		return "", err
	}
	object, err := d.Object()
	if err != nil {
		return "", err
	}
	_, selector, err := workloadOf(it.entry.ID, object)
	return selector, err
}

// newest are the pods of a Deployment that are of the template of which it made one last.
func newest(pods []corev1.Pod) []corev1.Pod {
	if len(pods) == 0 {
		return nil
	}
	last := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	template := last.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != template })
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
