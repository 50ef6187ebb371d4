package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/testkit/steptest"
)

// A bug that one cluster's session meets ends that session, not the hub.
func TestPanicInASessionEndsThatSession(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	assign(t, s, "web", 3, "", "object")
	s.o.Bundles = nil // the sender needs it
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{}).run(ctx, &beating{ctx: ctx, until: time.Now().Add(time.Hour)})
	if err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("ended with %v", err)
	}
}

// A step of the hub's clock, as after a suspend or from NTP, ends no session of an agent that is there, and keeps none of
// one that is not.
func TestStepOfTheClockIsNoSilence(t *testing.T) {
	const lastWord = 5 * time.Minute
	for name, tc := range map[string]struct{ at, by time.Duration }{
		"a day ahead, while it is there": {66 * time.Second, 24 * time.Hour}, "a day back, when it is gone": {lastWord + 5*time.Second, -24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &gates{})
			withCluster(t, s)
			start := time.Now() // with the reading of both clocks, which times of a bubble lack
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				s.clock = func() time.Time {
					now := start.Add(time.Since(began))
					if time.Since(began) < tc.at {
						return now
					}
					return steptest.Clocks(now, tc.by)
				}
				x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
				alive := &beating{ctx: ctx, until: began.Add(lastWord)}
				err := x.run(ctx, alive)
				silent := time.Since(alive.until)
				if err == nil || !strings.Contains(err.Error(), "nothing heard") || silent < 20*time.Second || silent > 45*time.Second {
					t.Errorf("%v, %s after its last word", err, silent)
				}
			})
		})
	}
}

// beating is the stream of an agent that sends a heartbeat every nine seconds until a time, and then nothing.
type beating struct {
	deaf
	ctx   context.Context
	until time.Time
}

func (b *beating) Send(*agentv1.ConnectResponse) error { return nil }

func (b *beating) Recv() (*agentv1.ConnectRequest, error) {
	if time.Now().Before(b.until) {
		b.deaf.ctx, b.deaf.beat = b.ctx, 9*time.Second
		return b.deaf.Recv()
	}
	<-b.ctx.Done()
	return nil, b.ctx.Err()
}

// A damaged record is no older store: the cluster gets the rest of what it should run, under no lower generation than it
// was given before.
func TestDamagedRecordIsNoOlderStore(t *testing.T) {
	b := memory.New()
	st := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	s := newServer(t, &gates{})
	s.o.Store, s.o.Bundles = st.As(store.Session), bundle.New(st.Blobs())
	assign(t, s, "web", 3, "", "object")
	assign(t, s, "shop", 7, "", "object")
	if _, err := st.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{JoinGeneration: 7})
		w.Put(store.GenerationKey, &storev1.Counter{Value: 7})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	storetest.Damage(t, b, store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: "shop"}))
	if _, err := st.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := newSession(s, "a", registry.Opened{Epoch: 2}, &agentv1.Hello{Generation: 7, LastEpoch: 1})
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a := sn.target.assemblage; len(a.Syncs) != 1 || a.Syncs[0].Module.Name != "web" || a.Generation < 7 {
		t.Errorf("assemblage %+v, want web alone at generation 7 or above", a)
	}
	if why := x.regression(sn); why != "" {
		t.Errorf("the store counts as older: %s", why)
	}
}

// TestLeaveHoldsWhatCannotBeRead: a hold of a module stands for an agent that leaves the fleet with all that it has, also where nobody can read
// what the cluster was to have of it; and ends with the hold.
func TestLeaveHoldsWhatCannotBeRead(t *testing.T) {
	b := memory.New()
	st := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	s := newServer(t, &gates{})
	s.o.Store, s.o.Bundles = st.As(store.Session), bundle.New(st.Blobs())
	refs := map[string]fleet.ModuleRef{}
	for i, name := range []string{"base", "shop", "web"} {
		refs[name] = fleet.ModuleRef{Project: "default", Name: name}
		assign(t, s, name, uint64(i+1), "", "object")
	}
	put := func(put func(w store.Writer)) {
		t.Helper()
		if _, err := st.Update(t.Context(), func(w store.Writer) error { put(w); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Removing: fleet.LeaveDelete})
		w.Put(store.FreezePrefix+"1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: "freeze-1", Kind: record.HoldFreeze, Project: "default", Module: "shop"}})
		w.Put(store.FreezePrefix+"2", &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: "freeze-2", Kind: record.HoldFreeze, Project: "default", Module: "base", Cluster: "a",
			Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "x", Name: "y"}}})
	})
	for _, ref := range refs {
		storetest.Damage(t, b, store.DesiredKey("a", ref))
	}
	x := newSession(s, "a", registry.Opened{Epoch: 2}, &agentv1.Hello{Generation: 7, LastEpoch: 1})
	held := func() []string {
		t.Helper()
		if _, err := st.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		sn, err := x.snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return leaveOf(sn).GetHeld()
	}
	if got := held(); !slices.Equal(got, []string{"default/base", "default/shop"}) {
		t.Errorf("held: %v", got)
	}
	put(func(w store.Writer) { w.Delete(store.FreezePrefix + "1") })
	if got := held(); !slices.Equal(got, []string{"default/base"}) {
		t.Errorf("held when one hold has ended: %v", got)
	}
	x.dirty = 0
	s.live = map[fleet.ClusterName]*session{"a": x}
	if s.dispatch([]string{store.FreezePrefix + "1"}); x.dirty&dirtyDesired == 0 {
		t.Error("the session does not hear of the end of a hold")
	}
}

// When the record of the last generation cannot be read, agents are let in, and none takes this store for an older one.
func TestDamagedGenerationIsNoOlderStore(t *testing.T) {
	b := memory.New()
	st := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	s := newServer(t, &gates{})
	s.o.Store, s.o.Bundles = st.As(store.Session), bundle.New(st.Blobs())
	assign(t, s, "web", 7, "", "object")
	if _, err := st.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{JoinGeneration: 7})
		w.Put(store.GenerationKey, &storev1.Counter{Value: 7})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	storetest.Damage(t, b, store.GenerationKey)
	if _, err := st.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := newSession(s, "a", registry.Opened{Epoch: 2}, &agentv1.Hello{Generation: 7, LastEpoch: 1})
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if why := x.regression(sn); why != "" || len(sn.target.assemblage.Syncs) != 1 {
		t.Errorf("the store counts as older: %s; %+v", why, sn.target.assemblage)
	}
}

// A floor that cannot be read was at most as high as the last generation given: an agent that holds what the floor stands for, because
// a module of its was forgotten, has seen no newer store.
func TestDamagedFloorIsNoOlderStore(t *testing.T) {
	b := memory.New()
	st := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	s := newServer(t, &gates{})
	s.o.Store, s.o.Bundles = st.As(store.Session), bundle.New(st.Blobs())
	assign(t, s, "web", 3, "", "object")
	if _, err := st.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{JoinGeneration: 7})
		w.Put(store.FloorKey("a"), &storev1.FloorRecord{Generation: 7})
		w.Put(store.GenerationKey, &storev1.Counter{Value: 7})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	storetest.Damage(t, b, store.FloorKey("a"))
	if _, err := st.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := newSession(s, "a", registry.Opened{Epoch: 2}, &agentv1.Hello{Generation: 7, LastEpoch: 1})
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a := sn.target.assemblage; !a.Hold || a.Generation < 7 {
		t.Errorf("assemblage %+v, want it held, at generation 7 or above", a)
	}
	if why := x.regression(sn); why != "" {
		t.Errorf("the store counts as older: %s", why)
	}
}

// flood is the stream of an agent that sends one frame after the other, as fast as they are taken.
type flood struct {
	deaf
	ctx   context.Context
	left  int
	frame func(n int) *agentv1.ConnectRequest
	ended time.Time
}

func (f *flood) Send(*agentv1.ConnectResponse) error { return nil }

func (f *flood) Recv() (*agentv1.ConnectRequest, error) {
	if f.left--; f.left < 0 {
		f.ended = time.Now()
		return nil, io.EOF
	}
	return f.frame(f.left), nil
}

// However fast an agent talks, it is taken in at a pace that leaves the hub and its store to the others.
func TestAgentThatTalksWithoutEndIsSlowedDown(t *testing.T) {
	report := func(n, words int) *agentv1.ConnectRequest {
		st := wordy("default/m0", words, 250)
		st.Message = fmt.Sprint(n)
		return &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: &agentv1.Status{Epoch: 1, Sequence: uint64(n), Syncs: []*agentv1.SyncStatus{st}}}}
	}
	for name, tc := range map[string]struct {
		frames, words int
		least         time.Duration
	}{
		"many small frames": {5000, 0, 30 * time.Second},
		"some large frames": {400, 200, 30 * time.Second},
		"a usual start":     {200, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &gates{})
			withCluster(t, s)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
				f := &flood{ctx: ctx, left: tc.frames, frame: func(n int) *agentv1.ConnectRequest { return report(n, tc.words) }}
				began := time.Now()
				if err := x.receive(ctx, f); !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if took := f.ended.Sub(began); took < tc.least || tc.least == 0 && took > 0 {
					t.Errorf("%d frames were taken in %s, want at least %s", tc.frames, took, tc.least)
				}
			})
		})
	}
}

// An agent that connects again and again is told to wait; others are not.
func TestAgentThatConnectsWithoutEndWaits(t *testing.T) {
	var o openings
	now := time.Now()
	refused := 0
	for range 1000 {
		if o.allow("a", now) != nil {
			refused++
		}
	}
	if refused < 900 || o.allow("b", now) != nil || o.allow("a", now.Add(time.Minute)) != nil {
		t.Errorf("%d of 1000 sessions at once are refused", refused)
	}
}

// stuffed is the stream of an agent that asks for contents and reads some frames of the answer, or none.
type stuffed struct {
	grpc.ServerStreamingServer[agentv1.GetObjectsResponse]
	ctx    context.Context
	reads  int
	frames int
}

func (s *stuffed) Context() context.Context { return s.ctx }

func (s *stuffed) Send(m *agentv1.GetObjectsResponse) error {
	if s.frames++; s.frames > s.reads {
		<-s.ctx.Done()
		return s.ctx.Err()
	}
	return nil
}

// An agent that asks for contents and does not read them, or asks for one many times, parks nothing at the hub.
func TestContentsThatNobodyReadsAreGivenUp(t *testing.T) {
	s := newServer(t, &gates{})
	assign(t, s, "web", 3, "", "object")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindAgent, Name: "a", Cluster: "a"}))
		defer cancel()
		x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
		sn, err := x.snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x.grants.add(sn.target)
		s.live["a"] = x
		d := fleet.DigestOf([]byte("object"))
		ask := &agentv1.GetObjectsRequest{Epoch: 1}
		for range maxDigests {
			ask.Digests = append(ask.Digests, d.Bytes())
		}
		all := &stuffed{ctx: ctx, reads: 1000}
		if err := s.GetObjects(ask, all); err != nil || all.frames != 1 {
			t.Errorf("%d frames for one content: %v", all.frames, err)
		}
		began := time.Now()
		err = s.GetObjects(ask, &stuffed{ctx: ctx})
		if took := time.Since(began); !errors.Is(err, fleet.ErrUnavailable) || took > 90*time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
		cancel()
		synctest.Wait()
	})
}

// stuck is a store that commits no reports until it is let.
type stuck struct {
	store.Store
	free chan struct{}
}

func (s stuck) Batch(ctx context.Context, f store.Fence, ops []store.Op) (int64, error) {
	select {
	case <-s.free:
		return s.Store.Batch(ctx, f, ops)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// While a commit waits for the store, an agent that goes on reporting is not read any more, so that it fills no memory; nor is it
// taken for dead. When the store goes on, so does the agent.
func TestAgentWaitsForTheCommitOfItsReports(t *testing.T) {
	const modules, frames = 100, 90
	x := reporter(t, modules)
	free := make(chan struct{})
	x.server.o.Store = stuck{x.server.o.Store, free}
	var ahead atomic.Int64
	x.server.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &flood{ctx: ctx, left: frames, frame: func(n int) *agentv1.ConnectRequest {
		st := wordy(fmt.Sprintf("default/m%d", n%modules), 200, 250)
		return &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: &agentv1.Status{Epoch: 1, Sequence: uint64(n), Syncs: []*agentv1.SyncStatus{st}}}}
	}}
	received, committed := make(chan error, 1), make(chan error, 1)
	go func() { received <- x.receive(ctx, f) }()
	x.reports.committer.begin(&x.server.parts, func() error { return x.reports.commitNew(ctx) }, func(err error) { committed <- err })
	for !x.reports.waits.Load() {
		select {
		case err := <-received:
			t.Fatalf("all %d frames were taken although nothing could be committed: %v", frames, err)
		case <-time.After(time.Millisecond):
		}
	}
	x.reports.mu.Lock()
	pending := x.reports.bytes
	x.reports.mu.Unlock()
	if pending > 2*maxPendingBytes {
		t.Errorf("%d bytes wait for their commit", pending)
	}
	ahead.Store(int64(time.Hour))
	if err := x.stalled(); err != nil {
		t.Errorf("it is not read, and taken for dead: %v", err)
	}
	ahead.Store(0)
	close(free)
	if err := <-received; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	x.reports.committer.end()
	x.server.Wait()
	select {
	case err := <-committed:
		t.Error(err)
	default:
	}
}

// An agent whose cluster is revoked is cut at once, also if it reads nothing, so that the sender waits for it for ever.
func TestRevokedAgentThatReadsNothingIsCut(t *testing.T) {
	for name, change := range map[string]func(store.Writer){
		"locked and unlocked": func(w store.Writer) {
			w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{JoinGeneration: 7})
			w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 1, Ended: timestamppb.Now()})
		},
		"revoked": func(w store.Writer) { w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Revoked: true}) },
		"removed by force": func(w store.Writer) {
			w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Revoked: true, Removing: "keep"})
		},
		"locked": func(w store.Writer) {
			w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Lock: &towlinev1.ClusterLock{By: "ana"}})
		},
		"removed": func(w store.Writer) { w.Delete(store.ClusterKey("a")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &gates{})
			withCluster(t, s)
			assign(t, s, "web", 3, "", "object")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
			s.mu.Lock()
			s.live["a"] = x
			s.mu.Unlock()
			served, ended := make(chan error, 1), make(chan error, 1)
			go func() { served <- s.Run(ctx) }()
			go func() { ended <- x.run(ctx, &deaf{ctx: ctx, beat: time.Second}) }()
			for x.sending.Load() == 0 { // it waits for the agent
				select {
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(time.Millisecond):
				}
			}
			began := time.Now()
			if _, err := storetest.All(s.o.Store).Update(ctx, func(w store.Writer) error { change(w); return nil }); err != nil {
				t.Fatal(err)
			}
			want := fleet.ErrDenied
			if name == "locked and unlocked" {
				want = fleet.ErrStale
			}
			// A command that makes a new token makes no cluster that is not there any more.
			says := map[string]string{"revoked": "towline cluster join a --reissue", "removed": "towline cluster join a", "removed by force": "towline cluster join a"}[name]
			if err := <-ended; !errors.Is(err, want) || !strings.HasSuffix(err.Error(), says) || time.Since(began) > 5*time.Second {
				t.Errorf("ended with %v after %s", err, time.Since(began))
			} else if stop := fleet.HintOf(err).Unmet == fleet.PreconditionUnlocked; stop != (name == "locked" || name == "revoked") {
				t.Errorf("ended with %v, by which it knows that it is to stop: %v", err, stop)
			}
			cancel()
			<-served
		})
	}
}

// reporting is an agent that reads all, and reports once.
type reporting struct {
	deaf
	report func() *agentv1.ConnectRequest
}

func (*reporting) Send(*agentv1.ConnectResponse) error { return nil }

func (r *reporting) Recv() (*agentv1.ConnectRequest, error) {
	if report := r.report; report != nil {
		r.report = nil
		return report(), nil
	}
	return r.deaf.Recv()
}

// An agent may hear of a lock first by a report that counts no more, as one at another hub. It hears that it is locked: a removal stands still then,
// and goes on after a refusal that gives no reason.
func TestReportThatCountsNoMoreTellsOfTheLock(t *testing.T) {
	for name, locked := range map[string]bool{"locked": true, "taken over": false} {
		t.Run(name, func(t *testing.T) {
			x := reporter(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			agent := &reporting{deaf: deaf{ctx: ctx, beat: time.Second}, report: func() *agentv1.ConnectRequest {
				if _, err := storetest.All(x.server.o.Store).Update(ctx, func(w store.Writer) error {
					w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 1, Ended: timestamppb.Now()})
					if locked {
						w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Lock: &towlinev1.ClusterLock{By: "ana"}})
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				return &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: &agentv1.Status{Epoch: 1, Sequence: 1, Syncs: []*agentv1.SyncStatus{wordy("default/m0", 1, 10)}}}}
			}}
			err := x.run(ctx, agent)
			if is := errors.Is(err, fleet.ErrDenied) && fleet.HintOf(err).Unmet == fleet.PreconditionUnlocked; is != locked || !locked && !errors.Is(err, fleet.ErrStale) {
				t.Errorf("ended with %v", err)
			}
			cancel()
			x.server.Wait()
		})
	}
}
