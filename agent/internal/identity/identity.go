// Package identity owns who the agent is to its hub: the join, the key, the certificate and its renewal, and the hub's CA
// that it trusts. It must not know what is said over the connections that it secures.
package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// State is durable storage of named bytes; what is not there is fleet.ErrNotFound.
type State interface {
	Read(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, data []byte) error
	Remove(ctx context.Context, name string) error
}

// Dial makes a connection to the next hub address with this TLS configuration.
type Dial func(*tls.Config) (*grpc.ClientConn, error)

// Options are what an Identity needs; State, Dial and ClusterUID are required.
type Options struct {
	State State
	Dial  Dial
	// Token is the join token, as given; empty: none.
	Token string
	// ClusterUID is the UID of kube-system.
	ClusterUID string
	// Version is the agent's.
	Version string
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
	// Random gives numbers in [0, 1); rand.Float64 by default.
	Random func() float64
}

const (
	certName    = "identity"
	pendingName = "identity-pending"
	schema      = 1
)

// credential is what is stored: key and certificate in one write, so that they always belong together.
type credential struct {
	Schema  int      `json:"schema"`
	Join    string   `json:"join"` // id of the join token
	Cluster string   `json:"cluster"`
	HubID   string   `json:"hubID"`
	Key     []byte   `json:"key"` // PKCS #8
	Chain   [][]byte `json:"chain"`
	CA      [][]byte `json:"ca"`

	key  *ecdsa.PrivateKey
	leaf *x509.Certificate
	pool *x509.CertPool
	tls  *tls.Config
}

// pending is a key that was made for a request whose answer has not arrived: the request is repeated with it.
type pending struct {
	For string `json:"for"` // id of the join token, or of the serial that is renewed
	Key []byte `json:"key"`
}

// Identity is the agent's. It is safe for concurrent use; Enroll and Run each are called by one goroutine at a time.
type Identity struct {
	o       Options
	token   *jointoken.Token
	renewed chan struct{}
	asking  *semaphore.Weighted // taken while the hub is asked for a certificate: the key whose answer may be lost is one

	mu       sync.Mutex
	current  *credential
	missing  error    // why current is nil, and what to do
	unsaved  bool     // current is not in the state
	pending  *pending // the last key that was made
	rejected error    // why the join token is of no use
	stranger bool     // who answers is not the hub that made the join token, which has not been sent to anybody
	sent     bool     // it was: the hub may have redeemed it
	refusal  refusal
}

// refusal is that the hub, as one that has proved who it is, does not renew a certificate that has ended, for who has it is not let in.
type refusal struct {
	of  *x509.Certificate
	err error
}

// Open reads the identity that was stored, if there is one, and the join token, if one is given. One that is damaged is as none.
func Open(ctx context.Context, o Options) (*Identity, error) {
	if o.State == nil || o.Dial == nil || o.ClusterUID == "" {
		return nil, fleet.Invalid("identity", "State, Dial and ClusterUID are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	i := &Identity{o: o, asking: semaphore.NewWeighted(1), renewed: make(chan struct{}, 1)}
	var err error
	if i.current, err = read(ctx, o.State); err != nil && !absent(err) {
		return nil, err
	}
	if i.missing = err; err != nil && !errors.Is(err, fleet.ErrNotFound) {
		o.Log.Error("the identity is damaged; going on without it", "error", err)
	}
	if o.Token == "" {
		return i, nil
	}
	switch err := i.Offer(ctx, o.Token); {
	case err != nil && i.current == nil:
		i.missing = err
	case err != nil:
		o.Log.Warn("the join token is of no use; going on with the identity that is stored", "error", err)
	}
	return i, nil
}

// absent says that there is no identity that can be read, for good.
func absent(err error) bool {
	return errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt)
}

func read(ctx context.Context, s State) (*credential, error) {
	raw, err := s.Read(ctx, certName)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil, fleet.Errorf(fleet.ErrNotFound, "identity: this agent has not joined a hub; run: towline cluster join NAME, and start the agent with --join-token or --join-token-file")
	case err != nil:
		return nil, lost(fmt.Errorf("identity: %w", err))
	}
	c, err := decodeCredential(raw)
	return c, lost(err)
}

// lost says how an agent comes to another identity in the place of one that is damaged.
func lost(err error) error {
	if !errors.Is(err, fleet.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w; run: towline cluster join NAME --reissue, and give the agent the new join token", err)
}

// Offer takes a join token, as given, in place of the one before. One that is being redeemed is redeemed first.
func (i *Identity) Offer(ctx context.Context, text string) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return err
	}
	if err := i.asking.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("identity: the hub is being asked already: %w", err)
	}
	defer i.asking.Release(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.token, i.rejected, i.stranger, i.sent = &token, nil, false, false
	return nil
}

func decodeCredential(raw []byte) (*credential, error) {
	c := &credential{}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "identity: %v", err)
	}
	if c.Schema != schema {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "identity: written by another version of the agent (schema %d, this one reads %d)", c.Schema, schema)
	}
	if err := c.open(); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "identity: %v", err)
	}
	return c, nil
}

// open parses the stored bytes and builds the TLS configuration, one for each certificate, so that its session tickets
// do not outlive the certificate.
func (c *credential) open() error {
	var err error
	if c.key, err = parseKey(c.Key); err != nil {
		return err
	}
	if len(c.Chain) == 0 {
		return errors.New("there is no certificate")
	}
	if c.leaf, err = x509.ParseCertificate(c.Chain[0]); err != nil {
		return err
	}
	if !c.key.PublicKey.Equal(c.leaf.PublicKey) {
		return errors.New("the certificate is for another key")
	}
	pool := x509.NewCertPool()
	for _, der := range c.CA {
		ca, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		pool.AddCert(ca)
	}
	c.pool = pool
	c.tls = rpc.ClientTLS{CAs: pool, Certificate: &tls.Certificate{Certificate: c.Chain, PrivateKey: c.key, Leaf: c.leaf}}.Config()
	return nil
}

func (i *Identity) get() *credential {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.current
}

// HubID is the hub's, or empty before the first join.
func (i *Identity) HubID() string {
	if c := i.get(); c != nil {
		return c.HubID
	}
	return ""
}

// Cluster is the cluster's name in the fleet, or empty before the first join.
func (i *Identity) Cluster() string {
	if c := i.get(); c != nil {
		return c.Cluster
	}
	return ""
}

// Join is the id of the join token that was redeemed last.
func (i *Identity) Join() string {
	if c := i.get(); c != nil {
		return c.Join
	}
	return ""
}

// TLS is the configuration for a connection to the hub. An agent whose certificate has ended gets an error: fleet.ErrUnavailable
// while the hub may still renew it, then one that says what to do.
func (i *Identity) TLS() (*tls.Config, error) {
	c, now := i.get(), time.Now()
	if c == nil {
		return nil, fleet.Errorf(fleet.ErrUnknownUser, "%v", i.missing)
	}
	end, until := c.leaf.NotAfter, c.leaf.NotAfter.Add(rpc.RecoveryWindow)
	switch {
	case now.Before(end):
		return c.tls, nil
	case now.Before(until):
		return nil, fleet.Errorf(fleet.ErrUnavailable, "identity: the certificate of cluster %s ended on %s; the hub is asked to renew it, which it does until %s; if it refuses, run: towline cluster join %s --reissue",
			c.Cluster, end.UTC().Format(time.RFC3339), until.UTC().Format(time.DateOnly), c.Cluster)
	}
	return nil, fleet.Errorf(fleet.ErrUnknownUser, "identity: the certificate of cluster %s ended on %s; run: towline cluster join %s --reissue, and start the agent with the new join token",
		c.Cluster, end.UTC().Format(time.RFC3339), c.Cluster)
}

// Entry is TLS, for a session. If the hub has answered that it does not renew the certificate that has ended, for this agent is not let in, that
// is the error: it is refused as at a connection.
func (i *Identity) Entry() (*tls.Config, error) {
	config, err := i.TLS()
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && i.current != nil && i.refusal.of == i.current.leaf && i.refusal.err != nil {
		return nil, i.refusal.err
	}
	return config, err
}

// noteRefusal keeps what the hub answered to whom it knows. That it cannot be asked, or answers that it is busy, changes nothing of that.
func (i *Identity) noteRefusal(of *x509.Certificate, err error) {
	if err != nil && !errors.Is(err, fleet.ErrDenied) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refusal = refusal{of, err}
}

// Renewed carries a signal when connections should be made anew: a new certificate is in use, or a join token is to be redeemed.
func (i *Identity) Renewed() <-chan struct{} { return i.renewed }

// Rejoin has connections made anew, before which Enroll is called.
func (i *Identity) Rejoin() { dirty.Poke(i.renewed) }

// NeedsEnroll reports that there is a join token that was not redeemed yet.
func (i *Identity) NeedsEnroll() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.token == nil || i.rejected != nil {
		return false
	}
	return i.current == nil || i.current.Join != i.token.ID
}

// TrustCAs replaces the hub's CAs, as the hub announced them over a connection that the old ones secured.
func (i *Identity) TrustCAs(ctx context.Context, ca [][]byte) error {
	c := i.get()
	if c == nil || len(ca) == 0 || slices.EqualFunc(c.CA, ca, bytes.Equal) {
		return nil
	}
	next := *c
	next.CA = ca
	if err := next.open(); err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "identity: CA from the hub: %v", err)
	}
	i.storeOrUse(ctx, &next)
	return nil
}

// store persists a credential, then uses it.
func (i *Identity) store(ctx context.Context, c *credential) error {
	if err := i.write(ctx, c); err != nil {
		return err
	}
	i.use(c, true)
	return nil
}

func (i *Identity) write(ctx context.Context, c *credential) error {
	c.Schema = schema
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	if err := i.o.State.Write(ctx, certName, raw); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

func (i *Identity) use(c *credential, saved bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current, i.unsaved = c, !saved
}

// storeOrUse uses a credential that replaces a stored one, also when it cannot be persisted now: an agent whose disk is
// full stays connected, and says so.
func (i *Identity) storeOrUse(ctx context.Context, c *credential) {
	if err := i.store(ctx, c); err != nil {
		i.useUnsaved(c, err)
	}
}

func (i *Identity) useUnsaved(c *credential, err error) {
	i.o.Log.Warn("the identity is used and not saved yet", "until", c.leaf.NotAfter, "error", err)
	i.use(c, false)
}

// save persists what is only used. It reports whether nothing is left to save.
func (i *Identity) save(ctx context.Context) bool {
	i.mu.Lock()
	c, unsaved := i.current, i.unsaved
	i.mu.Unlock()
	return !unsaved || i.store(ctx, c) == nil
}
