package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/identity"
	"towline.dev/towline/agent/internal/session"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// dialer makes connections to the hubs.
type dialer struct {
	hubs []string
	dial func(ctx context.Context, addr string) (net.Conn, error)

	mu   sync.Mutex
	last int
}

// next connects to one hub after the other.
func (d *dialer) next(t *tls.Config) (*grpc.ClientConn, error) {
	d.mu.Lock()
	hub := d.hubs[d.last%len(d.hubs)]
	d.last++
	d.mu.Unlock()
	return d.to(hub, t)
}

// with connects to a hub with the agent's identity.
func (d *dialer) with(id *identity.Identity) func(addr string) (*grpc.ClientConn, error) {
	return func(addr string) (*grpc.ClientConn, error) {
		t, err := id.Entry()
		if err != nil {
			return nil, err
		}
		return d.to(addr, t)
	}
}

func (d *dialer) to(addr string, t *tls.Config) (*grpc.ClientConn, error) {
	options := rpc.AgentDialOptions(t)
	if d.dial != nil {
		options = append(options, grpc.WithContextDialer(d.dial))
	}
	return grpc.NewClient("passthrough:///"+addr, options...)
}

// join redeems the join token of an agent that has no identity yet, or that had left, however long the hub is away. A
// token that the hub refuses ends it: only a person can help. Any other agent redeems a new token on the way (prepare),
// and keeps the cluster correct meanwhile.
func (a *Agent) join(ctx context.Context, id *identity.Identity, left bool) error {
	if id.HubID() != "" && !left {
		return nil
	}
	tries := backoff.New(backoff.Policy{Min: max(a.o.MinReconnect, 200*time.Millisecond), Max: max(a.o.MaxReconnect, time.Minute)}, rand.Float64)
	for waiting := false; ; waiting = true {
		err := id.Enroll(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !transient(err) {
			return err
		}
		if !waiting {
			a.o.Log.Log(ctx, slog.LevelWarn, "cannot join yet; trying again", "hubs", a.o.Hubs, "error", err)
		}
		if err := backoff.Wait(ctx, tries.Next()); err != nil {
			return err
		}
	}
}

func transient(err error) bool {
	return errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, fleet.ErrExhausted) || errors.Is(err, fleet.ErrConflict) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// prepare redeems a new join token of an agent that has joined before.
func (a *Agent) prepare(ctx context.Context, id *identity.Identity, held *desired.Store, work *worker.Manager) error {
	if id.NeedsEnroll() {
		hubID := id.HubID()
		err := id.Enroll(ctx)
		_, terr := id.TLS()
		switch {
		case err != nil && terr == nil && transient(err):
			return nil // the identity that it has still holds
		case err != nil:
			return err
		case id.HubID() != hubID:
			return fmt.Errorf("joined hub %s after %s: %w", id.HubID(), hubID, session.ErrRestart)
		}
	}
	before := held.Held().Assemblage.Lineage
	a.adopt(ctx, id, held)
	if now := held.Held(); now.Assemblage.Lineage != before && now.Behind == "" {
		work.Set(now.Assemblage, now.Strays) // what was ordered before the join deletes nothing any more
	}
	return nil
}

// adopt takes note of the join. Should that not be durable now, a restart takes note of it again.
func (a *Agent) adopt(ctx context.Context, id *identity.Identity, held *desired.Store) {
	if err := held.Adopt(ctx, id.Join()); err != nil {
		a.o.Log.Warn("that the agent joined anew is not saved yet", "error", err)
	}
}
