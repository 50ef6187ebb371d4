package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// fakeHub answers from values and keeps what was asked of it.
type fakeHub struct {
	v1.UnimplementedModuleServiceServer
	v1.UnimplementedClusterServiceServer
	v1.UnimplementedRolloutServiceServer
	v1.UnimplementedTrackerServiceServer
	v1.UnimplementedIdentityServiceServer
	v1.UnimplementedSecretServiceServer
	v1.UnimplementedCatalogServiceServer
	v1.UnimplementedStoreServiceServer
	v1.UnimplementedAuditServiceServer

	mu          sync.Mutex
	requests    []proto.Message
	putRefused  error // of each put
	modules     []*v1.Module
	clusters    []*v1.Cluster
	rollouts    []*v1.Rollout // newest first; GetRollout with number 0 is the first of the module
	watch       []*v1.WatchRolloutResponse
	watches     map[string][]*v1.WatchRolloutResponse // of modules that have another watch
	changes     []*v1.WatchModulesResponse            // after SYNCED
	trackers    []*v1.Tracker
	objects     []*v1.Object
	events      []*v1.ListEventsResponse
	logs        []*v1.GetLogsResponse
	away        int32
	holds       []*v1.Hold
	reasons     []*v1.Reason
	revisions   []*v1.Revision
	rendered    [][]byte
	put         *v1.PutModuleResponse
	wanted      string   // the module that another set wants
	older       bool     // it does not know of deletions in a batch
	refuses     string   // the only module that err is said of
	loses       string   // the module whose put is lost, though it was checked
	lost        error    // what that fails with; nil: somebody else was faster
	badCluster  error    // what the put of a cluster fails with
	badPut      error    // the same, but for a dry run
	noPuts      int      // how many puts of modules find no hub
	kept        error    // what a deletion that is only asked for fails with
	knows       []string // projects that are there already
	sameCatalog bool     // the put of a catalog changes nothing
	stays       error    // what the deletion of a module fails with
	diff        []*v1.DiffModuleResponse
	badDiffs    map[string]error // what the diffs of modules fail with
	explained   *v1.ExplainObjectResponse
	putPlan     *v1.PutClusterResponse
	gone        *v1.DeleteModuleResponse
	resynced    *v1.ResyncModuleResponse
	restored    *v1.Restore
	goes        []*v1.DeleteModuleResponse // what gone is, one time after the other
	acted       *v1.RolloutAnswer
	refused     error // of every word to a rollout
	join        *v1.JoinClusterResponse
	removed     *v1.RemoveClusterResponse
	info        *v1.GetServerInfoResponse
	users       []*v1.User
	certs       []*v1.Certificate
	audit       []*v1.AuditEntry
	noAudit     error // what the list of them fails with
	tokens      []*v1.Token
	projects    []*v1.Project
	secrets     []*v1.Secret
	catalogs    []*v1.Catalog
	recataloged *v1.ResyncCatalogResponse
	recatalogs  []func() error                             // what the first resyncs of a catalog fail with; the next ones are recataloged
	err         error                                      // of every write
	watchEnds   error                                      // after the changes; nil: never
	audited     int                                        // how often the audit was asked for
	noWatch     int                                        // how many watches of a rollout find no hub
	confirms    func() error                               // what the confirm of a hold comes to; nil: it is done
	noHolds     int                                        // how many lists of holds do
	looks       []func() (*v1.ResyncModuleResponse, error) // what the first resyncs come to; the next ones are resynced
	removes     bool                                       // what is deleted is gone at once
	needed      int                                        // how many deletions are refused because the clusters need the module still
	breaks      int                                        // how often WatchRollout loses the hub after its first response
	slow        time.Duration                              // how long a watch of a rollout takes to answer
}

func (h *fakeHub) note(m proto.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, m)
}

// timesAsked is how many requests there are of a type.
func timesAsked[M proto.Message](h *fakeHub) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.requests {
		if _, is := m.(M); is {
			n++
		}
	}
	return n
}

// asked is the last request of its type, or nil.
func asked[M proto.Message](h *fakeHub) M {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range slices.Backward(h.requests) {
		if found, ok := m.(M); ok {
			return found
		}
	}
	var none M
	return none
}

func (h *fakeHub) GetModule(_ context.Context, r *v1.GetModuleRequest) (*v1.GetModuleResponse, error) {
	h.note(r)
	for _, m := range h.modules {
		if m.GetMetadata().GetName() == r.GetName() && m.GetMetadata().GetProject() == r.GetProject() {
			if m.GetStatus().GetRolloutState() == "Damaged" {
				return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrCorrupt, "module %s: damaged", r.GetName()))
			}
			return &v1.GetModuleResponse{Module: m}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "module %s: there is none in project %s", r.GetName(), r.GetProject()))
}

func (h *fakeHub) ListModules(_ context.Context, r *v1.ListModulesRequest) (*v1.ListModulesResponse, error) {
	h.note(r)
	var out []*v1.Module
	for _, m := range h.modules {
		if r.GetProject() == "" || m.GetMetadata().GetProject() == r.GetProject() {
			out = append(out, m)
		}
	}
	return &v1.ListModulesResponse{Modules: out, Total: int32(len(out))}, nil
}

func (h *fakeHub) WatchModules(r *v1.WatchModulesRequest, s grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
	h.note(r)
	for _, m := range h.modules {
		if r.GetName() != "" && r.GetName() != m.GetMetadata().GetName() || r.GetProject() != "" && r.GetProject() != m.GetMetadata().GetProject() {
			continue
		}
		if err := s.Send(&v1.WatchModulesResponse{Type: client.Added, Module: m}); err != nil {
			return err
		}
	}
	if err := s.Send(&v1.WatchModulesResponse{Type: client.Synced}); err != nil {
		return err
	}
	for _, c := range h.changes {
		if err := s.Send(c); err != nil {
			return err
		}
	}
	if h.watchEnds != nil {
		return rpc.ToStatus(h.watchEnds)
	}
	<-s.Context().Done()
	return nil
}

func (h *fakeHub) PutModule(_ context.Context, r *v1.PutModuleRequest) (*v1.PutModuleResponse, error) {
	h.note(r)
	if h.err != nil && (h.refuses == "" || h.refuses == r.GetModule().GetMetadata().GetName()) {
		return nil, rpc.ToStatus(h.err)
	}
	if h.older && r.GetDeletes() {
		return nil, rpc.ToStatus(fleet.Invalid("#10", "towline.v1.PutModuleRequest has no field of this number here; the hub is older than its client: update the hub"))
	}
	if h.noPuts > 0 && !r.GetDryRun() {
		h.noPuts--
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "starting"))
	}
	if h.loses == r.GetModule().GetMetadata().GetName() && !r.GetDryRun() {
		return nil, rpc.ToStatus(cmp.Or(h.lost, fleet.Errorf(fleet.ErrConflict, "module %s was changed meanwhile", h.loses)))
	}
	out := proto.Clone(h.put).(*v1.PutModuleResponse)
	if out.Module == nil {
		out.Module = r.GetModule()
	}
	return out, rpc.ToStatus(h.putRefused)
}

func (h *fakeHub) ExplainObject(_ context.Context, r *v1.ExplainObjectRequest) (*v1.ExplainObjectResponse, error) {
	h.note(r)
	return h.explained, rpc.ToStatus(h.err)
}

func (h *fakeHub) ListEvents(r *v1.ListEventsRequest, s grpc.ServerStreamingServer[v1.ListEventsResponse]) error {
	h.note(r)
	for _, part := range h.events {
		if c := r.GetFilter().GetCluster(); c == "" || c == part.GetCluster() {
			if err := s.Send(part); err != nil {
				return err
			}
		}
	}
	return rpc.ToStatus(h.err)
}

func (h *fakeHub) GetLogs(r *v1.GetLogsRequest, s grpc.ServerStreamingServer[v1.GetLogsResponse]) error {
	h.note(r)
	for _, part := range h.logs {
		if err := s.Send(part); err != nil {
			return err
		}
	}
	return rpc.ToStatus(h.err)
}

func (h *fakeHub) DeleteModule(_ context.Context, r *v1.DeleteModuleRequest) (*v1.DeleteModuleResponse, error) {
	h.note(r)
	if err := h.deletionRefused(r); err != nil {
		return nil, rpc.ToStatus(err)
	}
	if h.needed > 0 && !r.GetDryRun() {
		h.needed--
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrPrecondition, "module %s: a revision of shop that clusters have depends on it", r.GetName()))
	}
	if h.removes && !r.GetDryRun() {
		h.modules = slices.DeleteFunc(h.modules, func(m *v1.Module) bool { return m.GetMetadata().GetName() == r.GetName() })
	}
	if len(h.goes) > 0 {
		h.gone, h.goes = h.goes[0], h.goes[1:]
	}
	return h.gone, nil
}

func (h *fakeHub) GetRestore(_ context.Context, req *v1.GetRestoreRequest) (*v1.GetRestoreResponse, error) {
	h.note(req)
	return &v1.GetRestoreResponse{Restore: h.restored}, rpc.ToStatus(h.err)
}

func (h *fakeHub) AcceptRestore(_ context.Context, req *v1.AcceptRestoreRequest) (*v1.AcceptRestoreResponse, error) {
	h.note(req)
	accepted := proto.CloneOf(h.restored)
	accepted.AcceptedBy = "admin"
	return &v1.AcceptRestoreResponse{Restore: accepted}, rpc.ToStatus(h.err)
}

func (h *fakeHub) GetRevision(_ context.Context, r *v1.GetRevisionRequest) (*v1.GetRevisionResponse, error) {
	for _, rev := range h.revisions {
		if r.GetNumber() == rev.GetNumber() || r.GetNumber() == 0 {
			return &v1.GetRevisionResponse{Revision: rev}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "module %s has no revision r%d", r.GetModule(), r.GetNumber()))
}

func (h *fakeHub) ListRevisions(_ context.Context, r *v1.ListRevisionsRequest) (*v1.ListRevisionsResponse, error) {
	h.note(r)
	return &v1.ListRevisionsResponse{Revisions: h.revisions}, nil
}

func (h *fakeHub) GetRevisionObjects(_ context.Context, r *v1.GetRevisionObjectsRequest) (*v1.GetRevisionObjectsResponse, error) {
	h.note(r)
	return &v1.GetRevisionObjectsResponse{Objects: h.rendered}, nil
}

func (h *fakeHub) ListHolds(_ context.Context, r *v1.ListHoldsRequest) (*v1.ListHoldsResponse, error) {
	h.note(r)
	if h.noHolds > 0 {
		h.noHolds--
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "starting"))
	}
	return &v1.ListHoldsResponse{Holds: h.holds}, nil
}

func (h *fakeHub) PutHold(_ context.Context, r *v1.PutHoldRequest) (*v1.PutHoldResponse, error) {
	h.note(r)
	return &v1.PutHoldResponse{Hold: &v1.Hold{Id: "h-9", Kind: "Freeze", Project: r.GetProject(), Module: r.GetModule(), Cluster: r.GetCluster(), Until: r.GetUntil()}}, nil
}

func (h *fakeHub) JoinCluster(_ context.Context, r *v1.JoinClusterRequest) (*v1.JoinClusterResponse, error) {
	h.note(r)
	return h.join, nil
}

func (h *fakeHub) GetCluster(_ context.Context, r *v1.GetClusterRequest) (*v1.GetClusterResponse, error) {
	for _, c := range h.clusters {
		if c.GetMetadata().GetName() == r.GetName() {
			return &v1.GetClusterResponse{Cluster: c}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "cluster %s: there is none", r.GetName()))
}

func (h *fakeHub) ListClusters(_ context.Context, r *v1.ListClustersRequest) (*v1.ListClustersResponse, error) {
	h.note(r)
	return &v1.ListClustersResponse{Clusters: h.clusters}, nil
}

func (h *fakeHub) WatchClusters(r *v1.WatchClustersRequest, s grpc.ServerStreamingServer[v1.WatchClustersResponse]) error {
	for _, c := range h.clusters {
		if r.GetName() != "" && r.GetName() != c.GetMetadata().GetName() {
			continue
		}
		if err := s.Send(&v1.WatchClustersResponse{Type: client.Added, Cluster: c}); err != nil {
			return err
		}
	}
	if err := s.Send(&v1.WatchClustersResponse{Type: client.Synced}); err != nil {
		return err
	}
	if h.watchEnds != nil {
		return rpc.ToStatus(h.watchEnds)
	}
	<-s.Context().Done()
	return nil
}

func (h *fakeHub) WatchObjects(r *v1.WatchObjectsRequest, s grpc.ServerStreamingServer[v1.WatchObjectsResponse]) error {
	h.note(r)
	for _, o := range h.objects {
		if n := r.GetFilter().GetName(); n != "" && n != o.GetObject().GetName() {
			continue
		}
		if err := s.Send(&v1.WatchObjectsResponse{Type: client.Added, Object: o}); err != nil {
			return err
		}
	}
	if err := s.Send(&v1.WatchObjectsResponse{Type: client.Synced}); err != nil {
		return err
	}
	if h.watchEnds != nil {
		return rpc.ToStatus(h.watchEnds)
	}
	<-s.Context().Done()
	return nil
}

func (h *fakeHub) PutCluster(_ context.Context, r *v1.PutClusterRequest) (*v1.PutClusterResponse, error) {
	h.note(r)
	if h.badCluster != nil {
		return nil, rpc.ToStatus(h.badCluster)
	}
	if h.badPut != nil && !r.GetDryRun() {
		return nil, rpc.ToStatus(h.badPut)
	}
	out := proto.Clone(h.putPlan).(*v1.PutClusterResponse)
	out.Cluster = proto.CloneOf(r.GetCluster())
	for _, c := range h.clusters {
		if c.GetMetadata().GetName() == r.GetCluster().GetMetadata().GetName() {
			out.Cluster.Status = c.GetStatus()
		}
	}
	return out, nil
}

func (h *fakeHub) RemoveCluster(_ context.Context, r *v1.RemoveClusterRequest) (*v1.RemoveClusterResponse, error) {
	h.note(r)
	return h.removed, nil
}

func (h *fakeHub) RevokeCluster(_ context.Context, r *v1.RevokeClusterRequest) (*v1.RevokeClusterResponse, error) {
	h.note(r)
	return &v1.RevokeClusterResponse{}, nil
}

func (h *fakeHub) LockCluster(_ context.Context, r *v1.LockClusterRequest) (*v1.LockClusterResponse, error) {
	h.note(r)
	for _, c := range h.clusters {
		if c.GetMetadata().GetName() == r.GetName() && c.GetStatus().GetLock() != nil {
			return &v1.LockClusterResponse{Result: "unchanged"}, nil
		}
	}
	return &v1.LockClusterResponse{Result: "locked"}, nil
}

func (h *fakeHub) UnlockCluster(_ context.Context, r *v1.UnlockClusterRequest) (*v1.UnlockClusterResponse, error) {
	h.note(r)
	out := &v1.UnlockClusterResponse{Result: "unlocked"}
	if r.GetReissue() {
		out.Token, out.Expires, out.HubAddresses = "tl1.secret", in(15*time.Minute), []string{"hub.example.com:7443"}
	}
	return out, nil
}

func (h *fakeHub) GetRollout(_ context.Context, r *v1.GetRolloutRequest) (*v1.GetRolloutResponse, error) {
	for _, x := range h.rollouts {
		if x.GetModule() == r.GetModule() && (r.GetNumber() == 0 || x.GetNumber() == r.GetNumber()) {
			return &v1.GetRolloutResponse{Rollout: x}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "rollout %s/%d: there is none", r.GetModule(), r.GetNumber()))
}

func (h *fakeHub) ListRollouts(_ context.Context, r *v1.ListRolloutsRequest) (*v1.ListRolloutsResponse, error) {
	h.note(r)
	return &v1.ListRolloutsResponse{Rollouts: h.rollouts}, nil
}

func (h *fakeHub) ExplainRollout(_ context.Context, r *v1.ExplainRolloutRequest) (*v1.ExplainRolloutResponse, error) {
	return &v1.ExplainRolloutResponse{Rollout: h.rollouts[0], Reasons: h.reasons}, nil
}

func (h *fakeHub) ListTrackers(_ context.Context, r *v1.ListTrackersRequest) (*v1.ListTrackersResponse, error) {
	h.note(r)
	at, _ := strconv.Atoi(r.GetPageToken())
	resp := &v1.ListTrackersResponse{Trackers: h.trackers[at:min(at+500, len(h.trackers))]}
	if r.GetFilter().GetHealth() != "" {
		resp.Away = h.away
	}
	if at += len(resp.Trackers); at < len(h.trackers) {
		resp.NextPageToken = strconv.Itoa(at)
	}
	return resp, nil
}

func (h *fakeHub) GetTracker(_ context.Context, r *v1.GetTrackerRequest) (*v1.GetTrackerResponse, error) {
	h.note(r)
	i := slices.IndexFunc(h.trackers, func(t *v1.Tracker) bool { return t.GetCluster() == r.GetCluster() })
	if i < 0 {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "tracker %s@%s: cluster %s has nothing of module %s", r.GetModule(), r.GetCluster(), r.GetCluster(), r.GetModule()))
	}
	t := proto.Clone(h.trackers[i]).(*v1.Tracker)
	t.Objects, t.Extra = 18, 4
	t.Revisions = []*v1.TrackerRevision{{Revision: t.GetRevision(), Current: true, Objects: 14, Root: 1},
		{Revision: 41, Objects: 1, Leaving: 1, Reason: "AwaitingReady", Message: "goes when everything else is ready"},
		{Revision: 40, Objects: 2, Legacy: 2, Digest: "d40"}, {Revision: 39, Objects: 1, Legacy: 1, Digest: "d39", Ordered: true}}
	return &v1.GetTrackerResponse{Tracker: t}, nil
}

func (h *fakeHub) ListObjects(_ context.Context, r *v1.ListObjectsRequest) (*v1.ListObjectsResponse, error) {
	h.note(r)
	objects := slices.DeleteFunc(slices.Clone(h.objects), func(o *v1.Object) bool {
		return r.GetFilter().GetName() != "" && r.GetFilter().GetName() != o.GetObject().GetName()
	})
	return &v1.ListObjectsResponse{Objects: objects, Away: h.away, CorrectionsDay: 212}, nil
}

func (h *fakeHub) GetLiveObject(_ context.Context, r *v1.GetLiveObjectRequest) (*v1.GetLiveObjectResponse, error) {
	h.note(r)
	if r.GetCluster() == "prod-eu-11" {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "cluster prod-eu-11 is not connected"))
	}
	return &v1.GetLiveObjectResponse{Json: fmt.Sprintf(`{"kind":%q,"metadata":{"name":%q}}`, r.GetObject().GetKind(), r.GetObject().GetName())}, nil
}

func (h *fakeHub) GetServerInfo(context.Context, *v1.GetServerInfoRequest) (*v1.GetServerInfoResponse, error) {
	if h.info == nil {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrDenied, "not you"))
	}
	return h.info, nil
}

func (h *fakeHub) CreateUser(_ context.Context, r *v1.CreateUserRequest) (*v1.CreateUserResponse, error) {
	h.note(r)
	return &v1.CreateUserResponse{User: &v1.User{Role: r.GetRole()}, Token: "tl_secret"}, nil
}

func (h *fakeHub) ListUsers(context.Context, *v1.ListUsersRequest) (*v1.ListUsersResponse, error) {
	return &v1.ListUsersResponse{Users: h.users}, nil
}

func (h *fakeHub) ListCertificates(context.Context, *v1.ListCertificatesRequest) (*v1.ListCertificatesResponse, error) {
	return &v1.ListCertificatesResponse{Certificates: h.certs}, nil
}

func (h *fakeHub) RevokeCertificate(_ context.Context, r *v1.RevokeCertificateRequest) (*v1.RevokeCertificateResponse, error) {
	h.note(r)
	return &v1.RevokeCertificateResponse{Certificate: h.certs[0]}, nil
}

func (h *fakeHub) ListTokens(context.Context, *v1.ListTokensRequest) (*v1.ListTokensResponse, error) {
	return &v1.ListTokensResponse{Tokens: h.tokens}, nil
}

func (h *fakeHub) ListProjects(context.Context, *v1.ListProjectsRequest) (*v1.ListProjectsResponse, error) {
	return &v1.ListProjectsResponse{Projects: h.projects}, nil
}

// run is one call of the command.
type run struct {
	terminal bool
	piped    bool // of a terminal only stdin is left
	columns  int
	stdin    string
	typed    *typist // in place of stdin
	env      map[string]string
	timeout  time.Duration
	// interruptAt is the request in which somebody interrupts the command; it gets no answer.
	interruptAt func(proto.Message) bool
	// noticed is told of every request before the hub answers it.
	noticed func(proto.Message)
	// out is in place of the result's.
	out io.Writer
}

// result is what came of it.
type result struct {
	out, err string
	code     int
}

// now is the time of every test.
var now = time.Date(2026, 7, 1, 3, 14, 15, 0, time.UTC)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
func in(d time.Duration) *timestamppb.Timestamp  { return timestamppb.New(now.Add(d)) }

func (h *fakeHub) run(t *testing.T, r run, args ...string) result {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), max(r.timeout, 20*time.Second))
	defer cancel()
	unary, stream := r.interrupts(cancel)
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)) // a test changes the hub between two runs
	v1.RegisterModuleServiceServer(server, h)
	v1.RegisterClusterServiceServer(server, h)
	v1.RegisterRolloutServiceServer(server, h)
	v1.RegisterTrackerServiceServer(server, h)
	v1.RegisterIdentityServiceServer(server, h)
	v1.RegisterSecretServiceServer(server, h)
	v1.RegisterCatalogServiceServer(server, h)
	v1.RegisterStoreServiceServer(server, h)
	v1.RegisterAuditServiceServer(server, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	dial := func(ctx context.Context, o client.Options) (*client.Client, error) {
		o.Server = "hub.test:7444"
		o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
		o.DialOptions = append(o.DialOptions, grpc.WithTransportCredentials(insecure.NewCredentials()))
		return client.Dial(ctx, o)
	}
	if r.typed != nil {
		r.typed.asked, r.typed.over = cancel, t.Context()
	}
	return execute(ctx, r, dial, args...)
}

// typist is a person who answers nothing and interrupts the command.
type typist struct {
	asked func()
	over  context.Context
}

func (x *typist) Read([]byte) (int, error) {
	x.asked()
	<-x.over.Done()
	return 0, io.EOF
}

func execute(ctx context.Context, r run, dial Dial, args ...string) result {
	var out, errOut strings.Builder
	columns := r.columns
	if columns == 0 {
		columns = 200
	}
	var in io.Reader = strings.NewReader(r.stdin)
	if r.typed != nil {
		in = r.typed
	}
	var stdout io.Writer = &out
	if r.out != nil {
		stdout = r.out
	}
	s := Streams{In: in, Out: stdout, Err: &errOut, InTerminal: r.terminal, OutTerminal: r.terminal && !r.piped,
		Size:   func() (int, int) { return columns, 50 },
		Getenv: func(k string) string { return r.env[k] },
		Now:    func() time.Time { return now }, Zone: time.UTC}
	code := Main(ctx, args, s, dial)
	return result{out.String(), errOut.String(), code}
}
