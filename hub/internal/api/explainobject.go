package api

import (
	"context"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// ExplainObject says which module has an object in a cluster, by which revision and rollout, and which entries of its policies decide
// how it is treated.
func (a *API) ExplainObject(ctx context.Context, req *towlinev1.ExplainObjectRequest) (*towlinev1.ExplainObjectResponse, error) {
	row, err := a.oneObject(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &towlinev1.ExplainObjectResponse{Object: row}
	if out.Holds, err = a.holdsOf(ctx, row, req.GetMinRevision()); err != nil {
		return nil, err
	}
	ref, cluster := fleet.ModuleRef{Project: row.GetProject(), Name: row.GetModule()}, fleet.ClusterName(row.GetCluster())
	written := 0
	if err := a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		rev := record.Revision(r, ref, row.GetRevision()).GetRevision()
		meta := rev.GetMetadata()
		written = len(rev.GetSpec().GetPolicies())
		out.Revised, out.ChangedBy, out.ChangeReason = meta.GetCreationTimestamp(), meta.GetChangedBy(), meta.GetChangeReason()
		return nil
	}); err != nil {
		return nil, err
	}
	all, _, err := a.tracked(ctx, &towlinev1.ObjectFilter{Project: ref.Project, Module: ref.Name, Cluster: string(cluster)}, req.GetMinRevision())
	if err != nil || len(all) == 0 { // it has gone meanwhile
		return out, err
	}
	if n := all[0].Desired.GetRollout(); n != 0 && !row.GetExtra() {
		out.Rollout = fleet.RolloutID{Module: ref, Number: n}.String()
	}
	out.Policies, err = a.decisions(ctx, all[0], row.GetObject())
	for _, d := range out.GetPolicies() {
		if d.GetEntry() > int32(written) {
			d.Entry = -1
		}
	}
	return out, err
}

// holdsOf are the freezes that keep an object as it is, the oldest first.
func (a *API) holdsOf(ctx context.Context, row *towlinev1.Object, minRevision int64) ([]*towlinev1.Hold, error) {
	var lines []line[*towlinev1.Hold]
	now := a.now()
	err := a.overview(ctx, minRevision, func(r overview) error {
		record.EachHold(r, func(h *towlinev1.Hold, e store.Entry) {
			switch {
			case h.GetKind() != record.HoldFreeze || !record.Lasts(h, now):
			case h.GetModule() != "" && (h.GetModule() != row.GetModule() || h.GetProject() != row.GetProject()):
			case h.GetCluster() != "" && h.GetCluster() != row.GetCluster():
			case h.GetObject() != nil && record.ObjectOf(h.GetObject()) != record.ObjectOf(row.GetObject()):
			default:
				lines = append(lines, shown(showHold(h, e), oldestFirst))
			}
		})
		of := &towlinev1.ObjectFilter{Project: row.GetProject(), Module: row.GetModule(), Cluster: row.GetCluster()}
		eachAnnotation(r, r.sums, of, now, func(h *towlinev1.Hold) {
			if record.ObjectOf(h.GetObject()) == record.ObjectOf(row.GetObject()) {
				lines = append(lines, shown(h, oldestFirst))
			}
		})
		return nil
	})
	sortLines(lines)
	return showAll(lines), err
}

// oneObject is the row of the object that is asked for.
func (a *API) oneObject(ctx context.Context, req *towlinev1.ExplainObjectRequest) (*towlinev1.Object, error) {
	o := req.GetObject()
	switch {
	case req.GetCluster() == "":
		return nil, fleet.Invalid("cluster", "is required")
	case o.GetKind() == "" || o.GetName() == "":
		return nil, fleet.Invalid("object", "kind and name are required")
	}
	rows, err := a.objectsNamed(ctx, &towlinev1.ObjectFilter{Cluster: req.GetCluster(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}, req.GetMinRevision())
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(x *towlinev1.Object) bool {
		return o.GetApiVersion() != "" && x.GetObject().GetApiVersion() != o.GetApiVersion() || o.GetNamespace() == "" && x.GetObject().GetNamespace() != ""
	})
	name := fleet.ObjectID{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	switch {
	case len(rows) == 0:
		return nil, fleet.Errorf(fleet.ErrNotFound, "object %s: no module has it in cluster %s", name, req.GetCluster())
	case slices.ContainsFunc(rows, func(x *towlinev1.Object) bool {
		return x.GetObject().GetApiVersion() != rows[0].GetObject().GetApiVersion()
	}):
		return nil, fleet.Invalidf("object.api_version", "%s is there as %s and as %s: say which", name, rows[0].GetObject().GetApiVersion(), rows[len(rows)-1].GetObject().GetApiVersion())
	}
	// Where one module has dropped it and another lists it, that one is asked about, and one that only watches it last.
	nearest := distance(slices.MinFunc(rows, func(x, y *towlinev1.Object) int { return distance(x) - distance(y) }))
	rows = slices.DeleteFunc(rows, func(x *towlinev1.Object) bool { return distance(x) != nearest })
	return a.owners(ctx, rows, req.GetMinRevision())
}

// distance is how little the object is the module's.
func distance(o *towlinev1.Object) int {
	switch {
	case o.GetWatched():
		return 2
	case o.GetExtra():
		return 1
	}
	return 0
}

// owners is the row of the module that has the object, of all that list it: the others yield it.
func (a *API) owners(ctx context.Context, rows []*towlinev1.Object, minRevision int64) (*towlinev1.Object, error) {
	if len(rows) == 1 {
		return rows[0], nil
	}
	for _, row := range rows {
		all, _, err := a.tracked(ctx, &towlinev1.ObjectFilter{Project: row.GetProject(), Module: row.GetModule(), Cluster: row.GetCluster()}, minRevision)
		if err != nil || len(all) == 0 {
			return rows[0], err
		}
		yields, err := a.yields(ctx, all[0], record.ObjectOf(row.GetObject()))
		if err != nil || !yields {
			return row, err
		}
	}
	return rows[0], nil
}

// yields reports that a module leaves an object that it lists in a cluster to another one.
func (a *API) yields(ctx context.Context, t record.Tracked, id fleet.ObjectID) (bool, error) {
	if len(t.Desired.GetSync().GetYields()) == 0 {
		return false, nil
	}
	entries, err := a.entriesOf(ctx, t)
	if err != nil {
		return false, err
	}
	all, err := wire.YieldsFromProto(t.Desired.GetSync())
	at := slices.IndexFunc(entries, func(e fleet.BundleEntry) bool { return e.ID == id })
	return slices.ContainsFunc(all, func(y fleet.Yield) bool { return slices.Contains(y.Ordinals, at) }), err
}

// decisions say how the policies of a module in a cluster treat one of its objects.
func (a *API) decisions(ctx context.Context, t record.Tracked, o *towlinev1.ObjectReference) (out []*towlinev1.PolicyDecision, err error) {
	policies, err := a.policiesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	entries, err := a.entriesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	id := fleet.ObjectID{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	id.Group, _ = fleet.SplitAPIVersion(o.GetApiVersion())
	var labels map[string]string
	if i := slices.IndexFunc(entries, func(e fleet.BundleEntry) bool { return e.ID == id }); i >= 0 {
		if labels, err = a.labelsOf(ctx, policies, t.Desired.GetSync().GetValues(), entries[i]); err != nil {
			return nil, err
		}
	}
	for _, d := range fleet.Decisions(policies, id, labels) {
		out = append(out, &towlinev1.PolicyDecision{Field: d.Field, Value: d.Value, Entry: int32(d.Entry + 1)})
	}
	return out, nil
}
