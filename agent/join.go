package agent

import (
	"cmp"
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

// belongsTo is the hub that the agent belongs to: without an identity it is the one of what is desired.
func belongsTo(id *identity.Identity, held desired.Held) string {
	return cmp.Or(id.HubID(), held.Lineage.HubID)
}

// join redeems the join token of an agent that belongs to no hub yet, or that had left, however long the hub is away. A
// token that the hub refuses ends it: only a person can help; who was told to leave goes on with that. Any other agent redeems a new token on the way
// (rejoin, prepare), and keeps the cluster correct meanwhile, also where its identity is lost.
func (a *Agent) join(ctx context.Context, id *identity.Identity, held desired.Held) error {
	hub := belongsTo(id, held)
	if hub != "" && held.Leaving.Objects == "" {
		return nil
	}
	tries := backoff.New(backoff.Policy{Min: max(a.o.MinReconnect, 200*time.Millisecond), Max: max(a.o.MaxReconnect, time.Minute)}, rand.Float64)
	for waiting := false; ; waiting = true {
		a.offer(ctx, id)
		if hub == "" && !id.NeedsEnroll() {
			if _, err := id.TLS(); err != nil {
				return cmp.Or(a.token.err, err)
			}
			return nil
		}
		err := id.Enroll(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !transient(err) && hub == "" {
			return err
		}
		if !transient(err) {
			a.o.Log.Warn("the join token is of no use; leaving goes on as was ordered", "error", err)
			return nil
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

// prepare redeems a new join token of an agent that has joined before. Once it has, its parts are made anew, as at a start: it may have
// left, been refused, or joined another hub.
func (a *Agent) prepare(ctx context.Context, id *identity.Identity) error {
	if !id.NeedsEnroll() {
		return nil
	}
	join := id.Join()
	err := id.Enroll(ctx)
	_, terr := id.TLS()
	switch {
	case id.Join() != join:
		a.unredeemed = ""
		return fmt.Errorf("joined hub %s: %w", id.HubID(), session.ErrRestart)
	case err != nil && terr != nil:
		return err
	case err != nil && id.MayHaveJoined():
		return fleet.Errorf(fleet.ErrUnavailable, "the hub may have taken the join token, and is asked again: %v", err)
	case err != nil && err.Error() != a.unredeemed:
		a.unredeemed = err.Error()
		a.o.Log.Warn("the join token is not redeemed yet; going on with the identity that is stored", "error", err)
	}
	return nil
}

// asksStrangers is how often a connection is made anew for a join token while who answers is not the hub that made it: of several hubs another one may be.
const asksStrangers = 8

// rejoin has the connection made anew when a join token is to be redeemed, which is done before a dial (prepare), and again until the hub
// has answered. One that nobody there has made is left to the next connection in the end.
func (a *Agent) rejoin(ctx context.Context, id *identity.Identity) error {
	tries := backoff.New(backoff.Policy{Min: tokenEvery, Max: 5 * time.Minute}, rand.Float64)
	var due time.Time
	asked := 0
	for backoff.Wait(ctx, tokenEvery) == nil {
		if a.offer(ctx, id) {
			tries.Reset()
			due, asked = time.Time{}, 0
		}
		if asks := id.Joins() || id.NeedsEnroll() && asked < asksStrangers; asks && !time.Now().Before(due) {
			due = time.Now().Add(tries.Next())
			asked++
			id.Rejoin()
		}
	}
	return nil
}

// offer gives the identity the join token that its file has by now, and reports that it is another one.
func (a *Agent) offer(ctx context.Context, id *identity.Identity) bool {
	before := a.token.text
	text := a.token.given()
	if text == before {
		return false
	}
	if err := id.Offer(ctx, text); err != nil {
		a.token.warn("the join token is of no use; going on with the identity that is stored", err)
	}
	return true
}

// adopt takes note of the join. Should that not be durable now, a restart takes note of it again.
func (a *Agent) adopt(ctx context.Context, id *identity.Identity, held *desired.Store) {
	if id.HubID() == "" { // its identity is lost, which is no join
		return
	}
	if err := held.Adopt(ctx, id.Join()); err != nil {
		a.o.Log.Warn("that the agent joined anew is not saved yet", "error", err)
	}
}
