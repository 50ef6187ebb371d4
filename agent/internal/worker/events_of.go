package worker

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// maxEventSpaces is in how many namespaces one question about events looks.
const maxEventSpaces = 50

// kindsBetween are those by which pods belong to what a module has, each before what belongs to it.
var kindsBetween = []apply.Resource{
	{GroupVersionResource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, Kind: "Job", Namespaced: true},
	{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, Kind: "ReplicaSet", Namespaced: true},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true},
}

// Events are the newest Events about what a module has in the cluster, or about some of that, and about the pods that belong to it,
// the oldest first, and how many older ones there are.
func (m *Manager) Events(ctx context.Context, ref fleet.ModuleRef, only []fleet.ObjectID, limit int) (out []fleet.ClusterEvent, omitted int, err error) {
	if err := m.knows(); err != nil {
		return nil, 0, err
	}
	spaces := map[string]*eventSpace{}
	for _, r := range m.inventory.Module(ref) {
		if !r.Written() || len(only) > 0 && !slices.Contains(only, r.ID) {
			continue
		}
		space := r.ID.Namespace
		if res, known := m.mapper.Known(r.ID, r.Version); space == "" || known && !res.Namespaced {
			space = metav1.NamespaceDefault // where Events about objects without a namespace are
		}
		if spaces[space] == nil {
			if len(spaces) == maxEventSpaces {
				return nil, 0, fleet.Errorf(fleet.ErrPrecondition, "module %s has objects in more than %d namespaces; ask about single objects", ref.Display(), maxEventSpaces)
			}
			spaces[space] = &eventSpace{of: map[types.UID]bool{}}
		}
		spaces[space].of[types.UID(r.UID)] = true
		spaces[space].owns = spaces[space].owns || r.ID.Group != "" || r.ID.Kind == "ReplicationController"
	}
	newest := func() {
		slices.SortStableFunc(out, func(a, b fleet.ClusterEvent) int { return a.Last.Compare(b.Last) })
		older := max(0, len(out)-limit)
		out, omitted = slices.Delete(out, 0, older), omitted+older
	}
	for name, s := range spaces {
		if s.owns {
			s.belonging(ctx, m.client, name)
		}
		if err := m.client.EachEvent(ctx, name, func(e *corev1.Event) bool {
			if s.of[e.InvolvedObject.UID] {
				out = append(out, apply.EventOf(e))
			}
			if len(out) > 2*limit { // they come by their names, and there may be many
				newest()
			}
			return true
		}); err != nil {
			return nil, 0, fmt.Errorf("events in namespace %s: %w", name, err)
		}
	}
	newest()
	hidden := m.hiddenAbout(ref)
	for i := range out {
		out[i].Message = hidden.scrub(out[i].Message)
	}
	return out, omitted, nil
}

// eventSpace is a namespace with objects of a module.
type eventSpace struct {
	of   map[types.UID]bool
	owns bool // one of them may own others
}

// belonging adds what belongs to what is there. A kind that may not be listed adds nothing: the events of the others are told.
func (s *eventSpace) belonging(ctx context.Context, c *apply.Client, namespace string) {
	for _, r := range kindsBetween {
		_ = c.EachMeta(ctx, r, namespace, "", func(o *metav1.PartialObjectMetadata) bool {
			if slices.ContainsFunc(o.OwnerReferences, func(x metav1.OwnerReference) bool { return s.of[x.UID] }) {
				s.of[o.UID] = true
			}
			return true
		})
	}
}
