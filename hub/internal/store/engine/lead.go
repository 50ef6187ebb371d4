package engine

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
)

// Campaign waits until the candidate leads.
func (e *Engine) Campaign(ctx context.Context, who store.Candidate) (store.Leadership, error) {
	if e.ctx.Err() != nil {
		return nil, backend.Closed()
	}
	value, err := sealCandidate(who)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	inner, err := e.backend.Elect(ctx, recordSpace+leaderKey, value)
	if err != nil {
		return nil, err
	}
	// Who leads has read what those before it wrote, and leads no other store than the one that it has read.
	if _, err := e.Barrier(ctx); err != nil {
		e.giveUp(inner)
		return nil, err
	}
	held := inner.Fence()
	fence := store.Fence{Key: strings.TrimPrefix(held.Key, recordSpace), CreateRevision: held.Revision}
	l := &leadership{inner: inner, fence: fence, lost: make(chan struct{})}
	life, stop := context.WithCancel(e.ctx)
	l.stop = stop
	e.running.Go(func() {
		defer stop()
		defer close(l.lost)
		select {
		case <-inner.Lost():
		case <-life.Done():
		}
		if e.ctx.Err() != nil {
			e.giveUp(inner)
		}
	})
	return l, nil
}

// Leader is who leads now.
func (e *Engine) Leader(ctx context.Context) (store.Candidate, bool, error) {
	value, ok, err := e.backend.Holder(ctx, recordSpace+leaderKey)
	if err != nil || !ok {
		return store.Candidate{}, false, err
	}
	who, err := openCandidate(value)
	return who, err == nil, err
}

// Announce says to the other hubs of the store that this one is there, until the announcement is closed.
func (e *Engine) Announce(ctx context.Context, rec *storev1.HubRecord) (*Announcement, error) {
	a := &Announcement{key: store.PeerKey(rec.GetInstance())}
	value, err := a.seal(rec)
	if err != nil {
		return nil, err
	}
	a.inner, err = e.backend.Announce(ctx, recordSpace+a.key, value)
	return a, err
}

// Announcement is the record of a hub that runs.
type Announcement struct {
	key   string
	inner backend.Announcement
}

func (a *Announcement) seal(rec *storev1.HubRecord) ([]byte, error) {
	payload, err := payloadOf(a.key, rec)
	if err != nil {
		return nil, err
	}
	return seal(a.key, payload, envelope.Checksum(payload), envelope.DrawNonce()), nil
}

// Set changes the record.
func (a *Announcement) Set(ctx context.Context, rec *storev1.HubRecord) error {
	value, err := a.seal(rec)
	if err != nil {
		return err
	}
	return a.inner.Set(ctx, value)
}

// Close has the record go.
func (a *Announcement) Close(ctx context.Context) error { return a.inner.Close(ctx) }

// giveUp resigns at the close, so that the next leader need not wait.
func (e *Engine) giveUp(l backend.Leadership) {
	ctx, cancel := context.WithTimeout(context.Background(), resignTimeout)
	defer cancel()
	if err := l.Resign(ctx); err != nil {
		e.log.Warn("store: resign at close", "error", err)
	}
}

const (
	// leaderKey is the one key that all hubs of a store campaign under.
	leaderKey     = "leader/hub"
	resignTimeout = 2 * time.Second
)

// leadership is a backend's leadership in the words of the store: logical keys, and lost when the store closes.
type leadership struct {
	inner backend.Leadership
	fence store.Fence
	lost  chan struct{}
	stop  func()
}

func (l *leadership) Fence() store.Fence    { return l.fence }
func (l *leadership) Lost() <-chan struct{} { return l.lost }

func (l *leadership) Resign(ctx context.Context) error {
	l.stop()
	return l.inner.Resign(ctx)
}

// sealCandidate is what a leader's key holds.
func sealCandidate(c store.Candidate) ([]byte, error) {
	return envelope.SealMessage(leaderKey, &storev1.Seat{Instance: c.Instance, Address: c.Address, Since: timestamppb.New(c.Since)})
}

func openCandidate(stored []byte) (store.Candidate, error) {
	seat := new(storev1.Seat)
	if _, err := envelope.Open(leaderKey, stored, seat); err != nil {
		return store.Candidate{}, err
	}
	return store.Candidate{Instance: seat.GetInstance(), Address: seat.GetAddress(), Since: seat.GetSince().AsTime()}, nil
}
