package hub

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// audit records every write with who and why; the record of who changed what last is on each resource.
func (h *Hub) audit(ctx context.Context, e rpc.AuditEntry) {
	entry := &towlinev1.AuditEntry{Time: timestamppb.New(e.At), Caller: e.Caller.String(), Remote: e.Caller.Remote, Certificate: e.Caller.CertSerial,
		Method: methodOf(e), Subject: e.Subject, Reason: e.Reason, Result: e.Result}
	if ended, ok := e.Response.(*towlinev1.ConfirmHoldResponse); ok { // named by its id, and looked for by what it held
		entry.Subject, entry.Detail = heldBy(ended.GetHold()), "hold "+e.Subject
	}
	h.audits.Record(ctx, entry)
}

// heldBy is what a hold holds, as the entry of the hold names it.
func heldBy(h *towlinev1.Hold) string {
	if h.GetCatalog() != "" {
		return fleet.ModuleRef{Project: h.GetProject(), Name: h.GetCatalog()}.String()
	}
	if h.GetModule() == "" {
		return h.GetCluster()
	}
	return fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}.String()
}

// methodOf is the method as people know what they did: one method confirms what waits for a word and ends what was held.
func methodOf(e rpc.AuditEntry) string {
	method := e.Method[strings.LastIndexByte(e.Method, '/')+1:]
	if method == "ConfirmHold" && strings.HasPrefix(e.Subject, record.FreezeID) {
		return "Unhold"
	}
	return method
}
