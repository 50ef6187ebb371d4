package hub

import (
	"context"
	"errors"
	"log/slog"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// seat is the right to drive: one hub of a store has it at a time. It is taken before anything else, so that two hubs on a store find each
// other out; where hubs share an etcd, those without it serve all the same, and wait for it.
type seat struct {
	store    *engine.Engine
	me       store.Candidate
	wait     time.Duration // for another hub that may be dead, and between two tries where one ended at once
	external bool          // other hubs can reach the store
	shares   bool          // they may use it at the same time
	log      *slog.Logger
	held     store.Leadership // taken before the controller asks for it
}

// defaultSeatTTL is after how long the seat of a hub that crashed is free, on an etcd that hubs share.
const defaultSeatTTL = 7 * time.Second

// seatWait is how long a hub waits for the seat of another: a crashed hub's lease has ended by then, even if etcd changed
// its own leader meanwhile, which starts leases anew.
func seatWait(ttl time.Duration) time.Duration { return 2*ttl + time.Second }

// take waits for the seat: however long another hub keeps it where hubs share the store, and else no longer than a dead one can, and
// refuses then. An etcd that does not answer, or is full, is waited for.
func (s *seat) take(ctx context.Context) (store.Leadership, error) {
	if l := s.held; l != nil {
		s.held = nil
		return l, nil
	}
	for {
		s.announce(ctx)
		l, err := s.try(ctx)
		if err == nil || ctx.Err() != nil || !errors.Is(err, fleet.ErrUnavailable) && !errors.Is(err, fleet.ErrExhausted) {
			return l, err
		}
		other, taken, lookErr := s.store.Leader(ctx)
		if taken && !s.shares {
			return nil, fleet.Errorf(fleet.ErrPrecondition, "hub: another hub runs on this store: instance %s at %s, since %s; it is alive, and one hub at a time may use a store that is not shared: stop that one first",
				other.Instance, other.Address, other.Since.UTC().Format(time.RFC3339))
		}
		if !taken {
			s.log.Warn("the hub's seat is not taken yet", "error", errors.Join(err, lookErr))
		}
		s.pause(ctx, err)
	}
}

// try campaigns once.
func (s *seat) try(ctx context.Context) (store.Leadership, error) {
	if s.shares {
		if err := s.outlast(ctx, s.besideOneAlone); errors.Is(err, fleet.ErrPrecondition) {
			return nil, err
		}
		return s.store.Campaign(ctx, s.me)
	}
	bounded, cancel := context.WithTimeout(ctx, s.wait)
	l, err := s.store.Campaign(bounded, s.me)
	cancel()
	if err != nil || !s.external {
		return l, err
	}
	if err := s.outlast(ctx, s.besideSharers); err != nil {
		s.resign(l)
		return nil, err
	}
	return l, nil
}

// resign has the next hub lead at once.
func (s *seat) resign(l store.Leadership) {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawPatience)
	defer cancel()
	if err := l.Resign(ctx); err != nil {
		s.log.Warn("the hub's seat is free when its lease ends", "error", err)
	}
}

// lookEvery is the time between two looks whether another hub is gone.
const lookEvery = 200 * time.Millisecond

// outlast looks until nothing speaks against this hub any more, and refuses when that takes longer than a hub can be dead and not gone.
func (s *seat) outlast(ctx context.Context, look func(context.Context) error) error {
	over, again := time.NewTimer(s.wait), time.NewTicker(lookEvery)
	defer over.Stop()
	defer again.Stop()
	for {
		err := look(ctx)
		if !errors.Is(err, fleet.ErrPrecondition) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return err
		case <-again.C:
		}
	}
}

// besideSharers refuses beside hubs that share the store and live, whether one of them leads or not.
func (s *seat) besideSharers(ctx context.Context) error {
	return s.look(ctx, func(r store.Reader) error {
		var err error
		store.Scan(r, store.PeerPrefix, func(o *storev1.HubRecord, _ store.Entry) bool {
			err = fleet.Errorf(fleet.ErrPrecondition, "hub: hubs that share this store run on it: instance %s at %s, since %s; it is alive: stop all of them first, or start this one with --share-etcd as well",
				o.GetInstance(), o.GetAddress(), o.GetSince().AsTime().UTC().Format(time.RFC3339))
			return false
		})
		return err
	})
}

// besideOneAlone refuses beside a hub that leads and has not said to others that it is there, as those do that share the store.
func (s *seat) besideOneAlone(ctx context.Context) error {
	other, taken, err := s.store.Leader(ctx)
	if err != nil || !taken || other.Instance == s.me.Instance {
		return err
	}
	return s.look(ctx, func(r store.Reader) error {
		if _, _, shares := store.Get[*storev1.HubRecord](r, store.PeerKey(other.Instance)); shares {
			return nil
		}
		return fleet.Errorf(fleet.ErrPrecondition, "hub: a hub without --share-etcd runs on this store: instance %s at %s, since %s; it is alive, and shares the store with nobody: stop that one first, and start it with --share-etcd",
			other.Instance, other.Address, other.Since.UTC().Format(time.RFC3339))
	})
}

// look reads the store as it is now.
func (s *seat) look(ctx context.Context, read func(store.Reader) error) error {
	if _, err := s.store.Barrier(ctx); err != nil {
		return err
	}
	return s.store.View(ctx, 0, read)
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

// announce says that the seat is another's, and what this hub does about it.
func (s *seat) announce(ctx context.Context) {
	other, taken, err := s.store.Leader(ctx)
	if err != nil || !taken {
		return
	}
	who := []any{"instance", other.Instance, "address", other.Address, "since", other.Since}
	if s.shares {
		s.log.Info("another hub leads; this one serves, and leads when that one is gone", who...)
		return
	}
	s.log.Warn("another hub has the seat of this store; waiting in case it is dead", append(who, "at_most", s.wait)...)
}
