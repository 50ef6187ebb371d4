package rpc

import (
	"context"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// A request that only asks what would be is no write, and stands in no record.
func TestDryRunsAreNotRecorded(t *testing.T) {
	var got []string
	i := &interceptors{now: time.Now, audit: func(_ context.Context, e AuditEntry) { got = append(got, e.Subject) }}
	const method = "/towline.v1.ModuleService/DeleteModule"
	i.record(t.Context(), Caller{}, method, &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: true}, nil, nil)
	i.record(t.Context(), Caller{}, method, &towlinev1.DeleteModuleRequest{Name: "shop"}, nil, nil)
	i.record(t.Context(), Caller{}, method, nil, nil, nil)
	if len(got) != 2 || got[0] != "shop" {
		t.Errorf("recorded: %q", got)
	}
	wants := &towlinev1.PutModuleRequest{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "cart"}}, DryRun: true, Wants: true}
	i.record(t.Context(), Caller{}, method, wants, nil, nil)
	if len(got) != 3 || got[2] != "cart" { // it has noted what a set wants
		t.Errorf("recorded: %q", got)
	}
}
