package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// OtherHub is one that the agent never belonged to, and what an agent of it wrote in this cluster.
type OtherHub struct {
	ID string
	// Objects is how many there are, and Such the first of them, of a module of that hub.
	Objects int
	Such    fleet.ObjectID
	Module  fleet.ModuleRef
}

// hubs knows for which of them other agents of the cluster work.
type hubs struct {
	mu     sync.Mutex
	served map[string]bool
	at     time.Time // when that was seen
	failed error     // that it could not be seen, at the same time
}

const (
	// servedFor is how long what was seen of that counts: many objects are looked at together.
	servedFor = time.Minute
	// servedAgain is how long it is not asked again after it could not be seen.
	servedAgain = time.Second
)

// serves reports that another agent works for a hub. An error says that this is not known now: then nothing is to be taken from that hub. Whoever asks
// first looks for all, so that the end of its own work is not that of the look. The error is of that look: no status in it may count as the API
// server's word about the object that is decided on, such as that it may not be written.
func (h *hubs) serves(ctx context.Context, o *Options, hub string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := servedFor
	if h.failed != nil {
		counts = servedAgain
	}
	if h.at.IsZero() || time.Since(h.at) >= counts {
		h.served, h.failed = o.Served(context.WithoutCancel(ctx))
		h.at = time.Now()
	}
	if h.failed != nil {
		return false, fmt.Errorf("whether another agent of the cluster works for hub %s is not known: %v", hub, apply.Cause(h.failed))
	}
	return h.served[hub], nil
}

// unlessServed is an error if the object of a record is another hub's by now: its agent, which works in this cluster, has taken it (adopt: Always),
// and the two would take it from each other for ever.
func (a *writer) unlessServed(ctx context.Context, live map[string]any) error {
	u := &unstructured.Unstructured{Object: live}
	hub, m := u.GetLabels()[fleet.HubLabel], a.w.m
	claimant, err := m.claimantOf(ctx, a.w.ref, u.GetLabels())
	if err != nil {
		return err
	}
	if claimant = claimant.After(&a.record.Record); hub == "" || claimant.Marked(u.GetLabels()) {
		return nil
	}
	there := a.describe(u)
	of, _, _ := fleet.ParseOwnerMark(there.Annotations[fleet.OwnerAnnotation])
	theirs := plan.Claimant{Module: of, Hub: hub, ClusterUID: m.o.ClusterUID}
	if !theirs.Proven(a.liveID(), there.Labels, there.Annotations, there.Proof) {
		return nil
	}
	if served, err := m.hubs.serves(ctx, &m.o, hub); !served || err != nil {
		return err
	}
	adoption := plan.Adopt(claimant, a.liveID(), there, a.policies, *a.policy)
	if adoption.Verdict != plan.AdoptRefuse {
		return nil
	}
	return a.refused(adoption, adoption.Whose)
}

// others are the objects of other hubs that a search came by, with their hubs. No sync can list them as extras: of the modules that
// they belong to this agent knows no more than a name.
type others struct {
	mu     sync.Mutex
	found  map[fleet.ObjectID]otherMark
	told   []OtherHub // what was said last of this search
	unseen int        // how many kinds were missing from that; below zero: nothing was said
}

type otherMark struct {
	hub    string
	module fleet.ModuleRef
}

// begin forgets what the search before came by.
func (x *others) begin() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.found, x.told, x.unseen = map[fleet.ObjectID]otherMark{}, nil, -1
}

func (x *others) add(id fleet.ObjectID, mark otherMark) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.found[id] = mark
}

// news is what was found, if it or the number of kinds that were not seen differs from what was said last.
func (x *others) news(left unseen) (found []OtherHub, is bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	found = x.hubs()
	if (len(found) == 0 && left.wait) || (x.unseen == len(left.missed) && slices.Equal(found, x.told)) {
		return nil, false
	}
	x.told, x.unseen = found, len(left.missed)
	return found, true
}

// foreign takes note of an object that carries the label of a hub which the agent does not serve, if an agent of that one wrote it in this cluster.
func (f *finder) foreign(id fleet.ObjectID, ref fleet.ModuleRef, o *metav1.PartialObjectMetadata) {
	hub := o.Labels[fleet.HubLabel]
	wrote := plan.Claimant{Module: ref, Hub: hub, ClusterUID: f.m.o.ClusterUID}
	if wrote.Proven(id, o.Labels, o.Annotations, apply.ProofOf(o.ManagedFields)) {
		f.others.add(id, otherMark{hub, ref})
	}
}

// tellOthers says what the search came by of other hubs so far: nobody here keeps it, and nobody else may know that it is there. A kind
// that was not seen may never be, so it holds back nothing of what the others show.
func (f *finder) tellOthers(ctx context.Context, left unseen) {
	if found, is := f.others.news(left); is && ctx.Err() == nil {
		f.m.o.Others(ctx, found, len(left.missed))
	}
}

// hubs are those that the objects are of, in the order of their ids.
func (x *others) hubs() []OtherHub {
	of := map[string]OtherHub{}
	for id, mark := range x.found {
		hub := of[mark.hub]
		if hub.ID, hub.Objects = mark.hub, hub.Objects+1; hub.Objects == 1 || id.Compare(hub.Such) < 0 {
			hub.Such, hub.Module = id, mark.module
		}
		of[mark.hub] = hub
	}
	return slices.SortedFunc(maps.Values(of), func(a, b OtherHub) int { return cmp.Compare(a.ID, b.ID) })
}
