package session

import (
	"bytes"
	"context"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// secretsOffer are all secrets that the hub has sent at one time, and what the index results in that they go with; empty: the hub does
// not say.
type secretsOffer struct {
	list      []*agentv1.SealedSecret
	resultsIn []byte
}

// receiveSecrets gathers the frames of one whole.
func (s *session) receiveSecrets(f *agentv1.Secrets) {
	if f.GetFirst() {
		s.coming = secretsOffer{resultsIn: f.GetResultsIn()}
	}
	s.coming.list = append(s.coming.list, f.GetSecrets()...)
	if !f.GetLast() {
		return
	}
	all := s.coming
	s.coming = secretsOffer{}
	s.offered(func() { s.secrets = &all })
}

// takeSecrets takes what the hub has sent without an index to go with it: the agent holds that already. What goes with an index that is
// not accepted waits for one that is, and ends with the session.
func (s *session) takeSecrets(ctx context.Context) error {
	s.mu.Lock()
	all, waits := s.secrets, s.index != nil || s.move != nil || s.leave != nil
	s.mu.Unlock()
	if all == nil || waits || !s.goneBy() || !s.holds(all.resultsIn) {
		return nil
	}
	use, err := s.keepSecrets(ctx, all)
	if err != nil {
		return err
	}
	use(func() {})
	return nil
}

// holds reports that the agent holds what an index results in, or was given that in this session and refused a part of it.
func (s *session) holds(resultsIn []byte) bool {
	_, _, held := s.l.o.Desired.Position()
	return len(resultsIn) == 0 || bytes.Equal(resultsIn, held.Bytes()) || bytes.Equal(resultsIn, s.taken)
}

// keepSecrets keeps secrets durably, and returns what puts them in use. Until then they stay on offer.
func (s *session) keepSecrets(ctx context.Context, all *secretsOffer) (use func(begin func()), err error) {
	if all == nil || s.l.o.Secrets == nil {
		return func(begin func()) { begin() }, nil
	}
	put, err := s.l.o.Secrets(ctx, s.lineage.HubID, s.l.o.Desired.Held().Assemblage.Lineage, all.list)
	if err != nil {
		return nil, err
	}
	return func(begin func()) {
		put(begin)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.secrets == all {
			s.secrets = nil
		}
	}, nil
}
