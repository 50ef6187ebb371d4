package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

const (
	// renewAt is the part of a certificate's life after which it is renewed, give or take renewJitter of the life.
	renewAt     = 0.5
	renewJitter = 0.1
	// recheck bounds each wait, so that a clock that jumps is noticed.
	recheck = 10 * time.Minute
	// resave is how often an identity that could not be saved is tried again.
	resave = 30 * time.Second
	// unsavedBefore is how long before the end of a certificate one takes its place that cannot be saved. An agent that starts anew then, or
	// another process that takes over, has the one that was replaced, and is not let in.
	unsavedBefore = 2 * time.Hour
)

// Run renews the certificate at half of its life until ctx ends. A failure is tried again, also when the certificate has
// ended meanwhile: the hub renews it for some time then.
func (i *Identity) Run(ctx context.Context) error {
	if i.get() == nil { // whoever joins runs it anew
		<-ctx.Done()
		return nil
	}
	tries := backoff.New(backoff.Policy{Min: 5 * time.Second, Max: 10 * time.Minute}, i.o.Random)
	failing := false
	due := i.renewal()
	for {
		wait := min(time.Until(due), recheck)
		if failing {
			wait = tries.Next()
		}
		if !i.save(ctx) {
			wait = min(wait, resave)
		}
		if backoff.Wait(ctx, wait) != nil {
			return nil
		}
		if time.Now().Before(due) {
			continue
		}
		if err := i.turn(ctx); err != nil {
			if !failing && ctx.Err() == nil {
				i.o.Log.Warn("certificate not renewed yet; trying again", "until", i.get().leaf.NotAfter, "error", err)
			}
			failing = true
			continue
		}
		i.o.Log.Info("certificate renewed", "until", i.get().leaf.NotAfter)
		due = i.renewal()
		if failing = !time.Now().Before(due); !failing { // else the clocks are hours apart
			tries.Reset()
		}
	}
}

// turn asks for the next certificate. One that has ended while a join token waits to be redeemed is not renewed: the token brings another, and may have
// ended one that has not. Nor is one asked for that the hub renews no more.
func (i *Identity) turn(ctx context.Context) error {
	if err := i.asking.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("identity: the hub is being asked already: %w", err)
	}
	defer i.asking.Release(1)
	switch {
	case !i.ended() && !i.MayHaveJoined():
		return i.Renew(ctx)
	case i.Joins():
		return fleet.Errorf(fleet.ErrUnavailable, "identity: the agent joins anew")
	}
	if _, err := i.TLS(); !errors.Is(err, fleet.ErrUnavailable) {
		return err
	}
	of := i.get().leaf
	err := i.Recover(ctx)
	i.noteRefusal(of, err)
	return err
}

// renewal is when the certificate is to be renewed.
func (i *Identity) renewal() time.Time {
	c := i.get()
	life := c.leaf.NotAfter.Sub(c.leaf.NotBefore)
	part := renewAt + renewJitter*(2*i.o.Random()-1)
	return c.leaf.NotBefore.Add(time.Duration(part * float64(life)))
}

// Renew gets a new certificate for a new key. A lost reply is asked for again with the same key.
func (i *Identity) Renew(ctx context.Context) error {
	config, err := i.TLS()
	if err != nil {
		return err
	}
	return i.next(ctx, func(old *credential, csr []byte) (issued, error) {
		return call(ctx, i.o.Dial, config, func(ctx context.Context, c agentv1.EnrollmentServiceClient) (issued, error) {
			return c.Renew(ctx, &agentv1.RenewRequest{Csr: csr})
		})
	})
}

// Recover is Renew for an agent whose certificate has ended: it shows none, and proves that it has the key of that.
func (i *Identity) Recover(ctx context.Context) error {
	return i.next(ctx, func(old *credential, csr []byte) (issued, error) {
		proof, err := ecdsa.SignASN1(rand.Reader, old.key, rpc.RecoveryDigest(old.leaf.Raw, csr, i.o.ClusterUID))
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		config := rpc.ClientTLS{CAs: old.pool}.Config()
		return call(ctx, i.o.Dial, config, func(ctx context.Context, c agentv1.EnrollmentServiceClient) (issued, error) {
			return c.Recover(ctx, &agentv1.RecoverRequest{Certificate: old.leaf.Raw, Csr: csr, ClusterUid: i.o.ClusterUID, Proof: proof})
		})
	})
}

// ended reports that the certificate is of no use for a connection any more.
func (i *Identity) ended() bool {
	c := i.get()
	return c != nil && !time.Now().Before(c.leaf.NotAfter)
}

// issued is what the hub answers to either.
type issued interface {
	GetCertificates() [][]byte
	GetCa() [][]byte
}

// next takes the certificate that the hub is asked for with a new key. While the one before is good for long, it is used only once it is saved.
func (i *Identity) next(ctx context.Context, ask func(old *credential, csr []byte) (issued, error)) error {
	old := i.get()
	key, keyDER, err := i.pendingKey(ctx, "renew "+old.leaf.SerialNumber.Text(16))
	saves := time.Until(old.leaf.NotAfter) > unsavedBefore
	if key == nil || err != nil && saves {
		return err
	}
	if err != nil {
		i.o.Log.Warn("the key of a renewal is not saved", "error", err)
	}
	csr, err := request(key)
	if err != nil {
		return err
	}
	answer, err := ask(old, csr)
	if err != nil {
		return err
	}
	next := *old
	next.Key, next.Chain = keyDER, answer.GetCertificates()
	if len(answer.GetCa()) > 0 {
		next.CA = answer.GetCa()
	}
	if err := next.open(); err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "identity: the hub's answer: %v", err)
	}
	if !next.leaf.NotAfter.After(old.leaf.NotAfter) {
		return fleet.Errorf(fleet.ErrInvalid, "identity: the hub's new certificate ends no later than the old one")
	}
	err = i.store(ctx, &next)
	switch {
	case err == nil:
		i.forgetPending(ctx)
	case saves:
		return err
	default:
		i.useUnsaved(&next, err)
	}
	dirty.Poke(i.renewed)
	return nil
}
