package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/version"
	"towline.dev/towline/pkg/wire"
)

// CreateUser makes a user and a bearer token that is shown once.
func (a *API) CreateUser(ctx context.Context, req *towlinev1.CreateUserRequest) (*towlinev1.CreateUserResponse, error) {
	ttl, err := wire.Duration("ttl", req.GetTtl(), 0)
	if err != nil {
		return nil, err
	}
	caller, _ := rpc.CallerFrom(ctx)
	u, err := a.o.Registry.CreateUser(ctx, caller, registry.UserRequest{Name: req.GetName(), Role: req.GetRole(), TTL: ttl, Reason: req.GetReason()})
	return &towlinev1.CreateUserResponse{User: u.User, Token: u.Token, Revision: u.Revision}, err
}

// ListUsers reads them.
func (a *API) ListUsers(ctx context.Context, req *towlinev1.ListUsersRequest) (*towlinev1.ListUsersResponse, error) {
	if err := a.reach(ctx, req.GetMinRevision()); err != nil {
		return nil, err
	}
	users, err := a.o.Registry.Users(ctx)
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.ListUsersResponse{}
	resp.Users, resp.NextPageToken, resp.Total, err = paginate(req, shownAll(users, func(u *towlinev1.User) string { return u.GetMetadata().GetName() }))
	return resp, err
}

// DeleteUser removes one.
func (a *API) DeleteUser(ctx context.Context, req *towlinev1.DeleteUserRequest) (*towlinev1.DeleteUserResponse, error) {
	rev, err := a.o.Registry.DeleteUser(ctx, req.GetName(), req.GetUid())
	return &towlinev1.DeleteUserResponse{Revision: rev}, err
}

// ListTokens reads the join tokens.
func (a *API) ListTokens(ctx context.Context, req *towlinev1.ListTokensRequest) (*towlinev1.ListTokensResponse, error) {
	if err := a.reach(ctx, req.GetMinRevision()); err != nil {
		return nil, err
	}
	tokens, err := a.o.Registry.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	lines := shownAll(tokens, func(t *towlinev1.Token) string { return t.GetCluster() + "/" + t.GetMetadata().GetName() })
	sortLines(lines)
	resp := &towlinev1.ListTokensResponse{}
	resp.Tokens, resp.NextPageToken, resp.Total, err = paginate(req, lines)
	return resp, err
}

// DeleteToken ends one.
func (a *API) DeleteToken(ctx context.Context, req *towlinev1.DeleteTokenRequest) (*towlinev1.DeleteTokenResponse, error) {
	rev, err := a.o.Registry.DeleteToken(ctx, req.GetId())
	return &towlinev1.DeleteTokenResponse{Revision: rev}, err
}

// ListCertificates reads the client certificates of people.
func (a *API) ListCertificates(ctx context.Context, req *towlinev1.ListCertificatesRequest) (*towlinev1.ListCertificatesResponse, error) {
	if err := a.reach(ctx, req.GetMinRevision()); err != nil {
		return nil, err
	}
	all, err := a.o.Registry.Certificates(ctx)
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.ListCertificatesResponse{}
	resp.Certificates, resp.NextPageToken, resp.Total, err = paginate(req, shownAll(all, func(c *towlinev1.Certificate) string { return c.GetMetadata().GetName() }))
	return resp, err
}

// RevokeCertificate ends one.
func (a *API) RevokeCertificate(ctx context.Context, req *towlinev1.RevokeCertificateRequest) (*towlinev1.RevokeCertificateResponse, error) {
	caller, _ := rpc.CallerFrom(ctx)
	c, rev, err := a.o.Registry.RevokeCertificate(ctx, caller, req.GetSerial(), req.GetReason())
	return &towlinev1.RevokeCertificateResponse{Certificate: c, Revision: rev}, err
}

// ListAuthorities reads the CAs of the store.
func (a *API) ListAuthorities(ctx context.Context, req *towlinev1.ListAuthoritiesRequest) (*towlinev1.ListAuthoritiesResponse, error) {
	if err := a.reach(ctx, req.GetMinRevision()); err != nil {
		return nil, err
	}
	all, err := a.o.Registry.Authorities(ctx)
	return &towlinev1.ListAuthoritiesResponse{Authorities: all}, err
}

// kindWords stand in front of names (KIND/NAME) where a project (PROJECT/NAME) may stand as well: of the two, commands take the word for the kind.
var kindWords = []string{"module", "revision", "rollout", "secret"}

// PutProject makes a project or changes its labels, annotations and spec.
func (a *API) PutProject(ctx context.Context, req *towlinev1.PutProjectRequest) (*towlinev1.PutProjectResponse, error) {
	in := req.GetProject().GetMetadata()
	if err := fleet.ValidateLabel(in.GetName()); err != nil {
		return nil, fleet.Invalid("metadata.name", err.Error())
	}
	spec := req.GetProject().GetSpec()
	if _, err := wire.HealthRulesFromProto(spec.GetHealthRules()); err != nil {
		return nil, named("project", in.GetName(), fleet.Join("spec", err))
	}
	resp := &towlinev1.PutProjectResponse{}
	put := func(w store.Writer) error {
		old, _, exists := store.Get[*storev1.ProjectRecord](w, store.ProjectPrefix+in.GetName())
		prev := old.GetProject().GetMetadata()
		if err := record.AsSeen(w, store.ProjectPrefix+in.GetName(), projectObject(in.GetName()), prev, in); err != nil {
			return err
		}
		if exists && sameWords(prev, in) && proto.Equal(old.GetProject().GetSpec(), spec) {
			resp.Result, resp.Project = resultUnchanged, old.GetProject()
			return nil
		}
		meta := &towlinev1.Metadata{Name: in.GetName(), Labels: in.GetLabels(), Annotations: in.GetAnnotations(), Uid: prev.GetUid(), Generation: prev.GetGeneration() + 1,
			CreationTimestamp: prev.GetCreationTimestamp(), ChangedBy: who(ctx), ChangeReason: req.GetReason()}
		resp.Result = putResult(!exists, true)
		if !exists {
			if slices.Contains(kindWords, in.GetName()) {
				return fleet.Invalidf("metadata.name", "%s is the word for a kind: commands take %s/NAME for the %s NAME of the default project; choose another name", in.GetName(), in.GetName(), in.GetName())
			}
			w.Grows()
			meta.Uid, meta.CreationTimestamp = string(uuid.NewUUID()), timestamppb.New(a.now())
		}
		resp.Project = &towlinev1.Project{ApiVersion: fleet.APIVersion, Kind: "Project", Metadata: meta, Spec: spec}
		w.Put(store.ProjectPrefix+in.GetName(), &storev1.ProjectRecord{Project: resp.Project, NewestModule: old.GetNewestModule(), NewestSecret: old.GetNewestSecret(), NewestCatalog: old.GetNewestCatalog()})
		return nil
	}
	var err error
	if req.GetDryRun() {
		err = a.o.Store.View(ctx, 0, func(r store.Reader) error { return put(store.Dry(r)) })
		return resp, err
	}
	resp.Revision, err = a.o.Store.Update(ctx, put)
	return resp, err
}

// ListProjects reads them; the default project is always there.
func (a *API) ListProjects(ctx context.Context, req *towlinev1.ListProjectsRequest) (*towlinev1.ListProjectsResponse, error) {
	var projects []*towlinev1.Project
	err := a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		store.Scan(r, store.ProjectPrefix, func(p *storev1.ProjectRecord, e store.Entry) bool {
			shown := countModules(r, proto.CloneOf(p.GetProject()))
			shown.Metadata.ResourceVersion = e.ModRevision
			projects = append(projects, shown)
			return true
		})
		if _, ok := r.Get(store.ProjectPrefix + fleet.DefaultProject); !ok {
			projects = append(projects, countModules(r, &towlinev1.Project{ApiVersion: fleet.APIVersion, Kind: "Project",
				Metadata: &towlinev1.Metadata{Name: fleet.DefaultProject}}))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	lines := shownAll(projects, func(p *towlinev1.Project) string { return p.GetMetadata().GetName() })
	sortLines(lines)
	resp := &towlinev1.ListProjectsResponse{}
	resp.Projects, resp.NextPageToken, resp.Total, err = paginate(req, lines)
	return resp, err
}

func countModules(r store.Reader, p *towlinev1.Project) *towlinev1.Project {
	p.Modules = 0
	r.Scan(store.ModulePrefix+p.GetMetadata().GetName()+"/", func(store.Entry) bool {
		p.Modules++
		return true
	})
	p.Modules += int32(len(r.Damaged(store.ModulePrefix + p.GetMetadata().GetName() + "/")))
	p.Secrets = int32(len(secretKeys(r, p.GetMetadata().GetName())))
	return p
}

// toDelete is such as "1 module; delete it first".
func toDelete(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun + "; delete it first"
	}
	return fmt.Sprintf("%d %ss; delete them first", n, noun)
}

// DeleteProject removes one that has no modules, with its secrets. The default project is there without a record, so that its secrets
// stay.
func (a *API) DeleteProject(ctx context.Context, req *towlinev1.DeleteProjectRequest) (*towlinev1.DeleteProjectResponse, error) {
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		key := store.ProjectPrefix + req.GetName()
		p, _, ok := store.Get[*storev1.ProjectRecord](w, key)
		if !ok && req.GetName() == fleet.DefaultProject { // it is listed all the same
			return fleet.Forbids(projectObject(req.GetName()), "project %s is always there", req.GetName())
		}
		if !ok {
			return fleet.NotFound(projectObject(req.GetName()), "project %s not found", req.GetName())
		}
		if err := fleet.SameUID(projectObject(req.GetName()), p.GetProject().GetMetadata().GetUid(), req.GetUid()); err != nil {
			return err
		}
		if n := countModules(w, proto.CloneOf(p.GetProject())).GetModules(); n > 0 {
			return fleet.Forbids(projectObject(req.GetName()), "project %s has %s", req.GetName(), toDelete(int64(n), "module"))
		}
		if n := countCatalogs(w, req.GetName()); n > 0 {
			return fleet.Forbids(projectObject(req.GetName()), "project %s has %s", req.GetName(), toDelete(int64(n), "catalog"))
		}
		w.Delete(key)
		if req.GetName() == fleet.DefaultProject {
			return nil
		}
		for _, secret := range secretKeys(w, req.GetName()) {
			w.Delete(secret)
		}
		return nil
	})
	return &towlinev1.DeleteProjectResponse{Revision: rev}, err
}

// GetServerInfo tells the hub's version and id and who the caller is.
func (a *API) GetServerInfo(ctx context.Context, _ *towlinev1.GetServerInfoRequest) (*towlinev1.GetServerInfoResponse, error) {
	caller, _ := rpc.CallerFrom(ctx)
	resp := &towlinev1.GetServerInfoResponse{Version: version.Version, HubId: a.o.HubID, Incarnation: a.o.Incarnation, User: caller.Name,
		Role: string(caller.Role), AgentAddresses: a.addresses(), Time: timestamppb.New(a.now()), Store: a.usage()}
	err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		resp.Revision = r.Revision()
		resp.Hubs, resp.Attention = hubsOf(r)
		return nil
	})
	return resp, err
}

// hubsOf are the hubs that live, and what a person should know of them.
func hubsOf(r store.Reader) (hubs []*towlinev1.Hub, attention *towlinev1.Note) {
	store.Scan(r, store.PeerPrefix, func(h *storev1.HubRecord, _ store.Entry) bool {
		hubs = append(hubs, &towlinev1.Hub{Address: h.GetAddress(), Version: h.GetVersion(), Since: h.GetSince(), Leads: h.GetLeads() != nil})
		return true
	})
	slices.SortFunc(hubs, func(a, b *towlinev1.Hub) int {
		return cmp.Or(a.GetSince().AsTime().Compare(b.GetSince().AsTime()), cmp.Compare(a.GetAddress(), b.GetAddress()))
	})
	var said []string
	for _, h := range hubs {
		if h.GetVersion() != hubs[0].GetVersion() {
			attention = note(fleet.WarnHubVersions, &towlinev1.Facts{})
		}
		said = append(said, fmt.Sprintf("%s at %s", cmp.Or(h.GetVersion(), "an unknown one"), h.GetAddress()))
	}
	if attention != nil {
		attention.Facts.Detail = strings.Join(said, ", ")
	}
	return hubs, attention
}

// usage is what the store holds, and what of that a person should know.
func (a *API) usage() *towlinev1.StoreUsage {
	u := a.o.Store.Usage()
	if u.Limit == 0 {
		return nil
	}
	out := &towlinev1.StoreUsage{Bytes: u.Bytes, Quota: u.Limit}
	switch facts := (&towlinev1.Facts{Detail: fmt.Sprintf("%d MiB of %d MiB", u.Bytes>>20, u.Limit>>20)}); {
	case a.o.Store.Full() != nil:
		out.Attention = note(fleet.WarnFull, facts)
	case u.NearlyFull:
		out.Attention = note(fleet.WarnNearlyFull, facts)
	}
	return out
}
