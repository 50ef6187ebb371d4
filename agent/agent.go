// Package agent is Towline's agent for one workload cluster. It owns the composition of its parts and its command line;
// it must not do the parts' work.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/fence"
	"towline.dev/towline/agent/internal/identity"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/meter"
	"towline.dev/towline/agent/internal/reach"
	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/agent/internal/session"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/agent/internal/worker"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/tracing"
	"towline.dev/towline/pkg/version"
)

// DefaultNamespace is where the agent keeps its Lease, and its Secrets when it has no state directory.
const DefaultNamespace = fleet.AgentNamespace

// Options are what an Agent needs. Hubs is required, and at the first start JoinToken or JoinTokenFile.
type Options struct {
	// Hubs are the hub's addresses as HOST:PORT, tried in turn.
	Hubs []string
	// JoinToken, or the file that has it, which is read again and again.
	JoinToken, JoinTokenFile string
	// StateDir keeps the agent's state; empty: Secrets in Namespace.
	StateDir string
	// Policy is the file that says what the cluster accepts; empty: there is none, and everything is accepted. One that is not there
	// denies every change, but under PolicyOptional, if there has never been one.
	Policy         string
	PolicyOptional bool
	// Kubeconfig reaches the workload cluster; empty: the service account in a cluster, else kubectl's defaults.
	Kubeconfig string
	// Config reaches the workload cluster instead of Kubeconfig.
	Config *rest.Config
	// Namespace is DefaultNamespace by default.
	Namespace string
	// Dialer replaces the network, for tests.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
	// Uptime is how long the machine has been up, suspends included, where its own clock is not that of the agent: in a simulation. By
	// default the kernel says it.
	Uptime func() time.Duration
	// MinReconnect and MaxReconnect bound the waits between tries to connect; 200 ms and 60 s by default.
	MinReconnect, MaxReconnect time.Duration
	// Telemetry is where metrics, health and profiles are served; the zero value: nowhere.
	Telemetry telemetry.Listeners
	// Tracing is where spans of the work go; the zero value: nowhere. Sample does not count: agents trace what their hub does.
	Tracing tracing.Options
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
}

// Agent runs in one workload cluster.
type Agent struct {
	o      Options
	config *rest.Config
	dialer *dialer
	token  joinToken
	// unredeemed is what was logged last of a join token that waits.
	unredeemed string
	// conditions are what holds for the cluster as a whole, for whoever finds out.
	conditions *report.Conditions
	// reach says whether the cluster is seen; it lives on what the fence hears.
	reach *reach.Monitor
	// policy is the file that says what the cluster accepts; nil: none does.
	policy *policyFile
	// work is what applies to the cluster while the Lease is held.
	work  atomic.Pointer[worker.Manager]
	meter *meter.Meter // nil: nobody asks for it
	// tracer and marks, in which traces work belongs, are nil if nobody gets spans.
	tracer *tracing.Tracer
	marks  *tracing.Marks
	// started: the cluster's API server has said which cluster it is. leading: the Lease is held.
	started, leading atomic.Bool
	back             atomic.Bool // the cluster's store went back, and work was not told

	restored, twins toldFor
	refusals        apply.Refusals // of lists of Leases
}

// New checks the options and reads the files that they name. A join token that cannot be read ends only an agent that has not joined (join).
func New(o Options) (*Agent, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{o: o, config: o.Config, token: joinToken{file: o.JoinTokenFile, text: o.JoinToken, log: o.Log.With("part", "identity")}, dialer: &dialer{hubs: o.Hubs, dial: o.Dialer},
		conditions: report.NewConditions()}
	a.restored = toldFor{conditions: a.conditions, time: restoredFor}
	a.twins = toldFor{conditions: a.conditions, time: twinMemory}
	if o.Telemetry.Any() {
		a.meter = meter.New()
	}
	if o.Policy != "" {
		a.policy = &policyFile{path: o.Policy, optional: o.PolicyOptional, conditions: a.conditions, log: o.Log.With("part", "policy"), signs: make(chan struct{}, 1)}
	}
	a.reach = reach.New(reach.Options{Conditions: a.conditions, Log: o.Log.With("part", "reach")})
	var err error
	if a.config == nil {
		if a.config, err = clusterConfig(o.Kubeconfig); err != nil {
			return nil, err
		}
	}
	a.token.given()
	return a, nil
}

func (o Options) check() error {
	if len(o.Hubs) == 0 {
		return fleet.Invalid("--hub", "is required; write the hub's address for agents, such as hub.example.com:7443")
	}
	for _, hub := range o.Hubs {
		host, port, err := net.SplitHostPort(hub)
		if err != nil || host == "" || port == "" {
			return fleet.Invalidf("--hub", "%q is no HOST:PORT, such as hub.example.com:7443", hub)
		}
	}
	if o.PolicyOptional && o.Policy == "" {
		return fleet.Invalid("--policy-optional", "needs --policy")
	}
	if o.JoinToken != "" && o.JoinTokenFile != "" {
		return fleet.Invalid("--join-token", "use it or --join-token-file, not both")
	}
	return nil
}

// Run works until ctx ends. It waits for the Lease of the cluster first: only one agent of a cluster does anything.
func (a *Agent) Run(ctx context.Context) error {
	lease, store, closeStore, err := a.openState(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	if err := a.startTracing(ctx, lease); err != nil {
		return err
	}
	defer a.tracer.Stop()
	defer a.serveTelemetry(ctx)()
	guard := a.guard(store)
	store = guard
	client, err := kube.New(apply.Tuned(a.config))
	if err != nil {
		return err
	}
	c, err := a.findCluster(ctx, client)
	if err != nil {
		return quiet(ctx, err)
	}
	a.started.Store(true)
	var was state.Tenure // before this process had the Lease
	f, err := fence.New(fence.Options{Config: a.config, Identity: lease, Namespace: a.o.Namespace, Log: a.o.Log.With("part", "fence"), Clock: a.o.clock(),
		Heard: a.reach.Heard, WentBack: a.storeWentBack, Twin: a.twin, Admit: func(ctx context.Context) (epoch uint64, err error) {
			was, err = a.admit(ctx, client, store, c)
			return was.Epoch, err
		}})
	if err != nil {
		return err
	}
	a.o.Log.Info("agent started", "version", version.Version, "cluster_uid", c.uid, "kubernetes", c.version)
	ctx, stopPolicy := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { _ = a.policy.run(ctx) })
	defer following.Wait()
	defer stopPolicy()
	lead := func(ctx context.Context) error {
		if err := a.take(ctx, f, store, c); err != nil {
			return err
		}
		defer a.leads()()
		ctx, stop := context.WithCancel(ctx)
		var probing sync.WaitGroup
		probing.Go(func() { _ = guard.run(ctx) })
		defer probing.Wait()
		defer stop()
		return a.tenure(ctx, f.Check, func() error { return a.lead(ctx, f, store, c, was) })
	}
	err = a.tenures(ctx, func() error { return f.Run(ctx, lead) })
	a.o.Log.Info("agent stopped")
	return quiet(ctx, err)
}

// quiet makes no error of an ordinary stop.
func quiet(ctx context.Context, err error) error {
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// openState opens the state and says under which name this process holds the Lease: a name that stays the same over
// restarts and is never that of two processes at once, so the pod's, or one kept in the locked directory.
func (a *Agent) openState(ctx context.Context) (lease string, s state.Store, closeIt func(), err error) {
	if a.o.StateDir == "" {
		if lease, err = podName(); err != nil {
			return "", nil, nil, err
		}
		s, err = a.openSecrets()
		return lease, s, func() {}, err
	}
	dir, err := state.OpenDir(a.o.StateDir)
	if err != nil {
		return "", nil, nil, err
	}
	if lease, err = leaseName(ctx, dir); err != nil {
		_ = dir.Close()
		return "", nil, nil, err
	}
	return lease, dir, func() { _ = dir.Close() }, nil
}

func podName() (string, error) {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this pod: %w", err)
	}
	return name, nil
}

func leaseName(ctx context.Context, s state.Store) (string, error) {
	const name = "lease"
	b, err := s.Read(ctx, name)
	if err == nil && len(b) > 0 {
		return string(b), nil
	}
	if err != nil && !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt) {
		return "", err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand
	lease := "dir-" + hex.EncodeToString(id[:])
	return lease, s.Write(ctx, name, []byte(lease))
}

// Annotations of the Lease: what is desired is held against the first, and the inventory against the second.
const (
	highWaterAnnotation = "towline.dev/high-water"
	inventoryAnnotation = "towline.dev/inventory"
)

// openDesired opens what is desired, and holds it against what stood on the Lease.
func (a *Agent) openDesired(ctx context.Context, f *fence.Fence, store state.Store) (*desired.Store, error) {
	note := func(h desired.HighWater) {
		f.Note(highWaterAnnotation, h.String())
		a.conditions.Clear(fleet.ConditionStateCurrent)
	}
	held, err := desired.Open(ctx, desired.Options{State: store, Noted: note, Log: a.o.Log.With("part", "desired")})
	if err != nil {
		return nil, err
	}
	behind, err := held.Recall(ctx, f.Found().Note(highWaterAnnotation))
	if err != nil {
		a.o.Log.Warn("whether the state is older than the cluster cannot be told", "lease", highWaterAnnotation, "error", err)
	}
	switch {
	case behind:
		a.conditions.Set(fleet.Condition{Type: fleet.ConditionStateCurrent, Status: fleet.ConditionFalse, Reason: "Behind",
			Message: held.Held().Behind + "; nothing is written until the hub has said what is desired"})
	case held.HighWater().Number > 0:
		note(held.HighWater())
	}
	return held, nil
}

// lead is the agent's work while it holds the Lease. Everything in memory is made anew from the state.
func (a *Agent) lead(ctx context.Context, f *fence.Fence, store state.Store, c cluster, was state.Tenure) error {
	id, err := identity.Open(ctx, identity.Options{State: store, Dial: a.dialer.next, Token: a.token.given(), ClusterUID: c.uid,
		Version: version.Version, Log: a.o.Log.With("part", "identity")})
	if err != nil {
		return err
	}
	held, err := a.openDesired(ctx, f, store)
	if err != nil {
		return err
	}
	if err := a.join(ctx, id, held.Held()); err != nil {
		return err
	}
	a.adopt(ctx, id, held)
	acked, _ := fleet.ParseDigest(held.Marks().Status) // none: a full status is sent
	reports := report.New(acked)
	if err := a.policy.recall(ctx, store); err != nil {
		return err
	}
	hubID := belongsTo(id, held.Held())
	// Who had the Lease since the state was written had another state.
	incomplete := held.Held().Behind != "" || f.Found().Epoch > was.Epoch
	values, err := vault.Open(ctx, store)
	if err != nil {
		return err
	}
	work, err := worker.New(worker.Options{Config: a.config, Contents: held, State: store, Vault: values, Incomplete: incomplete, Newest: f.Found().Note(inventoryAnnotation),
		NoteNewest: func(part string) { f.Note(inventoryAnnotation, part) }, HubID: hubID, Hubs: held.Held().Hubs, ClusterUID: c.uid,
		Namespace: a.o.Namespace, Fence: f, Reachable: a.reach.Reachable, Accepts: a.policy.accepts(), Restored: a.tellRestored, Others: a.tellOtherHubs, Served: a.servedHubs, Log: a.o.Log.With("part", "worker"), Meter: a.meter, Tracer: a.tracer, Marks: a.marks, Removed: held.Confirm, Report: func(s fleet.SyncStatus) {
			a.meter.Reported(s)
			reports.Report(s)
		}})
	if err != nil {
		return err
	}
	a.begin(work)
	capabilities := report.NewCapabilities()
	look, err := newCapabilityWatch(a.config, capabilities, a.o.Log.With("part", "capabilities"))
	if err != nil {
		return err
	}
	get, err := newGetter(a.config, work.Conceal)
	if err != nil {
		return err
	}
	loop, err := session.New(session.Options{Hubs: a.o.Hubs, Meter: a.meter, Tracer: a.tracer, Marks: a.marks, Renewed: id.Renewed(), StateAgain: a.reach.Again(), TrustCAs: id.TrustCAs, Desired: held, Reports: reports,
		Conditions: a.conditions, Capabilities: capabilities, Worker: work, Get: get.get, Preview: func(ctx context.Context, x fleet.Sync, contents *desired.Borrowed) (fleet.Preview, error) {
			return work.Preview(ctx, x, contents)
		}, Events: work.Events, Logs: work.Logs, MayRead: a.policy.mayRead, SealingKey: values.PublicKey(), Secrets: secretsTo(work), ClusterUID: c.uid, KubernetesVersion: c.version, AgentVersion: version.Version,
		MinReconnect: a.o.MinReconnect, MaxReconnect: a.o.MaxReconnect, Log: a.o.Log.With("part", "session"),
		Prepare: func(ctx context.Context) error { return a.prepare(ctx, id) }, Dial: a.dialer.with(id)})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return work.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error { return look.run(ctx) })
	group.Go(func() error { return id.Run(ctx) })
	group.Go(func() error { return a.rejoin(ctx, id) })
	group.Go(func() error { return a.policy.keep(ctx, store) })
	group.Go(func() error { return a.reach.Run(ctx, work) })
	return group.Wait()
}

// twinMemory is how long a second process with the agent's identity is spoken of after it was seen last.
const twinMemory = 10 * time.Minute

// clock is the fence's; nil: the machine's.
func (o Options) clock() func() fence.Moment {
	if o.Uptime == nil {
		return nil
	}
	return func() fence.Moment { return fence.Moment{Wall: time.Now().Round(0), Boot: o.Uptime()} }
}

// twin says that another process with this agent's identity is alive in the cluster.
func (a *Agent) twin() {
	a.twins.tell(fleet.Condition{Type: fleet.ConditionTwoAgents, Status: fleet.ConditionTrue, Reason: "StateCopied",
		Message: "two processes with this agent's identity run in the cluster and take turns, for the agent's state was copied; stop one of them, and give the other one an identity of its own: towline cluster join NAME --reissue"})
}

// secretsTo hands the secrets that the hub has sent to the work.
func secretsTo(work *worker.Manager) func(context.Context, string, uint64, []*agentv1.SealedSecret) (func(func()), error) {
	return func(ctx context.Context, hub string, lineage uint64, all []*agentv1.SealedSecret) (func(func()), error) {
		list := make([]worker.Sealed, len(all))
		for i, s := range all {
			list[i] = worker.Sealed{Project: s.GetProject(), Name: s.GetName(), Sealed: s.GetSealed(), Problem: s.GetProblem(), Absent: s.GetAbsent(), Keys: s.GetKeys(),
				Age: worker.SecretAge{Hub: hub, Lineage: lineage, Version: s.GetVersion(), Changed: s.GetChangedMillis(), Scope: s.GetScope()}}
		}
		return work.Secrets(ctx, list)
	}
}
