package session

import (
	"context"
	"errors"
	"io"
	"time"

	"towline.dev/towline/agent/internal/desired"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// receive is the receiving goroutine: it never waits for anything but the stream.
func (s *session) receive() error {
	for {
		frame, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return fleet.Errorf(fleet.ErrUnavailable, "the hub closed the session")
		}
		if err != nil {
			return err
		}
		s.heard.Store(int64(time.Since(s.began)))
		s.l.o.Meter.Received(frame)
		switch f := frame.GetFrame().(type) {
		case *agentv1.ConnectResponse_Index:
			s.offered(func() { s.index, s.move = f.Index, nil })
		case *agentv1.ConnectResponse_Move:
			s.offered(func() { s.index, s.move = nil, f.Move })
		case *agentv1.ConnectResponse_Leave:
			s.offered(func() { s.leave = f.Leave })
		case *agentv1.ConnectResponse_BundleDelta:
			s.mu.Lock()
			s.hints.add(f.BundleDelta)
			s.mu.Unlock()
		case *agentv1.ConnectResponse_Traces:
			s.receiveTraces(f.Traces)
		case *agentv1.ConnectResponse_Secrets:
			s.receiveSecrets(f.Secrets)
		case *agentv1.ConnectResponse_StatusAck:
			s.l.o.Reports.Ack(s.welcome.GetEpoch(), f.StatusAck.GetSequence())
		case *agentv1.ConnectResponse_Query:
			s.query(f.Query)
		case *agentv1.ConnectResponse_Drain:
			return errDrain{after: fromHub(f.Drain.GetReconnectAfterMillis(), maxAway), reason: f.Drain.GetReason()}
		}
	}
}

// offered sets what the accepter looks at; the newest wins.
func (s *session) offered(set func()) {
	s.mu.Lock()
	set()
	s.mu.Unlock()
	signal(s.offer)
}

func signal(c chan struct{}) {
	dirty.Poke(c)
}

// accept is the accepting goroutine: it fetches, persists and hands over, while the stream goes on.
func (s *session) accept(ctx context.Context) {
	tries := backoff.New(backoff.Policy{Min: time.Second, Max: time.Minute}, s.l.o.Random)
	var again <-chan time.Time
	untidy := time.After(tidyDelay) // the session before may have ended too soon for it
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-untidy:
			untidy = nil
			s.tidy(ctx)
			continue
		case <-s.offer:
		case <-again:
		case <-s.l.o.StateAgain:
			if !failing {
				continue
			}
		}
		err := s.take(ctx)
		if err == nil {
			err = s.takeSecrets(ctx)
		}
		if err == nil {
			again, failing = nil, false
			if untidy == nil {
				untidy = time.After(tidyDelay)
			}
			tries.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if !failing {
			s.l.o.Log.Warn("the hub's index is not taken yet; trying again", "error", err)
		}
		failing = true
		again = time.After(tries.Next())
	}
}

// take works on the newest offer. When it fails the offer stays, unless a newer one came.
func (s *session) take(ctx context.Context) error {
	s.unfold()
	s.mu.Lock()
	index, leave, secrets := s.index, s.leave, s.secrets
	s.mu.Unlock()
	if leave != nil {
		if err := s.takeLeave(ctx, leave); err != nil {
			return err
		}
	}
	if leave != nil || index == nil || s.l.o.Desired.Held().Leaving.Objects != "" {
		s.passOver(index)
		return nil
	}
	result, err := s.judge(ctx, index, secrets)
	if err != nil {
		return err
	}
	if result.Code == "" {
		s.taken = index.GetResultsIn()
	}
	s.mu.Lock()
	if s.index == index {
		s.index, s.hints = nil, newHints()
	}
	s.ack = s.ackOf(index, result)
	s.mu.Unlock()
	signal(s.wake)
	s.traceReceived(index, result)
	return nil
}

// unfold makes the index of a move, with what is new of contents as hints. One that does not fit is refused, for which the hub sends
// a complete index.
func (s *session) unfold() {
	s.mu.Lock()
	move := s.move
	s.mu.Unlock()
	if move == nil {
		return
	}
	index, contents, err := s.l.o.Desired.Unfold(move)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.move != move {
		return // a newer one is here
	}
	s.move = nil
	if err != nil {
		s.l.o.Log.Warn("the hub's move does not fit what is held; it will send all of the index", "reason", err)
		s.ack = &agentv1.Ack{Digest: move.GetResultsIn(), Generation: move.GetGeneration(), Epoch: s.welcome.GetEpoch(),
			Code: desired.CodeDigestMismatch, Message: wire.CutText(err.Error())}
		signal(s.wake)
		return
	}
	s.index = index
	for d, b := range contents {
		s.hints.put(d, wire.Compress(b))
	}
}

// tidyDelay keeps the removal of old contents from the disk while the API server writes what was just accepted to the
// same one, perhaps.
const tidyDelay = 2 * time.Second

func (s *session) tidy(ctx context.Context) {
	if err := s.l.o.Desired.Tidy(ctx); err != nil && ctx.Err() == nil {
		s.l.o.Log.Warn("old contents are not removed yet", "error", err)
	}
}

// judge accepts an index that is not stale, and the secrets that have come before it. They are kept before the index is, and are in use
// before anybody works by it.
func (s *session) judge(ctx context.Context, index *agentv1.Index, secrets *secretsOffer) (desired.Result, error) {
	if s.stale != "" {
		return desired.Result{Code: desired.CodeRegressed, Message: s.stale}, nil
	}
	use := func(begin func()) { begin() }
	result, err := s.l.o.Desired.Accept(ctx, s.lineage, index, s.fetch, func() (err error) {
		use, err = s.keepSecrets(ctx, secrets)
		return err
	})
	if err != nil {
		return result, err
	}
	if result.Code != "" {
		s.l.o.Log.Error("the hub's index is refused; what was accepted before stays", "code", result.Code, "reason", result.Message)
		return result, nil
	}
	for _, r := range result.Refused {
		s.l.o.Log.Error("a sync is refused; what was accepted of the module before stays", "module", r.Module, "generation", r.Generation, "code", r.Code, "reason", r.Message)
	}
	use(func() { s.l.work(s.l.o.Desired.Held()) })
	return result, nil
}

func (s *session) ackOf(index *agentv1.Index, r desired.Result) *agentv1.Ack {
	ack := &agentv1.Ack{Digest: index.GetResultsIn(), Generation: index.GetGeneration(), Epoch: s.welcome.GetEpoch(), Code: r.Code, Message: r.Message}
	for _, x := range r.Refused {
		ack.Refused = append(ack.Refused, &agentv1.Refusal{Module: x.Module.String(), Generation: x.Generation, Code: x.Code, Message: x.Message})
	}
	return ack
}

// takeLeave begins to leave the fleet, or learns where that is held up. It is persisted first: an agent that restarts
// goes on leaving.
func (s *session) takeLeave(ctx context.Context, in *agentv1.Leave) error {
	if s.foreign != "" {
		s.refuseLeave(in)
		return nil
	}
	order, err := wire.LeaveFromProto(in)
	if err != nil {
		return err
	}
	switch before := s.l.o.Desired.Held().Leaving; {
	case before.Equal(order):
		return nil
	case s.stale != "" && order.Loosens(before): // it may be of before a hold
		s.l.o.Log.Error("an order of a hub that regressed is not taken; the one before stands", "objects", order.Objects, "hold", order.Hold, "held", order.Held)
		return nil
	}
	if err := s.l.o.Desired.Leave(ctx, order); err != nil {
		return err
	}
	s.l.o.Log.Warn("the cluster leaves the fleet", "objects", order.Objects, "hold", order.Hold, "held", order.Held)
	s.l.leave(order)
	return nil
}

// passOver answers an index that is not taken any more, because the cluster leaves the fleet: the hub waits for what becomes of all
// that it may have given.
func (s *session) passOver(index *agentv1.Index) {
	held := s.l.o.Desired.Held()
	if index == nil || held.Leaving.Objects == "" {
		return
	}
	known := map[string]uint64{}
	for _, x := range held.Assemblage.Syncs {
		known[x.Module.String()] = x.Generation
	}
	for _, x := range held.Assemblage.Tombstones {
		known[x.Module.String()] = x.Generation
	}
	ack := s.ackOf(index, desired.Result{})
	refuse := func(module string, generation uint64) {
		if generation != known[module] {
			ack.Refused = append(ack.Refused, &agentv1.Refusal{Module: module, Generation: generation, Code: desired.CodeStale,
				Message: "the cluster was told to leave the fleet before this was taken"})
		}
	}
	for _, x := range index.GetSyncs() {
		refuse(x.GetModule(), x.GetGeneration())
	}
	for _, x := range index.GetTombstones() {
		refuse(x.GetModule(), x.GetGeneration())
	}
	s.mu.Lock()
	if s.index == index {
		s.index, s.hints = nil, newHints()
	}
	s.ack = ack
	s.mu.Unlock()
	signal(s.wake)
}

// refuseLeave says why the cluster stays in the fleet.
func (s *session) refuseLeave(in *agentv1.Leave) {
	s.l.o.Log.Error("an order to leave the fleet is refused", "objects", in.GetObjects(), "reason", s.foreign)
	s.mu.Lock()
	if s.leave == in {
		s.leave = nil
	}
	s.ack = &agentv1.Ack{Epoch: s.welcome.GetEpoch(), Code: desired.CodeRegressed, Message: s.foreign}
	s.mu.Unlock()
	signal(s.wake)
}
