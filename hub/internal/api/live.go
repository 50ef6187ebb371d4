package api

import (
	"context"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// liveTimeout is how long an agent may take to read an object.
const liveTimeout = 15 * time.Second

// GetLiveObject asks the agent for one object of a module. Objects of nobody are not shown: the hub is no way into a
// cluster.
func (a *API) GetLiveObject(ctx context.Context, req *towlinev1.GetLiveObjectRequest) (*towlinev1.GetLiveObjectResponse, error) {
	o := req.GetObject()
	rows, _, err := a.objects(ctx, &towlinev1.ObjectFilter{Project: req.GetProject(), Module: req.GetModule(), Cluster: req.GetCluster(),
		Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}, req.GetMinRevision())
	if err != nil {
		return nil, err
	}
	e := fleet.BundleEntry{ID: fleet.ObjectID{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}}
	e.ID.Group, e.Version = fleet.SplitAPIVersion(o.GetApiVersion())
	listed := false
	for _, row := range rows {
		listed = listed || row.GetObject().GetApiVersion() == o.GetApiVersion() && row.GetObject().GetNamespace() == o.GetNamespace()
	}
	if !listed {
		return nil, fleet.Errorf(fleet.ErrNotFound, "object %s: no module has it in cluster %s", e.ID, req.GetCluster())
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	got, err := a.o.Sessions.Query(ctx, fleet.ClusterName(req.GetCluster()), &agentv1.Query{Type: wire.QueryGet, Object: wire.BundleEntryToProto(e)})
	if err != nil {
		return nil, err
	}
	shown, err := masked(e.ID, got.GetData()) // the agent has masked it; one of another version may do so less
	if err != nil {
		return nil, err
	}
	return &towlinev1.GetLiveObjectResponse{Json: string(shown)}, nil
}
