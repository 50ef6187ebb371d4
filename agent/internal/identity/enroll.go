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
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// callTimeout bounds one call of the enrolment service.
const callTimeout = 30 * time.Second

// Enroll redeems the join token once. fleet.ErrUnavailable and the like may be tried again, with the same key. When the
// hub refuses the token for good and the agent has an identity that still holds, or that the hub may renew, the agent goes on with that.
func (i *Identity) Enroll(ctx context.Context) error {
	if err := i.asking.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("identity: the hub is being asked already: %w", err)
	}
	defer i.asking.Release(1)
	if !i.NeedsEnroll() {
		return nil
	}
	err := i.enroll(ctx, *i.token)
	if err == nil || !final(err) {
		return err
	}
	if _, terr := i.TLS(); terr != nil && !errors.Is(terr, fleet.ErrUnavailable) {
		return err
	}
	i.o.Log.Warn("the hub refuses the join token; going on with the identity that is stored", "error", err)
	i.mu.Lock()
	i.rejected = err
	i.mu.Unlock()
	return nil
}

// final reports an answer that will not change by asking again.
func final(err error) bool {
	return errors.Is(err, fleet.ErrDenied) || errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrPrecondition) ||
		errors.Is(err, fleet.ErrExists) || errors.Is(err, fleet.ErrNotFound)
}

func (i *Identity) enroll(ctx context.Context, token jointoken.Token) error {
	key, keyDER, err := i.pendingKey(ctx, "join "+token.ID)
	if err != nil { // a token is redeemed once: without its key the identity would be lost
		return err
	}
	csr, err := request(key)
	if err != nil {
		return err
	}
	answer, err := call(ctx, i.o.Dial, i.pinned(token), func(ctx context.Context, c agentv1.EnrollmentServiceClient) (*agentv1.EnrollResponse, error) {
		return c.Enroll(ctx, &agentv1.EnrollRequest{Token: token.String(), Csr: csr, ClusterUid: i.o.ClusterUID, AgentVersion: i.o.Version})
	})
	if err != nil {
		i.heard(err)
		return err
	}
	if _, err := rpc.PinnedCAs(answer.GetCa(), token.CAPin); err != nil {
		return err
	}
	if fleet.ClusterName(answer.GetCluster()) != token.Cluster || answer.GetHubId() == "" {
		return fleet.Errorf(fleet.ErrInvalid, "join token for %s: the hub answers for cluster %.63q and hub %.63q", token.Cluster, answer.GetCluster(), answer.GetHubId())
	}
	c := &credential{Join: token.ID, Cluster: answer.GetCluster(), HubID: answer.GetHubId(), Key: keyDER,
		Chain: answer.GetCertificates(), CA: answer.GetCa()}
	if err := i.take(ctx, c); err != nil {
		return err
	}
	i.forgetPending(ctx)
	i.o.Log.Info("joined", "cluster", c.Cluster, "hub", c.HubID, "until", c.leaf.NotAfter)
	return nil
}

// pinned is for the hub that made the token, and notes whether that answers.
func (i *Identity) pinned(token jointoken.Token) *tls.Config {
	config := rpc.PinnedTLS(token.CAPin, nil)
	verify := config.VerifyConnection
	config.VerifyConnection = func(s tls.ConnectionState) error {
		err := verify(s)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.stranger, i.sent = err != nil, i.sent || err == nil
		return err
	}
	return config
}

// heard notes that the hub has not redeemed the token, if that is what it answers.
func (i *Identity) heard(err error) {
	if rpc.Unanswered(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sent = false
}

// MayHaveJoined reports that the hub may have redeemed the join token, as its answer was lost, or could not be saved. The identity that the agent has
// is not to be shown then: it may have ended with that, and who shows it is taken for a copy.
func (i *Identity) MayHaveJoined() bool {
	if !i.NeedsEnroll() {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sent
}

// Joins reports that a join token waits to be redeemed, which the hub that answers may do, or may have done.
func (i *Identity) Joins() bool {
	if !i.NeedsEnroll() {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sent || !i.stranger
}

// take checks and stores what the hub signed. The pending key is forgotten last: after a crash before that, the same
// request is made again and gives the same.
func (i *Identity) take(ctx context.Context, c *credential) error {
	if err := c.open(); err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "identity: the hub's answer: %v", err)
	}
	return i.store(ctx, c)
}

func (i *Identity) forgetPending(ctx context.Context) {
	i.mu.Lock()
	i.pending = nil
	i.mu.Unlock()
	if err := i.o.State.Remove(ctx, pendingName); err != nil {
		i.o.Log.Warn("the key of a finished request is not removed yet", "error", err)
	}
}

// pendingKey is the key of an unanswered request for the same purpose, or a new one. It is persisted before it is used; an
// error with a key says that it is not.
func (i *Identity) pendingKey(ctx context.Context, purpose string) (*ecdsa.PrivateKey, []byte, error) {
	var unread error
	raw, err := i.o.State.Read(ctx, pendingName)
	if err == nil {
		var p pending
		if json.Unmarshal(raw, &p) == nil && p.For == purpose {
			if key, err := parseKey(p.Key); err == nil {
				return key, p.Key, nil
			}
		}
	} else if !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt) {
		unread = err
	}
	key, der, err := i.newKey(purpose)
	if err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	if unread != nil {
		return key, der, fmt.Errorf("identity: %w", unread)
	}
	if raw, err = json.Marshal(pending{For: purpose, Key: der}); err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	if err := i.o.State.Write(ctx, pendingName, raw); err != nil {
		return key, der, fmt.Errorf("identity: %w", err)
	}
	return key, der, nil
}

// newKey makes a key, once for a purpose.
func (i *Identity) newKey(purpose string) (*ecdsa.PrivateKey, []byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.pending; p != nil && p.For == purpose {
		key, err := parseKey(p.Key)
		return key, p.Key, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	i.pending = &pending{For: purpose, Key: der}
	return key, der, nil
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T is none of ours", k)
	}
	return key, nil
}

func request(key *ecdsa.PrivateKey) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "towline-agent"}}, key)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return csr, nil
}

// call makes one call on a connection of its own.
func call[T any](ctx context.Context, dial Dial, config *tls.Config, fn func(context.Context, agentv1.EnrollmentServiceClient) (T, error)) (T, error) {
	var none T
	conn, err := dial(config)
	if err != nil {
		return none, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := fn(ctx, agentv1.NewEnrollmentServiceClient(conn))
	if err != nil {
		return none, rpc.FromStatus(err)
	}
	return out, nil
}
