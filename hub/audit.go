package hub

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/audit"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// audit records every write with who and why; the record of who changed what last is on each resource.
func (h *Hub) audit(ctx context.Context, e rpc.AuditEntry) {
	entry := &towlinev1.AuditEntry{Time: timestamppb.New(e.At), Caller: e.Caller.String(), Remote: e.Caller.Remote, Certificate: e.Caller.CertSerial,
		Method: methodOf(e), Subject: e.Subject, SubjectKind: e.Kind, Reason: e.Reason, Result: e.Result, Detail: e.Detail}
	in := e.Clusters
	switch r := e.Response.(type) {
	case *towlinev1.PutHoldResponse: // of an object, whose module the request need not name
		entry.SubjectKind, entry.Subject = heldBy(r.GetHold())
		in = heldIn(r.GetHold())
	case *towlinev1.ConfirmHoldResponse: // named by its id, and looked for by what it held
		entry.SubjectKind, entry.Subject = heldBy(r.GetHold())
		entry.Detail, in = "hold "+e.Subject, heldIn(r.GetHold())
	case interface{ GetRollout() string }:
		entry.Detail = begun(r.GetRollout())
	case interface {
		GetAnswer() *towlinev1.RolloutAnswer
	}:
		entry.Detail = begun(r.GetAnswer().GetId())
	}
	entry.Detail = audit.In(in, entry.GetDetail())
	h.audits.Record(ctx, entry)
}

// begun tells of the rollout that began or was acted on.
func begun(rollout string) string {
	if rollout == "" {
		return ""
	}
	return "rollout " + rollout
}

// heldBy is what a hold holds, and of which kind that is, as the entry of the hold names it.
func heldBy(h *towlinev1.Hold) (kind, name string) {
	switch {
	case h.GetCatalog() != "":
		return "catalog", fleet.ModuleRef{Project: h.GetProject(), Name: h.GetCatalog()}.String()
	case h.GetModule() == "" && h.GetCluster() == "": // its record cannot be read, and tells no more
		return "hold", h.GetId()
	case h.GetModule() == "":
		return "cluster", h.GetCluster()
	}
	return "module", fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}.String()
}

// heldIn is the cluster in which a hold holds a module, or something of it.
func heldIn(h *towlinev1.Hold) []string {
	if h.GetModule() == "" || h.GetCluster() == "" {
		return nil
	}
	return []string{h.GetCluster()}
}

// methodOf is the method as people know what they did: one method confirms what waits for a word and ends what was held.
func methodOf(e rpc.AuditEntry) string {
	method := e.Method[strings.LastIndexByte(e.Method, '/')+1:]
	if method == "ConfirmHold" && strings.HasPrefix(e.Subject, record.FreezeID) {
		return "Unhold"
	}
	return method
}
