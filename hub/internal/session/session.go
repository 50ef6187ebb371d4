package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/wire"
)

// Marks say what a session has to look at again.
const (
	dirtyDesired = 1 << iota
	dirtyFenced
	dirtyDrain
	dirtyAck
	dirtyQuery
	dirtyAnswer
	dirtySecrets
	dirtyBeat
	dirtyDue
)

type session struct {
	server  *Server
	cluster fleet.ClusterName
	epoch   uint64
	opened  registry.Opened
	hello   *agentv1.Hello
	log     logger
	began   time.Time
	seen    atomic.Int64  // when the last frame came, as age
	sending atomic.Int64  // since when a send waits, as age; 0: none does
	over    chan struct{} // closed when it has ended
	doubt   chan struct{} // the cluster's record has changed: it may be revoked or locked
	reports *reports
	pace    pace
	grants  grants
	traces  *traces // nil: there is no Tracer
	sender  errand
	// machine, known, the desired records as they were read last, and due, which has the machine tick, are the sender's once it has begun.
	machine machine
	known   desired
	due     *time.Timer
	// tellsAll says that nothing of known is Elsewhere, which is so by the records of modules and catalogs, too.
	tellsAll atomic.Bool
	// unread says that records of known cannot be read: what is held of these follows from the holds alone.
	unread atomic.Bool
	// sentSecrets says what secrets the agent was sent last; it is the sender's. usesSecrets: its modules use some.
	sentSecrets string
	usesSecrets atomic.Bool
	// scopes are those of the secrets that were sent; keepsBack: what is for other labels than modules are there by is not sent yet.
	scopes    map[fleet.ModuleRef]fleet.SecretScope
	keepsBack bool

	mu        sync.Mutex
	dirty     int
	replied   *answer // the newest, until the machine has seen it
	queries   map[uint64]*pendingQuery
	nextQuery uint64
}

type logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

func newSession(s *Server, c fleet.ClusterName, o registry.Opened, hello *agentv1.Hello) *session {
	x := &session{server: s, cluster: c, epoch: o.Epoch, opened: o, hello: hello, over: make(chan struct{}), doubt: make(chan struct{}, 1),
		log: s.o.Log.With("cluster", string(c), "epoch", o.Epoch), queries: map[uint64]*pendingQuery{}}
	x.reports, x.pace, x.known = newReports(x), newPace(), desired{log: x.log, stale: true, coarse: !slices.Contains(hello.GetFeatures(), wire.FeatureObjectHolds),
		unordered: !slices.Contains(hello.GetFeatures(), wire.FeatureDependsOn), listless: !slices.Contains(hello.GetFeatures(), wire.FeatureConfirmedList)}
	x.began = s.clock()
	if s.o.Tracer != nil {
		x.traces = &traces{}
	}
	x.dirty = dirtyDesired
	return x
}

// lastSeen is for people.
func (x *session) lastSeen() time.Time { return time.Now().Add(-x.silence()) }

// silence is for how long nothing has been heard.
func (x *session) silence() time.Duration { return x.age() - time.Duration(x.seen.Load()) }

// age is for how long there is the session, by the clock that nobody sets. Whether the agent is there is judged by it: a
// step of the machine's clock must not end the sessions of the whole fleet, nor keep those of dead agents.
func (x *session) age() time.Duration { return x.server.clock().Sub(x.began) }

// lasted reports that there has been the session for as long as it takes to notice that an agent is dead.
func (x *session) lasted() bool { return x.age() >= 3*x.server.o.Heartbeat }

// mark never blocks; marks coalesce.
func (x *session) mark(bits int) {
	x.mu.Lock()
	x.dirty |= bits
	x.mu.Unlock()
	x.sender.call()
}

func (x *session) takeDirty() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.dirty
	x.dirty = 0
	return d
}

type stream = grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]

// run ends the session when any part of it ends, or when the agent is silent or reads no more. A send that waits for the
// agent ends only with the stream, and that ends when run returns: so run itself never sends after the welcome.
func (x *session) run(ctx context.Context, st stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := aside(&x.server.parts, func() error { return x.greet(ctx, st) }); err != nil {
		return err
	}
	defer x.traceEnd()
	ended := make(chan error, 3)
	end := func(err error) { ended <- err }
	// What goes wrong with one cluster ends its session, not the hub. Receiver and sender may wait for the stream, which
	// ends when the handler returns; the committer ends with ctx. The server waits for all of them before it is closed.
	x.server.parts.Go(func() { end(guard.Run(func() error { return x.receive(ctx, st) })) })
	x.sender.begin(&x.server.parts, func() error { return x.send(ctx, st) }, end)
	defer x.sender.end()
	x.reports.committer.begin(&x.server.parts, func() error { return x.reports.commitNew(ctx) }, end)
	defer x.reports.committer.end()
	x.sender.call()
	look := time.NewTimer(x.server.untilBeat())
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return x.because(ctx, err)
		case <-look.C:
			if err := x.stalled(); err != nil {
				return err
			}
			x.mark(dirtyBeat)
			look.Reset(x.server.untilBeat())
		case <-x.doubt:
			if err := aside(&x.server.parts, func() error { return x.entitled(ctx, 0) }); err != nil {
				return err
			}
		}
	}
}

// greet welcomes the agent.
func (x *session) greet(ctx context.Context, st stream) (err error) {
	if err := x.reports.conditions(x.hello.GetConditions()); err != nil {
		return err
	}
	x.machine, err = x.welcome(ctx, st)
	return err
}

// because is why a session ends, as its agent is to know it. A report that counts no more may be the first sign of a lock, as at another
// hub, which the agent would take for a refusal without a reason when it comes back: a removal goes on then.
func (x *session) because(ctx context.Context, err error) error {
	if !errors.Is(err, fleet.ErrStale) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, x.server.o.Heartbeat)
	defer cancel()
	newest, unread := x.server.o.Store.Barrier(ctx)
	if unread != nil {
		return err
	}
	if said := aside(&x.server.parts, func() error { return x.entitled(ctx, newest) }); errors.Is(said, fleet.ErrDenied) {
		return said
	}
	return err
}

// entitled says why the agent may not have the session any more, at the revision or later. It is asked beside the sender, who may wait for
// an agent that reads nothing.
func (x *session) entitled(ctx context.Context, at int64) error {
	return x.server.o.Store.View(ctx, at, func(r store.Reader) error {
		// A record that cannot be read entitles to what it did before.
		rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(x.cluster))
		if !ok && store.DamageOf(r, store.ClusterKey(x.cluster)) != nil {
			return nil
		}
		s, _, _ := store.Get[*storev1.SessionRecord](store.Untracked(r), store.SessionKey(x.cluster))
		return cmp.Or(x.dismissed(rec), x.superseded(s))
	})
}

// superseded says why the session counts no more by its own record, or nil; nil: it does.
func (x *session) superseded(rec *storev1.SessionRecord) error {
	switch {
	case rec.GetEpoch() > x.epoch:
		return fleet.Errorf(fleet.ErrStale, "cluster %s: a newer session took over", x.cluster)
	case rec.GetEpoch() == x.epoch && rec.GetEnded() != nil: // its cluster was locked, and is not any more
		return fleet.Errorf(fleet.ErrStale, "cluster %s: the session was ended; connect again", x.cluster)
	}
	return nil
}

// dismissed says why the agent of a cluster with this record, or nil, may have no session; nil: it may.
func (x *session) dismissed(rec *storev1.ClusterRecord) error {
	switch {
	case rec != nil && rec.GetLock() != nil:
		return registry.Locked(x.cluster)
	case rec != nil && !rec.GetRevoked():
		return nil
	case rec == nil || rec.GetRemoving() != "":
		return registry.Revoked(rec, fleet.Errorf(fleet.ErrDenied, "cluster %s was removed from the hub; its agent must join again: towline cluster join %s", x.cluster, x.cluster))
	}
	return registry.Revoked(rec, fleet.Errorf(fleet.ErrDenied, "cluster %s is revoked; its agent must join again: towline cluster join %s --reissue", x.cluster, x.cluster))
}

// stalled says why the agent counts as lost.
func (x *session) stalled() error {
	patience := 3 * x.server.o.Heartbeat
	if x.silence() > patience && !x.reports.waits.Load() { // what is not read is not heard
		return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: nothing heard for %s", x.cluster, patience)
	}
	if since := x.sending.Load(); since != 0 && x.age()-time.Duration(since) > patience {
		return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: the agent has read nothing for %s", x.cluster, patience)
	}
	return nil
}

// timed is a stream that tells the session since when a send waits.
type timed struct {
	stream
	x *session
}

// Send notes when it began.
func (t timed) Send(m *agentv1.ConnectResponse) error {
	began := t.x.age()
	t.x.sending.Store(max(int64(began), 1))
	defer t.x.sending.Store(0)
	err := t.stream.Send(m)
	if err == nil {
		t.x.server.o.Meter.Sent(m, t.x.age()-began)
	}
	return err
}

// send is a round of the sender.
func (x *session) send(ctx context.Context, plain stream) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	st, marks := timed{plain, x}, x.takeDirty()
	if marks&dirtyBeat != 0 {
		if err := st.Send(heartbeat()); err != nil {
			return err
		}
		if x.keepsBack {
			marks |= dirtySecrets
		}
	}
	if marks&dirtyDue != 0 {
		if err := x.tell(ctx, st, x.machine.tick(x.age())); err != nil {
			return err
		}
	}
	if marks &^= dirtyBeat | dirtyDue; marks != 0 {
		if err := x.act(ctx, st, marks); err != nil {
			return err
		}
	}
	x.await()
	return nil
}

// await has the machine tick when it wants to.
func (x *session) await() {
	at, waits := x.machine.wake()
	switch {
	case !waits && x.due != nil:
		x.due.Stop()
	case waits && x.due == nil:
		x.due = time.AfterFunc(at-x.age(), func() { x.mark(dirtyDue) })
	case waits:
		x.due.Reset(at - x.age())
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
		return errDraining()
	}
	if err := x.sendStatusAck(st); err != nil {
		return err
	}
	if dirty&dirtyQuery != 0 {
		if err := x.sendQueries(st); err != nil {
			return err
		}
	}
	return x.sync(ctx, st, dirty)
}

// sync gives the machine what is new, in the store first: the agent's answer may set free what the store has now. Secrets go before the
// index that may use them, and are read after it, so that no revision comes to an agent before the values that were set before it.
func (x *session) sync(ctx context.Context, st stream, dirty int) error {
	var f *frame
	if dirty&dirtyDesired != 0 {
		var err error
		if f, err = x.look(ctx); err != nil {
			return err
		}
	}
	if dirty&(dirtyDesired|dirtySecrets) != 0 {
		if err := x.sendSecrets(ctx, st); err != nil {
			return err
		}
	}
	if err := x.tell(ctx, st, f); err != nil {
		return err
	}
	if a, ok := x.takeAnswer(); ok {
		if x.machine.awaits(a) {
			x.server.o.Meter.Acked(a.whole, a.refused, x.age()-x.machine.sentAt)
			x.traceAnswer(a)
		}
		return x.tell(ctx, st, x.machine.answered(a, x.age()))
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
func (x *session) receive(ctx context.Context, st stream) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err() // the session is over: nobody acts on what it still hears
		}
		x.seen.Store(int64(x.age()))
		x.server.o.Meter.Received(m)
		if err := x.pace.wait(ctx, m); err != nil {
			return err
		}
		switch f := m.GetFrame().(type) {
		case *agentv1.ConnectRequest_Ack:
			if f.Ack.GetEpoch() == x.epoch {
				x.acked(f.Ack)
			}
		case *agentv1.ConnectRequest_Status:
			if f.Status.GetEpoch() != x.epoch {
				continue
			}
			if err := x.reports.add(f.Status); err != nil {
				return err
			}
			if err := x.reports.room(ctx); err != nil {
				return err
			}
			x.seen.Store(int64(x.age()))
		case *agentv1.ConnectRequest_Capabilities:
			if err := x.reports.capabilities(f.Capabilities); err != nil {
				return err
			}
		case *agentv1.ConnectRequest_Conditions:
			if err := x.reports.conditions(f.Conditions.GetConditions()); err != nil {
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
	if q.GetSync() != nil {
		s, err := wire.SyncFromProto(q.GetSync())
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", x.cluster, err)
		}
		defer x.grants.lend(&s)()
	}
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
	case <-x.over: // the agent's next session knows nothing of the question
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s: its agent went away before it answered", x.cluster)
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
