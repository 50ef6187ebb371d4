package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

const (
	// maxLogPods is of how many pods one question reads logs.
	maxLogPods = 10
	// logsAtOnce is how many of them at a time.
	logsAtOnce = 4
	// maxOwners is through how many owners an object may belong to what a module has.
	maxOwners = 4
	// defaultContainer is the annotation by which a pod says which of its containers is meant.
	defaultContainer = "kubectl.kubernetes.io/default-container"
)

// Logs reads the logs of a pod, or of the pods of a workload, that a module has or that belongs to what a module has, and how many
// pods it did not look at. What the hub may read is what Towline manages: it is no way into the cluster. Values of secrets that the agent
// knows are masked in them.
func (m *Manager) Logs(ctx context.Context, e fleet.BundleEntry, q fleet.LogQuery) (out []fleet.PodLog, omitted int, err error) {
	if err := m.knows(); err != nil {
		return nil, 0, err
	}
	pods, omitted, of, err := m.podsOf(ctx, e, q.After)
	if err != nil {
		return nil, 0, err
	}
	hidden := m.hiddenAbout(of)
	if hidden.all {
		return nil, 0, fleet.Errorf(fleet.ErrPrecondition, "%s: its logs are not shown: which values of secrets module %s has put into the cluster cannot be read from the agent's state, until it is applied anew", e.ID, of.Display())
	}
	out = make([]fleet.PodLog, len(pods))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(logsAtOnce)
	for i := range pods {
		g.Go(func() error {
			out[i] = m.logOf(ctx, pods[i], q, q.Bytes/len(pods), hidden)
			return ctx.Err()
		})
	}
	return out, omitted, g.Wait()
}

// logOf reads one log. That it cannot be read is said of the pod.
func (m *Manager) logOf(ctx context.Context, p *corev1.Pod, q fleet.LogQuery, most int, hidden hides) fleet.PodLog {
	out := fleet.PodLog{LogCursor: fleet.LogCursor{Pod: p.Name, UID: string(p.UID)}, Container: containerOf(p, q.Container)}
	before := q.After[out.UID]
	out.At = before.At
	text, cut, err := m.client.Log(ctx, p.Namespace, p.Name, apply.LogRequest{Container: out.Container, Tail: q.Tail, Since: q.Since, After: before.At, Previous: q.Previous, Bytes: most})
	if err != nil {
		out.Error = hidden.scrub(fmt.Sprintf("pod %s, container %s: %v", p.Name, out.Container, err))
		return out
	}
	out.Cut = cut
	for line := range bytes.Lines(text) {
		_, rest, _ := bytes.Cut(line, []byte(" "))
		if at, timed := apply.LineTime(line); timed {
			out.At = at
		} else {
			rest = line // the kubelet says why it has no log
			if out.At.IsZero() {
				out.At = time.Unix(0, 1) // the next question does not read it again
			}
		}
		if q.Timestamps {
			out.Data = append(out.Data, line[:len(line)-len(rest)]...)
		}
		out.Data = append(out.Data, hidden.scrub(string(rest))...)
	}
	return out
}

func containerOf(p *corev1.Pod, named string) string {
	switch said := p.Annotations[defaultContainer]; {
	case named != "":
		return named
	case said != "":
		return said
	case len(p.Spec.Containers) > 0:
		return p.Spec.Containers[0].Name
	}
	return ""
}

// podsOf are the pods of an object that is a module's, or belongs to what is, how many more it has, and the module. Those that are
// followed stay among them while they are there.
func (m *Manager) podsOf(ctx context.Context, e fleet.BundleEntry, followed map[string]fleet.LogCursor) (pods []*corev1.Pod, omitted int, of fleet.ModuleRef, err error) {
	id := e.ID
	if id.Namespace == "" {
		return nil, 0, of, fleet.Invalidf("object", "%s has no namespace", id)
	}
	if id.Group == "" && id.Kind == "Pod" {
		p, err := m.client.Pod(ctx, id.Namespace, id.Name)
		if err != nil {
			return nil, 0, of, m.noSuch(id, err)
		}
		of, err = m.managed(ctx, id, &p.ObjectMeta, maxOwners)
		return []*corev1.Pod{p}, 0, of, err
	}
	r, gone, err := m.mapper.Served(ctx, id, e.Version)
	switch {
	case err != nil:
		return nil, 0, of, err
	case gone:
		return nil, 0, of, fleet.Errorf(fleet.ErrNotFound, "%s: the cluster has no such kind", id)
	}
	object, err := m.client.Get(ctx, r, id.Namespace, id.Name)
	if err != nil {
		return nil, 0, of, m.noSuch(id, err)
	}
	w, selector, err := workloadOf(id, object)
	if err != nil {
		return nil, 0, of, err
	}
	if of, err = m.managed(ctx, id, &w.ObjectMeta, maxOwners); err != nil {
		return nil, 0, of, err
	}
	var names []string
	owned, first := map[types.UID]bool{w.UID: true}, 0
	var unread error
	if err := m.client.EachMeta(ctx, kindsBetween[2], id.Namespace, selector, func(p *metav1.PartialObjectMetadata) bool {
		var own bool
		if own, unread = m.ownedBy(ctx, &p.ObjectMeta, owned); unread != nil || !own {
			return unread == nil
		}
		at := len(names)
		if _, known := followed[string(p.UID)]; known {
			at, first = first, first+1
		}
		names = slices.Insert(names, at, p.Name)
		return true
	}); err != nil || unread != nil {
		err = cmp.Or(unread, err)
		return nil, 0, of, fmt.Errorf("pods of %s: %w", id, err)
	}
	omitted = max(0, len(names)-maxLogPods)
	for _, name := range names[:len(names)-omitted] {
		p, err := m.client.Pod(ctx, id.Namespace, name)
		switch {
		case kube.IsGone(err):
		case err != nil:
			return nil, 0, of, fmt.Errorf("pods of %s: %w", id, err)
		default:
			pods = append(pods, p)
		}
	}
	return pods, omitted, of, nil
}

func (m *Manager) noSuch(id fleet.ObjectID, err error) error {
	if kube.IsGone(err) {
		return fleet.Errorf(fleet.ErrNotFound, "%s: is not in the cluster", id)
	}
	return fmt.Errorf("%s: %w", id, err)
}

// workload is what has pods.
type workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector json.RawMessage `json:"selector"`
	} `json:"spec"`
}

// workloadOf reads an object that selects pods.
func workloadOf(id fleet.ObjectID, object map[string]any) (w workload, selector string, err error) {
	raw, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(raw, &w)
	}
	if err != nil {
		return w, "", fmt.Errorf("%s: %w", id, err)
	}
	if id.Group == "" && id.Kind == "ReplicationController" {
		var match map[string]string
		if err = json.Unmarshal(w.Spec.Selector, &match); err == nil && len(match) > 0 {
			return w, labels.SelectorFromSet(match).String(), nil
		}
	}
	var s metav1.LabelSelector
	if hasPods(id) || id.Group == "apps" && id.Kind == "ReplicaSet" {
		if err = json.Unmarshal(w.Spec.Selector, &s); err == nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
			sel, err := metav1.LabelSelectorAsSelector(&s)
			return w, fmt.Sprint(sel), err
		}
	}
	return w, "", fleet.Errorf(fleet.ErrPrecondition, "%s: has no logs; name a Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or ReplicationController", id)
}

// ownedBy reports that a pod belongs to what is owned, be it through a ReplicaSet; whether that does is noted.
func (m *Manager) ownedBy(ctx context.Context, p *metav1.ObjectMeta, owned map[types.UID]bool) (bool, error) {
	for _, o := range p.OwnerReferences {
		yes, known := owned[o.UID]
		if !known && o.Kind == "ReplicaSet" {
			rs, err := m.client.GetMeta(ctx, kindsBetween[1], p.Namespace, o.Name)
			if err != nil && !kube.IsGone(err) {
				return false, fmt.Errorf("ReplicaSet %s of pod %s: %w", o.Name, p.Name, err)
			}
			yes = err == nil && rs.UID == o.UID && slices.ContainsFunc(rs.OwnerReferences, func(x metav1.OwnerReference) bool { return owned[x.UID] })
			owned[o.UID] = yes
		}
		if yes {
			return true, nil
		}
	}
	return false, nil
}

// managed is the module that has an object, or has what it belongs to, be it through others.
func (m *Manager) managed(ctx context.Context, id fleet.ObjectID, o *metav1.ObjectMeta, most int) (fleet.ModuleRef, error) {
	if r := m.inventory.Get(id); r != nil && r.Written() && r.UID == string(o.UID) {
		return r.Module, nil
	}
	unread := error(fleet.Errorf(fleet.ErrNotFound, "%s: no module has it, nor what it belongs to", id))
	for _, x := range o.OwnerReferences {
		group, version := fleet.SplitAPIVersion(x.APIVersion)
		owner := fleet.ObjectID{Group: group, Kind: x.Kind, Namespace: id.Namespace, Name: x.Name}
		if r := m.inventory.Get(owner); r != nil && r.Written() && r.UID == string(x.UID) {
			return r.Module, nil
		}
		res, gone, err := m.mapper.Served(ctx, owner, version)
		if err != nil {
			unread = err
		}
		if most == 0 || err != nil || gone || !res.Namespaced {
			continue
		}
		above, err := m.client.GetMeta(ctx, res, owner.Namespace, owner.Name)
		switch {
		case err != nil && !kube.IsGone(err):
			unread = fmt.Errorf("%s: %w", owner, err)
			continue
		case err != nil || above.UID != x.UID:
			continue
		}
		ref, err := m.managed(ctx, owner, &above.ObjectMeta, most-1)
		if err == nil {
			return ref, nil
		}
		if !errors.Is(err, fleet.ErrNotFound) {
			unread = err
		}
	}
	return fleet.ModuleRef{}, unread
}
