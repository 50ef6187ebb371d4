package session

import (
	"context"
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/wire"
)

const (
	maxQueries    = 4
	queryTimeout  = 10 * time.Second
	maxQueryBytes = 2 << 20
	maxAnswers    = 64
)

// query answers a question of the hub, in a goroutine that ends with its timeout.
func (s *session) query(q *agentv1.Query) {
	select {
	case s.asking <- struct{}{}:
	default:
		s.answer(&agentv1.QueryResult{Id: q.GetId(), Error: "the agent answers as many questions as it can already; ask again"})
		return
	}
	go func() {
		defer func() { <-s.asking }()
		ctx, cancel := context.WithTimeout(s.stream.Context(), queryTimeout)
		defer cancel()
		var data []byte
		err := guard.Run(func() (err error) {
			data, err = s.look(ctx, q)
			return err
		})
		if stack := guard.Stack(err); stack != "" { // a question must not end the agent, for it may be asked again
			s.l.o.Log.Error("a question of the hub set off a panic", "object", q.GetObject().GetName(), "stack", stack)
			data, err = nil, guard.Bug(err, "stopped by a bug in the agent; its log has the details")
		}
		r := &agentv1.QueryResult{Id: q.GetId(), Data: data}
		if err != nil {
			r = &agentv1.QueryResult{Id: q.GetId(), Error: err.Error()}
		}
		s.answer(r)
	}()
}

func (s *session) look(ctx context.Context, q *agentv1.Query) ([]byte, error) {
	if q.GetType() != "get" || s.l.o.Get == nil {
		return nil, fmt.Errorf("%.40q is unsupported by this version of the agent", q.GetType())
	}
	e, err := wire.BundleEntryFromProto(q.GetObject())
	if err != nil {
		return nil, err
	}
	data, err := s.l.o.Get(ctx, e)
	if err != nil {
		return nil, err
	}
	limit := maxQueryBytes
	if n := int(q.GetMaxBytes()); n > 0 {
		limit = min(limit, n)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%s: has %d bytes, more than the %d that were asked for", e.ID, len(data), limit)
	}
	return data, nil
}

func (s *session) answer(r *agentv1.QueryResult) {
	s.mu.Lock()
	if len(s.answers) < maxAnswers { // a hub that takes no answers gets none
		s.answers = append(s.answers, r)
	}
	s.mu.Unlock()
	signal(s.wake)
}
