package registry_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

var ana = rpc.Caller{Kind: rpc.KindUser, Name: "ana", Role: rpc.RoleAdmin}

// world is a registry with a clock of its own.
type world struct {
	t *testing.T
	*registry.Registry
	store store.Store
	ca    *registry.CA
	dir   string
	*clock
}

type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, memory.New())
}

// newWorldOn is a hub whose store is on a backend.
func newWorldOn(t *testing.T, b backend.Backend) *world {
	t.Helper()
	s := storetest.On(t, b, engine.Options{})
	w := &world{t: t, dir: t.TempDir(), clock: &clock{t: time.Now().Truncate(time.Second)}}
	var err error
	if w.ca, err = registry.OpenCA(w.dir, w.clock.time); err != nil {
		t.Fatal(err)
	}
	return w.with(s.As(store.Registry))
}

// with is a hub of the same CA over the store.
func (w *world) with(s store.Store) *world {
	w.t.Helper()
	out := &world{t: w.t, ca: w.ca, dir: w.dir, store: s, clock: w.clock}
	out.audits(nil)
	return out
}

// audits starts the hub, with an audit or without one (nil).
func (w *world) audits(audit func(context.Context, *v1.AuditEntry)) {
	w.t.Helper()
	w.made(registry.Options{Audit: audit})
}

// made has the registry run with these options beside those of the world.
func (w *world) made(o registry.Options) {
	w.t.Helper()
	var err error
	o.Store, o.CA, o.HubID, o.Log, o.Now = w.store, w.ca, "hub-1", slog.New(slog.DiscardHandler), w.clock.time
	if w.Registry, err = registry.New(o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
}

func (w *world) token(c fleet.ClusterName, reissue bool) string {
	w.t.Helper()
	j, err := w.CreateJoin(w.t.Context(), ana, registry.JoinRequest{Cluster: c, Reissue: reissue})
	if err != nil {
		w.t.Fatal(err)
	}
	return j.Token
}

func (w *world) cluster(c fleet.ClusterName) *storev1.ClusterRecord {
	w.t.Helper()
	return stored[*storev1.ClusterRecord](w, store.ClusterKey(c))
}

func (w *world) session(c fleet.ClusterName) *storev1.SessionRecord {
	w.t.Helper()
	return stored[*storev1.SessionRecord](w, store.SessionKey(c))
}

func stored[T proto.Message](w *world, key string) (out T) {
	w.t.Helper()
	if err := w.store.View(w.t.Context(), 0, func(r store.Reader) error {
		out, _, _ = store.Get[T](r, key)
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// identity is what an agent holds.
type identity struct {
	key  crypto.Signer
	leaf *x509.Certificate
}

func (i identity) caller() rpc.Caller {
	name := i.leaf.Subject.CommonName
	return rpc.Caller{Kind: rpc.KindAgent, Name: name, Cluster: fleet.ClusterName(name), CertSerial: fmt.Sprintf("%032x", i.leaf.SerialNumber)}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func csr(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (w *world) enroll(token, uid string, key crypto.Signer) (identity, error) {
	w.t.Helper()
	id, err := w.Enroll(w.t.Context(), registry.Enrollment{Token: token, CSR: csr(w.t, key), ClusterUID: uid, Remote: "192.0.2.1:5"})
	if err != nil {
		return identity{}, err
	}
	return w.identity(key, id), nil
}

func (w *world) identity(key crypto.Signer, id registry.Identity) identity {
	w.t.Helper()
	leaf, err := x509.ParseCertificate(id.Certificates[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return identity{key, leaf}
}

// join makes a cluster and enrolls its agent.
func (w *world) join(c fleet.ClusterName, uid string) identity {
	w.t.Helper()
	id, err := w.enroll(w.token(c, false), uid, newKey(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// state is the connection state of a verified client certificate.
func (w *world) state(i identity) tls.ConnectionState {
	w.t.Helper()
	chains, err := i.leaf.Verify(x509.VerifyOptions{Roots: w.ca.Pool(), CurrentTime: i.leaf.NotBefore.Add(time.Minute),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		w.t.Fatal(err)
	}
	return tls.ConnectionState{PeerCertificates: []*x509.Certificate{i.leaf}, VerifiedChains: chains}
}

func (w *world) open(i identity, instance, uid string, alive bool) (registry.Opened, error) {
	ctx := rpc.WithCaller(w.t.Context(), i.caller())
	return w.OpenSession(ctx, registry.Admission{Cluster: i.caller().Cluster, InstanceID: instance, ClusterUID: uid, Hub: "a"}, alive)
}

// server serves the enrollment service as the hub does, and says on which address.
func (w *world) server() string {
	w.t.Helper()
	conf, err := rpc.ServerTLS{Certificate: w.ca.Server, ClientCAs: w.ClientCAs, Verify: w.VerifyConnection, Now: w.clock.time}.Config()
	if err != nil {
		w.t.Fatal(err)
	}
	opts, err := rpc.AgentServerOptions(rpc.ServerConfig{TLS: conf, Auth: w.Registry, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	agentv1.RegisterEnrollmentServiceServer(s, w.Service())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	w.t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (w *world) client(addr string, conf *tls.Config) agentv1.EnrollmentServiceClient {
	w.t.Helper()
	conn, err := grpc.NewClient(addr, rpc.AgentDialOptions(conf)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return agentv1.NewEnrollmentServiceClient(conn)
}

// tls is an agent's configuration.
func (w *world) tls(i identity) *tls.Config {
	return rpc.ClientTLS{CAs: w.ca.Pool(), Now: w.clock.time,
		Certificate: &tls.Certificate{Certificate: [][]byte{i.leaf.Raw}, PrivateKey: i.key, Leaf: i.leaf}}.Config()
}

func pin(t *testing.T, token string) [32]byte {
	t.Helper()
	p, err := jointoken.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	return p.CAPin
}
