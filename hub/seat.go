package hub

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// seat is the right to be the one hub of a store. Who is connected and what watches are told is known to one process
// only, so a second hub would call the agents of the first away.
type seat struct {
	store *engine.Engine
	me    store.Candidate
	wait  time.Duration
	log   *slog.Logger
	held  store.Leadership // taken before the controller asks for it
}

// defaultSeatTTL is after how long the seat of a hub that crashed is free, on an etcd that hubs share.
const defaultSeatTTL = 7 * time.Second

// seatWait is how long a hub waits for the seat of another: a crashed hub's lease has ended by then, even if etcd changed
// its own leader meanwhile, which starts leases anew.
func seatWait(ttl time.Duration) time.Duration { return 2*ttl + time.Second }

// take waits for the seat and refuses when another hub keeps it. An etcd that does not answer, or
// is full, is waited for.
func (s *seat) take(ctx context.Context) (store.Leadership, error) {
	if l := s.held; l != nil {
		s.held = nil
		return l, nil
	}
	for {
		s.announce(ctx)
		bounded, cancel := context.WithTimeout(ctx, s.wait)
		l, err := s.store.Campaign(bounded, s.me)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, fleet.ErrUnavailable) && !errors.Is(err, fleet.ErrExhausted) {
			return l, err
		}
		other, taken, lookErr := s.store.Leader(ctx)
		if taken {
			return nil, fleet.Errorf(fleet.ErrPrecondition, "hub: another hub runs on this store: instance %s at %s, since %s; it is alive, and one hub at a time may use a store: stop that one first",
				other.Instance, other.Address, other.Since.UTC().Format(time.RFC3339))
		}
		s.log.Warn("the hub's seat is not taken yet", "error", errors.Join(err, lookErr))
		s.pause(ctx, err)
	}
}

// pause waits before the next try where the last one ended at once: a full etcd gives no lease.
func (s *seat) pause(ctx context.Context, err error) {
	if !errors.Is(err, fleet.ErrExhausted) {
		return
	}
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// announce says that the seat is another's, and how long this hub waits for it.
func (s *seat) announce(ctx context.Context) {
	if other, taken, err := s.store.Leader(ctx); err == nil && taken {
		s.log.Warn("another hub has the seat of this store; waiting in case it is dead", "instance", other.Instance, "address", other.Address,
			"since", other.Since, "at_most", s.wait)
	}
}
