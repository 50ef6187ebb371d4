package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/agent/internal/desired"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/wire"
)

const (
	// protocol is the level of towline.agent.v1 that this agent speaks.
	protocol = 1
	// helloTimeout bounds dial, hello and welcome together.
	helloTimeout = 10 * time.Second
	// saveTimeout bounds what is saved while the hub waits for a sign of life: the API server that has the state may hang.
	saveTimeout = 5 * time.Second
	// farewell bounds what is still sent when the agent stops.
	farewell         = time.Second
	defaultHeartbeat = 10 * time.Second
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = time.Minute
	// maxAway is how long a hub may keep its agents away, whatever number it says: the largest is 49 days.
	maxAway = 5 * time.Minute
)

// fromHub is a time that the hub says.
func fromHub(millis uint32, most time.Duration) time.Duration {
	return min(time.Duration(millis)*time.Millisecond, most)
}

// session is one stream. One goroutine receives, one sends, one accepts indexes; between them are the newest value of
// each kind and a one-slot signal.
type session struct {
	l       *Loop
	client  agentv1.AgentServiceClient
	stream  agentv1.AgentService_ConnectClient
	cancel  context.CancelCauseFunc
	welcome *agentv1.Welcome
	period  time.Duration
	lineage desired.Lineage
	stale   string            // why no index of this session is taken
	foreign string            // why no order to leave the fleet is taken: it is of another hub than the agent follows
	began   time.Time         // of this session
	heard   atomic.Int64      // when the hub was heard last: nanoseconds since it began, by the clock that nobody sets
	wake    chan struct{}     // for the sender
	offer   chan struct{}     // for the accepter
	asking  chan struct{}     // slots for queries under way
	told    []fleet.Condition // the sender's: what the hub knows of the cluster as a whole
	can     fleet.Digest      // the sender's: what the hub knows of what charts may ask of the cluster

	mu      sync.Mutex
	index   *agentv1.Index
	move    *agentv1.Move // stands for the index, which is not made of it yet
	leave   *agentv1.Leave
	ack     *agentv1.Ack
	answers []*agentv1.QueryResult
	hints   hints
	marked  []marked      // which syncs that are on their way are traced
	coming  secretsOffer  // of which not all has come yet
	secrets *secretsOffer // all of them, to be taken; nil: nothing is
	// taken is what the index results in that was accepted last in this session. It is the accepter's.
	taken []byte
}

// once has one session, from the dial to its end.
func (l *Loop) once(ctx context.Context, addr string) end {
	if l.o.Prepare != nil {
		if err := l.o.Prepare(ctx); err != nil {
			return end{err: err, unprepared: true}
		}
	}
	select {
	case <-l.o.Renewed: // this connection has the new certificate
	default:
	}
	conn, err := l.o.Dial(addr)
	if err != nil {
		return end{err: err}
	}
	defer conn.Close()
	// The session outlives ctx by the farewell.
	sctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(2*farewell, func() { cancel(ctx.Err()) })
	})
	defer stop()
	s := &session{l: l, client: agentv1.NewAgentServiceClient(conn), cancel: cancel, wake: make(chan struct{}, 1),
		offer: make(chan struct{}, 1), asking: make(chan struct{}, maxQueries), hints: newHints()}
	if err := s.open(ctx, sctx); err != nil {
		return end{err: err}
	}
	opened := time.Now()
	l.enter("connected", slog.LevelInfo, "connected to the hub", "hub", addr, "epoch", s.welcome.GetEpoch())
	disconnected := l.o.Meter.Connected()
	err = s.run(ctx, sctx)
	disconnected()
	return end{err: err, lived: time.Since(opened), spread: fromHub(s.welcome.GetReconnectSpreadMillis(), maxAway)}
}

// open says hello and waits for the welcome.
func (s *session) open(ctx, sctx context.Context) error {
	late := time.AfterFunc(helloTimeout, func() {
		s.cancel(fleet.Errorf(fleet.ErrUnavailable, "no welcome from the hub within %s", helloTimeout))
	})
	defer late.Stop()
	stop := context.AfterFunc(ctx, func() { s.cancel(ctx.Err()) }) // nothing to say farewell to yet
	defer stop()
	var err error
	if s.stream, err = s.client.Connect(sctx); err != nil {
		return s.cause(sctx, err)
	}
	lineage, generation, digest := s.l.o.Desired.Position()
	s.told = s.l.o.Conditions.All()
	hello := &agentv1.Hello{
		MinProtocol: protocol, MaxProtocol: protocol, Features: s.features(), AgentVersion: s.l.o.AgentVersion, KubernetesVersion: cmp.Or(s.l.o.Capabilities.Told().GetKubernetesVersion(), s.l.o.KubernetesVersion),
		ClusterUid: s.l.o.ClusterUID, InstanceId: s.l.instance,
		HubId: lineage.HubID, Incarnation: lineage.Incarnation, Generation: generation, Digest: digest.Bytes(),
		StatusDigest: s.l.o.Reports.AckedDigest().Bytes(), StatusSeen: s.l.o.Reports.AckedSeen(), Conditions: wire.ConditionsToProto(s.told), SealingKey: s.l.o.SealingKey}
	if marks := s.l.o.Desired.Marks(); lineage != (desired.Lineage{}) {
		hello.LastEpoch = marks.Epoch
		if marks.Boot > 0 {
			hello.Boot = &agentv1.Boot{Number: marks.Boot, Id: marks.BootID}
		}
	}
	err = s.stream.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Hello{Hello: hello}})
	if err != nil && !errors.Is(err, io.EOF) {
		return s.cause(sctx, err)
	}
	for s.welcome == nil {
		frame, err := s.stream.Recv()
		if err != nil {
			return s.cause(sctx, err)
		}
		s.welcome = frame.GetWelcome()
	}
	late.Stop()
	return s.greet(sctx, lineage)
}

// goneBy reports that the agent goes by what the hub says: its store is neither older than the cluster nor another one.
func (s *session) goneBy() bool { return s.stale == "" && s.foreign == "" }

// greet judges the welcome.
func (s *session) greet(ctx context.Context, held desired.Lineage) error {
	w := s.welcome
	switch {
	case w.GetProtocol() != protocol:
		return fleet.Errorf(fleet.ErrInvalid, "the hub picked protocol %d, this agent speaks %d; update the older one", w.GetProtocol(), protocol)
	case w.GetEpoch() == 0 || w.GetHubId() == "" || w.GetIncarnation() == "":
		return fleet.Errorf(fleet.ErrInvalid, "the hub's welcome lacks the epoch, its id or its incarnation")
	}
	s.lineage = desired.Lineage{HubID: w.GetHubId(), Incarnation: w.GetIncarnation()}
	if w.GetSucceeds() != "" && w.GetSucceeds() == held.Incarnation {
		return s.succeed(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if held != (desired.Lineage{}) && s.lineage != held {
		s.foreign = fmt.Sprintf("hub %s, store %s, is not the one that the agent follows (hub %s, store %s): the cluster does not leave the fleet on its word; join again if that is meant",
			s.lineage.HubID, s.lineage.Incarnation, held.HubID, held.Incarnation)
	}
	marks := s.l.o.Desired.Marks()
	switch {
	case w.GetRegressed() != "":
		s.stale = w.GetRegressed()
	case w.GetEpoch() <= marks.Epoch && s.lineage == held:
		s.stale = fmt.Sprintf("the hub gave this session epoch %d after %d: its store is older than the cluster", w.GetEpoch(), marks.Epoch)
	}
	marks.Epoch, marks.Boot, marks.BootID = w.GetEpoch(), w.GetBoot().GetNumber(), w.GetBoot().GetId()
	if s.stale != "" {
		s.l.o.Log.Error("the hub regressed; what was accepted before stays", "reason", s.stale)
	} else {
		if err := s.l.o.Desired.SaveMarks(ctx, marks); err != nil {
			s.l.o.Log.Warn("the state of the session is not saved; it will be tried again", "error", err)
		}
	}
	if s.period = fromHub(w.GetHeartbeatMillis(), maxHeartbeat); s.period <= 0 {
		s.period = defaultHeartbeat
	}
	s.period = max(s.period, minHeartbeat)
	if s.l.o.TrustCAs != nil && len(w.GetCa()) > 0 && s.goneBy() {
		if err := s.l.o.TrustCAs(ctx, w.GetCa()); err != nil {
			s.l.o.Log.Warn("the hub's new CA is not taken", "error", err)
		}
	}
	s.l.learn(w.GetHubs())
	s.can, _ = fleet.DigestFromBytes(w.GetCapabilities()) // of others it is told
	// Another store may not know why the agent was frozen.
	if s.goneBy() {
		s.l.thaw(ctx)
	}
	s.began = time.Now()
	return nil
}

// succeed has the agent go on with the restored store of its hub from the next session on, in which it begins as after a new join. It
// returns why the session ends.
func (s *session) succeed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := s.l.o.Desired.Succeed(ctx, s.lineage); err != nil {
		s.l.o.Log.Error("the hub's store is not followed; what was accepted before stays", "error", err)
		return err
	}
	s.l.o.Log.Warn("the hub's store was restored from a backup; the agent follows it from now on", "store", s.lineage.Incarnation)
	return fleet.Errorf(fleet.ErrUnavailable, "the hub's store was restored; connecting again")
}

// cause prefers the reason for which the session was canceled over what gRPC says of it.
func (s *session) cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// run is the sending goroutine. It ends the session when any part of it ends, and waits for the others.
func (s *session) run(ctx, sctx context.Context) error {
	s.l.o.Reports.Begin(s.welcome.GetEpoch(), s.welcome.GetStatusKnown(), int(s.welcome.GetMaxStatusBytes()))
	defer s.l.o.Reports.End()
	received := make(chan error, 1)
	var parts sync.WaitGroup
	parts.Go(func() { received <- s.receive() })
	parts.Go(func() { s.accept(sctx) })
	err := s.send(ctx, sctx, received)
	s.cancel(err)
	parts.Wait()
	return err
}

// send sends what is due until the session ends.
func (s *session) send(ctx, sctx context.Context, received <-chan error) error {
	beat := time.NewTicker(s.period)
	defer beat.Stop()
	for {
		wait, err := s.flush()
		if err != nil {
			return s.broken(sctx, received, err)
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return s.farewell(ctx, sctx, received)
		case <-sctx.Done():
			return context.Cause(sctx)
		case err := <-received:
			return s.cause(sctx, err)
		case <-s.l.o.Renewed:
			return errRenewed
		case <-beat.C:
			if err := s.beat(sctx); err != nil {
				return s.broken(sctx, received, err)
			}
		case <-s.wake:
		case <-s.l.o.Reports.C():
		case <-s.l.o.Conditions.Changed():
		case <-s.l.o.Capabilities.Changed():
		case <-due:
		}
	}
}

// beat shows life and looks for that of the hub.
func (s *session) beat(ctx context.Context) error {
	if silent := time.Since(s.began) - time.Duration(s.heard.Load()); silent > 3*s.period {
		return fleet.Errorf(fleet.ErrUnavailable, "nothing heard from the hub for %s", silent.Round(time.Second))
	}
	if !s.l.o.Reports.Pending() {
		s.l.remember(ctx)
	}
	return s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Heartbeat{Heartbeat: &agentv1.Heartbeat{SentMillis: time.Now().UnixMilli()}}})
}

// flush sends the conditions, the capabilities, the acknowledgement, the answers and the status frames that are due; wait says when more is.
func (s *session) flush() (wait time.Duration, err error) {
	if now := s.l.o.Conditions.All(); !slices.Equal(now, s.told) {
		s.told = now
		frame := &agentv1.Conditions{Conditions: wire.ConditionsToProto(now)}
		if err := s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Conditions{Conditions: frame}}); err != nil {
			return 0, err
		}
	}
	if err := s.tellCapabilities(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	ack, answers := s.ack, s.answers
	s.ack, s.answers = nil, nil
	s.mu.Unlock()
	if ack != nil {
		s.l.o.Meter.Acked(telemetry.AnswerOf(ack.GetCode() != "", len(ack.GetRefused()) > 0))
		if err := s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Ack{Ack: ack}}); err != nil {
			return 0, err
		}
	}
	for _, a := range answers {
		if err := s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_QueryResult{QueryResult: a}}); err != nil {
			return 0, err
		}
	}
	for {
		frame, wait := s.l.o.Reports.Next(time.Now())
		if frame == nil {
			return wait, nil
		}
		if err := s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: frame}}); err != nil {
			return 0, err
		}
	}
}

// tellCapabilities sends what charts may ask of the cluster, if the hub takes that and has something else.
func (s *session) tellCapabilities() error {
	now := s.l.o.Capabilities.Told()
	if now == nil { // they are not read yet
		return nil
	}
	digest, err := fleet.DigestFromBytes(now.GetDigest())
	if err != nil || digest == s.can || !s.welcome.GetTakesCapabilities() {
		return nil
	}
	s.can = digest
	return s.put(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Capabilities{Capabilities: now}})
}

// put sends one frame. A peer that takes none for three heartbeats is dead.
func (s *session) put(frame *agentv1.ConnectRequest) error {
	stuck := time.AfterFunc(3*s.period, func() {
		s.cancel(fleet.Errorf(fleet.ErrUnavailable, "the hub took nothing for %s", 3*s.period))
	})
	defer stuck.Stop()
	err := s.stream.Send(frame)
	if err == nil {
		s.l.o.Meter.Sent(frame)
	}
	return err
}

// broken finds out why a send failed: gRPC tells the receiver.
func (s *session) broken(ctx context.Context, received <-chan error, err error) error {
	if !errors.Is(err, io.EOF) {
		return s.cause(ctx, err)
	}
	select {
	case err = <-received:
	case <-time.After(farewell):
	}
	return s.cause(ctx, err)
}

// farewell ends the stream in order: what is due goes out, and the hub closes it.
func (s *session) farewell(ctx, sctx context.Context, received <-chan error) error {
	if _, err := s.flush(); err == nil {
		_ = s.stream.CloseSend() // the hub learns of the end anyway
	}
	select {
	case <-received:
	case <-sctx.Done():
	case <-time.After(farewell):
	}
	return ctx.Err()
}
