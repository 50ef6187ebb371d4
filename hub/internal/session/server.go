// Package session serves the agents: one stream each, fenced by an epoch. It owns what goes on a stream and the records of
// what comes back (observed, acks, conditions); it must not know rollouts, nor decide what a cluster should run.
//
// A stream goes hello → welcome → (index | status ack | heartbeat | query | leave | drain)*. One goroutine receives and one
// looks that the agent is alive; another one sends, and one commits reports, while there is something to send or commit. Between
// them are only dirty marks and the newest value of each key, never a queue. What the agent is told of its desired set, and when, is decided by a machine (machine.go)
// that the sender owns.
package session

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/meter"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/tracing"
	"towline.dev/towline/pkg/wire"
)

// Registry admits and ends sessions.
type Registry interface {
	// OpenSession raises the epoch, or says why the agent may not have a session.
	OpenSession(ctx context.Context, a registry.Admission, alive bool) (registry.Opened, error)
	// Regressed records that the store is older than what the cluster's agent has seen, and why.
	Regressed(ctx context.Context, cluster fleet.ClusterName, o registry.Opened, why string) (store.Fence, error)
	// Continued records that the agent goes on with this store as after a new join, and ends the session.
	Continued(ctx context.Context, cluster fleet.ClusterName, o registry.Opened) error
	// CloseSession records the end, and when the last word came, if the session is still the newest.
	CloseSession(ctx context.Context, cluster fleet.ClusterName, epoch uint64, heard time.Time) error
}

// Options of a Server. All are required but those with a default.
type Options struct {
	Store    store.Store
	Bundles  *bundle.Cache
	Registry Registry
	Log      *slog.Logger
	// Secrets opens the values that go to agents, sealed for each.
	Secrets *secrets.Keys
	// Hub is meta/hub as of this start.
	Hub *storev1.Hub
	// Instance names this hub process.
	Instance string
	// Heartbeat is the time between heartbeats; an agent is dead after three. Default 10s.
	Heartbeat time.Duration
	// MaxReportBytes bounds what the reports of one cluster take in the store; default 16 MiB.
	MaxReportBytes int
	// CAs are those that agents are told to trust; nil, or none: what they joined with.
	CAs func() [][]byte
	// Hubs are the addresses of all hubs of the store, for agents; nil: this one is alone.
	Hubs func() []string
	// Meter counts what goes on; it may be nil.
	Meter *meter.Meter
	// Tracer sends spans of what goes on; nil: none are.
	Tracer *tracing.Tracer
	// ReconnectSpread is over how long agents spread their first reconnect; default 1s.
	ReconnectSpread time.Duration
}

// Server is the AgentService.
type Server struct {
	agentv1.UnimplementedAgentServiceServer
	o       Options
	started time.Time
	clock   func() time.Time
	opens   openings
	changes changes
	secrets secretSets
	parts   sync.WaitGroup // goroutines of sessions, which outlive their handlers by as long as a stream needs to end

	mu        sync.Mutex
	live      map[fleet.ClusterName]*session
	lost      map[fleet.ClusterName]time.Time // see Lost
	listeners []func(fleet.ClusterName)
	witnesses []func(fleet.ClusterName)
	drained   map[fleet.ClusterName]bool // who had a session when draining began; nil: it has not
	unended   map[fleet.ClusterName]*session
	more      chan struct{} // has room for one: some are unended
}

// New checks the options.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Registry == nil || o.Bundles == nil || o.Log == nil {
		return nil, fmt.Errorf("session: Store, Registry, Bundles and Log are required")
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 10 * time.Second
	}
	if o.MaxReportBytes == 0 {
		o.MaxReportBytes = defaultReportBytes
	}
	if o.ReconnectSpread == 0 {
		o.ReconnectSpread = time.Second
	}
	s := &Server{o: o, started: time.Now(), clock: time.Now, changes: changes{feed: o.Store.Feed(store.DesiredPrefix)}, live: map[fleet.ClusterName]*session{},
		lost: map[fleet.ClusterName]time.Time{}, unended: map[fleet.ClusterName]*session{}, more: make(chan struct{}, 1)}
	if err := s.changes.follow(); err != nil { // from here on: each view to come is of what it follows
		return nil, err
	}
	return s, nil
}

// OnChange registers fn to be called when a cluster connects or is lost. fn must not block. Call it before Run.
func (s *Server) OnChange(fn func(fleet.ClusterName)) { s.listeners = append(s.listeners, fn) }

// OnConnected registers fn to be called in the moment in which Connected begins to say something else of a cluster: whoever
// hears that finds what fn did. fn must neither block nor ask the server anything. Call it before Run.
func (s *Server) OnConnected(fn func(fleet.ClusterName)) { s.witnesses = append(s.witnesses, fn) }

// put notes which session of a cluster lives; nil: none. The caller holds mu.
func (s *Server) put(c fleet.ClusterName, x *session) {
	if x == nil {
		if _, before := s.lost[c]; !before || s.live[c].lasted() {
			s.lost[c] = s.clock()
		}
		delete(s.live, c)
	} else {
		s.live[c] = x
	}
	for _, fn := range s.witnesses {
		fn(c)
	}
}

// Connected reports whether the cluster's agent has a live session here. A hub that stops takes the sessions of its
// agents away itself: they count as connected to the end, so that no rollout passes them over meanwhile.
func (s *Server) Connected(c fleet.ClusterName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[c] != nil || s.drained[c]
}

// Lost is when a session of the cluster ended here last that had lasted, or its first one; zero: none did. One whose session is live may
// have lost another one before. Sessions that break again and again are none that an agent comes back from.
func (s *Server) Lost(c fleet.ClusterName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost[c]
}

// LastSeen is when the live session of the cluster was last heard of; false: it has none.
func (s *Server) LastSeen(c fleet.ClusterName) (time.Time, bool) {
	s.mu.Lock()
	x := s.live[c]
	s.mu.Unlock()
	if x == nil {
		return time.Time{}, false
	}
	return x.lastSeen(), true
}

// Count is the number of live sessions.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

// Started is when this server began: agents that had a session before it are given time to come back.
func (s *Server) Started() time.Time { return s.started }

// Run passes changes in the store to the sessions until ctx ends, then drains them.
func (s *Server) Run(ctx context.Context) error {
	sub := s.o.Store.Subscribe(nil, store.DesiredPrefix, store.ClusterPrefix, store.SessionPrefix, store.FloorPrefix, store.SecretPrefix,
		store.CatalogPrefix, store.ModulePrefix, store.FreezePrefix, store.AcceptedKey, store.ResumedKey, store.SettledKey)
	defer sub.Stop()
	ending, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { s.endLoop(ending) })
	defer ended.Wait()
	defer cancel()
	s.markAll(dirtyDesired) // sessions that began before the subscription
	for {
		select {
		case <-ctx.Done():
			s.drain()
			return nil
		case _, ok := <-sub.C():
			if !ok {
				return fmt.Errorf("session: the store closed")
			}
			keys, _ := sub.Take()
			if err := guard.Run(func() error { s.dispatch(keys); return nil }); err != nil {
				s.o.Log.Error("a loop panicked; all sessions look at everything", "at", "dispatch", "stack", guard.Stack(err))
				s.markAll(dirtyDesired | dirtySecrets)
			}
		}
	}
}

func (s *Server) dispatch(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live) == 0 {
		return
	}
	secret, owned, held := false, false, false
	for _, k := range keys {
		if store.AboutRestore(k) { // mostly it is about all of them
			for _, x := range s.live {
				x.mark(dirtyDesired)
			}
			continue
		}
		if strings.HasPrefix(k, store.SecretPrefix) {
			secret = true
			continue
		}
		if strings.HasPrefix(k, store.CatalogPrefix) || strings.HasPrefix(k, store.ModulePrefix) { // what goes with a catalog may stay after all
			owned = true
			continue
		}
		if strings.HasPrefix(k, store.FreezePrefix) {
			held = true
			continue
		}
		if x := s.live[clusterOf(k)]; x != nil {
			x.mark(dirtyDesired)
			if strings.HasPrefix(k, store.ClusterPrefix) {
				dirty.Poke(x.doubt)
			}
		}
	}
	for _, x := range s.live {
		if secret && x.usesSecrets.Load() {
			x.mark(dirtySecrets)
		}
		if owned && !x.tellsAll.Load() || held && x.unread.Load() {
			x.mark(dirtyDesired)
		}
	}
}

// clusterOf reads the second component of a key, which names the cluster in every prefix that Run subscribes to, but those of secrets, catalogs,
// modules and holds.
func clusterOf(key string) fleet.ClusterName {
	start := -1
	for i := range len(key) {
		if key[i] != '/' {
			continue
		}
		if start >= 0 {
			return fleet.ClusterName(key[start:i])
		}
		start = i + 1
	}
	if start < 0 {
		return ""
	}
	return fleet.ClusterName(key[start:])
}

func (s *Server) markAll(bits int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.live {
		x.mark(bits)
	}
}

func (s *Server) drain() {
	s.mu.Lock()
	s.drained = make(map[fleet.ClusterName]bool, len(s.live))
	for c := range s.live {
		s.drained[c] = true
	}
	s.mu.Unlock()
	s.markAll(dirtyDrain)
}

// Wait returns when nothing of any session runs any more. Call it when the gRPC server has stopped.
func (s *Server) Wait() { s.parts.Wait() }

// Connect is one session.
func (s *Server) Connect(stream grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]) error {
	caller, ok := rpc.CallerFrom(stream.Context())
	if !ok || caller.Cluster == "" {
		return fleet.Errorf(fleet.ErrUnknownUser, "this call needs the client certificate of a cluster")
	}
	var x *session
	if err := aside(&s.parts, func() (err error) {
		x, err = s.admit(stream, fleet.ClusterName(caller.Cluster))
		return err
	}); err != nil {
		s.o.Meter.SessionRefused(status.Code(rpc.ToStatus(err)))
		return err
	}
	defer s.o.Meter.SessionOpened()()
	defer s.close(x)
	return x.run(stream.Context(), stream)
}

// admit opens the session, or says why the agent may not have one.
func (s *Server) admit(stream grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse], cluster fleet.ClusterName) (*session, error) {
	if err := s.opens.allow(cluster, time.Now()); err != nil {
		return nil, err
	}
	hello, err := s.receiveHello(stream)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cluster, err)
	}
	return s.open(stream, cluster, hello)
}

// beatSlots is into how many slots the time between heartbeats is divided. Sessions that beat in the same slot do so at the same
// moment: a process that rests has to be woken for each moment, and that costs more than a heartbeat.
const beatSlots = 40

// untilBeat is how long a session waits for its next heartbeat: no longer than the time between them, and less by a slot at most.
func (s *Server) untilBeat() time.Duration {
	every := s.o.Heartbeat
	return every - time.Duration(s.clock().UnixNano())%max(every/beatSlots, 1)
}

// helloDeadline is how long a stream may stay silent before its hello.
const helloDeadline = 10 * time.Second

func (s *Server) receiveHello(stream grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]) (*agentv1.Hello, error) {
	type result struct {
		m   *agentv1.ConnectRequest
		err error
	}
	got := make(chan result, 1)
	// It ends with the stream: returning from the handler makes Recv fail.
	s.parts.Go(func() {
		m, err := stream.Recv()
		got <- result{m, err}
	})
	timer := time.NewTimer(helloDeadline)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil, fleet.Errorf(fleet.ErrUnavailable, "no hello within %s", helloDeadline)
	case r := <-got:
		if r.err != nil {
			return nil, r.err
		}
		h := r.m.GetHello()
		if h == nil {
			return nil, fleet.Errorf(fleet.ErrInvalid, "the first frame is no hello")
		}
		if h.GetMinProtocol() > protocolLevel || h.GetMaxProtocol() < protocolLevel {
			// Not ErrPrecondition: that would freeze the agent's writes, and an old agent keeps its cluster correct.
			return nil, fleet.Errorf(fleet.ErrInvalid, "the agent speaks protocol %d to %d, this hub %d; update the older one",
				h.GetMinProtocol(), h.GetMaxProtocol(), protocolLevel)
		}
		return h, nil
	}
}

// protocolLevel is the level of towline.agent.v1 that this hub speaks.
const protocolLevel = 1

func (s *Server) open(stream grpc.ServerStream, cluster fleet.ClusterName, hello *agentv1.Hello) (*session, error) {
	ctx := stream.Context()
	// The read model must have every commit that any hub acknowledged before the hello is judged (DESIGN §4).
	if _, err := s.o.Store.Barrier(ctx); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cluster, err)
	}
	s.mu.Lock()
	draining, alive := s.drained != nil, s.live[cluster] != nil
	s.mu.Unlock()
	if draining {
		return nil, errDraining()
	}
	opened, err := s.o.Registry.OpenSession(ctx, registry.Admission{Cluster: cluster, InstanceID: hello.GetInstanceId(),
		ClusterUID: hello.GetClusterUid(), Hub: s.o.Instance, AgentVersion: hello.GetAgentVersion(),
		KubernetesVersion: hello.GetKubernetesVersion(), Features: hello.GetFeatures(), StatusDigest: knownStatus(hello),
		StatusSeen: hello.GetStatusSeen(), LastEpoch: s.lastEpoch(hello), Follows: s.followed(hello), Blind: blind(hello)}, alive)
	if err != nil {
		return nil, err
	}
	x := newSession(s, cluster, opened, hello)
	s.mu.Lock()
	old := s.live[cluster]
	draining = s.drained != nil
	late := old != nil && old.epoch > x.epoch
	if !draining && !late {
		s.put(cluster, x)
	}
	s.mu.Unlock()
	switch {
	case late:
		return nil, fleet.Errorf(fleet.ErrStale, "cluster %s: a newer session took over", cluster)
	case old != nil:
		old.mark(dirtyFenced)
	}
	if draining {
		return nil, errDraining()
	}
	s.o.Log.Info("agent connected", "cluster", cluster, "epoch", opened.Epoch, "agent", hello.GetAgentVersion())
	s.changed(cluster)
	return x, nil
}

// lastEpoch is the agent's last session with this hub; 0: it had none.
func (s *Server) lastEpoch(h *agentv1.Hello) uint64 {
	if h.GetHubId() != s.o.Hub.GetHubId() || h.GetIncarnation() != s.o.Hub.GetIncarnation() {
		return 0
	}
	return h.GetLastEpoch()
}

// blind reports that the agent says that it does not see its cluster. What cannot be read ends the session when it is greeted.
func blind(h *agentv1.Hello) bool {
	said, err := wire.ConditionsFromProto(h.GetConditions(), time.Now())
	return err != nil || fleet.Blinding(said) != nil
}

// knownStatus is the digest of the status that the agent stands by, or will say that it does. One that would never say so
// is asked for all of it.
func knownStatus(h *agentv1.Hello) []byte {
	if !slices.Contains(h.GetFeatures(), wire.FeatureStatusSeen) {
		return nil
	}
	return h.GetStatusDigest()
}

func errDraining() error {
	return fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping; connect again")
}

func (s *Server) close(x *session) {
	close(x.over)
	s.mu.Lock()
	newest := s.live[x.cluster] == x
	if newest {
		s.put(x.cluster, nil)
	}
	s.mu.Unlock()
	if !newest {
		return
	}
	if err := s.recordEnd(context.Background(), x); err != nil {
		s.o.Log.Warn("session end not recorded; it will be tried again", "cluster", x.cluster, "error", err)
		s.mu.Lock()
		s.unended[x.cluster] = x
		s.mu.Unlock()
		dirty.Poke(s.more)
	}
	s.o.Log.Info("agent disconnected", "cluster", x.cluster, "epoch", x.epoch)
	s.changed(x.cluster)
}

func (s *Server) changed(c fleet.ClusterName) {
	for _, fn := range s.listeners {
		fn(c)
	}
}

// Query asks the cluster's agent and waits for its answer.
func (s *Server) Query(ctx context.Context, c fleet.ClusterName, q *agentv1.Query) (*agentv1.QueryResult, error) {
	s.mu.Lock()
	x := s.live[c]
	s.mu.Unlock()
	if x == nil {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s is not connected", c)
	}
	return x.query(ctx, q)
}

// hub is meta/hub as it is now: another hub of the store may have started since this one did, and agents have met it.
func (s *Server) hub(r store.Reader) *storev1.Hub {
	if now, _, ok := store.Get[*storev1.Hub](r, store.HubKey); ok {
		return now
	}
	return s.o.Hub
}

// clusterRecord is what the session must know of its cluster.
func (s *Server) clusterRecord(r store.Reader, c fleet.ClusterName) *storev1.ClusterRecord {
	rec, _, _ := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c))
	return rec
}
