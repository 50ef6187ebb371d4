package api

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// liveTimeout is how long an agent may take to read an object.
const liveTimeout = 15 * time.Second

// GetLiveObject asks the agent for one object of a module. Objects of nobody are not shown: the hub is no way into a
// cluster.
func (a *API) GetLiveObject(ctx context.Context, req *towlinev1.GetLiveObjectRequest) (*towlinev1.GetLiveObjectResponse, error) {
	o := req.GetObject()
	rows, err := a.objectsNamed(ctx, &towlinev1.ObjectFilter{Project: req.GetProject(), Module: req.GetModule(), Cluster: req.GetCluster(),
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
	shown, err := maskedLive(e.ID, got.GetData())
	if err != nil {
		return nil, err
	}
	return &towlinev1.GetLiveObjectResponse{Json: string(shown)}, nil
}

// maskedLive is masked of what a cluster has, which may be what no manifest can: such as a number that is too large to be kept exactly. The
// agent has masked it already, but one of another version may do so less.
func maskedLive(id fleet.ObjectID, raw []byte) ([]byte, error) {
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	out, masks := manifest.Mask(object)
	if !masks {
		return raw, nil
	}
	return json.Marshal(out)
}
