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

// seat is the right to drive: one hub of a store has it at a time. Where the store is this process's own, it is taken before anything else,
// so that two processes on it find each other out; where hubs share an etcd, those without it serve all the same, and wait for it.
type seat struct {
	store *engine.Engine
	me    store.Candidate
	wait  time.Duration // between two tries, where one ended at once
	log   *slog.Logger
	held  store.Leadership // taken before the controller asks for it
}

// defaultSeatTTL is after how long the seat of a hub that crashed is free, on an etcd that hubs share.
const defaultSeatTTL = 7 * time.Second

// seatWait is how long a hub waits for the seat of another: a crashed hub's lease has ended by then, even if etcd changed
// its own leader meanwhile, which starts leases anew.
func seatWait(ttl time.Duration) time.Duration { return 2*ttl + time.Second }

// take waits for the seat, however long another hub keeps it. An etcd that does not answer, or
// is full, is waited for, too.
func (s *seat) take(ctx context.Context) (store.Leadership, error) {
	if l := s.held; l != nil {
		s.held = nil
		return l, nil
	}
	s.announce(ctx)
	for {
		l, err := s.store.Campaign(ctx, s.me)
		if err == nil || ctx.Err() != nil || !errors.Is(err, fleet.ErrUnavailable) && !errors.Is(err, fleet.ErrExhausted) {
			return l, err
		}
		if _, taken, lookErr := s.store.Leader(ctx); !taken {
			s.log.Warn("the hub's seat is not taken yet", "error", errors.Join(err, lookErr))
		}
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

// announce says that the seat is another's.
func (s *seat) announce(ctx context.Context) {
	if other, taken, err := s.store.Leader(ctx); err == nil && taken {
		s.log.Info("another hub leads; this one serves, and leads when that one is gone", "instance", other.Instance, "address", other.Address, "since", other.Since)
	}
}
