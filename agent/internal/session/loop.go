// Package session keeps the agent's one stream to its hub: dial, hello, receive, send, and dial again. It owns the
// connection's life and what goes over it; it must not decide what an index means (desired) nor apply it (worker).
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/meter"
	"towline.dev/towline/agent/internal/report"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracing"
)

// Worker carries out what is desired.
type Worker interface {
	// Expect says that a Set with something to write is being made ready. It returns at once.
	Expect(ctx context.Context)
	Set(a fleet.Assemblage, strays []fleet.Sync)
	Freeze(frozen bool, why string)
	Leave(order fleet.Leave)
}

// Options are what a Loop needs. Hubs, Dial, Desired, Reports, Worker and ClusterUID are required.
type Options struct {
	// Hubs are addresses, tried in turn, beginning with any: agents of a fleet spread over several hubs.
	Hubs []string
	// Prepare is called before each dial; an error says that the agent has no identity to connect with. It may be nil.
	Prepare func(ctx context.Context) error
	// Dial makes a connection to one of them; it does not wait for it.
	Dial func(addr string) (*grpc.ClientConn, error)
	// Renewed carries a signal when the connection should be made anew: with a new certificate, or because Prepare has something to do.
	Renewed <-chan struct{}
	// StateAgain carries a signal when the agent's state may be writable again after it was not; nil: nobody tells.
	StateAgain <-chan struct{}
	// TrustCAs takes the hub's CAs when they change.
	TrustCAs func(ctx context.Context, ca [][]byte) error
	Desired  *desired.Store
	Reports  *report.Reporter
	// Meter counts what goes on; it may be nil.
	Meter *meter.Meter
	// Tracer sends spans of what goes on, and Marks says in which traces it belongs; both may be nil.
	Tracer *tracing.Tracer
	Marks  *tracing.Marks
	// Conditions are what holds for the cluster as a whole; none by default.
	Conditions *report.Conditions
	// Capabilities are what charts may ask of the cluster, as far as they are known; none by default.
	Capabilities *report.Capabilities
	Worker       Worker
	// Get reads one live object, with secrets masked.
	Get func(ctx context.Context, e fleet.BundleEntry) ([]byte, error)
	// Preview says what a sync would do, with the contents that it needs.
	Preview func(ctx context.Context, s fleet.Sync, contents *desired.Borrowed) (fleet.Preview, error)
	// Events are the newest about a module's objects, or some of them, and how many older ones there are; nil: they are not told.
	Events func(ctx context.Context, m fleet.ModuleRef, only []fleet.ObjectID, limit int) ([]fleet.ClusterEvent, int, error)
	// Logs are of pods that modules have, and how many pods are left out; nil: they are not told.
	Logs func(ctx context.Context, e fleet.BundleEntry, q fleet.LogQuery) ([]fleet.PodLog, int, error)
	// SealingKey is what the hub seals secrets with for the agent, and Secrets keeps all that it has sent, durably, and returns what puts them in
	// use and then begins what goes with them; lineage is that of the index that they go with, and hub whose it is. Nil: none are taken.
	SealingKey []byte
	Secrets    func(ctx context.Context, hub string, lineage uint64, all []*agentv1.SealedSecret) (use func(begin func()), err error)
	// MayRead is nil if the cluster lets a question of this type be answered; nil: every one.
	MayRead func(what string) error

	ClusterUID, KubernetesVersion, AgentVersion string
	// MinReconnect and MaxReconnect bound the waits between tries; 200 ms and 60 s by default.
	MinReconnect, MaxReconnect time.Duration
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
	// Random gives numbers in [0, 1); math/rand by default.
	Random func() float64
}

// Loop has one session after the other.
type Loop struct {
	o        Options
	instance string
	tries    *backoff.Backoff
	hub      int
	learned  []string // addresses of hubs of the same store, as the last welcome told them
	state    string
	frozen   bool // the worker was told so
}

// New checks the options.
func New(o Options) (*Loop, error) {
	if len(o.Hubs) == 0 || o.Dial == nil || o.Desired == nil || o.Reports == nil || o.Worker == nil || o.ClusterUID == "" {
		return nil, fleet.Invalid("session", "Hubs, Dial, Desired, Reports, Worker and ClusterUID are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Conditions == nil {
		o.Conditions = report.NewConditions()
	}
	if o.Capabilities == nil {
		o.Capabilities = report.NewCapabilities()
	}
	if o.Random == nil {
		o.Random = mathrand.Float64
	}
	if o.MinReconnect <= 0 {
		o.MinReconnect = 200 * time.Millisecond
	}
	if o.MaxReconnect <= 0 {
		o.MaxReconnect = fleet.MaxReconnect
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand
	// The first wait is the shortest one twice over, so that with full jitter it is MinReconnect on average.
	policy := backoff.Policy{Min: 2 * o.MinReconnect, Max: max(o.MaxReconnect, 2*o.MinReconnect), Jitter: 1}
	return &Loop{o: o, instance: hex.EncodeToString(id[:]), tries: backoff.New(policy, o.Random), hub: int(o.Random() * float64(len(o.Hubs)))}, nil
}

// ErrRestart is for Prepare: the Loop ends with the error, because its parts must be made anew.
var ErrRestart = errors.New("the agent's parts must be made anew")

// Run first works by what was accepted last, hub or no hub, then keeps a session until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	l.restore()
	for {
		end := l.once(ctx, l.next())
		l.remember(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(end.err, ErrRestart) {
			return end.err
		}
		if backoff.Wait(ctx, l.after(ctx, end)) != nil {
			return nil
		}
	}
}

// next is the address to dial: of those that it was started with, and of those that hubs have told.
func (l *Loop) next() string {
	all := slices.Concat(l.o.Hubs, l.learned)
	return all[l.hub%len(all)]
}

// maxLearned is how many addresses of a welcome are kept.
const maxLearned = 16

// learn keeps the addresses that a hub has told. The one that the session is with stays the one that is dialed first.
func (l *Loop) learn(told []string) {
	now := l.next()
	l.learned = nil
	for _, addr := range told {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" || slices.Contains(l.o.Hubs, addr) || slices.Contains(l.learned, addr) || len(l.learned) == maxLearned {
			continue
		}
		l.learned = append(l.learned, addr)
	}
	l.hub = max(slices.Index(slices.Concat(l.o.Hubs, l.learned), now), 0)
}

func (l *Loop) restore() {
	held := l.o.Desired.Held()
	if held.Frozen != "" {
		l.frozen = true
		l.o.Worker.Freeze(true, held.Frozen)
	}
	if held.Behind == "" {
		l.work(held)
	} else {
		l.o.Log.Error("nothing is written to the cluster until the hub has said what is desired", "because", held.Behind)
	}
	if held.Leaving.Objects != "" {
		l.leave(held.Leaving)
	}
}

// leave has the worker leave. All that it says of that is to be reported before it can say it.
func (l *Loop) leave(order fleet.Leave) {
	l.o.Reports.Leave()
	l.o.Worker.Leave(order)
}

// work hands over what is held. Reports are expected before the worker can make them.
func (l *Loop) work(held desired.Held) {
	l.o.Reports.Expect(held.Modules())
	l.o.Worker.Set(held.Assemblage, held.Strays)
}

// remember persists what spares the next process a full status.
func (l *Loop) remember(ctx context.Context) {
	m := l.o.Desired.Marks()
	m.Status = l.o.Reports.AckedDigest().String()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	if err := l.o.Desired.SaveMarks(ctx, m); err != nil {
		l.o.Log.Warn("the state of the session is not saved", "error", err)
	}
}

// end says how a session ended.
type end struct {
	err   error
	lived time.Duration // since the welcome; 0: there was none
	// spread is over how long the hub wants its agents to come back.
	spread time.Duration
	// unprepared says that nothing was dialed.
	unprepared bool
}

// errDrain is a planned stop of the hub.
type errDrain struct {
	after  time.Duration
	reason string
}

func (e errDrain) Error() string { return "the hub is stopping: " + e.reason }

var errRenewed = errors.New("the connection is made anew for the agent's identity")

const (
	// settled is how long a session must live to be one that a hub's planned spread, and no waits of before, hold for.
	settled = 10 * time.Second
	// worked is how long it must live for the next failure to start over with short waits: a hub that starts anew every few
	// seconds has its agents back each time. One that welcomes its agents and drops them at once is left alone for longer and longer.
	worked = time.Second
)

// after is how long to wait before the next try. It logs when the state changes, not at every try.
func (l *Loop) after(ctx context.Context, e end) time.Duration {
	if e.lived >= worked {
		l.tries.Reset()
	}
	var drain errDrain
	switch {
	case errors.Is(e.err, errRenewed):
		l.enter("renewed", slog.LevelInfo, "connecting anew for the agent's identity")
		return 0
	case errors.As(e.err, &drain):
		l.hub++
		l.enter("drain", slog.LevelInfo, "the hub is stopping; connecting again", "reason", drain.reason)
		return drain.after + time.Duration(l.o.Random()*float64(e.spread))
	case e.unprepared && !errors.Is(e.err, fleet.ErrUnavailable):
		l.hub++
		l.enter("needs join", slog.LevelError, "the agent must join again; the cluster is kept as it is", "error", e.err)
		return l.slow()
	case l.left(e.err):
		l.enter("left", slog.LevelInfo, "the cluster has left the fleet; the agent may be removed, or join again", "answer", e.err)
		return l.slow()
	case refused(e.err):
		l.hub++
		l.freeze(ctx, e.err.Error())
		l.enter("refused", slog.LevelError, "the hub refuses this agent; nothing is written to the cluster until it accepts it again", "error", e.err)
		return l.slow()
	case errors.Is(e.err, fleet.ErrUnknownUser):
		l.hub++
		l.enter("needs join", slog.LevelError, "the agent must join again; the cluster is kept as it is", "error", e.err)
		return l.slow()
	case errors.Is(e.err, fleet.ErrExists):
		l.enter("other instance", slog.LevelWarn, "another instance of this agent is connected; waiting for its end", "error", e.err)
		return min(l.slow(), 5*time.Second)
	}
	l.hub++
	l.enter("lost", slog.LevelWarn, "not connected to the hub; the cluster is kept as it is", "error", e.err)
	if e.lived >= settled && e.spread > 0 {
		return time.Duration(l.o.Random() * float64(e.spread))
	}
	return l.tries.Next()
}

// refused reports that the hub knows this agent and does not want it: it was revoked, or its cluster was copied. An
// alert before the hub has proved who it is does not count: anybody can send one.
func refused(err error) bool {
	switch code := status.Code(err); {
	case err == nil:
		return false
	case code == codes.PermissionDenied, code == codes.FailedPrecondition:
		return true
	}
	return errors.Is(err, fleet.ErrDenied) && !strings.Contains(err.Error(), "handshake failed")
}

// left reports that a refusal ends a removal: the agent was told to leave, and the hub has forgotten its cluster. A cluster that is locked or
// revoked is not forgotten, and the removal stands still. The agent that was told so may meet alerts alone afterwards, also after a restart: it stays
// frozen until it is welcome. Nor does one go on deleting that has not said of everything that it is gone: the hub waits for that, unless
// somebody had it forget the cluster at once. Where it does not know what it has, that nothing was said is not that all is gone.
func (l *Loop) left(err error) bool {
	held := l.o.Desired.Held()
	leaving := held.Leaving.Objects
	if !refused(err) || leaving == "" || fleet.HintOf(err).Unmet == fleet.PreconditionUnlocked {
		return false
	}
	gone := held.Behind == "" && len(held.Modules()) > 0 && l.o.Reports.AllRemoved()
	return gone || !l.frozen && leaving != fleet.LeaveDelete
}

func (l *Loop) slow() time.Duration {
	return l.o.MaxReconnect/2 + time.Duration(l.o.Random()*float64(l.o.MaxReconnect)/2)
}

func (l *Loop) enter(state string, level slog.Level, message string, args ...any) {
	if l.state == state {
		return
	}
	l.state = state
	l.o.Log.Log(context.Background(), level, message, args...)
}

func (l *Loop) freeze(ctx context.Context, why string) {
	l.frozen = true
	l.o.Worker.Freeze(true, why)
	if err := l.o.Desired.Freeze(ctx, why); err != nil {
		l.o.Log.Warn("that nothing may be written is not saved", "error", err)
	}
}

// thaw allows writes again: the hub has accepted the agent.
func (l *Loop) thaw(ctx context.Context) {
	if err := l.o.Desired.Freeze(ctx, ""); err != nil {
		l.o.Log.Warn("that writes are allowed again is not saved", "error", err)
	}
	if l.frozen {
		l.frozen = false
		l.o.Worker.Freeze(false, "")
	}
}
