package session

import (
	"context"
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/wire"
)

const (
	maxQueries   = 4
	queryTimeout = 10 * time.Second
	// previewTimeout is for many dry runs.
	previewTimeout = 2 * time.Minute
	maxQueryBytes  = 2 << 20
	maxAnswers     = 64
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
		timeout := queryTimeout
		if q.GetType() == wire.QueryPreview {
			timeout = previewTimeout
		}
		ctx, cancel := context.WithTimeout(s.stream.Context(), timeout)
		defer cancel()
		var r *agentv1.QueryResult
		err := guard.Run(func() (err error) {
			r, err = s.look(ctx, q)
			return err
		})
		if stack := guard.Stack(err); stack != "" { // a question must not end the agent, for it may be asked again
			s.l.o.Log.Error("a question of the hub set off a panic", "object", q.GetObject().GetName(), "stack", stack)
			err = guard.Bug(err, "stopped by a bug in the agent; its log has the details")
		}
		if err != nil {
			r = &agentv1.QueryResult{Error: err.Error()}
		}
		r.Id = q.GetId()
		s.answer(r)
	}()
}

func (s *session) look(ctx context.Context, q *agentv1.Query) (*agentv1.QueryResult, error) {
	limit := maxQueryBytes
	if n := int(q.GetMaxBytes()); n > 0 {
		limit = min(limit, n)
	}
	if may := s.l.o.MayRead; may != nil {
		if err := may(q.GetType()); err != nil {
			return nil, err
		}
	}
	switch {
	case q.GetType() == wire.QueryEvents && s.l.o.Events != nil:
		return s.events(ctx, q, limit)
	case q.GetType() == wire.QueryLogs && s.l.o.Logs != nil:
		return s.logs(ctx, q, limit)
	case q.GetType() == wire.QueryGet && s.l.o.Get != nil:
		data, err := s.live(ctx, q, limit)
		return &agentv1.QueryResult{Data: data}, err
	case q.GetType() == wire.QueryPreview && s.l.o.Preview != nil:
		p, err := s.preview(ctx, q)
		return &agentv1.QueryResult{Preview: wire.PreviewToProto(p, limit)}, err
	}
	return nil, fmt.Errorf("%.40q is unsupported by this version of the agent", q.GetType())
}

func (s *session) live(ctx context.Context, q *agentv1.Query, limit int) ([]byte, error) {
	e, err := wire.BundleEntryFromProto(q.GetObject())
	if err != nil {
		return nil, err
	}
	data, err := s.l.o.Get(ctx, e)
	if err != nil {
		return nil, err
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%s: has %d bytes, more than the %d that were asked for", e.ID, len(data), limit)
	}
	return data, nil
}

// maxEvents is how many events are told at once.
const maxEvents = 1000

func (s *session) events(ctx context.Context, q *agentv1.Query, limit int) (*agentv1.QueryResult, error) {
	ref, err := fleet.ParseModuleRef(q.GetModule())
	if err != nil {
		return nil, err
	}
	var only []fleet.ObjectID
	for _, raw := range q.GetObjects() {
		e, err := wire.BundleEntryFromProto(raw)
		if err != nil {
			return nil, err
		}
		only = append(only, e.ID)
	}
	list, omitted, err := s.l.o.Events(ctx, ref, only, min(int(q.GetLimit()), maxEvents))
	return &agentv1.QueryResult{Events: wire.EventsToProto(list, omitted, limit)}, err
}

func (s *session) logs(ctx context.Context, q *agentv1.Query, limit int) (*agentv1.QueryResult, error) {
	e, err := wire.BundleEntryFromProto(q.GetObject())
	if err != nil {
		return nil, err
	}
	options, err := wire.LogQueryFromProto(q.GetLogs())
	if err != nil {
		return nil, err
	}
	options.Bytes = min(limit, maxLogBytes)
	list, omitted, err := s.l.o.Logs(ctx, e, options)
	return &agentv1.QueryResult{Logs: wire.LogsToProto(list, omitted)}, err
}

// maxLogBytes is how much of logs is told at once.
const maxLogBytes = 1 << 20

// preview gets what the sync needs and is not here, for as long as the question is open.
func (s *session) preview(ctx context.Context, q *agentv1.Query) (fleet.Preview, error) {
	x, err := wire.SyncFromProto(q.GetSync())
	if err != nil {
		return fleet.Preview{}, err
	}
	contents, err := s.l.o.Desired.Borrow(ctx, x, s.gather)
	if err != nil {
		return fleet.Preview{}, err
	}
	return s.l.o.Preview(ctx, x, contents)
}

func (s *session) answer(r *agentv1.QueryResult) {
	s.mu.Lock()
	if len(s.answers) < maxAnswers { // a hub that takes no answers gets none
		s.answers = append(s.answers, r)
	}
	s.mu.Unlock()
	signal(s.wake)
}
