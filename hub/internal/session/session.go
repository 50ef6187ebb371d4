package session

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
)

// Marks say what a session has to look at again.
const (
	dirtyDesired = 1 << iota
	dirtyFenced
	dirtyDrain
	dirtyAck
	dirtyQuery
)

type session struct {
	server  *Server
	cluster fleet.ClusterName
	epoch   uint64
	opened  registry.Opened
	hello   *agentv1.Hello
	log     logger
	seen    atomic.Int64 // Unix nanoseconds of the last frame
	wake    chan struct{}
	reports *reports
	index   indexState
	leaving string

	mu        sync.Mutex
	dirty     int
	queries   map[uint64]*pendingQuery
	nextQuery uint64
}

type logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

func newSession(s *Server, c fleet.ClusterName, o registry.Opened, hello *agentv1.Hello) *session {
	x := &session{server: s, cluster: c, epoch: o.Epoch, opened: o, hello: hello, wake: make(chan struct{}, 1),
		log: s.o.Log.With("cluster", string(c), "epoch", o.Epoch), queries: map[uint64]*pendingQuery{}}
	x.reports = newReports(x)
	x.seen.Store(time.Now().UnixNano())
	x.dirty = dirtyDesired
	return x
}

func (x *session) lastSeen() time.Time { return time.Unix(0, x.seen.Load()) }

// mark never blocks; marks coalesce.
func (x *session) mark(bits int) {
	x.mu.Lock()
	x.dirty |= bits
	x.mu.Unlock()
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *session) takeDirty() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.dirty
	x.dirty = 0
	return d
}

type stream = grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]

// run is the sending goroutine; it ends the session when any part of it ends.
func (x *session) run(ctx context.Context, st stream) error {
	ctx, cancel := context.WithCancel(ctx)
	if err := x.welcome(ctx, st); err != nil {
		cancel()
		return err
	}
	received := make(chan error, 1)
	committed := make(chan error, 1)
	// The receiver ends when the handler returns and the stream with it; the committer ends with ctx.
	go func() { received <- x.receive(st) }()
	go func() { committed <- x.reports.run(ctx) }()
	err := x.send(ctx, st, received, committed)
	cancel()
	return err
}

func (x *session) send(ctx context.Context, st stream, received, committed <-chan error) error {
	beat := time.NewTicker(x.server.o.Heartbeat)
	defer beat.Stop()
	x.markSelf()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case err := <-committed:
			return err
		case <-beat.C:
			if time.Since(x.lastSeen()) > 3*x.server.o.Heartbeat {
				return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: nothing heard for %s", x.cluster, 3*x.server.o.Heartbeat)
			}
			if err := st.Send(heartbeat()); err != nil {
				return err
			}
		case <-x.wake:
			if err := x.act(ctx, st, x.takeDirty()); err != nil {
				return err
			}
		}
	}
}

func (x *session) markSelf() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func heartbeat() *agentv1.ConnectResponse {
	return &agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Heartbeat{Heartbeat: &agentv1.Heartbeat{SentMillis: time.Now().UnixMilli()}}}
}

func (x *session) act(ctx context.Context, st stream, dirty int) error {
	if dirty&dirtyFenced != 0 {
		return fleet.Errorf(fleet.ErrStale, "cluster %s: a newer session took over", x.cluster)
	}
	if dirty&dirtyDrain != 0 {
		_ = st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Drain{Drain: &agentv1.Drain{ReconnectAfterMillis: 500, Reason: "the hub is stopping"}}})
		return fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping; connect again")
	}
	if dirty&dirtyAck != 0 {
		if err := x.sendStatusAck(st); err != nil {
			return err
		}
	}
	if dirty&dirtyQuery != 0 {
		if err := x.sendQueries(st); err != nil {
			return err
		}
	}
	if dirty&dirtyDesired != 0 {
		return x.sendDesired(ctx, st)
	}
	return nil
}

func (x *session) sendStatusAck(st stream) error {
	seq, ok := x.reports.takeAck()
	if !ok {
		return nil
	}
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_StatusAck{StatusAck: &agentv1.StatusAck{Sequence: seq}}})
}

// receive is the receiving goroutine.
func (x *session) receive(st stream) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		x.seen.Store(time.Now().UnixNano())
		switch f := m.GetFrame().(type) {
		case *agentv1.ConnectRequest_Ack:
			if f.Ack.GetEpoch() == x.epoch {
				x.reports.ack(f.Ack)
			}
		case *agentv1.ConnectRequest_Status:
			if f.Status.GetEpoch() != x.epoch {
				continue
			}
			if err := x.reports.add(f.Status); err != nil {
				return err
			}
		case *agentv1.ConnectRequest_QueryResult:
			x.answer(f.QueryResult)
		case *agentv1.ConnectRequest_Hello:
			return fleet.Errorf(fleet.ErrInvalid, "cluster %s: a second hello", x.cluster)
		}
	}
}

type pendingQuery struct {
	q      *agentv1.Query
	sent   bool
	answer chan *agentv1.QueryResult
}

func (x *session) query(ctx context.Context, q *agentv1.Query) (*agentv1.QueryResult, error) {
	p := &pendingQuery{q: q, answer: make(chan *agentv1.QueryResult, 1)}
	x.mu.Lock()
	x.nextQuery++
	q.Id = x.nextQuery
	x.queries[q.Id] = p
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.queries, q.Id)
		x.mu.Unlock()
	}()
	x.mark(dirtyQuery)
	select {
	case <-ctx.Done():
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s: no answer: %v", x.cluster, ctx.Err())
	case r := <-p.answer:
		if r.GetError() != "" {
			return nil, fleet.Errorf(fleet.ErrPrecondition, "cluster %s: %s", x.cluster, r.GetError())
		}
		return r, nil
	}
}

func (x *session) sendQueries(st stream) error {
	x.mu.Lock()
	var due []*agentv1.Query
	for _, p := range x.queries {
		if !p.sent {
			p.sent = true
			due = append(due, p.q)
		}
	}
	x.mu.Unlock()
	for _, q := range due {
		if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Query{Query: q}}); err != nil {
			return err
		}
	}
	return nil
}

func (x *session) answer(r *agentv1.QueryResult) {
	x.mu.Lock()
	p := x.queries[r.GetId()]
	x.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case p.answer <- r:
	default:
	}
}
