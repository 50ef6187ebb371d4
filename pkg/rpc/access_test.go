package rpc_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

var (
	admin  = rpc.Caller{Kind: rpc.KindUser, Name: "ana", Role: rpc.RoleAdmin}
	viewer = rpc.Caller{Kind: rpc.KindUser, Name: "vic", Role: rpc.RoleViewer}
	agent  = rpc.Caller{Kind: rpc.KindAgent, Name: "prod-eu-01", Cluster: "prod-eu-01"}
)

func methods(t *testing.T) (out []string) {
	t.Helper()
	for _, f := range []protoreflect.FileDescriptor{
		v1.File_towline_v1_module_service_proto, v1.File_towline_v1_cluster_service_proto, v1.File_towline_v1_rollout_service_proto,
		v1.File_towline_v1_tracker_service_proto, v1.File_towline_v1_identity_service_proto, agentv1.File_towline_agent_v1_agent_proto,
		grpc_health_v1.File_grpc_health_v1_health_proto, grpc_reflection_v1.File_grpc_reflection_v1_reflection_proto,
		grpc_reflection_v1alpha.File_grpc_reflection_v1alpha_reflection_proto,
	} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out = append(out, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
	}
	return out
}

func TestEveryMethodHasARow(t *testing.T) {
	all := methods(t)
	if len(all) < 40 {
		t.Fatalf("only %d methods", len(all))
	}
	for _, m := range all {
		if !rpc.Covered(m) {
			t.Errorf("%s: nobody said who may call it", m)
		}
	}
}

func TestWhoMayCallWhat(t *testing.T) {
	const (
		put     = "/towline.v1.ModuleService/PutModule"
		get     = "/towline.v1.ModuleService/GetModule"
		users   = "/towline.v1.IdentityService/ListUsers"
		connect = "/towline.agent.v1.AgentService/Connect"
		enroll  = "/towline.agent.v1.EnrollmentService/Enroll"
		recover = "/towline.agent.v1.EnrollmentService/Recover"
		reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
		check   = "/grpc.health.v1.Health/Check"
	)
	for _, c := range []struct {
		method                       string
		none, admin, viewer, isAgent error
	}{
		{put, fleet.ErrUnknownUser, nil, fleet.ErrDenied, fleet.ErrDenied},
		{get, fleet.ErrUnknownUser, nil, nil, fleet.ErrDenied},
		{users, fleet.ErrUnknownUser, nil, fleet.ErrDenied, fleet.ErrDenied},
		{connect, fleet.ErrUnknownUser, fleet.ErrDenied, fleet.ErrDenied, nil},
		{enroll, nil, nil, nil, nil},
		{recover, nil, nil, nil, nil},
		{check, nil, nil, nil, nil},
		{reflect, fleet.ErrUnknownUser, nil, nil, fleet.ErrDenied},
		{"/towline.v1.ModuleService/Unheard", fleet.ErrUnknownUser, fleet.ErrDenied, fleet.ErrDenied, fleet.ErrDenied},
		{"towline.v1.ModuleService/GetModule", fleet.ErrUnknownUser, fleet.ErrDenied, fleet.ErrDenied, fleet.ErrDenied},
		{"", fleet.ErrUnknownUser, fleet.ErrDenied, fleet.ErrDenied, fleet.ErrDenied},
	} {
		for name, got := range map[string][2]error{
			"none":   {rpc.Allow(c.method, rpc.Caller{}, false), c.none},
			"admin":  {rpc.Allow(c.method, admin, true), c.admin},
			"viewer": {rpc.Allow(c.method, viewer, true), c.viewer},
			"agent":  {rpc.Allow(c.method, agent, true), c.isAgent},
			"no one": {rpc.Allow(c.method, rpc.Caller{}, true), nobody(c.none)},
		} {
			if !errors.Is(got[0], got[1]) {
				t.Errorf("%s as %s: got %v, want %v", c.method, name, got[0], got[1])
			}
		}
	}
}

// nobody is what an identity of no kind gets: nothing but what is open to all.
func nobody(none error) error {
	if none == nil {
		return nil
	}
	return fleet.ErrDenied
}

func TestEveryWriteIsForAdminsAlone(t *testing.T) {
	for _, m := range methods(t) {
		if rpc.Allow(m, viewer, true) == nil && rpc.Records(m) {
			t.Errorf("%s: a viewer may write", m)
		}
		if rpc.Allow(m, viewer, true) != nil && rpc.Allow(m, admin, true) == nil && !rpc.Records(m) && !readsSecrets[m] {
			t.Errorf("%s: a write that is not recorded", m)
		}
	}
}

// readsSecrets are reads that only admins may do.
var readsSecrets = map[string]bool{"/towline.v1.IdentityService/ListUsers": true, "/towline.v1.IdentityService/ListTokens": true,
	"/towline.v1.IdentityService/ListCertificates": true, "/towline.v1.IdentityService/ListAuthorities": true, "/towline.v1.AuditService/ListAuditEntries": true}
