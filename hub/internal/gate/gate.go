// Package gate evaluates the gates of rollouts that need the outside: it asks webhooks and Prometheus servers, and runs
// expressions over the clusters. It owns how they are asked, with which limits, and the answers until a decision has
// taken them in; it must not decide what follows from an answer, nor write anything.
package gate

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"towline.dev/towline/hub/internal/egress"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rollout/expr"
)

const (
	// maxRequests are under way at once, maxPerModule of them for one module: a slow server of one keeps nobody else waiting.
	maxRequests  = 8
	maxPerModule = 2
	// maxEvaluations of expressions run at once, each for at most evaluateIn.
	maxEvaluations = 2
	evaluateIn     = 5 * time.Second
	// maxRollouts is for how many rollouts answers are kept.
	maxRollouts = 16384
	// maxIdle is how many decisions in a row may ask for nothing until what is kept is dropped. It is more than one
	// because a decision that loses a race is made again.
	maxIdle = 3
)

// Options of Gates; Log is required.
type Options struct {
	Log *slog.Logger
	// HubID is part of the Idempotency-Key of a webhook: that of the hub and its incarnation, for a restored one gives its numbers again.
	HubID string
	HTTP  HTTP
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Env reads the environment; default os.LookupEnv.
	Env func(name string) (string, bool)
}

// HTTP limits how servers are asked.
type HTTP struct {
	// Timeout of one try of a metric query, and how often it is tried again; defaults 10s and 2. Webhooks bring their own.
	Timeout time.Duration
	Retries *int
	// RetryWait is the pause before the first retry; it doubles up to ten times that. Default 500ms.
	RetryWait time.Duration
	// RootCAs to trust; default: the system's.
	RootCAs *x509.CertPool
	// Guard says which addresses are not connected to.
	Guard egress.Guard
	// Proxy for a request; default: that of the environment.
	Proxy func(*http.Request) (*url.URL, error)
}

// Gates asks and remembers.
type Gates struct {
	o           Options
	transport   *http.Transport
	requests    chan struct{}
	evaluations chan struct{}

	mu      sync.Mutex
	clock   uint64
	modules map[fleet.ModuleRef]*asked
}

// asked is what is under way or answered for the newest rollout of a module.
type asked struct {
	number  int64
	created time.Time // a module that was deleted and put again begins to count anew
	// idle decisions since checks were last given; used at that tick of the clock.
	idle     int
	used     uint64
	requests chan struct{}
	open     map[key]*attempt
}

// key names a gate in a rollout.
type key struct {
	stage    int
	position rollout.Position
	gate     string
}

func keyOf(c rollout.Check) key { return key{stage: c.Stage, position: c.Position, gate: c.Gate} }

// attempt is one check. It counts as long as its context does: that ends with leadership, and when nobody wants to know
// any more.
type attempt struct {
	check  rollout.Check
	ctx    context.Context
	cancel context.CancelFunc
	result *rollout.GateResult
}

// New checks the options.
func New(o Options) (*Gates, error) {
	if o.Log == nil {
		return nil, fmt.Errorf("gate: Log is required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.HTTP.Timeout == 0 {
		o.HTTP.Timeout = 10 * time.Second
	}
	if o.HTTP.Retries == nil {
		two := 2
		o.HTTP.Retries = &two
	}
	if o.HTTP.RetryWait == 0 {
		o.HTTP.RetryWait = 500 * time.Millisecond
	}
	if o.HTTP.Proxy == nil {
		o.HTTP.Proxy = http.ProxyFromEnvironment
	}
	return &Gates{o: o, transport: transport(o.HTTP), requests: make(chan struct{}, maxRequests),
		evaluations: make(chan struct{}, maxEvaluations), modules: map[fleet.ModuleRef]*asked{}}, nil
}

// Run starts every check that is due and not under way, and forgets those that are not asked for any more. It calls done
// for each answer. What it needs of the run it reads before it returns.
func (g *Gates) Run(ctx context.Context, run *rollouts.Run, checks []rollout.Check, done func()) {
	a, due := g.due(ctx, run, checks)
	if len(due) == 0 {
		return
	}
	clusters := sync.OnceValue(func() []expr.Cluster { return snapshot(run, g.o.Now()) })
	for _, t := range due {
		slots, ask := g.prepare(run, a, t.check, clusters)
		go g.ask(run.Plan.ID, t, slots, ask, done)
	}
}

// Results are the answers for a rollout so far.
func (g *Gates) Results(run *rollouts.Run) []rollout.GateResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.modules[run.Module]
	if a == nil || !a.about(run) {
		return nil
	}
	if a.idle++; a.idle > maxIdle {
		g.drop(run.Module)
		return nil
	}
	var out []rollout.GateResult
	for _, t := range a.open {
		if t.result != nil && t.ctx.Err() == nil {
			out = append(out, *t.result)
		}
	}
	return out
}

// due registers the checks to start now.
func (g *Gates) due(ctx context.Context, run *rollouts.Run, checks []rollout.Check) (*asked, []*attempt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(checks) == 0 {
		g.drop(run.Module)
		return nil, nil
	}
	a := g.of(run)
	wanted := make(map[key]int, len(checks))
	for _, c := range checks {
		wanted[keyOf(c)] = c.Number
	}
	for k, t := range a.open {
		if number, ok := wanted[k]; !ok || number != t.check.Number || t.ctx.Err() != nil {
			t.cancel()
			delete(a.open, k)
		}
	}
	var due []*attempt
	now := g.o.Now()
	for _, c := range checks {
		if a.open[keyOf(c)] != nil || now.Before(c.NotBefore) {
			continue
		}
		t := &attempt{check: c}
		t.ctx, t.cancel = context.WithCancel(ctx)
		a.open[keyOf(c)] = t
		due = append(due, t)
	}
	return a, due
}

// of is what is asked for a rollout; that of another rollout of the module is dropped.
func (g *Gates) of(run *rollouts.Run) *asked {
	a := g.modules[run.Module]
	if a == nil || !a.about(run) {
		g.drop(run.Module)
		g.evict()
		a = &asked{number: run.Number, created: run.Created(), requests: make(chan struct{}, maxPerModule), open: map[key]*attempt{}}
		g.modules[run.Module] = a
	}
	g.clock++
	a.idle, a.used = 0, g.clock
	return a
}

// about reports that it is asked for that rollout.
func (a *asked) about(run *rollouts.Run) bool {
	return a.number == run.Number && a.created.Equal(run.Created())
}

// drop ends what is under way for a module and forgets its answers.
func (g *Gates) drop(ref fleet.ModuleRef) {
	a := g.modules[ref]
	if a == nil {
		return
	}
	for _, t := range a.open {
		t.cancel()
	}
	delete(g.modules, ref)
}

// evict makes room: the rollout that was longest not asked for goes. If it comes again, it is asked again.
func (g *Gates) evict() {
	if len(g.modules) < maxRollouts {
		return
	}
	var oldest fleet.ModuleRef
	least := g.clock + 1
	for ref, a := range g.modules {
		if a.used < least {
			oldest, least = ref, a.used
		}
	}
	g.drop(oldest)
}

// prepare makes the function that answers a check, and the slots that it must have.
func (g *Gates) prepare(run *rollouts.Run, a *asked, c rollout.Check, clusters func() []expr.Cluster) ([]chan struct{}, func(context.Context) expr.Answer) {
	network, processor := []chan struct{}{a.requests, g.requests}, []chan struct{}{g.evaluations}
	spec, stage := find(run.Plan, c)
	switch {
	case spec.Webhook != nil:
		q := question{Rollout: run.Plan.ID.String(), Module: run.Module.String(), Revision: run.Plan.Revision, Stage: stage,
			Position: string(c.Position), Gate: c.Gate, Check: c.Number, of: run.Record.GetModuleUid()}
		return network, func(ctx context.Context) expr.Answer { return g.webhook(ctx, spec.Webhook, q) }
	case spec.Metric != nil:
		return network, func(ctx context.Context) expr.Answer { return g.metric(ctx, spec.Metric) }
	case spec.Expression != nil:
		all := clusters()
		r := expr.Rollout{ID: run.Plan.ID.String(), Module: run.Module.String(), Revision: run.Plan.Revision, Stage: stage}
		return processor, func(ctx context.Context) expr.Answer {
			ctx, cancel := context.WithTimeout(ctx, evaluateIn)
			defer cancel()
			return expr.Fleet(ctx, spec.Expression, all, r)
		}
	}
	return nil, func(context.Context) expr.Answer {
		return failure("the rollout's plan has no such gate")
	}
}

// find is what the plan says of a check's gate, and the name of its stage. Gates of a rollback are those before a stage.
func find(p *rollout.Plan, c rollout.Check) (*rollout.Gate, string) {
	if c.Stage < 0 || c.Stage >= len(p.Stages) {
		return &rollout.Gate{}, ""
	}
	st := &p.Stages[c.Stage]
	list := st.Before
	if c.Position == rollout.After {
		list = st.After
	}
	for i := range list {
		if list[i].Name == c.Gate {
			return &list[i], st.Name
		}
	}
	return &rollout.Gate{}, st.Name
}

// snapshot is the members as expressions see them: not those that are gone from the fleet or have left the module.
func snapshot(run *rollouts.Run, now time.Time) []expr.Cluster {
	in := run.Input(now)
	out := make([]expr.Cluster, 0, len(run.Observed))
	for i := range run.Observed {
		o := &run.Observed[i]
		st := rollout.ClusterOf(in, i)
		if o.Gone || o.Removed || st.State == rollout.ClusterRemoved {
			continue
		}
		c := expr.Cluster{Name: string(st.Cluster), Stage: st.Stage, State: st.State.String(), Ready: o.Ready, Connected: o.Connected,
			Revision: o.Revision}
		if i < len(run.Labels) {
			c.Labels = run.Labels[i]
		}
		out = append(out, c)
	}
	return out
}

// ask waits for its slots, asks, and keeps the answer if it is still wanted.
func (g *Gates) ask(id fleet.RolloutID, t *attempt, slots []chan struct{}, ask func(context.Context) expr.Answer, done func()) {
	for _, s := range slots {
		select {
		case s <- struct{}{}:
			defer func() { <-s }()
		case <-t.ctx.Done():
			return
		}
	}
	var answer expr.Answer
	if err := guard.Run(func() error {
		answer = ask(t.ctx)
		return nil
	}); err != nil {
		g.o.Log.Error("a gate panicked; it counts as one that cannot be asked", "rollout", id.String(), "gate", t.check.Gate, "stack", guard.Stack(err))
		answer = failure("stopped by a bug in the hub; its log has the details")
	}
	if g.keep(t, answer) {
		g.o.Log.Debug("gate answered", "rollout", id.String(), "gate", t.check.Gate, "check", t.check.Number,
			"outcome", string(answer.Outcome), "message", answer.Message)
		done()
	}
}

func (g *Gates) keep(t *attempt, answer expr.Answer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.ctx.Err() != nil {
		return false
	}
	c := t.check
	t.result = &rollout.GateResult{Stage: c.Stage, Position: c.Position, Gate: c.Gate, Number: c.Number, At: g.o.Now(),
		Outcome: answer.Outcome, Message: answer.Message, Value: answer.Value}
	return true
}

// failure is the outcome Error.
func failure(format string, args ...any) expr.Answer {
	return expr.Answer{Outcome: rollout.GateError, Message: fmt.Sprintf(format, args...)}
}
