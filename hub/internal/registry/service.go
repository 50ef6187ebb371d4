package registry

import (
	"context"

	"google.golang.org/grpc/peer"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/rpc"
)

// Service is the EnrollmentService over the registry.
func (r *Registry) Service() agentv1.EnrollmentServiceServer { return &service{r: r} }

type service struct {
	agentv1.UnimplementedEnrollmentServiceServer
	r *Registry
}

// remoteOf is the address of whoever calls; empty: it is not known.
func remoteOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return p.Addr.String()
}

func (s *service) Enroll(ctx context.Context, q *agentv1.EnrollRequest) (*agentv1.EnrollResponse, error) {
	e := Enrollment{Token: q.GetToken(), CSR: q.GetCsr(), ClusterUID: q.GetClusterUid(), AgentVersion: q.GetAgentVersion(), Remote: remoteOf(ctx)}
	id, err := s.r.Enroll(ctx, e)
	if err != nil {
		return nil, err
	}
	return &agentv1.EnrollResponse{Cluster: string(id.Cluster), Certificates: id.Certificates, Ca: id.CA, HubId: id.HubID}, nil
}

func (s *service) Renew(ctx context.Context, q *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	caller, err := rpc.AgentFrom(ctx)
	if err != nil {
		return nil, err
	}
	id, err := s.r.Renew(ctx, caller, q.GetCsr())
	if err != nil {
		return nil, err
	}
	return &agentv1.RenewResponse{Certificates: id.Certificates, Ca: id.CA}, nil
}

func (s *service) Recover(ctx context.Context, q *agentv1.RecoverRequest) (*agentv1.RecoverResponse, error) {
	e := Recovery{Certificate: q.GetCertificate(), CSR: q.GetCsr(), ClusterUID: q.GetClusterUid(), Proof: q.GetProof(), Remote: remoteOf(ctx)}
	id, err := s.r.Recover(ctx, e)
	if err != nil {
		return nil, err
	}
	return &agentv1.RecoverResponse{Certificates: id.Certificates, Ca: id.CA}, nil
}
