package api

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
)

func showParts(t record.Tracked, parts []tracker.Part, ordered []int64) (out []*towlinev1.TrackerRevision) {
	for _, p := range parts {
		out = append(out, &towlinev1.TrackerRevision{Revision: p.Revision, Current: p.Current, Objects: int32(p.Objects), Root: int32(p.Root),
			Legacy: int32(len(p.Legacy)), Leaving: int32(p.Leaving), Reason: p.Reason, Message: p.Message, Digest: record.LegacyDigest(t, p),
			Ordered: !p.Current && slices.Contains(ordered, p.Revision)})
	}
	return out
}

// GetTracker reads the tracker of a module in a cluster, with what is there of each revision.
func (a *API) GetTracker(ctx context.Context, req *towlinev1.GetTrackerRequest) (*towlinev1.GetTrackerResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	cluster := fleet.ClusterName(req.GetCluster())
	var t record.Tracked
	var ordered []int64
	var out *towlinev1.Tracker
	err = a.view(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		t, err = a.trackerAt(r, ref, cluster)
		if err == nil {
			out = a.standing(r, t, showTracker(t))
		}
		for _, x := range record.Recycles(r, cluster, ref) {
			ordered = append(ordered, x.GetRevision())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	rooted, err := a.rooted(ctx, t)
	if err != nil {
		return nil, err
	}
	out.Revisions = showParts(t, t.Parts(rooted), ordered)
	return &towlinev1.GetTrackerResponse{Tracker: out}, nil
}

func (a *API) trackerAt(r store.Reader, ref fleet.ModuleRef, cluster fleet.ClusterName) (record.Tracked, error) {
	if _, ok := r.Get(store.ModuleKey(ref)); !ok {
		return record.Tracked{}, noModule(ref)
	}
	if _, ok := r.Get(store.ClusterKey(cluster)); !ok {
		return record.Tracked{}, noCluster(cluster)
	}
	t, ok := record.Track(r, cluster, ref, a.o.Sessions.Connected(cluster))
	if !ok {
		return t, fleet.NotFound(trackerObject(ref, cluster), "tracker %s@%s: cluster %s has nothing of module %s", ref.Display(), cluster, cluster, ref.Display())
	}
	return t, nil
}

func trackerObject(ref fleet.ModuleRef, cluster fleet.ClusterName) fleet.Object {
	return fleet.Object{Kind: "Tracker", Name: ref.String() + "@" + string(cluster)}
}

// rooted is how many of the objects that a cluster is to have of a module live as long as that, or longer.
func (a *API) rooted(ctx context.Context, t record.Tracked) (n int, err error) {
	if t.Desired.GetSync() == nil || record.Damaged(t.Desired) {
		return 0, nil
	}
	policies, err := a.policiesOf(ctx, t)
	if err != nil || !slices.ContainsFunc(policies, func(p fleet.Policy) bool { return p.Prune != "" && p.Prune != fleet.PruneOnUpdate }) {
		return 0, err
	}
	entries, err := a.entriesOf(ctx, t)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		labels, err := a.labelsOf(ctx, policies, t.Desired.GetSync().GetValues(), e)
		if err != nil {
			return 0, err
		}
		if fleet.Resolve(policies, e.ID, labels).Prune != fleet.PruneOnUpdate {
			n++
		}
	}
	return n, nil
}

// DeleteTracker orders what keepLegacy keeps of a revision in a cluster to go: exactly what the caller was shown.
func (a *API) DeleteTracker(ctx context.Context, req *towlinev1.DeleteTrackerRequest) (*towlinev1.DeleteTrackerResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	switch {
	case err != nil:
		return nil, err
	case req.GetDigest() == "":
		return nil, fleet.Invalid("digest", "is required: that of the revision in GetTracker, so that nothing goes but what was shown")
	case req.GetRevision() < 0:
		return nil, fleet.Invalidf("revision", "%d is below 0", req.GetRevision())
	}
	cluster, resp := fleet.ClusterName(req.GetCluster()), &towlinev1.DeleteTrackerResponse{}
	resp.Revision, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		t, err := a.trackerAt(w, ref, cluster)
		if err != nil {
			return err
		}
		if err := sameModule(w, ref, req.GetModuleUid()); err != nil {
			return err
		}
		if err := sameCluster(w, cluster, req.GetClusterUid()); err != nil {
			return err
		}
		p, err := legacyPart(&t, req.GetRevision())
		if err != nil {
			return err
		}
		if record.LegacyDigest(t, p) != req.GetDigest() {
			return fleet.Errorf(fleet.ErrConflict, "tracker %s@%s: r%d has something else by now; look at it again: towline describe tracker %s@%s",
				ref.Display(), cluster, p.Revision, ref.Display(), cluster)
		}
		resp.Objects = int32(len(p.Legacy))
		order := record.RecycleOrder(p)
		order.By, order.Reason, order.At = who(ctx), req.GetReason(), timestamppb.New(a.now())
		w.Put(store.RecycleKey(cluster, ref), withOrder(w, cluster, ref, order))
		return nil
	})
	return resp, err
}

// legacyPart is what can be deleted of a revision.
func legacyPart(t *record.Tracked, revision int64) (tracker.Part, error) {
	for _, p := range t.Parts(0) {
		switch {
		case p.Revision != revision:
		case p.Current:
			return p, fleet.Errorf(fleet.ErrInvalid, "tracker %s@%s: cluster %s is to have r%d; roll out another revision, or delete the module: towline delete module %s",
				t.Module.Display(), t.Cluster, t.Cluster, revision, t.Module.Display())
		case len(p.Legacy) > 0:
			return p, nil
		}
	}
	return tracker.Part{}, fleet.NotFound(trackerObject(t.Module, t.Cluster), "tracker %s@%s: keepLegacy keeps nothing of r%d there; see: towline describe tracker %s@%s",
		t.Module.Display(), t.Cluster, revision, t.Module.Display(), t.Cluster)
}

// withOrder is the record of orders with one more, in place of an older one of the revision.
func withOrder(r store.Reader, cluster fleet.ClusterName, ref fleet.ModuleRef, order *storev1.RecycleOrder) *storev1.RecycleRecord {
	old, _, _ := store.Get[*storev1.RecycleRecord](r, store.RecycleKey(cluster, ref))
	out := &storev1.RecycleRecord{Orders: []*storev1.RecycleOrder{order}}
	for _, o := range old.GetOrders() {
		if o.GetRecycle().GetRevision() != order.GetRecycle().GetRevision() {
			out.Orders = append(out.Orders, o)
		}
	}
	slices.SortFunc(out.Orders, func(a, b *storev1.RecycleOrder) int {
		return int(a.GetRecycle().GetRevision() - b.GetRecycle().GetRevision())
	})
	return out
}
