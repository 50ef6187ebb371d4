package api

import (
	"context"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// ListAssignments reads what is assigned of a module.
func (a *API) ListAssignments(ctx context.Context, req *towlinev1.ListAssignmentsRequest) (*towlinev1.ListAssignmentsResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	var lines []line[*towlinev1.Assignment]
	resp := &towlinev1.ListAssignmentsResponse{}
	err = a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		m, _, err := moduleAt(r, ref)
		if err != nil {
			return err
		}
		resp.NewestRevision = record.NewestNumber(r, ref)
		for _, rec := range record.Clusters(r) {
			c := record.Cluster(rec)
			if assemble.Places(m.Placement, c, record.Has(r, c.Name, ref)) {
				resp.Selected = append(resp.Selected, string(c.Name))
			}
			t, ok := record.Track(r, c.Name, ref, a.o.Sessions.Connected(c.Name))
			if !ok || t.Tracker.Removing {
				continue
			}
			lines = append(lines, shown(&towlinev1.Assignment{ApiVersion: fleet.APIVersion, Kind: "Assignment", Project: ref.Project,
				Module: ref.Name, Cluster: string(c.Name), Revision: t.Revision(), Generation: t.Generation(), Ready: t.Tracker.Ready, Health: string(t.Tracker.Health)}, (*towlinev1.Assignment).GetCluster))
		}
		sortLines(lines)
		resp.Assignments, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
	return resp, err
}

func moduleAt(r store.Reader, ref fleet.ModuleRef) (*wire.Module, *storev1.ModuleRecord, error) {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok {
		return nil, nil, noModule(ref)
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	return m, rec, err
}

// external checks that another program does the rollouts of the module, which is the one of the UID; any is one of no UID.
func external(r store.Reader, ref fleet.ModuleRef, uid string) (*wire.Module, error) {
	m, rec, err := moduleAt(r, ref)
	if err == nil {
		err = fleet.SameUID(ref.Object(), rec.GetModule().GetMetadata().GetUid(), uid)
	}
	if err != nil {
		return nil, err
	}
	if !m.External || rec.GetDeleting() != "" {
		return nil, fleet.Forbids(ref.Object(), "module %s: its rollouts are made by the hub; set rollout: {external: {}} to assign by yourself", ref.Display())
	}
	if !rollouts.External(r, ref, rec) {
		return nil, fleet.Forbids(ref.Object(), "module %s: the hub goes on with rollout %s until what was put last has a revision; see towline rollout status %s",
			ref.Display(), fleet.RolloutID{Module: ref, Number: rollouts.Driven(r, ref).GetRollout().GetNumber()}, ref.Display())
	}
	return m, nil
}

// maxAssign is how many clusters one call may name: each is one change of a transaction.
const maxAssign = 50

// PutAssignments assigns a revision of a module with external rollouts.
func (a *API) PutAssignments(ctx context.Context, req *towlinev1.PutAssignmentsRequest) (*towlinev1.PutAssignmentsResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.PutAssignmentsResponse{}
	if len(req.GetClusters()) > maxAssign {
		return nil, fleet.Invalidf("clusters", "names %d clusters; at most %d in one call", len(req.GetClusters()), maxAssign)
	}
	resp.Revision, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		m, err := external(w, ref, req.GetModuleUid())
		if err != nil {
			return err
		}
		if err := record.DamagedRevision(w, ref, req.GetRevision()); err != nil {
			return err
		}
		rev := record.Revision(w, ref, req.GetRevision())
		if rev == nil {
			return noRevision(ref, req.GetRevision())
		}
		resp.Generation = record.NextGeneration(w)
		for _, name := range req.GetClusters() {
			if err := a.assign(ctx, w, m, rev, fleet.ClusterName(name), resp.Generation); err != nil {
				return err
			}
		}
		return nil
	})
	return resp, err
}

func (a *API) assign(ctx context.Context, w store.Writer, m *wire.Module, rev *storev1.RevisionRecord, name fleet.ClusterName, generation uint64) error {
	rec, _, ok := store.Get[*storev1.ClusterRecord](w, store.ClusterKey(name))
	if !ok || !assemble.Places(m.Placement, record.Cluster(rec), record.Has(w, name, m.Ref)) {
		return fleet.Forbids(clusterObject(name), "cluster %s is not selected by the placement of module %s", name, m.Ref.Display())
	}
	switch {
	case rec.GetRemoving() != "":
		return fleet.Forbids(clusterObject(name), "cluster %s is being removed", name)
	case rec.GetCluster().GetSpec().GetCordoned():
		return fleet.Forbids(clusterObject(name), "cluster %s is cordoned; it takes no new revision", name)
	}
	cut, err := wire.ModuleFromProto(record.ModuleOfRevision(m.Ref, rev))
	if err != nil {
		return err
	}
	values, err := assemble.Values(cut.Bindings, record.Cluster(rec))
	if err != nil {
		return err
	}
	b, err := a.o.Bundles.Get(ctx, record.Digest(rev.GetBundle()))
	if err != nil {
		return err
	}
	if err := manifest.ResolveIDs(b.Entries, values); err != nil {
		return err
	}
	contest := record.NewContest(a.o.Bundles, m.Ref, b)
	contest.Drafts = a.o.Draft
	rivals, err := contest.In(ctx, w, name, generation, values)
	if err != nil {
		return err
	}
	w.Grows()
	old, _, _ := store.Get[*storev1.DesiredRecord](w, store.DesiredKey(name, m.Ref))
	next := &storev1.DesiredRecord{Needs: rev.GetNeeds(), Sync: &agentv1.Sync{Module: m.Ref.String(), Generation: generation,
		Revision: rev.GetRevision().GetNumber(), Bundle: rev.GetBundle(), Values: values, Policies: rev.GetPolicies(), Objects: uint32(len(b.Entries)),
		Hold: record.ReadHolds(w, a.now()).Freezes(m.Ref, name, old.GetSync().GetHold()), Yields: wire.YieldsToProto(rivals.Yields)}}
	assigned, err := a.newSuccession(m.Ref).Assign(ctx, w, record.Cluster(rec), old, next)
	if err != nil {
		return err
	}
	w.Put(store.DesiredKey(name, m.Ref), assigned)
	return nil
}

// newSuccession is the succession of a module, with what is known of puts that are queued.
func (a *API) newSuccession(ref fleet.ModuleRef) *record.Succession {
	x := record.NewSuccession(a.o.Bundles, ref)
	x.Drafts = a.o.Draft
	return x
}

// DeleteAssignments takes a module with external rollouts from clusters.
func (a *API) DeleteAssignments(ctx context.Context, req *towlinev1.DeleteAssignmentsRequest) (*towlinev1.DeleteAssignmentsResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	if len(req.GetClusters()) > maxAssign {
		return nil, fleet.Invalidf("clusters", "names %d clusters; at most %d in one call", len(req.GetClusters()), maxAssign)
	}
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		if _, err := external(w, ref, req.GetModuleUid()); err != nil {
			return err
		}
		generation := record.NextGeneration(w)
		holds, heirs := record.ReadHolds(w, a.now()), a.newSuccession(ref)
		for _, name := range slices.Compact(slices.Sorted(slices.Values(req.GetClusters()))) {
			if err := readableCluster(store.Untracked(w), fleet.ClusterName(name)); err != nil {
				return err
			}
			key := store.DesiredKey(fleet.ClusterName(name), ref)
			if d, _, ok := store.Get[*storev1.DesiredRecord](w, key); ok && !record.Leaves(d, false) {
				next, err := heirs.Leave(ctx, w, fleet.ClusterName(name), d, &agentv1.Tombstone{Module: ref.String(), Generation: generation,
					Policy: fleet.DeleteDelete, Hold: holds.Freezes(ref, fleet.ClusterName(name), d.GetSync().GetHold())}, false)
				if err != nil {
					return err
				}
				putOrDelete(w, key, next)
			}
		}
		return nil
	})
	return &towlinev1.DeleteAssignmentsResponse{Revision: rev}, err
}

func putOrDelete(w store.Writer, key string, d *storev1.DesiredRecord) {
	if d == nil {
		w.Delete(key)
		return
	}
	w.Put(key, d)
}
