package api

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// stops are what keeps clusters where they are by the word of a person: read once for a list of clusters, because a hold
// of a module and the pins of its rollout speak of many.
type stops struct {
	cluster map[fleet.ClusterName][]*towlinev1.Hold // of the whole cluster, of one module there, or of its leaving a module
	module  map[fleet.ModuleRef][]*towlinev1.Hold   // freezes of a module in every cluster
	pins    map[fleet.ClusterName]map[fleet.ModuleRef]rollout.Pin
}

func readStops(r store.Reader, sums *counts.View, now time.Time) stops {
	s := stops{cluster: map[fleet.ClusterName][]*towlinev1.Hold{}, module: map[fleet.ModuleRef][]*towlinev1.Hold{}, pins: map[fleet.ClusterName]map[fleet.ModuleRef]rollout.Pin{}}
	record.EachHold(r, func(x *towlinev1.Hold, e store.Entry) {
		h := showHold(x, e)
		switch name := fleet.ClusterName(h.GetCluster()); {
		case !record.Lasts(h, now):
		case name != "":
			s.cluster[name] = append(s.cluster[name], h)
		case h.GetCode() == fleet.HoldLeaves:
			for _, item := range h.GetItems() {
				s.cluster[fleet.ClusterName(item)] = append(s.cluster[fleet.ClusterName(item)], leaveOf(h, item))
			}
		case h.GetKind() == record.HoldFreeze && h.GetModule() != "":
			ref := fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}
			s.module[ref] = append(s.module[ref], h)
		}
	})
	eachAnnotation(r, sums, &towlinev1.ObjectFilter{}, now, func(h *towlinev1.Hold) {
		name := fleet.ClusterName(h.GetCluster())
		s.cluster[name] = append(s.cluster[name], h)
	})
	store.Scan(r, store.ModulePrefix, func(_ *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if !ok {
			return true
		}
		for _, p := range rollouts.StandingPins(r, ref, now) {
			if s.pins[p.Cluster] == nil {
				s.pins[p.Cluster] = map[fleet.ModuleRef]rollout.Pin{}
			}
			s.pins[p.Cluster][ref] = p
		}
		return true
	})
	return s
}

// leaveOf is a hold of clusters that would leave a module, as one of them shows it: with that cluster and the number of the others, since
// whole lists would make the statuses of all clusters as large as the square of their number.
func leaveOf(h *towlinev1.Hold, cluster string) *towlinev1.Hold {
	return &towlinev1.Hold{Id: h.GetId(), Kind: h.GetKind(), Project: h.GetProject(), Module: h.GetModule(), Code: h.GetCode(),
		Items: fleet.AndMore([]string{cluster}, int(h.GetCount())), Count: h.GetCount(), Digest: h.GetDigest(), By: h.GetBy(), Since: h.GetSince(), ResourceVersion: h.GetResourceVersion()}
}

// describeStops fills in what stops a cluster.
func (o overview) describeStops(name fleet.ClusterName, out *towlinev1.ClusterStatus) {
	s := o.stops()
	out.Holds = append(out.Holds, s.cluster[name]...)
	for ref, holds := range s.module {
		if _, has := o.sums.Cell(name, ref); has {
			out.Holds = append(out.Holds, holds...)
		}
	}
	slices.SortFunc(out.Holds, func(a, b *towlinev1.Hold) int {
		return cmp.Or(a.GetSince().AsTime().Compare(b.GetSince().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
	for ref, p := range s.pins[name] {
		cell, _ := o.sums.Cell(name, ref)
		pin := &towlinev1.Pin{Project: ref.Project, Module: ref.Name, Revision: cell.Revision, By: p.By, Reason: p.Why, Since: timestamppb.New(p.At.Time())}
		if p.Until != 0 {
			pin.Until = timestamppb.New(p.Until.Time())
		}
		out.Pins = append(out.Pins, pin)
	}
	slices.SortFunc(out.Pins, func(a, b *towlinev1.Pin) int {
		return cmp.Or(cmp.Compare(a.GetProject(), b.GetProject()), cmp.Compare(a.GetModule(), b.GetModule()))
	})
}
