package api

import (
	"context"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
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
			if record.Places(r, m.Placement, c, ref) {
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

// maxAssign is how many clusters one call may name: each is one change of a transaction.
const maxAssign = 50

// PutAssignments has the leader assign a revision of a module with external rollouts.
func (a *API) PutAssignments(ctx context.Context, req *towlinev1.PutAssignmentsRequest) (*towlinev1.PutAssignmentsResponse, error) {
	said, err := a.request(ctx, req, &storev1.RequestRecord{Revision: req.GetRevision()})
	return &towlinev1.PutAssignmentsResponse{Revision: said.revision, Generation: said.generation}, err
}

// DeleteAssignments has the leader take a module with external rollouts from clusters.
func (a *API) DeleteAssignments(ctx context.Context, req *towlinev1.DeleteAssignmentsRequest) (*towlinev1.DeleteAssignmentsResponse, error) {
	said, err := a.request(ctx, req, &storev1.RequestRecord{Leave: true})
	return &towlinev1.DeleteAssignmentsResponse{Revision: said.revision}, err
}

// request has the leader do what is asked for in clusters, and waits for its answer.
func (a *API) request(ctx context.Context, req asking, q *storev1.RequestRecord) (answer, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return answer{}, err
	}
	if len(req.GetClusters()) > maxAssign {
		return answer{}, fleet.Invalidf("clusters", "names %d clusters; at most %d in one call", len(req.GetClusters()), maxAssign)
	}
	q.Clusters = slices.Compact(slices.Sorted(slices.Values(req.GetClusters())))
	return a.ask(ctx, ref, req, q)
}
