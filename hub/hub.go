// Package hub composes a hub: store, identity, agents' sessions, controllers and the public API. It owns the order in
// which they are built and stopped; it must not hold any rule of theirs.
package hub

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	grpcprometheus "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/api"
	"towline.dev/towline/hub/internal/audit"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/control"
	"towline.dev/towline/hub/internal/egress"
	"towline.dev/towline/hub/internal/gate"
	"towline.dev/towline/hub/internal/hook"
	"towline.dev/towline/hub/internal/meter"
	"towline.dev/towline/hub/internal/peers"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/session"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/tracing"
)

// Options of a hub.
type Options struct {
	// DataDir holds the CA, the admin's configuration and, without EtcdEndpoints, the store. Required.
	DataDir string
	// CADir holds ca.crt and ca.key; default DataDir.
	CADir string
	// EtcdEndpoints of an etcd of one's own; none: etcd runs in the process.
	EtcdEndpoints []string
	// ShareEtcd lets other hubs that have it set use that etcd at the same time; without it one hub at a time does.
	ShareEtcd bool
	// AdoptCA has the CA that there is take the place of those of the store: agents and people with certificates of these are not known.
	AdoptCA bool
	// Etcd is who the hub is for that etcd.
	Etcd EtcdAccess
	// Listen serves agents, API people and programs; both are made by the caller so that ports are known.
	Listen, API net.Listener
	// Hooks serves the webhooks that ask for looks at sources; nil: none are taken.
	Hooks net.Listener
	// HooksCert and HooksKey are files in PEM of the certificate that Hooks shows; default: that of the hub's own CA.
	HooksCert, HooksKey string
	// Telemetry is where metrics, health and profiles are served; the zero value: nowhere.
	Telemetry telemetry.Listeners
	// Tracing is where spans of rollouts go; the zero value: nowhere.
	Tracing tracing.Options
	// Advertise are the addresses that agents are told to dial; default: that of Listen.
	Advertise []string
	// HubAddress is where the other hubs of a shared etcd reach this one; default: the first of Advertise.
	HubAddress string
	// SecretsKeyFile has the keys that secrets are encrypted with, the newest first. Default with an etcd in the process: secrets.key in
	// CADir, which is made at the first start; with one of one's own there is none.
	SecretsKeyFile string
	// SecretsKeyCommand prints the keys; it is asked once, at the start.
	SecretsKeyCommand string
	// Memory keeps the store in memory: for tests and simulation.
	Memory bool
	// Simulated has the hub stand on a store in memory that outlives it: for simulation.
	Simulated *SimulatedProcess
	// NoFsync makes the embedded store forget commits when the machine stops: for tests and benchmarks.
	NoFsync bool
	// QuotaBytes bounds what the embedded store holds; default 4 GiB.
	QuotaBytes int64
	// SeatTTL is after how long a hub that crashed loses its seat at an etcd of one's own; default 7s.
	SeatTTL time.Duration
	// Heartbeat between hub and agents; default 10s.
	Heartbeat time.Duration
	// Grace is how long the hub waits for agents, after their sessions ended or after its own start, before rollouts call them away;
	// default 90s.
	Grace time.Duration
	// CollectEvery is the time between collections of garbage; default 10m.
	CollectEvery time.Duration
	// AllowFileSources lets modules take Git repositories from folders of this machine, that the hub can read.
	AllowFileSources bool
	// LockCopied locks a cluster when a certificate is shown that its agent has replaced; see registry.Options.
	LockCopied bool
	// DenyPrivate keeps the hub from connecting to loopback and private addresses on behalf of people: for sources, and for gates.
	DenyPrivate bool
	// SourceCacheBytes bounds what is kept below DataDir of what sources have sent; default 1 GiB.
	SourceCacheBytes int64
	// RenderCommand starts a process that does ServeRenders: this program with the RenderWorker subcommand, or another of the same
	// version. Without one, kustomizations and charts are refused.
	RenderCommand []string
	Log           *slog.Logger

	backend  backend.Backend // of a test that keeps it
	diskFree diskFree        // of a test; nil: the system is asked
}

// Hub is a running hub.
type Hub struct {
	o        Options
	instance string
	store    *engine.Engine
	own      store.Store // of what the hub itself writes
	seat     *seat
	registry *registry.Registry
	sessions *session.Server
	peers    *peers.Peers
	presence *engine.Announcement // nil: no other hub can share the store
	control  *control.Controller
	api      *api.API
	ca       *registry.CA
	keys     *secrets.Keys
	audits   *audit.Log
	hub      *storev1.Hub
	agents   *grpc.Server
	people   *grpc.Server
	// What connections cost that are new.
	greetAgents, greetPeople, greetHooks *rpc.Handshakes
	hooks                                *http.Server // nil: none
	health                               []*health.Server
	renders                              *child.Pool // nil: none
	meter                                *meter.Meter
	tracer                               *tracing.Tracer // nil: nobody gets spans
	calls                                *grpcprometheus.ServerMetrics
}

// AdminFile is the admin's client configuration below the data directory.
const AdminFile = "admin.yaml"

// New builds a hub; Run serves it. The store is open after New, so Run or Close must follow.
func New(ctx context.Context, o Options) (*Hub, error) {
	if o.DataDir == "" || o.Listen == nil || o.API == nil {
		return nil, fmt.Errorf("hub: DataDir, Listen and API are required")
	}
	if o.ShareEtcd && len(o.EtcdEndpoints) == 0 {
		return nil, fmt.Errorf("hub: ShareEtcd is for EtcdEndpoints, which are not set")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CADir == "" {
		o.CADir = o.DataDir
	}
	if len(o.Advertise) == 0 {
		o.Advertise = []string{o.Listen.Addr().String()}
	}
	if o.HubAddress == "" {
		o.HubAddress = o.Advertise[0]
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = defaultHeartbeat
	}
	if o.SeatTTL == 0 {
		o.SeatTTL = defaultSeatTTL
	}
	if o.diskFree == nil {
		o.diskFree = etcd.FreeBytes
	}
	h := &Hub{o: o, instance: random(6), meter: meter.New(), calls: newCalls()}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	if err := makeRoom(o.DataDir, o.diskFree, o.Log); err != nil {
		return nil, err
	}
	if err := h.open(ctx); err != nil {
		if h.store != nil {
			err = errors.Join(err, h.Close())
		}
		return nil, err
	}
	return h, nil
}

func (h *Hub) open(ctx context.Context) error {
	var err error
	if h.ca, err = registry.OpenCA(h.o.CADir, time.Now); err != nil {
		return err
	}
	h.ca.Advertise(hosts(h.o)...)
	if h.store, err = openStore(ctx, h.o, engine.Options{Committed: h.meter.Committed, WentBack: h.o.noteWentBack}); err != nil {
		return err
	}
	if err := h.o.heedWentBack(ctx, h.store); err != nil {
		return err
	}
	if err := h.sit(ctx); err != nil {
		return err
	}
	h.own = own(h.store)
	if h.hub, err = identity(ctx, h.own); err != nil {
		return err
	}
	if h.tracer, err = tracing.Start(ctx, h.o.Tracing, tracing.Process{Service: "towline-hub", Instance: h.instance, Hub: h.hub.GetHubId(), Log: h.o.Log.With("part", "tracing")}); err != nil {
		return err
	}
	if h.keys, err = loadKeys(ctx, h.o, h.own); err != nil {
		return err
	}
	if err := h.build(ctx); err != nil {
		return err
	}
	return h.admin(ctx)
}

// secretsKeyFile is the file of the keys for secrets in the directory of the CA.
const secretsKeyFile = "secrets.key"

// loadKeys gets the keys for secrets. They are not in the store, so that who has a copy of that has no secret.
func loadKeys(ctx context.Context, o Options, s store.Store) (*secrets.Keys, error) {
	where := secrets.Where{File: o.SecretsKeyFile, Command: o.SecretsKeyCommand, Log: o.Log}
	if where.File == "" && where.Command == "" && len(o.EtcdEndpoints) == 0 {
		where.File, where.Make = filepath.Join(o.CADir, secretsKeyFile), true
	}
	if err := s.View(ctx, 0, func(r store.Reader) error {
		r.Scan(store.SecretPrefix, func(store.Entry) bool {
			where.Sealed++
			return true
		})
		return nil
	}); err != nil {
		return nil, err
	}
	return secrets.Load(ctx, where), nil
}

// sit takes the seat before anything is written or served; or, where hubs share the store, says that this hub is there.
func (h *Hub) sit(ctx context.Context) error {
	h.seat = &seat{store: h.store, me: store.Candidate{Instance: h.instance, Address: h.o.Advertise[0], Since: time.Now()},
		wait: seatWait(h.o.SeatTTL), log: h.o.Log, external: len(h.o.EtcdEndpoints) > 0, shares: h.o.shares()}
	if h.seat.shares {
		return h.join(ctx)
	}
	held, err := h.seat.take(ctx)
	h.seat.held = held
	return err
}

func hosts(o Options) []string {
	var out []string
	all := append([]string{o.Listen.Addr().String(), o.API.Addr().String(), o.HubAddress}, o.Advertise...)
	if o.Hooks != nil {
		all = append(all, o.Hooks.Addr().String())
	}
	for _, a := range all {
		if host, _, err := net.SplitHostPort(a); err == nil {
			out = append(out, host)
		}
	}
	return out
}

func openStore(ctx context.Context, o Options, how engine.Options) (*engine.Engine, error) {
	b, err := openBackend(ctx, o)
	if err != nil {
		return nil, err
	}
	how.Log, how.StandIn = o.Log, record.StandIn
	return engine.Open(ctx, b, how)
}

func openBackend(ctx context.Context, o Options) (backend.Backend, error) {
	switch {
	case o.backend != nil:
		return o.backend, nil
	case o.Simulated != nil:
		return o.Simulated, nil
	case o.Memory:
		return memory.New(), nil
	case len(o.EtcdEndpoints) > 0:
		access, err := o.Etcd.access()
		if err != nil {
			return nil, err
		}
		return etcd.Open(ctx, etcd.Options{Log: o.Log, Endpoints: o.EtcdEndpoints, Access: access, SessionTTL: o.SeatTTL})
	}
	return etcd.Open(ctx, etcd.Options{Log: o.Log, Dir: filepath.Join(o.DataDir, "etcd"), QuotaBytes: o.QuotaBytes, UnsafeNoFsync: o.NoFsync, DiskFree: o.diskFree})
}

// own is the store as the composition root may use it.
func own(s *engine.Engine) store.Store { return s.As(store.Hub) }

// storeSchema is that of what this hub writes into the store; it reads all up to it.
const storeSchema = uint32(envelope.Short)

// identity reads who the hub is, or draws it when the store is new, and notes this start.
func identity(ctx context.Context, s store.Store) (*storev1.Hub, error) {
	var rec *storev1.Hub
	_, err := s.Update(ctx, func(w store.Writer) error {
		old, _, ok := store.Get[*storev1.Hub](w, store.HubKey)
		if ok {
			rec = proto.CloneOf(old)
		} else {
			rec = &storev1.Hub{HubId: random(8), Incarnation: random(8)}
		}
		if rec.Schema > storeSchema {
			return newerStore(rec.Schema)
		}
		rec.Schema = storeSchema
		rec.Boots = append(rec.Boots, random(4))
		if extra := len(rec.Boots) - maxBoots; extra > 0 {
			rec.Boots, rec.ForgottenBoots = rec.Boots[extra:], rec.ForgottenBoots+uint64(extra)
		}
		w.Put(store.HubKey, rec)
		return nil
	})
	return rec, err
}

// maxBoots is how many starts the store remembers. An agent that was away for all of them is not told from one that has
// seen a newer store by its boot alone.
const maxBoots = 1000

func random(n int) string {
	b := make([]byte, n)
	// rand.Read never fails.
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func (h *Hub) build(ctx context.Context) error {
	var err error
	h.audits = audit.New(h.store.As(store.Audit), h.o.Log, h.instance)
	if h.registry, err = registry.New(registry.Options{Store: h.store.As(store.Registry), CA: h.ca, HubID: h.hub.GetHubId(), Log: h.o.Log, Audit: h.audits.Record, LockCopied: h.o.LockCopied}); err != nil {
		return err
	}
	if err := h.registry.TakeCA(ctx, h.o.AdoptCA); err != nil {
		return err
	}
	bundles := bundle.New(h.store.Blobs())
	if h.sessions, err = session.New(session.Options{Store: h.store.As(store.Session), Bundles: bundles, Registry: h.registry, Secrets: h.keys, Log: h.o.Log,
		Meter: h.meter, Tracer: h.tracer, Hub: h.hub, Instance: h.instance, Heartbeat: h.o.Heartbeat,
		CAs: h.registry.Announced, Hubs: func() []string { return h.peers.Addresses() }}); err != nil {
		return err
	}
	if h.peers, err = h.newPeers(); err != nil {
		return err
	}
	people := h.store.As(store.API)
	limits := egress.Guard{DenyPrivate: h.o.DenyPrivate} // of all that people have the hub connect to
	fetcher, err := source.New(source.Options{Log: h.o.Log, DenyPrivate: limits.DenyPrivate, Secrets: secrets.Vault{Store: people, Keys: h.keys}.Values,
		AllowFiles: h.o.AllowFileSources, CacheDir: filepath.Join(h.o.DataDir, sourcesFolder), CacheBytes: h.o.SourceCacheBytes, DiskFree: h.o.diskFree, DiskSpare: spareDisk,
		Uploaded: h.store.Blobs().Read})
	if err != nil {
		return err
	}
	if len(h.o.RenderCommand) > 0 {
		if h.renders, err = child.NewPool(child.Options{Command: h.o.RenderCommand}); err != nil {
			return err
		}
	}
	gates, err := gate.New(gate.Options{Log: h.o.Log, HubID: h.hub.GetHubId() + "/" + h.hub.GetIncarnation(), HTTP: gate.HTTP{Guard: limits}})
	if err != nil {
		return err
	}
	if h.control, err = control.New(control.Options{Store: h.store.As(store.Leader), Bundles: bundles, Source: fetcher, Vendor: fetcher.Vendor, Sessions: h.peers, Gates: gates,
		News:     func(ctx context.Context, list []record.News) ([]int64, error) { return h.api.StartFollowed(ctx, list) },
		Catalogs: writer{h}, Audit: h.audits.Record,
		Engine: engineOf(h.renders), Log: h.o.Log, Meter: h.meter, Tracer: h.tracer, Campaign: h.campaign, Grace: h.o.Grace, CollectEvery: h.o.CollectEvery}); err != nil {
		return err
	}
	leader := peers.Leader{Peers: h.peers, Driver: h.control}
	if h.api, err = api.New(api.Options{Grace: h.o.Grace, Tracer: h.tracer, Store: people, Keys: h.keys, Bundles: bundles, Sessions: h.peers, Registry: h.registry, Log: h.o.Log,
		HubID: h.hub.GetHubId(), Incarnation: h.hub.GetIncarnation(), Advertise: h.o.Advertise, Hubs: h.peers.Addresses, Render: h.control.Render, Propose: h.control.Propose, Trouble: h.control.Trouble,
		ResyncCatalog: leader.ResyncCatalog, CatalogSeen: h.control.CatalogSeen,
		Audit: h.audits.Record, Snapshot: h.store.Snapshot, Resync: leader.Resync, Followed: h.control.Followed, Hooks: h.o.Hooks != nil}); err != nil {
		return err
	}
	h.sessions.OnChange(h.control.ClusterChanged)
	h.sessions.OnChange(h.api.Touch)
	h.sessions.OnConnected(h.api.Touch)
	h.peers.OnChange(h.control.ClusterChanged)
	h.peers.OnConnected(h.api.Touch)
	h.control.OnTrouble(h.api.Troubled)
	return h.servers()
}

// writer writes modules for catalogs by the API, which is built after the controller.
type writer struct{ h *Hub }

// PlanCatalog checks the files.
func (w writer) PlanCatalog(ctx context.Context, look record.CatalogLook) (catalog.Plan, error) {
	return w.h.api.PlanCatalog(ctx, look)
}

// ApplyCatalog does what was planned.
func (w writer) ApplyCatalog(ctx context.Context, look record.CatalogLook, plan catalog.Plan) (record.CatalogDone, error) {
	return w.h.api.ApplyCatalog(ctx, look, plan)
}

// DropCatalog deletes the modules.
func (w writer) DropCatalog(ctx context.Context, look record.CatalogLook) error {
	return w.h.api.DropCatalog(ctx, look)
}

// engineOf is no engine where there is no pool.
func engineOf(p *child.Pool) render.Engine {
	if p == nil {
		return nil
	}
	return p
}

func (h *Hub) servers() error {
	tlsConfig, err := rpc.ServerTLS{Certificate: h.ca.Server, ClientCAs: h.registry.ClientCAs, Verify: h.registry.VerifyConnection}.Config()
	if err != nil {
		return err
	}
	config := rpc.ServerConfig{TLS: tlsConfig, Auth: h.registry, Log: h.o.Log, Audit: h.audit,
		Unary: h.calls.UnaryServerInterceptor(), Stream: h.calls.StreamServerInterceptor()}
	h.greetAgents, h.greetPeople, h.greetHooks = rpc.AgentHandshakes(), rpc.APIHandshakes(), rpc.HookConnections()
	config.Handshakes = h.greetAgents
	agentOptions, err := rpc.AgentServerOptions(config)
	if err != nil {
		return err
	}
	config.Handshakes = h.greetPeople
	peopleOptions, err := rpc.APIServerOptions(config)
	if err != nil {
		return err
	}
	peopleOptions = append(peopleOptions, grpc.ChainUnaryInterceptor(api.MaskUnary), grpc.ChainStreamInterceptor(api.MaskStream))
	if h.o.shares() {
		peopleOptions = append(peopleOptions, grpc.ChainUnaryInterceptor(api.NewestUnary(h.store)))
	}
	agentOptions = append(agentOptions, grpc.WaitForHandlers(true)) // what a session writes, it writes before the store is closed
	h.agents, h.people = grpc.NewServer(agentOptions...), grpc.NewServer(peopleOptions...)
	agentv1.RegisterAgentServiceServer(h.agents, h.sessions)
	agentv1.RegisterEnrollmentServiceServer(h.agents, h.registry.Service())
	if h.o.shares() {
		hubv1.RegisterRelayServiceServer(h.agents, h.peers.Service(h.control))
	}
	h.api.Register(h.people)
	rpc.RegisterReflection(h.people)
	for _, s := range []*grpc.Server{h.agents, h.people} {
		hs := rpc.RegisterHealth(s)
		hs.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		h.health = append(h.health, hs)
	}
	return h.buildHooks()
}

// buildHooks makes what serves webhooks, if that is wanted.
func (h *Hub) buildHooks() error {
	if h.o.Hooks == nil {
		return nil
	}
	leader := peers.Leader{Peers: h.peers, Driver: h.control}
	h.hooks = hook.Server(hook.New(hook.Options{Key: h.api.HookKey, Ask: leader.Called,
		CatalogKey: h.api.CatalogHookKey, AskCatalog: leader.CatalogCalled, Log: h.o.Log}), h.o.Log)
	h.hooks.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return h.ca.Server() }}
	if h.o.HooksCert == "" && h.o.HooksKey == "" {
		return nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(h.o.HooksCert, h.o.HooksKey)
		if err != nil {
			return nil, fmt.Errorf("hub: certificate for webhooks: %w", err)
		}
		return &pair, nil
	}
	h.hooks.TLSConfig.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return read() } // it may have been renewed
	_, err := read()
	return err
}

// serveHooks serves webhooks until they are stopped.
func (h *Hub) serveHooks() error {
	if h.hooks == nil {
		return nil
	}
	h.o.Log.Info("serving webhooks", "hooks", h.o.Hooks.Addr().String())
	if err := h.hooks.ServeTLS(h.greetHooks.Listener(h.o.Hooks), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// defaultGrace is time for an agent to try again that has tried in vain for long, and to say how its cluster stands.
const defaultGrace = fleet.MaxReconnect + 30*time.Second

const defaultHeartbeat = 10 * time.Second

// How long a stop waits: for agents to follow their drain, and for people's calls; a watch is simply cut, its client
// resumes it.
const (
	drainDeadline = 3 * time.Second
	callDeadline  = 500 * time.Millisecond
)

// Run serves until ctx ends, then drains agents, stops, and closes the store.
func (h *Hub) Run(ctx context.Context) error {
	recording, recorded := context.WithCancel(context.WithoutCancel(ctx)) // what is done while the servers drain is recorded, too
	var records sync.WaitGroup
	records.Go(func() { h.audits.Run(recording) })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.registry.Run(ctx) })
	g.Go(func() error { return h.sessions.Run(ctx) })
	g.Go(func() error { return h.peers.Run(ctx) })
	g.Go(func() error { return h.control.Run(ctx) })
	g.Go(func() error {
		h.api.Reseal(ctx)
		return nil
	})
	g.Go(func() error { return serve(h.agents, h.greetAgents.Listener(h.o.Listen)) })
	g.Go(func() error { return serve(h.people, h.greetPeople.Listener(h.o.API)) })
	g.Go(h.serveHooks)
	g.Go(func() error {
		if !h.o.Telemetry.Any() {
			return nil
		}
		return h.o.Telemetry.Serve(ctx, telemetry.Process{Registry: telemetry.NewRegistry(h.collectors()...), Ready: h.ready, Log: h.o.Log})
	})
	for _, hs := range h.health {
		hs.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	}
	h.o.Log.Info("serving", "agents", h.o.Listen.Addr().String(), "api", h.o.API.Addr().String(), "hub_id", h.hub.GetHubId())
	g.Go(func() error {
		<-ctx.Done()
		h.stop()
		return nil
	})
	err := g.Wait()
	h.sessions.Wait()
	recorded()
	records.Wait()
	return errors.Join(err, h.Close())
}

func serve(s *grpc.Server, l net.Listener) error {
	err := s.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

func (h *Hub) stop() {
	for _, hs := range h.health {
		hs.Shutdown()
	}
	var wg sync.WaitGroup
	wg.Go(func() { stopServer(h.agents, drainDeadline) })
	wg.Go(func() { stopServer(h.people, callDeadline) })
	if h.hooks != nil {
		wg.Go(func() { _ = h.hooks.Close() }) // who calls, calls again
	}
	wg.Wait()
}

// stopServer stops gracefully until the deadline: GracefulStop alone waits for streams for ever.
func stopServer(s *grpc.Server, deadline time.Duration) {
	timer := time.AfterFunc(deadline, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

// Close releases a hub that was not run.
func (h *Hub) Close() error {
	if h.renders != nil {
		h.renders.Close()
	}
	var traces sync.WaitGroup
	traces.Go(h.tracer.Stop) // a collector that is away holds up nobody who takes the seat
	defer traces.Wait()
	return errors.Join(h.withdraw(), h.store.Close())
}
