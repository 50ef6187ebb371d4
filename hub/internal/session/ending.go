package session

import (
	"context"
	"maps"
	"time"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/guard"
)

const (
	// endPatience is how long the store has to record the end of a session.
	endPatience = 5 * time.Second
	// endAgain is how long after that failed it is tried again.
	endAgain = 5 * time.Second
)

func (s *Server) recordEnd(ctx context.Context, x *session) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	return s.o.Registry.CloseSession(ctx, x.cluster, x.epoch, x.lastSeen())
}

// endLoop records the ends of sessions that could not be recorded, until ctx ends. While the record of a session says that this hub holds it, the other
// hubs call the cluster connected, and let in no other instance of its agent.
func (s *Server) endLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.more:
		}
		timer := time.NewTimer(endAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if !s.endAll(ctx) {
			dirty.Poke(s.more)
		}
	}
}

// endAll records those ends until one fails; false: one did.
func (s *Server) endAll(ctx context.Context) bool {
	s.mu.Lock()
	unended := maps.Clone(s.unended)
	s.mu.Unlock()
	for c, x := range unended {
		if guard.Run(func() error { return s.recordEnd(ctx, x) }) != nil {
			return false
		}
		s.mu.Lock()
		if s.unended[c] == x {
			delete(s.unended, c)
		}
		s.mu.Unlock()
	}
	return true
}
