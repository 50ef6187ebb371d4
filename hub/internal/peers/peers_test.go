package peers_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/peers"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// nobody is a hub without agents.
type nobody struct{ started time.Time }

func (nobody) Connected(fleet.ClusterName) bool             { return false }
func (nobody) Lost(fleet.ClusterName) time.Time             { return time.Time{} }
func (nobody) LastSeen(fleet.ClusterName) (time.Time, bool) { return time.Time{}, false }
func (n nobody) Started() time.Time                         { return n.started }
func (nobody) Query(_ context.Context, c fleet.ClusterName, _ *agentv1.Query) (*agentv1.QueryResult, error) {
	return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s is not connected", c)
}

// fleetOf is what one hub, me, knows of others.
type fleetOf struct {
	*testing.T
	ctx     context.Context
	backend backend.Backend
	engine  *engine.Engine
	peers   *peers.Peers
	changed chan fleet.ClusterName
	said    chan time.Time // since when this hub leads, as it says that it is there again
	log     *bytes.Buffer  // not to be read while Run may write it
}

func begin(t *testing.T) *fleetOf { return beginAt(t, nil) }

// beginAt has a clock; nil: the machine's.
func beginAt(t *testing.T, now func() time.Time, there ...*storev1.HubRecord) *fleetOf {
	t.Helper()
	log := new(bytes.Buffer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b := memory.New()
	e, err := engine.Open(ctx, b, engine.Options{})
	f := &fleetOf{T: t, ctx: ctx, backend: b, engine: e, changed: make(chan fleet.ClusterName, 100), said: make(chan time.Time, 1), log: log}
	f.must(err)
	t.Cleanup(func() { f.must(e.Close()) })
	for _, h := range there {
		f.hub(h)
	}
	rev, err := e.Barrier(ctx)
	f.must(err)
	f.must(e.As(store.Hub).View(ctx, rev, func(store.Reader) error { return nil })) // they are known when it begins
	f.peers, err = peers.New(peers.Options{Store: e.As(store.Hub), Local: nobody{started: time.Unix(1000, 0)}, Instance: "me", Version: "2", Lasting: 30 * time.Second, Now: now,
		Announce: func(_ context.Context, leads time.Time) {
			select {
			case f.said <- leads:
			default:
			}
		},
		Log: slog.New(slog.NewTextHandler(log, nil)), Dialer: func(address string) (*grpc.ClientConn, error) {
			return grpc.NewClient("passthrough:///"+address, append(rpc.APIDialOptions(&tls.Config{}), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		}})
	f.must(err)
	f.peers.OnChange(func(c fleet.ClusterName) { f.changed <- c })
	ended := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { ended <- f.peers.Run(run) }()
	t.Cleanup(func() {
		stop()
		f.must(<-ended)
	})
	return f
}

func (f *fleetOf) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// session writes the session of cluster a.
func (f *fleetOf) session(s *storev1.SessionRecord) {
	f.Helper()
	_, err := f.engine.As(store.Everyone).Update(f.ctx, func(w store.Writer) error {
		w.Put(store.SessionKey("a"), s)
		return nil
	})
	f.must(err)
}

// until waits for changes until it is so.
func (f *fleetOf) until(what string, is func() bool) {
	f.Helper()
	for !is() {
		select {
		case <-f.changed:
		case <-f.ctx.Done():
			f.Fatalf("%s: it did not come", what)
		}
	}
}

func (f *fleetOf) hub(rec *storev1.HubRecord) *engine.Announcement {
	f.Helper()
	a, err := f.engine.Announce(f.ctx, rec)
	f.must(err)
	return a
}

func TestConnectedIsWhoseSessionAHubThatLivesHolds(t *testing.T) {
	f := begin(t)
	connected := func() bool { return f.peers.Connected("a") }
	old := timestamppb.New(time.Now().Add(-time.Hour))
	f.session(&storev1.SessionRecord{Epoch: 1, Hub: "other", Started: old})
	if connected() {
		t.Error("it is connected to a hub that nobody has heard of")
	}
	other := f.hub(&storev1.HubRecord{Instance: "other", Address: "127.0.0.1:1"})
	f.until("the hub is there", connected)
	if at := f.peers.Lost("a"); !at.IsZero() {
		t.Errorf("it was lost at %s", at)
	}
	f.must(other.Close(f.ctx))
	f.until("the hub is gone", func() bool { return !connected() })
	if at := f.peers.Lost("a"); time.Since(at) > time.Minute {
		t.Errorf("it was lost at %s, want now", at)
	}
	other = f.hub(&storev1.HubRecord{Instance: "other", Address: "127.0.0.1:1"})
	f.until("the hub is back", connected)
	f.session(&storev1.SessionRecord{Epoch: 1, Hub: "other", Started: old, Ended: timestamppb.Now()})
	f.until("the session has ended", func() bool { return !connected() })
	f.session(&storev1.SessionRecord{Epoch: 2, Hub: "me", Started: old})
	f.session(&storev1.SessionRecord{Epoch: 3, Hub: "other", Started: old})
	f.until("it has gone there again", connected)
	f.must(other.Close(f.ctx))
}

// Two hubs of two versions on one store are said by the one that comes, and by the one that is there, each time.
// The record of this hub is damaged while its lease lives: the others take it for gone, with all that it holds, and it says that it is there again.
func TestHubWhoseRecordIsDamagedSaysThatItIsThere(t *testing.T) {
	f := begin(t)
	f.peers.Leads(time.Unix(2000, 0))
	f.hub(&storev1.HubRecord{Instance: "me", Address: "127.0.0.1:1"})
	storetest.Damage(t, f.backend, store.PeerKey("me"))
	select {
	case since := <-f.said:
		if !since.Equal(time.Unix(2000, 0)) {
			t.Errorf("it leads since %s", since)
		}
	case <-f.ctx.Done():
		t.Fatal("it says nothing")
	}
}

func TestHubOfAnotherVersionIsSaid(t *testing.T) {
	of := func(instance, version string) *storev1.HubRecord {
		return &storev1.HubRecord{Instance: instance, Address: instance + ":7443", Version: version}
	}
	f := beginAt(t, nil, of("there", "1"), of("same-there", "2"))
	for i, h := range []*storev1.HubRecord{of("same", "2"), of("older", "1")} {
		f.session(&storev1.SessionRecord{Epoch: uint64(i + 1), Hub: h.GetInstance(), Started: timestamppb.Now()})
		f.until("its agent is not there yet", func() bool { return !f.peers.Connected("a") })
		f.hub(h)
		f.until(h.GetInstance()+" is there", func() bool { return f.peers.Connected("a") })
	}
	var said []string
	for line := range strings.Lines(f.log.String()) {
		if _, rest, is := strings.Cut(line, "is of another version"); is {
			_, who, _ := strings.Cut(rest, "instance=")
			said = append(said, strings.TrimSpace(who))
		}
	}
	if want := []string{"there address=there:7443 version=1 own=2", "older address=older:7443 version=1 own=2"}; !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// Grace counts from the start of leadership, wherever that is.
// Since when another hub leads is by this hub's clock: that of the other may be hours ahead, so that agents that are away would be expected for
// as long, or behind.
func TestStartedIsWhenTheLeaderBeganToLead(t *testing.T) {
	for name, leads := range map[string]int64{"the clocks agree": 3000, "its clock is ahead": 9000, "its clock is behind": 1500} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			now.Store(2500)
			f := beginAt(t, func() time.Time { return time.Unix(now.Load(), 0) })
			if at := f.peers.Started(); at.Unix() != 1000 {
				t.Errorf("nobody leads: %s", at)
			}
			for i, h := range []*storev1.HubRecord{{Instance: "older", Leads: timestamppb.New(time.Unix(2000, 0))}, {Instance: "other", Leads: timestamppb.New(time.Unix(leads, 0))}} {
				f.session(&storev1.SessionRecord{Epoch: uint64(i + 1), Hub: h.GetInstance(), Started: timestamppb.Now()})
				f.until("its agent is not there yet", func() bool { return !f.peers.Connected("a") })
				now.Store(2500 + 500*int64(i))
				f.hub(h)
				f.until(h.GetInstance()+" is there", func() bool { return f.peers.Connected("a") })
			}
			if at := f.peers.Started(); at.Unix() != 3000 {
				t.Errorf("another hub leads since 3000: %d", at.Unix())
			}
			if said := strings.Contains(f.log.String(), "ahead=1h40m0s"); said != (leads == 9000) {
				t.Errorf("it is said that its clock is ahead: %t\n%s", said, f.log)
			}
			f.peers.Leads(time.Unix(4000, 0))
			if at := f.peers.Started(); at.Unix() != 4000 {
				t.Errorf("this hub leads since 4000: %s", at)
			}
			for clock, since := range map[int64]int64{leads + 100: leads, leads - 100: leads - 100} { // it led when this hub began
				f := beginAt(t, func() time.Time { return time.Unix(clock, 0) }, &storev1.HubRecord{Instance: "other", Leads: timestamppb.New(time.Unix(leads, 0))})
				if at := f.peers.Started(); at.Unix() != since {
					t.Errorf("begun at %d it leads since %d, not %d", clock, at.Unix(), since)
				}
			}
		})
	}
}

// silent answers no question.
type silent struct {
	hubv1.UnimplementedRelayServiceServer
	asked chan *hubv1.AskRequest
}

func (s silent) Ask(ctx context.Context, req *hubv1.AskRequest) (*hubv1.AskResponse, error) {
	s.asked <- req
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestQuestionToAHubThatGoesAway(t *testing.T) {
	f := begin(t)
	l, err := (&net.ListenConfig{}).Listen(f.ctx, "tcp", "127.0.0.1:0")
	f.must(err)
	server, service := grpc.NewServer(), silent{asked: make(chan *hubv1.AskRequest, 1)}
	hubv1.RegisterRelayServiceServer(server, service)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	other := f.hub(&storev1.HubRecord{Instance: "other", Address: l.Addr().String()})
	f.session(&storev1.SessionRecord{Epoch: 1, Hub: "other", Started: timestamppb.Now()})
	f.until("it is connected", func() bool { return f.peers.Connected("a") })
	gone := make(chan error, 1)
	go func() {
		req := <-service.asked
		if req.GetInstance() != "other" || req.GetCluster() != "a" || req.GetQuery().GetType() != "get" {
			t.Errorf("asked %v", req)
		}
		gone <- other.Close(f.ctx)
	}()
	_, err = f.peers.Query(f.ctx, "a", &agentv1.Query{Type: "get"})
	f.must(<-gone)
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "went away before it answered") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error %v", err)
	}
}

// relays answers what the hub that leads is asked.
type relays struct {
	hubv1.UnimplementedRelayServiceServer
	resync func(context.Context) (*hubv1.ResyncResponse, error)
}

func (r relays) Resync(ctx context.Context, _ *hubv1.ResyncRequest) (*hubv1.ResyncResponse, error) {
	return r.resync(ctx)
}

// Whoever asks through a hub that does not lead is told whether the one that leads went away, so that asking again is worth it: not when that
// has answered that something else is not there.
func TestLeaderThatGoesAwayIsAskedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(other *engine.Announcement, server *grpc.Server) (*hubv1.ResyncResponse, error)
		again  bool
		says   string
	}{
		"it dies": {func(_ *engine.Announcement, server *grpc.Server) (*hubv1.ResyncResponse, error) {
			go server.Stop()
			return nil, nil
		}, true, "went away before it answered"},
		"its record ends": {func(other *engine.Announcement, _ *grpc.Server) (*hubv1.ResyncResponse, error) {
			return nil, other.Close(t.Context())
		}, true, "went away before it answered"},
		"it leads no more": {func(*engine.Announcement, *grpc.Server) (*hubv1.ResyncResponse, error) {
			return nil, rpc.ToStatus(fleet.With(fleet.Errorf(fleet.ErrUnavailable, "this hub does not lead now"), fleet.Hint{RetryAfter: time.Second}))
		}, true, "does not lead now"},
		"the source is away": {func(*engine.Announcement, *grpc.Server) (*hubv1.ResyncResponse, error) {
			return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "source x: cannot be reached"))
		}, false, "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			f := begin(t)
			l, err := (&net.ListenConfig{}).Listen(f.ctx, "tcp", "127.0.0.1:0")
			f.must(err)
			server := grpc.NewServer()
			var other *engine.Announcement
			hubv1.RegisterRelayServiceServer(server, relays{resync: func(ctx context.Context) (*hubv1.ResyncResponse, error) {
				resp, err := tt.answer(other, server)
				if resp == nil && err == nil { // whoever asks is let go otherwise
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return resp, err
			}})
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			other = f.hub(&storev1.HubRecord{Instance: "other", Address: l.Addr().String(), Leads: timestamppb.New(time.Unix(2000, 0))})
			f.session(&storev1.SessionRecord{Epoch: 1, Hub: "other", Started: timestamppb.Now()})
			f.until("it is known", func() bool { return f.peers.Connected("a") })
			_, err = peers.Leader{Peers: f.peers}.Resync(f.ctx, fleet.ModuleRef{Project: "default", Name: "shop"}, record.Ask{By: "ana"}, nil)
			if !errors.Is(err, fleet.ErrUnavailable) || (fleet.HintOf(err).RetryAfter > 0) != tt.again || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, hint %+v", err, fleet.HintOf(err))
			}
		})
	}
}

// What is meant for another hub is refused: both may be behind one address.
func TestQuestionForAnotherHubIsRefused(t *testing.T) {
	f := begin(t)
	_, err := f.peers.Service(nil).Ask(f.ctx, &hubv1.AskRequest{Instance: "other", Cluster: "a", Query: &agentv1.Query{}})
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "--hub-address") {
		t.Errorf("error %v", err)
	}
}
