package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

const life = 24 * time.Hour

// errDamaged is what a store answers of bytes that do not have their checksum.
var errDamaged = fleet.Errorf(fleet.ErrCorrupt, "state identity: checksum does not match: the bytes are damaged")

// memory is a State that remembers every write and fails on demand.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	fail   map[string]error
	log    []string
	deaf   error  // of each read
	broken string // the name of what cannot be read until it is written
}

func newMemory() *memory { return &memory{values: map[string][]byte{}, fail: map[string]error{}} }

func (m *memory) Read(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.values[name]
	if m.deaf != nil {
		return nil, m.deaf
	}
	if !ok {
		return nil, fleet.ErrNotFound
	}
	if name == m.broken {
		return nil, errDamaged
	}
	return b, nil
}

func (m *memory) Write(_ context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail[name]; err != nil {
		return err
	}
	m.values[name] = slices.Clone(data)
	if name == m.broken {
		m.broken = ""
	}
	m.log = append(m.log, "write "+name)
	return nil
}

func (m *memory) breaks(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = name
}

// fails has writes of the names fail; nil: no more.
func (m *memory) fails(err error, names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.fail[name] = err
	}
}

// hangs has each read come to nothing.
func (m *memory) hangs(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaf = err
}

func (m *memory) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, name)
	return nil
}

// hub is a certificate authority behind a real TLS listener.
type hub struct {
	agentv1.UnimplementedEnrollmentServiceServer
	t      *testing.T
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	listen *bufconn.Listener
	state  *memory

	mu       sync.Mutex
	serial   int64
	keys     []string // public keys that were signed
	lose     int      // so many answers are lost
	refuse   error
	renewals int
}

// signed are the public keys that were signed, one for each request.
func (h *hub) signed() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.keys)
}

// refuses has every request answered by the error; nil: they are signed.
func (h *hub) refuses(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

// loses has the next n answers lost.
func (h *hub) loses(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lose = n
}

func newCA(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "towline CA"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * life)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t, listen: bufconn.Listen(1 << 20), state: newMemory(), serial: 1}
	h.ca, h.key = newCA(t)
	pool := x509.NewCertPool()
	pool.AddCert(h.ca)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := h.sign(serverKey.Public(), rpc.ServerName, 1000*life)
	config, err := rpc.ServerTLS{ClientCAs: func() *x509.CertPool { return pool }, Verify: func(tls.ConnectionState) error { return nil },
		Certificate: func() (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{leaf, h.ca.Raw}, PrivateKey: serverKey}, nil
		}}.Config()
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	agentv1.RegisterEnrollmentServiceServer(server, h)
	go func() { _ = server.Serve(h.listen) }()
	t.Cleanup(server.Stop)
	return h
}

func (h *hub) sign(pub any, name string, life time.Duration) []byte {
	h.serial++
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(h.serial), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, NotBefore: time.Now(), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, h.ca, pub, h.key)
	if err != nil {
		panic(err)
	}
	return der
}

func (h *hub) answer(raw []byte) ([][]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return nil, rpc.ToStatus(h.refuse)
	}
	csr, err := x509.ParseCertificateRequest(raw)
	if err != nil || csr.CheckSignature() != nil {
		return nil, rpc.ToStatus(fleet.Invalid("csr", "is none"))
	}
	h.keys = append(h.keys, string(csr.RawSubjectPublicKeyInfo))
	chain := [][]byte{h.sign(csr.PublicKey, "c1", life)}
	if h.lose > 0 {
		h.lose--
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "the answer was lost"))
	}
	return chain, nil
}

func (h *hub) Enroll(_ context.Context, q *agentv1.EnrollRequest) (*agentv1.EnrollResponse, error) {
	if _, err := h.state.Read(context.Background(), pendingName); err != nil {
		h.t.Error("the key is not persisted before it is used")
	}
	token, err := jointoken.Parse(q.GetToken())
	if err != nil || q.GetClusterUid() != "uid-1" {
		return nil, rpc.ToStatus(fleet.Invalid("token", "is bad"))
	}
	chain, err := h.answer(q.GetCsr())
	if err != nil {
		return nil, err
	}
	return &agentv1.EnrollResponse{Cluster: string(token.Cluster), Certificates: chain, Ca: [][]byte{h.ca.Raw}, HubId: "hub-1"}, nil
}

func (h *hub) Renew(ctx context.Context, q *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || len(info.State.PeerCertificates) == 0 {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnknownUser, "no certificate"))
	}
	chain, err := h.answer(q.GetCsr())
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.renewals++
	h.mu.Unlock()
	return &agentv1.RenewResponse{Certificates: chain, Ca: [][]byte{h.ca.Raw}}, nil
}

// Recover wants no certificate, and the proof of the key of the one that ended.
func (h *hub) Recover(ctx context.Context, q *agentv1.RecoverRequest) (*agentv1.RecoverResponse, error) {
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || len(info.State.PeerCertificates) > 0 {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrDenied, "a certificate"))
	}
	leaf, err := x509.ParseCertificate(q.GetCertificate())
	if err != nil || time.Now().Before(leaf.NotAfter) || q.GetClusterUid() != "uid-1" ||
		!ecdsa.VerifyASN1(leaf.PublicKey.(*ecdsa.PublicKey), rpc.RecoveryDigest(q.GetCertificate(), q.GetCsr(), q.GetClusterUid()), q.GetProof()) {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrDenied, "no proof: %v", err))
	}
	chain, err := h.answer(q.GetCsr())
	if err != nil {
		return nil, err
	}
	return &agentv1.RecoverResponse{Certificates: chain, Ca: [][]byte{h.ca.Raw}}, nil
}

func (h *hub) dial(t *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///hub", append(rpc.AgentDialOptions(t),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.listen.DialContext(ctx) }))...)
}

func (h *hub) token() string { return jointoken.New("c1", jointoken.Pin(h.ca)).String() }

func (h *hub) open(token string) (*Identity, error) {
	return Open(h.t.Context(), Options{State: h.state, Dial: h.dial, Token: token, ClusterUID: "uid-1", Random: func() float64 { return 0.5 }})
}

func (h *hub) mustOpen(token string) *Identity {
	h.t.Helper()
	i, err := h.open(token)
	if err != nil {
		h.t.Fatal(err)
	}
	return i
}

func (h *hub) joined() *Identity {
	h.t.Helper()
	i := h.mustOpen(h.token())
	if err := i.Enroll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return i
}

func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		token := h.token()
		i := h.mustOpen(token)
		if !i.NeedsEnroll() {
			t.Error("a token is not to be redeemed")
		}
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i.HubID() != "hub-1" || i.Cluster() != "c1" || i.Join() == "" || i.NeedsEnroll() {
			t.Errorf("hub %q, cluster %q, join %q", i.HubID(), i.Cluster(), i.Join())
		}
		again := h.mustOpen(token) // the flag stays in the manifest
		if again.NeedsEnroll() || again.Join() != i.Join() {
			t.Error("the same token is to be redeemed again after a restart")
		}
		without := h.mustOpen("")
		if _, err := without.TLS(); err != nil {
			t.Errorf("after a restart without a token: %v", err)
		}
		if _, pending := h.state.values[pendingName]; pending {
			t.Error("the pending key was not removed")
		}
	})
}

func TestLostReplyIsRetriedWithTheSameKeyAlsoAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.loses(2)
		token := h.token()
		i := h.mustOpen(token)
		if err := i.Enroll(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
			t.Fatalf("error %v, want unavailable", err)
		}
		if err := i.Enroll(t.Context()); err == nil {
			t.Fatal("the second answer was lost too")
		}
		i = h.mustOpen(token)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys := h.signed(); len(keys) != 3 || keys[0] != keys[1] || keys[1] != keys[2] {
			t.Errorf("%d requests, not all with the same key", len(keys))
		}
	})
}

func TestWrongHubIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		other, _ := newCA(t)
		i := h.mustOpen(jointoken.New("c1", jointoken.Pin(other)).String())
		err := i.Enroll(t.Context())
		if err == nil || !strings.Contains(err.Error(), "is not the one that made the join token") {
			t.Errorf("error %v", err)
		}
		if len(h.signed()) > 0 {
			t.Error("the token was shown to another hub")
		}
	})
}

func TestCrashBeforeTheCertificateIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		token := h.token()
		i := h.mustOpen(token)
		h.state.fail[certName] = errors.New("disk is gone")
		if err := i.Enroll(t.Context()); err == nil {
			t.Fatal("no error")
		}
		if i.HubID() != "" {
			t.Error("an identity is used that is not stored")
		}
		delete(h.state.fail, certName)
		if err := h.mustOpen(token).Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys := h.signed(); keys[0] != keys[1] {
			t.Error("another key after the crash: the hub would refuse the token")
		}
	})
}

func TestNewTokenJoinsAgainAndABadOneDoesNotHurt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		first := h.joined()
		second := h.mustOpen(h.token())
		if !second.NeedsEnroll() {
			t.Fatal("a new token is ignored")
		}
		if err := second.Enroll(t.Context()); err != nil || second.Join() == first.Join() {
			t.Fatalf("%v, join %s after %s", err, second.Join(), first.Join())
		}
		h.refuses(fleet.Errorf(fleet.ErrPrecondition, "join token for c1 expired 3m ago"))
		third := h.mustOpen(h.token())
		if err := third.Enroll(t.Context()); err != nil || third.NeedsEnroll() || third.Join() != second.Join() {
			t.Errorf("a refused token: %v, join %s", err, third.Join())
		}
		if _, err := third.TLS(); err != nil {
			t.Errorf("the identity that held is gone: %v", err)
		}
		if fourth := h.mustOpen("towline1.junk"); fourth.NeedsEnroll() || fourth.HubID() != "hub-1" {
			t.Error("an unreadable token hurts an agent that has joined")
		}
	})
}

func TestNothingToJoinWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		says := func(token, want string) {
			t.Helper()
			i := h.mustOpen(token)
			if _, err := i.TLS(); i.NeedsEnroll() || !errors.Is(err, fleet.ErrUnknownUser) || !strings.Contains(err.Error(), want) {
				t.Errorf("token %q: error %v, want one that says %q", token, err, want)
			}
			runs(t, i)()
		}
		says("", "towline cluster join NAME")
		says("junk", "this is not a join token")
		h.state.values[certName] = []byte(`{"schema":9}`)
		if _, err := h.open(h.token()); !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("an identity of another version: %v", err)
		}
	})
}

// runs has the identity be renewed until stop.
func runs(t *testing.T, i *Identity) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRenewsAtHalfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		before, err := i.TLS()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		stop := runs(t, i)
		<-i.Renewed()
		if at := time.Since(start); at < life/2-time.Minute || at > life/2+recheck {
			t.Errorf("renewed after %s, want about %s", at, life/2)
		}
		after, err := i.TLS()
		if err != nil || after == before {
			t.Errorf("the old certificate is still used: %v", err)
		}
		if keys := h.signed(); keys[0] == keys[1] {
			t.Error("renewed with the old key")
		}
		<-i.Renewed()
		stop()
		if reopened := h.mustOpen(""); !reopened.get().leaf.Equal(i.get().leaf) {
			t.Error("the renewed certificate is not stored")
		}
	})
}

func TestRenewalThatFailsIsTriedAgainUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		stop := runs(t, i)
		<-time.After(life - time.Hour)
		if _, err := i.TLS(); err != nil {
			t.Errorf("an hour before its end the certificate is of no use: %v", err)
		}
		h.refuses(nil)
		<-i.Renewed()
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		<-time.After(life + time.Hour)
		if _, err := i.TLS(); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("an hour after its end: %v", err)
		}
		stop()
		<-time.After(rpc.RecoveryWindow)
		_, err := i.TLS()
		if !errors.Is(err, fleet.ErrUnknownUser) || !strings.Contains(err.Error(), "towline cluster join c1 --reissue") {
			t.Errorf("when the hub renews it no more: %v", err)
		}
	})
}

// A hub that was away for a week renews a certificate that has ended meanwhile, also when its first answer is lost and the agent
// starts anew; the agent needs no person.
func TestRecoversAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		stop := runs(t, i)
		<-time.After(life + time.Hour)
		synctest.Wait()
		stop()
		<-time.After(6 * life)
		h.refuses(nil)
		h.loses(1)
		if err := i.Recover(t.Context()); err == nil {
			t.Fatal("the answer was lost")
		}
		again := h.mustOpen("")
		stop = runs(t, again)
		<-again.Renewed()
		if _, err := again.TLS(); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		if keys := h.signed(); len(keys) != 3 || keys[1] != keys[2] {
			t.Errorf("%d requests; the one whose answer was lost is made again with another key", len(keys))
		}
		stop()
	})
}

// After an outage somebody gave the agent another token: that is redeemed, and the certificate that ended is not renewed beside it.
func TestTokenComesBeforeRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.joined()
		<-time.After(6 * life)
		i := h.mustOpen(h.token())
		before := len(h.signed())
		stop := runs(t, i)
		<-time.After(time.Second)
		if n := len(h.signed()) - before; n != 0 {
			t.Errorf("asked %d times before the token was redeemed", n)
		}
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if _, err := i.TLS(); err != nil || i.NeedsEnroll() {
			t.Errorf("after the join: %v", err)
		}
		stop()
	})
}

func TestTrustCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		next, _ := newCA(t)
		if err := i.TrustCAs(t.Context(), [][]byte{[]byte("junk")}); err == nil {
			t.Error("junk is trusted")
		}
		if err := i.TrustCAs(t.Context(), [][]byte{h.ca.Raw, next.Raw}); err != nil {
			t.Fatal(err)
		}
		if got := len(h.mustOpen("").get().CA); got != 2 {
			t.Errorf("%d CAs are stored, want 2", got)
		}
	})
}

func FuzzDecodeCredential(f *testing.F) {
	raw, err := json.Marshal(credential{Schema: schema, Cluster: "c1", Key: []byte{1}, Chain: [][]byte{{2}}, CA: [][]byte{{3}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decodeCredential(raw) })
}
