package session

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// gates opens sessions with ascending epochs; an instance named slow waits until it is let through.
type gates struct {
	epochs chan uint64
	slow   chan struct{}
	taken  chan struct{}
}

func (g *gates) OpenSession(_ context.Context, a registry.Admission, _ bool) (registry.Opened, error) {
	epoch := <-g.epochs
	g.epochs <- epoch + 1
	if a.InstanceID == "slow" {
		close(g.taken)
		<-g.slow
	}
	return registry.Opened{Epoch: epoch, Fence: store.Fence{Key: store.SessionKey(a.Cluster), ModRevision: 1}}, nil
}

func (g *gates) Regressed(_ context.Context, _ fleet.ClusterName, o registry.Opened, _ string) (store.Fence, error) {
	return o.Fence, nil
}

func (g *gates) Continued(context.Context, fleet.ClusterName, registry.Opened) error { return nil }

func (g *gates) CloseSession(context.Context, fleet.ClusterName, uint64, time.Time) error { return nil }

type noStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s noStream) Context() context.Context { return s.ctx }

func newServer(t *testing.T, r Registry) *Server {
	t.Helper()
	s := storetest.New(t)
	srv, err := New(Options{Store: s.As(store.Session), Bundles: bundle.New(s.Blobs()), Registry: r, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// withCluster makes the record of cluster a, and waits until the server sees it.
func withCluster(t *testing.T, s *Server) {
	t.Helper()
	if _, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The older of two sessions of a cluster may come to its place last: it must not push the newer one out.
func TestOlderSessionThatIsLateDoesNotTakeOver(t *testing.T) {
	g := &gates{epochs: make(chan uint64, 1), slow: make(chan struct{}), taken: make(chan struct{})}
	g.epochs <- 5
	s := newServer(t, g)
	late := make(chan error, 1)
	go func() {
		_, err := s.open(noStream{ctx: t.Context()}, "a", &agentv1.Hello{InstanceId: "slow"})
		late <- err
	}()
	<-g.taken
	x, err := s.open(noStream{ctx: t.Context()}, "a", &agentv1.Hello{InstanceId: "quick"})
	if err != nil {
		t.Fatal(err)
	}
	close(g.slow)
	if err := <-late; !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the older session: %v, want stale", err)
	}
	if s.live["a"] != x || x.takeDirty()&dirtyFenced != 0 {
		t.Error("the newer session was pushed out")
	}
}

// recorder fails when the end of a session is recorded before it was told.
type recorder struct {
	gates
	record func()
}

func (r *recorder) CloseSession(context.Context, fleet.ClusterName, uint64, time.Time) error {
	r.record()
	return nil
}

// Whoever keeps what follows from who is connected hears of a change before anybody can be told it, however long the store takes
// to record it.
func TestWhoIsConnectedIsToldBeforeItIsShown(t *testing.T) {
	r := &recorder{}
	r.epochs = make(chan uint64, 1)
	r.epochs <- 1
	s := newServer(t, r)
	var told []bool
	s.OnConnected(func(fleet.ClusterName) { told = append(told, s.live["a"] != nil) })
	x, err := s.open(noStream{ctx: t.Context()}, "a", &agentv1.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	r.record = func() {
		if len(told) != 2 || s.Connected("a") {
			t.Errorf("told %v, while it is recorded; connected: %v", told, s.Connected("a"))
		}
	}
	s.close(x)
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("told %v", told)
	}
}

// forgetful cannot record the end of a session while the store is away.
type forgetful struct {
	gates
	tries atomic.Int32
	until time.Time
}

func (f *forgetful) CloseSession(context.Context, fleet.ClusterName, uint64, time.Time) error {
	if f.tries.Add(1); time.Now().Before(f.until) {
		return fleet.Errorf(fleet.ErrUnavailable, "the store is away")
	}
	return nil
}

// The end of a session is recorded as soon as the store takes it: until then the other hubs call the cluster connected, and keep its agent out when it
// has started anew.
func TestEndOfASessionIsRecordedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &forgetful{until: time.Now().Add(time.Minute)}
		r.epochs = make(chan uint64, 1)
		r.epochs <- 1
		s := newServer(t, r)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		x, err := s.open(noStream{ctx: t.Context()}, "a", &agentv1.Hello{})
		if err != nil {
			t.Fatal(err)
		}
		s.close(x)
		<-time.After(2 * time.Minute)
		if tries := r.tries.Load(); time.Now().Before(r.until) || tries < 3 || tries > 20 {
			t.Errorf("told %d times", tries)
		}
		tries := r.tries.Load()
		<-time.After(time.Minute)
		if now := r.tries.Load(); now != tries {
			t.Errorf("told %d times more when it is recorded", now-tries)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A hub that stops ends its sessions itself. Nobody may take that for agents that went away.
func TestDrainedAgentsAreNotAway(t *testing.T) {
	s := newServer(t, &gates{})
	stays := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	left := newSession(s, "b", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	s.live["a"], s.live["b"] = stays, left
	s.close(left)
	s.drain()
	s.close(stays)
	if !s.Connected("a") || s.Connected("b") {
		t.Errorf("a, whose session the hub ended: %v; b, which was gone before: %v", s.Connected("a"), s.Connected("b"))
	}
}

// One module's broken record must not keep the other modules of the cluster, or of the whole fleet, from their agents.
func TestRecordThatIsNotValidKeepsOnlyItsModuleBack(t *testing.T) {
	s := newServer(t, &gates{})
	good := &agentv1.Sync{Module: "default/web", Generation: 3, Bundle: fleet.DigestOf([]byte("b")).Bytes()}
	bad := &agentv1.Sync{Module: "default/shop", Generation: 7, Bundle: good.GetBundle(), Values: map[string]string{"A": strings.Repeat("x", 1<<17)}}
	if _, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: "web"}), &storev1.DesiredRecord{Sync: good})
		w.Put(store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: "shop"}), &storev1.DesiredRecord{Sync: bad})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a := sn.target.assemblage; len(a.Syncs) != 1 || a.Syncs[0].Module.Name != "web" || a.Generation != 7 {
		t.Errorf("assemblage %+v, want web alone at generation 7", a)
	}
}

// Reports of many failing modules are more than one batch of the store takes; the order stays, the ack is last.
func TestLargeReportsAreCutIntoBatches(t *testing.T) {
	var ops []store.Op
	for range 20 {
		st := &agentv1.SyncStatus{Module: "default/shop"}
		for range 200 {
			st.Exceptions = append(st.Exceptions, &agentv1.ObjectException{Message: strings.Repeat("m", 256), Field: strings.Repeat("f", 256)})
		}
		ops = append(ops, store.Op{Key: "observed/a/default/shop", Value: &storev1.ObservedRecord{Status: st}})
	}
	for range 300 {
		ops = append(ops, store.Op{Key: "observed/a/default/gone", Delete: true})
	}
	ops = append(ops, store.Op{Key: store.AckKey("a"), Value: &storev1.AckRecord{Epoch: 1}})
	s := newServer(t, &gates{})
	n := 0
	rev, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range cut(ops) {
		if _, err := s.o.Store.Batch(t.Context(), store.Fence{Key: store.SessionKey("a"), ModRevision: rev}, batch); err != nil {
			t.Fatalf("batch of %d: %v", len(batch), err)
		}
		n += len(batch)
		if last := batch[len(batch)-1].Key == store.AckKey("a"); last != (n == len(ops)) {
			t.Errorf("the ack comes after %d of %d", n, len(ops))
		}
	}
	if n != len(ops) || len(cut(nil)) != 0 {
		t.Errorf("%d of %d ops", n, len(ops))
	}
}

// deaf is the stream of an agent that reads its welcome and nothing more, but goes on to send heartbeats.
type deaf struct {
	grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]
	ctx  context.Context
	beat time.Duration
	sent int
}

func (d *deaf) Send(*agentv1.ConnectResponse) error {
	if d.sent++; d.sent > 1 {
		<-d.ctx.Done()
		return d.ctx.Err()
	}
	return nil
}

func (d *deaf) Recv() (*agentv1.ConnectRequest, error) {
	timer := time.NewTimer(d.beat)
	defer timer.Stop()
	select {
	case <-d.ctx.Done():
		return nil, d.ctx.Err()
	case <-timer.C:
		return &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Heartbeat{Heartbeat: &agentv1.Heartbeat{}}}, nil
	}
}

// An agent that reads no more, or says no more, is lost after three heartbeats, whatever its connection says.
func TestAgentThatIsStuckIsLost(t *testing.T) {
	for name, tc := range map[string]struct {
		beat time.Duration
		says string
	}{
		"reads nothing": {10 * time.Second, "cluster a: the agent has read nothing for 30s"},
		"says nothing":  {time.Hour, "cluster a: nothing heard for 30s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &gates{})
			withCluster(t, s)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
				began := time.Now()
				err := x.run(ctx, &deaf{ctx: ctx, beat: tc.beat})
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("ended with %v, want %q", err, tc.says)
				}
				if took := time.Since(began); took > 45*time.Second {
					t.Errorf("lost after %s", took)
				}
				cancel() // as when the handler returns
				s.Wait()
			})
		})
	}
}
