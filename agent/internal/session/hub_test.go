package session

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/agent/internal/state"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// memory is a State.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	fail   error // of writes
	hangs  bool  // no write is answered
	// written is called after each write, with mu held; it may be nil.
	written func()
}

func (m *memory) Read(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.values[name]
	if !ok {
		return nil, fleet.ErrNotFound
	}
	return b, nil
}

func (m *memory) WriteAll(ctx context.Context, items ...state.Item) error {
	for _, it := range items {
		if err := m.Write(ctx, it.Name, it.Data); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Write(ctx context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hangs {
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		return ctx.Err()
	}
	if m.fail != nil {
		return m.fail
	}
	m.values[name] = slices.Clone(data)
	if m.written != nil {
		m.written()
	}
	return nil
}

func (m *memory) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, name)
	return nil
}

func (m *memory) List(_ context.Context, prefix string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name := range m.values {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	return out, nil
}

// recorder is a Worker that writes down what it is told, and reports every module ready at once.
type recorder struct {
	mu     sync.Mutex
	log    []string
	report func(fleet.SyncStatus)
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Set(a fleet.Assemblage, strays []fleet.Sync) {
	var words []string
	for _, s := range a.Syncs {
		words = append(words, fmt.Sprintf("%s@%d", s.Module.Name, s.Generation))
		r.report(ready(s.Module, s.Generation))
	}
	for _, s := range strays {
		words = append(words, fmt.Sprintf("~%s@%d", s.Module.Name, s.Generation))
		r.report(ready(s.Module, s.Generation))
	}
	r.note("set %s", strings.Join(words, " "))
}

func (r *recorder) Expect(context.Context) {}

func (r *recorder) Freeze(frozen bool, why string) { r.note("freeze %v %s", frozen, why) }
func (r *recorder) Leave(order fleet.Leave) {
	r.note("leave %s%s", order.Objects, map[bool]string{true: ", held"}[order.Hold])
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.log
	r.log = nil
	return out
}

func ready(m fleet.ModuleRef, generation uint64) fleet.SyncStatus {
	return fleet.SyncStatus{Module: m, Generation: generation, Phase: fleet.PhaseApplied, Ready: true}
}

func ref(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }

// hub is the other side: each session is handed to the test, which plays it.
type hub struct {
	agentv1.UnimplementedAgentServiceServer
	t        *testing.T
	listen   *bufconn.Listener
	server   *grpc.Server
	sessions chan *hubSession

	mu       sync.Mutex
	contents map[fleet.Digest][]byte
	asked    int
	partSize int
	dials    []string
	down     bool
	refuse   error
	stall    chan struct{} // GetObjects waits for it
}

type hubSession struct {
	t      *testing.T
	stream agentv1.AgentService_ConnectServer
	hello  *agentv1.Hello
	frames chan *agentv1.ConnectRequest
	end    chan error
	gone   chan struct{} // the agent's side is gone
	// passed are frames that came while something else was waited for.
	passed []*agentv1.ConnectRequest
}

func newHub(t *testing.T) *hub {
	h := &hub{t: t, listen: bufconn.Listen(1 << 20), sessions: make(chan *hubSession, 1), contents: map[fleet.Digest][]byte{}}
	h.server = grpc.NewServer()
	agentv1.RegisterAgentServiceServer(h.server, h)
	go func() { _ = h.server.Serve(h.listen) }()
	t.Cleanup(h.server.Stop)
	return h
}

func (h *hub) Connect(st agentv1.AgentService_ConnectServer) error {
	first, err := st.Recv()
	if err != nil {
		return err
	}
	h.mu.Lock()
	refuse := h.refuse
	h.mu.Unlock()
	if refuse != nil {
		return rpc.ToStatus(refuse)
	}
	s := &hubSession{t: h.t, stream: st, hello: first.GetHello(), frames: make(chan *agentv1.ConnectRequest, 1000),
		end: make(chan error, 1), gone: make(chan struct{})}
	h.sessions <- s
	go func() {
		defer close(s.gone)
		for {
			m, err := st.Recv()
			if err != nil {
				return
			}
			s.frames <- m
		}
	}()
	select {
	case err := <-s.end:
		return rpc.ToStatus(err)
	case <-s.gone:
		return nil
	}
}

func (h *hub) GetObjects(q *agentv1.GetObjectsRequest, st agentv1.AgentService_GetObjectsServer) error {
	h.mu.Lock()
	stall := h.stall
	h.mu.Unlock()
	if stall != nil {
		<-stall
	}
	for _, raw := range q.GetDigests() {
		d, _ := fleet.DigestFromBytes(raw)
		h.mu.Lock()
		b, ok := h.contents[d]
		h.asked++
		size := h.partSize
		h.mu.Unlock()
		if !ok {
			return rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "content %s is not in the index", d.Short()))
		}
		if size == 0 {
			if err := st.Send(&agentv1.GetObjectsResponse{Contents: []*agentv1.Content{{Digest: raw, Data: b}}}); err != nil {
				return err
			}
			continue
		}
		for off := 0; off < len(b); off += size {
			end := min(off+size, len(b))
			if err := st.Send(&agentv1.GetObjectsResponse{Part: &agentv1.ContentPart{Digest: raw, Offset: uint64(off), Data: b[off:end], Last: end == len(b)}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *hub) put(b []byte) fleet.Digest {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := fleet.DigestOf(b)
	h.contents[d] = wire.Compress(b)
	return d
}

func (h *hub) sync(name string, generation uint64, text string) fleet.Sync {
	object := h.put([]byte(fmt.Sprintf(`{"kind":"ConfigMap","metadata":{"name":%q},"data":{"x":%q}}`, name, text)))
	_, raw := assemble.BundleDigest([]fleet.BundleEntry{{Digest: object, Version: "v1", ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}}})
	return fleet.Sync{Module: ref(name), Generation: generation, Revision: 1, Bundle: h.put(raw), Objects: 1}
}

func index(syncs ...fleet.Sync) *agentv1.Index {
	return wire.IndexFromAssemblage(assemble.Build(slices.Clone(syncs), nil, false, 0))
}

// leave has the agent leave with all that it has.
func (s *hubSession) leave() { s.leaveBy(&agentv1.Leave{Objects: "delete"}) }

func (s *hubSession) leaveBy(order *agentv1.Leave) {
	s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: order}})
}

// next is the next session of the agent.
func (h *hub) next() *hubSession {
	h.t.Helper()
	select {
	case s := <-h.sessions:
		return s
	case <-time.After(time.Hour):
		h.t.Fatal("the agent does not connect")
		return nil
	}
}

func (s *hubSession) send(frame *agentv1.ConnectResponse) {
	s.t.Helper()
	if err := s.stream.Send(frame); err != nil {
		s.t.Fatal(err)
	}
}

func (s *hubSession) welcome(epoch uint64, change ...func(*agentv1.Welcome)) {
	s.t.Helper()
	w := &agentv1.Welcome{Epoch: epoch, HubId: "hub-1", Incarnation: "one", Protocol: 1, HeartbeatMillis: 10_000,
		MaxStatusBytes: 1 << 20, ReconnectSpreadMillis: 2000}
	for _, fn := range change {
		fn(w)
	}
	s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Welcome{Welcome: w}})
}

func known(w *agentv1.Welcome) { w.StatusKnown = true }

func (s *hubSession) index(in *agentv1.Index) {
	s.t.Helper()
	s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Index{Index: in}})
}

func (s *hubSession) beat() {
	s.t.Helper()
	s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Heartbeat{Heartbeat: &agentv1.Heartbeat{}}})
}

// recv is the next frame that fits; the others are kept for status.
func recv[T any](s *hubSession, pick func(*agentv1.ConnectRequest) *T) *T {
	s.t.Helper()
	for {
		select {
		case f := <-s.frames:
			if got := pick(f); got != nil {
				return got
			}
			s.passed = append(s.passed, f)
		case <-s.gone:
			s.t.Fatal("the agent ended the session")
		case <-time.After(time.Hour):
			s.t.Fatal("the agent sends nothing of the kind")
		}
	}
}

func (s *hubSession) ack() *agentv1.Ack {
	s.t.Helper()
	return recv(s, (*agentv1.ConnectRequest).GetAck)
}

// refusals are what an answer says that was not taken.
func refusals(a *agentv1.Ack) (out []string) {
	for _, r := range a.GetRefused() {
		out = append(out, fmt.Sprintf("%s@%d", r.GetModule(), r.GetGeneration()))
	}
	return out
}

// status takes and acknowledges status frames until the agent has no more to say, and returns the modules in them.
func (s *hubSession) status(d time.Duration) (frames int, modules []string) {
	s.t.Helper()
	take := func(f *agentv1.ConnectRequest) {
		st := f.GetStatus()
		if st == nil {
			return
		}
		frames++
		for _, x := range st.GetSyncs() {
			modules = append(modules, fmt.Sprintf("%s@%d", strings.TrimPrefix(x.GetModule(), "default/"), x.GetGeneration()))
		}
		s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_StatusAck{StatusAck: &agentv1.StatusAck{Sequence: st.GetSequence()}}})
	}
	for _, f := range s.passed {
		take(f)
	}
	s.passed = nil
	end := time.After(d)
	for {
		select {
		case f := <-s.frames:
			take(f)
		case <-end:
			return frames, modules
		}
	}
}

// agent is the side under test.
type agent struct {
	loop    *Loop
	worker  *recorder
	state   *memory
	desired *desired.Store
	reports *report.Reporter
	renewed chan struct{}
	stop    func()
}

func openDesired(t *testing.T, state *memory) *desired.Store {
	t.Helper()
	held, err := desired.Open(t.Context(), desired.Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	return held
}

type option func(*Options)

func start(t *testing.T, h *hub, state *memory, options ...option) *agent {
	t.Helper()
	held := openDesired(t, state)
	acked, _ := fleet.ParseDigest(held.Marks().Status)
	a := &agent{worker: &recorder{}, state: state, desired: held, reports: report.New(acked), renewed: make(chan struct{}, 1)}
	a.worker.report = a.reports.Report
	o := Options{Hubs: []string{"hub:1"}, Renewed: a.renewed, Desired: held, Reports: a.reports, Worker: a.worker, ClusterUID: "uid-1",
		KubernetesVersion: "v1.36.3", AgentVersion: "test", Random: func() float64 { return 0.5 }, Dial: h.dial,
		Get: func(_ context.Context, e fleet.BundleEntry) ([]byte, error) {
			return []byte(`{"got":"` + e.ID.Name + `"}`), nil
		}}
	for _, fn := range options {
		fn(&o)
	}
	var err error
	if a.loop, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.loop.Run(ctx) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return a
}

func (h *hub) dial(addr string) (*grpc.ClientConn, error) {
	h.mu.Lock()
	h.dials = append(h.dials, addr)
	h.mu.Unlock()
	options := rpc.AgentDialOptions(nil)
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			h.mu.Lock()
			down := h.down
			h.mu.Unlock()
			if down {
				return nil, fmt.Errorf("connection refused")
			}
			return h.listen.DialContext(ctx)
		}))
	return grpc.NewClient("passthrough:///"+addr, options...)
}

func (h *hub) set(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
}

// bubble runs a test in virtual time with a hub.
func bubble(t *testing.T, fn func(t *testing.T, h *hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, newHub(t)) })
}
