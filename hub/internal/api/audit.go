package api

import (
	"context"

	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/audit"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// audit records what the hub did by itself for people, or why it could not.
func (a *API) audit(ctx context.Context, e *towlinev1.AuditEntry, err error) {
	if a.o.Audit == nil {
		return
	}
	e.Result = status.Code(rpc.ToStatus(err)).String()
	if err != nil {
		e.Detail = fleet.Clip(err.Error(), maxAuditDetail)
	}
	a.o.Audit(ctx, e)
}

// maxAuditDetail is how much is kept of what was wrong.
const maxAuditDetail = 1000

// ListAuditEntries reads what was done and what was refused, the newest first.
func (a *API) ListAuditEntries(ctx context.Context, req *towlinev1.ListAuditEntriesRequest) (*towlinev1.ListAuditEntriesResponse, error) {
	s := audit.Selection{Caller: req.GetCaller(), Kind: req.GetSubjectKind(), Subject: req.GetSubject(), Method: req.GetMethod(), Refused: req.GetRefused()}
	if since := req.GetSince(); since != nil {
		if err := since.CheckValid(); err != nil {
			return nil, fleet.Invalidf("since", "%v", err)
		}
		s.Since = since.AsTime()
	}
	resp := &towlinev1.ListAuditEntriesResponse{}
	err := a.o.Store.View(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		var lines []line[*towlinev1.AuditEntry]
		for _, found := range audit.Select(r, s) {
			lines = append(lines, line[*towlinev1.AuditEntry]{key: found.Key, show: func() *towlinev1.AuditEntry { return found.Entry }})
		}
		resp.Entries, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
	return resp, err
}
