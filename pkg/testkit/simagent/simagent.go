// Package simagent is an agent without a cluster: it joins a real hub over mTLS, speaks the protocol, and reports
// whatever a test says about each sync. It owns no rule of the real agent and must not be used outside tests and
// benchmarks.
package simagent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
	"towline.dev/towline/pkg/wire"
)

// Identity is what a join gave.
type Identity struct {
	Cluster fleet.ClusterName
	UID     string
	HubID   string
	cert    *tls.Certificate
	cas     *x509.CertPool
}

// Join redeems a token.
func Join(ctx context.Context, hub, token, clusterUID string) (*Identity, error) {
	t, err := jointoken.Parse(token)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+hub, rpc.AgentDialOptions(rpc.PinnedTLS(t.CAPin, nil))...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	got, err := agentv1.NewEnrollmentServiceClient(conn).Enroll(ctx, &agentv1.EnrollRequest{Token: token, Csr: csr, ClusterUid: clusterUID, AgentVersion: "sim"})
	if err != nil {
		return nil, err
	}
	cas, err := rpc.PinnedCAs(got.GetCa(), t.CAPin)
	if err != nil {
		return nil, err
	}
	return &Identity{Cluster: fleet.ClusterName(got.GetCluster()), UID: clusterUID, HubID: got.GetHubId(),
		cert: &tls.Certificate{Certificate: got.GetCertificates(), PrivateKey: key}, cas: cas}, nil
}

// Renew has the certificate of the identity renewed. Agents that are made with it from then on show the new one.
func (i *Identity) Renew(ctx context.Context, hub string) (issued time.Time, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return issued, err
	}
	conn, err := i.Connect(hub, true)
	if err != nil {
		return issued, err
	}
	defer func() { _ = conn.Close() }()
	got, err := agentv1.NewEnrollmentServiceClient(conn).Renew(ctx, &agentv1.RenewRequest{Csr: csr})
	if err != nil {
		return issued, err
	}
	leaf, err := x509.ParseCertificate(got.GetCertificates()[0])
	if err != nil {
		return issued, err
	}
	i.cert = &tls.Certificate{Certificate: got.GetCertificates(), PrivateKey: key}
	return leaf.NotBefore, nil
}

// Options of an Agent.
type Options struct {
	Hub      string
	Identity *Identity
	// Others are hubs that it tries in turn with Hub.
	Others []string
	// Report says what the agent tells of a sync; nil: ready at once. A zero Phase tells nothing.
	Report func(fleet.Sync) fleet.SyncStatus
	// Remove says what the agent tells of a tombstone; nil: removed at once. A zero Phase tells nothing.
	Remove func(fleet.Tombstone) fleet.SyncStatus
	// Fetch also gets the contents, as a real agent does.
	Fetch bool
	// Keep also keeps them, and takes moves, as a real agent does.
	Keep bool
	// Took is told of every assemblage that the agent has taken; it must not block.
	Took func(fleet.Assemblage)
	// Mute keeps the agent from reporting before Again is called, as one that has not looked at its cluster yet.
	Mute bool
	// Answer answers a question of the hub, under its id if it sets none; nil: the name of the object that is asked for.
	Answer func(*agentv1.Query) *agentv1.QueryResult
	// Features are those that it says it has; nil: all, but those that only one who keeps contents, or tells what its cluster can do, has.
	Features []string
	// SealingKey is what secrets are sealed with for it, and Secrets is told of each frame with some; it must not block.
	SealingKey []byte
	Secrets    func(*agentv1.Secrets)
	// Can is what charts may ask of its cluster; nil: it does not tell.
	Can *fleet.Capabilities
	// Reconnect is the pause after a broken session; default 50ms. MaxReconnect has it grow as a real agent's does while no hub welcomes
	// it, up to this; 0: it stays.
	Reconnect, MaxReconnect time.Duration
	// Beat is the time between heartbeats; default 5s.
	Beat time.Duration
}

// Agent keeps a session with the hub.
type Agent struct {
	o        Options
	instance string

	mu       sync.Mutex
	held     fleet.Assemblage
	leave    *agentv1.Leave
	current  uint64 // epoch of the session
	epoch    uint64 // of the last one in which the hub was not behind
	inc      string
	boot     *agentv1.Boot
	stream   grpc.BidiStreamingClient[agentv1.ConnectRequest, agentv1.ConnectResponse]
	sequence uint64
	fetched  map[fleet.Digest]bool
	contents map[fleet.Digest][]byte
	reported map[fleet.ModuleRef]uint64 // the generation reported last
	sent     flight                     // the newest status frame
	acked    flight                     // the newest one that the hub has
	tells    []fleet.Condition
	untold   bool // tells is newer than the hello
	anew     bool // it has begun anew with a restored store, which has not spoken yet

	// Indexes, Moves, Contents and Sessions count what came from the hub.
	Indexes, Moves, Contents, Sessions atomic.Int64
	// Tries counts the sessions that were asked for.
	Tries atomic.Int64
}

// flight is what a status frame left the hub with.
type flight struct {
	sequence uint64
	digest   fleet.Digest
	reported map[fleet.ModuleRef]uint64
}

// New makes an agent; Run starts it.
func New(o Options) *Agent {
	if o.Reconnect == 0 {
		o.Reconnect = 50 * time.Millisecond
	}
	if o.Beat == 0 {
		o.Beat = 5 * time.Second
	}
	if o.Report == nil {
		o.Report = Ready
	}
	if o.Features == nil {
		o.Features = wire.Features()
		if o.Can == nil {
			o.Features = wire.Missing(o.Features, []string{wire.FeatureCapabilities})
		}
		if !o.Keep {
			o.Features = wire.Missing(o.Features, []string{wire.FeatureMoves, wire.FeatureDictionaries})
		}
	}
	if o.Remove == nil {
		o.Remove = Removed
	}
	return &Agent{o: o, instance: fmt.Sprintf("sim-%s-%d", o.Identity.Cluster, time.Now().UnixNano()), fetched: map[fleet.Digest]bool{},
		contents: map[fleet.Digest][]byte{}, reported: map[fleet.ModuleRef]uint64{}}
}

// Ready reports every object of the sync as synced and healthy, but for those that other modules own: they are in conflict, or
// awaited if their owner is about to let them go.
func Ready(s fleet.Sync) fleet.SyncStatus {
	st := fleet.SyncStatus{Module: s.Module, Generation: s.Generation, Bundle: s.Bundle, Phase: fleet.PhaseApplied, Ready: true, Observed: time.Now()}
	for range s.Objects {
		st.States = append(st.States, fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})
	}
	for range s.Watched {
		st.Watched = append(st.Watched, fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})
	}
	for _, y := range s.Yields {
		st.Ready = false
		for _, o := range y.Ordinals {
			if slices.Contains(y.Ending, o) {
				st.States[o] = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing, Drift: fleet.DriftInSync}
				st.Exceptions = append(st.Exceptions, fleet.ObjectException{Ordinal: o, Reason: "AwaitingOwner", Message: "waits for module " + y.Owner.Display() + " to let it go"})
				continue
			}
			st.Phase, st.Reason, st.Message = fleet.PhaseFailed, "Conflict", "belongs to module "+y.Owner.Display()
			st.States[o] = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftConflict}
		}
	}
	if !st.Ready && st.Phase == fleet.PhaseApplied {
		st.Phase, st.Reason = fleet.PhaseApplying, "Applying"
	}
	return st
}

// Removed reports that nothing is left of a module.
func Removed(t fleet.Tombstone) fleet.SyncStatus {
	return fleet.SyncStatus{Module: t.Module, Generation: t.Generation, Phase: fleet.PhaseRemoved}
}

// Failing reports every object as degraded.
func Failing(s fleet.Sync) fleet.SyncStatus {
	st := Ready(s)
	st.Ready, st.Phase, st.Reason, st.Message = false, fleet.PhaseFailed, "ImagePullBackOff", "image not found"
	for i := range st.States {
		st.States[i].Health = fleet.HealthDegraded
	}
	return st
}

// Dial has the sessions that follow be with another hub; to be called while the agent does not run.
func (a *Agent) Dial(hub string) { a.o.Hub = hub }

// Connect is a connection to a hub with the identity, or with none, for calls that an agent does not make.
func (i *Identity) Connect(hub string, shown bool) (*grpc.ClientConn, error) {
	t := rpc.ClientTLS{CAs: i.cas}
	if shown {
		t.Certificate = i.cert
	}
	return grpc.NewClient("passthrough:///"+hub, rpc.AgentDialOptions(t.Config())...)
}

// Run keeps a session until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	t := rpc.ClientTLS{CAs: a.o.Identity.cas, Certificate: a.o.Identity.cert}.Config()
	tries := backoff.New(backoff.Policy{Min: 2 * a.o.Reconnect, Max: a.o.MaxReconnect, Jitter: 1}, mathrand.Float64)
	for ctx.Err() == nil {
		a.Tries.Add(1)
		welcomes := a.Sessions.Load()
		_ = a.session(ctx, t)
		if a.Sessions.Load() != welcomes {
			tries.Reset()
		}
		pause := a.o.Reconnect
		if a.o.MaxReconnect > 0 {
			pause = tries.Next()
		}
		if backoff.Wait(ctx, pause) != nil {
			return nil
		}
	}
	return nil
}

func (a *Agent) session(ctx context.Context, t *tls.Config) error {
	hubs := append([]string{a.o.Hub}, a.o.Others...)
	conn, err := grpc.NewClient("passthrough:///"+hubs[int(a.Tries.Load())%len(hubs)], rpc.AgentDialOptions(t)...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := agentv1.NewAgentServiceClient(conn)
	st, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	if err := st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Hello{Hello: a.hello()}}); err != nil {
		return err
	}
	defer a.over()
	go a.beat(ctx, st)
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if err := a.receive(ctx, client, st, m); err != nil {
			return err
		}
	}
}

// over forgets the stream of a session: what is told before the next one is welcome is told by its first report.
func (a *Agent) over() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stream = nil
}

func (a *Agent) hello() *agentv1.Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.untold = false
	if a.anew { // it stands nowhere
		return &agentv1.Hello{MinProtocol: 1, MaxProtocol: 1, Features: a.o.Features, AgentVersion: "sim", KubernetesVersion: "v1.36.3", ClusterUid: a.o.Identity.UID,
			InstanceId: a.instance, StatusDigest: a.acked.digest.Bytes(), StatusSeen: true, Conditions: wire.ConditionsToProto(a.tells), SealingKey: a.o.SealingKey}
	}
	return &agentv1.Hello{MinProtocol: 1, MaxProtocol: 1, Features: a.o.Features, AgentVersion: "sim", KubernetesVersion: "v1.36.3", ClusterUid: a.o.Identity.UID,
		InstanceId: a.instance, LastEpoch: a.epoch, HubId: a.o.Identity.HubID, Incarnation: a.inc, Generation: a.held.Generation, Digest: a.held.Digest.Bytes(),
		StatusDigest: a.acked.digest.Bytes(), StatusSeen: true, Conditions: wire.ConditionsToProto(a.tells), Boot: a.boot, SealingKey: a.o.SealingKey}
}

// Tell says the conditions of the cluster, now and in the sessions to come.
func (a *Agent) Tell(conditions ...fleet.Condition) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tells, a.untold = conditions, true
	if a.stream == nil {
		return nil
	}
	return a.sayConditions(a.stream)
}

// Able says what charts may ask of the cluster, now and in the sessions to come.
func (a *Agent) Able(can fleet.Capabilities) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.o.Can = &can
	if a.stream == nil {
		return nil
	}
	return a.sayCapabilities(a.stream)
}

func (a *Agent) sayCapabilities(st stream) error {
	return st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Capabilities{Capabilities: wire.CapabilitiesToProto(*a.o.Can)}})
}

func (a *Agent) sayConditions(st stream) error {
	a.untold = false
	return st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Conditions{
		Conditions: &agentv1.Conditions{Conditions: wire.ConditionsToProto(a.tells)}}})
}

type stream = grpc.BidiStreamingClient[agentv1.ConnectRequest, agentv1.ConnectResponse]

func (a *Agent) beat(ctx context.Context, st stream) {
	tick := time.NewTicker(a.o.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.mu.Lock()
			err := st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Heartbeat{Heartbeat: &agentv1.Heartbeat{}}})
			a.mu.Unlock()
			if err != nil {
				return
			}
		}
	}
}

func (a *Agent) receive(ctx context.Context, client agentv1.AgentServiceClient, st stream, m *agentv1.ConnectResponse) error {
	switch f := m.GetFrame().(type) {
	case *agentv1.ConnectResponse_Welcome:
		a.Sessions.Add(1)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stream, a.sequence, a.current = st, 0, f.Welcome.GetEpoch()
		if f.Welcome.GetRegressed() != "" {
			if a.o.Mute {
				return nil
			}
			a.reported, a.sent = map[fleet.ModuleRef]uint64{}, flight{}
			return a.report(st, a.held, true)
		}
		if a.inc != "" && f.Welcome.GetSucceeds() == a.inc {
			a.anew = true
			return errors.New("the hub's store was restored")
		}
		a.epoch, a.inc, a.boot = f.Welcome.GetEpoch(), f.Welcome.GetIncarnation(), f.Welcome.GetBoot()
		if a.untold {
			if err := a.sayConditions(st); err != nil {
				return err
			}
		}
		if can := a.o.Can; can != nil && f.Welcome.GetTakesCapabilities() && !bytes.Equal(f.Welcome.GetCapabilities(), can.Digest().Bytes()) {
			if err := a.sayCapabilities(st); err != nil {
				return err
			}
		}
		a.reported, a.sent = map[fleet.ModuleRef]uint64{}, flight{}
		if f.Welcome.GetStatusKnown() {
			maps.Copy(a.reported, a.acked.reported)
			return a.report(st, a.held, false)
		}
		if a.o.Mute {
			return nil
		}
		return a.report(st, a.held, true)
	case *agentv1.ConnectResponse_StatusAck:
		a.mu.Lock()
		defer a.mu.Unlock()
		if f.StatusAck.GetSequence() == a.sent.sequence {
			a.acked = a.sent
		}
	case *agentv1.ConnectResponse_Query:
		return a.answer(st, f.Query)
	case *agentv1.ConnectResponse_BundleDelta:
		return a.hint(f.BundleDelta)
	case *agentv1.ConnectResponse_Index:
		a.Indexes.Add(1)
		return a.accept(ctx, client, st, f.Index)
	case *agentv1.ConnectResponse_Move:
		a.Moves.Add(1)
		return a.unfold(ctx, client, st, f.Move)
	case *agentv1.ConnectResponse_Leave:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.leave = f.Leave
	case *agentv1.ConnectResponse_Secrets:
		if a.o.Secrets != nil {
			a.o.Secrets(f.Secrets)
		}
	case *agentv1.ConnectResponse_Drain:
		return fmt.Errorf("drained")
	}
	return nil
}

func (a *Agent) accept(ctx context.Context, client agentv1.AgentServiceClient, st stream, ix *agentv1.Index) error {
	next, err := wire.AssemblageFromIndex(ix, a.Held())
	if err != nil {
		return err
	}
	if a.o.Keep {
		if err := a.keep(ctx, client, next); err != nil {
			return err
		}
	} else if a.o.Fetch {
		if err := a.fetch(ctx, client, next); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held, a.anew = next, false
	if a.o.Took != nil {
		a.o.Took(next)
	}
	ack := &agentv1.Ack{Digest: next.Digest.Bytes(), Generation: next.Generation, Epoch: a.current}
	if err := st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Ack{Ack: ack}}); err != nil {
		return err
	}
	if a.o.Mute {
		return nil
	}
	return a.report(st, next, false)
}

// Again reports the held syncs anew, after what Report says has changed.
func (a *Agent) Again() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.o.Mute = false
	if a.stream == nil {
		a.acked = flight{} // the hub knows what was, and not what is
		return nil
	}
	a.reported = map[fleet.ModuleRef]uint64{}
	return a.report(a.stream, a.held, true)
}

// SendStatus sends a status as it is, whatever the agent holds.
func (a *Agent) SendStatus(s *agentv1.Status) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream == nil {
		return errors.New("the agent has no session")
	}
	a.sequence++
	s.Epoch, s.Sequence = a.current, a.sequence
	return a.stream.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: s}})
}

// report tells what is new since the last report of the session, or everything.
func (a *Agent) report(st stream, held fleet.Assemblage, full bool) error {
	s := &agentv1.Status{Epoch: a.current, FullBegin: full, FullEnd: full}
	for _, x := range held.Syncs {
		if a.reported[x.Module] == x.Generation {
			continue
		}
		if r := a.o.Report(x); r.Phase != "" {
			a.reported[x.Module] = x.Generation
			s.Syncs = append(s.Syncs, wire.SyncStatusToProto(r))
		}
	}
	for _, t := range held.Tombstones {
		if a.reported[t.Module] == t.Generation {
			continue
		}
		if r := a.o.Remove(t); r.Phase != "" {
			a.reported[t.Module] = t.Generation
			s.Syncs = append(s.Syncs, wire.SyncStatusToProto(r))
		}
	}
	if !full && len(s.Syncs) == 0 {
		return nil
	}
	a.sequence++
	s.Sequence = a.sequence
	a.sent = flight{sequence: a.sequence, digest: fleet.DigestOf(fmt.Append(nil, a.instance, a.current, a.sequence)), reported: maps.Clone(a.reported)}
	s.Digest = a.sent.digest.Bytes()
	return st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: s}})
}

// answer tells what Answer says, or the name of the object that is asked for.
func (a *Agent) answer(st stream, q *agentv1.Query) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &agentv1.QueryResult{Data: fmt.Appendf(nil, `{"kind":%q,"metadata":{"name":%q}}`, q.GetObject().GetKind(), q.GetObject().GetName())}
	if a.o.Answer != nil {
		r = a.o.Answer(q)
	}
	r.Id = cmp.Or(r.GetId(), q.GetId())
	return st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_QueryResult{QueryResult: r}})
}

// hint takes contents that the hub sends ahead of an index: they need not be fetched.
func (a *Agent) hint(d *agentv1.BundleDelta) error {
	if a.o.Keep {
		for _, c := range d.GetObjects() {
			if err := a.store(c.GetDigest(), c.GetData()); err != nil {
				return err
			}
		}
	}
	if len(d.GetToBundle()) == 0 {
		return nil
	}
	bundle, err := fleet.DigestFromBytes(d.GetToBundle())
	if err != nil {
		return err
	}
	a.fetched[bundle] = true
	if a.o.Keep {
		return a.store(d.GetToBundle(), d.GetManifest())
	}
	a.Contents.Add(1)
	return nil
}

func (a *Agent) fetch(ctx context.Context, client agentv1.AgentServiceClient, next fleet.Assemblage) error {
	req := &agentv1.GetObjectsRequest{Epoch: a.current}
	for _, s := range next.Syncs {
		if !a.fetched[s.Bundle] {
			req.Digests = append(req.Digests, s.Bundle.Bytes())
			a.fetched[s.Bundle] = true
		}
	}
	if len(req.GetDigests()) == 0 {
		return nil
	}
	st, err := client.GetObjects(ctx, req)
	if err != nil {
		return err
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return nil
		}
		a.Contents.Add(int64(len(m.GetContents())))
	}
}
