package peers

import (
	"context"

	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
)

// Service is what this hub does for the others. Who may call it is for the interceptors: hubs only.
type Service struct {
	hubv1.UnimplementedRelayServiceServer
	peers  *Peers
	driver Driver
}

// Service serves the others, the driver as far as this hub leads.
func (p *Peers) Service(d Driver) *Service { return &Service{peers: p, driver: d} }

// meant refuses what is for another hub: several may be behind one address, and a hub may have the address of one that is gone.
func (s *Service) meant(instance string) error {
	if me := s.peers.o.Instance; instance != me {
		return fleet.Errorf(fleet.ErrUnavailable, "hub %.40q is meant, and this is %s: --hub-address of each hub has to lead to that hub only", instance, me)
	}
	return nil
}

// Ask asks an agent whose stream is here.
func (s *Service) Ask(ctx context.Context, req *hubv1.AskRequest) (*hubv1.AskResponse, error) {
	if err := s.meant(req.GetInstance()); err != nil {
		return nil, err
	}
	c := fleet.ClusterName(req.GetCluster())
	if err := fleet.ValidateLabel(req.GetCluster()); err != nil {
		return nil, fleet.Invalid("cluster", err.Error())
	}
	if req.GetQuery() == nil {
		return nil, fleet.Invalid("query", "is required")
	}
	got, err := s.peers.o.Local.Query(ctx, c, req.GetQuery())
	if err != nil {
		return nil, err
	}
	return &hubv1.AskResponse{Result: got}, nil
}

// module reads which module, or catalog, is meant.
func (s *Service) module(instance, project, name string) (fleet.ModuleRef, error) {
	return fleet.ModuleRef{Project: project, Name: name}, s.meant(instance)
}

// Resync looks at a source.
func (s *Service) Resync(ctx context.Context, req *hubv1.ResyncRequest) (*hubv1.ResyncResponse, error) {
	ref, err := s.module(req.GetInstance(), req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	var with []fleet.ModuleRef
	for _, name := range req.GetWith() {
		with = append(with, fleet.ModuleRef{Project: ref.Project, Name: name})
	}
	came, err := s.driver.Resync(ctx, ref, record.Ask{By: req.GetBy(), Reason: req.GetReason()}, with)
	if err != nil {
		return nil, err
	}
	resp := &hubv1.ResyncResponse{Number: came.Number, Waits: came.Waits, ResolvedRef: came.Ref, Others: map[string]int64{}}
	for m, number := range came.Others {
		if m.Project == ref.Project {
			resp.Others[m.Name] = number
		}
	}
	return resp, nil
}

// Call is told of a webhook.
func (s *Service) Call(_ context.Context, req *hubv1.CallRequest) (*hubv1.CallResponse, error) {
	ref, err := s.module(req.GetInstance(), req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	if err := s.driver.Called(ref); err != nil {
		return nil, err
	}
	return &hubv1.CallResponse{}, nil
}

// ResyncCatalog looks at the source of a catalog.
func (s *Service) ResyncCatalog(ctx context.Context, req *hubv1.ResyncCatalogRequest) (*hubv1.ResyncCatalogResponse, error) {
	ref, err := s.module(req.GetInstance(), req.GetProject(), req.GetCatalog())
	if err != nil {
		return nil, err
	}
	done, err := s.driver.ResyncCatalog(ctx, ref, record.Ask{By: req.GetBy(), Reason: req.GetReason()}, req.GetTake())
	if err != nil {
		return nil, err
	}
	return &hubv1.ResyncCatalogResponse{Created: done.Created, Configured: done.Configured, Pruned: done.Pruned}, nil
}

// CallCatalog is told of a webhook of a catalog.
func (s *Service) CallCatalog(_ context.Context, req *hubv1.CallCatalogRequest) (*hubv1.CallCatalogResponse, error) {
	ref, err := s.module(req.GetInstance(), req.GetProject(), req.GetCatalog())
	if err != nil {
		return nil, err
	}
	if err := s.driver.CatalogCalled(ref); err != nil {
		return nil, err
	}
	return &hubv1.CallCatalogResponse{}, nil
}
