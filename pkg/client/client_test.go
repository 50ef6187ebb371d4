package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// hub is a server whose answers a test writes as functions.
type hub struct {
	v1.UnimplementedModuleServiceServer
	v1.UnimplementedRolloutServiceServer

	mu        sync.Mutex
	requests  []proto.Message
	getModule func(try int) error
	put       func() error
	watch     func(try int, r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error
	modules   func(try int, s grpc.ServerStreamingServer[v1.WatchModulesResponse]) error
	stale     int64 // every revision up to here is of another store
	tries     int
}

func (h *hub) note(m proto.Message) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, proto.Clone(m))
	h.tries++
	return h.tries
}

func (h *hub) GetModule(_ context.Context, r *v1.GetModuleRequest) (*v1.GetModuleResponse, error) {
	try := h.note(r)
	if h.getModule != nil {
		if err := h.getModule(try); err != nil {
			return nil, rpc.ToStatus(err)
		}
	}
	if r.GetMinRevision() > 0 && r.GetMinRevision() <= h.stale {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrStale, "the store has no such revision"))
	}
	return &v1.GetModuleResponse{Module: &v1.Module{}}, nil
}

func (h *hub) PutModule(_ context.Context, r *v1.PutModuleRequest) (*v1.PutModuleResponse, error) {
	h.note(r)
	if h.put != nil {
		return nil, rpc.ToStatus(h.put())
	}
	return &v1.PutModuleResponse{Revision: 41}, nil
}

func (h *hub) WatchRollout(r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
	return rpc.ToStatus(h.watch(h.note(r), r, s))
}

func (h *hub) WatchModules(r *v1.WatchModulesRequest, s grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
	return rpc.ToStatus(h.modules(h.note(r), s))
}

// dial serves h in memory until the test ends.
func dial(t *testing.T, h *hub, o client.Options) *client.Client {
	t.Helper()
	server := grpc.NewServer()
	v1.RegisterModuleServiceServer(server, h)
	v1.RegisterRolloutServiceServer(server, h)
	return serve(t, server, o)
}

func serve(t *testing.T, server *grpc.Server, o client.Options) *client.Client {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	o.Server = "hub.test:7444"
	o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	o.DialOptions = append(o.DialOptions, grpc.WithTransportCredentials(insecure.NewCredentials()))
	c, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		<-served
	})
	return c
}

func rollout(state, token string, done bool) *v1.WatchRolloutResponse {
	return &v1.WatchRolloutResponse{Rollout: &v1.Rollout{Number: 57, Id: "shop/57", Status: &v1.RolloutStatus{State: state}}, ResumeToken: token, Ended: done}
}

// TestWatchRolloutResumes: a hub that goes away in the middle costs nothing but time.
func TestWatchRolloutResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hub{watch: func(try int, r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
			switch try {
			case 1:
				return errors.Join(s.Send(rollout("Pending", "t1", false)), s.Send(rollout("Progressing", "t2", false)), fleet.ErrUnavailable)
			case 2:
				return fleet.Errorf(fleet.ErrUnavailable, "starting")
			case 3:
				return nil // ends without saying that the rollout has ended
			}
			return s.Send(rollout("Succeeded", "t3", true))
		}}
		var breaks []string
		c := dial(t, h, client.Options{OnBreak: func(err error) { breaks = append(breaks, err.Error()) }})
		var states []string
		start := time.Now()
		err := c.WatchRollout(t.Context(), &v1.WatchRolloutRequest{Module: "shop"}, func(r *v1.WatchRolloutResponse) error {
			states = append(states, r.GetRollout().GetStatus().GetState())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"Pending", "Progressing", "Succeeded"}, states); diff != "" {
			t.Errorf("states (-want +got)\n%s", diff)
		}
		if len(breaks) != 3 {
			t.Errorf("OnBreak was told %q, want three breaks", breaks)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("three breaks took %s", took)
		}
		for i, want := range []struct {
			token  string
			number int64
		}{{"", 0}, {"t2", 57}, {"t2", 57}, {"t2", 57}} {
			r := h.requests[i].(*v1.WatchRolloutRequest)
			if r.GetResumeToken() != want.token || r.GetNumber() != want.number {
				t.Errorf("try %d asked for token %q of rollout %d, want %q of %d", i+1, r.GetResumeToken(), r.GetNumber(), want.token, want.number)
			}
		}
	})
}

// TestWatchRolloutWithAForgottenToken begins again when the hub does not know the token any more.
func TestWatchRolloutWithAForgottenToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hub{watch: func(try int, r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
			switch {
			case try == 1:
				return errors.Join(s.Send(rollout("Progressing", "old", false)), fleet.ErrUnavailable)
			case r.GetResumeToken() != "":
				return fleet.Errorf(fleet.ErrStale, "resume token is of another incarnation")
			}
			return s.Send(rollout("Succeeded", "new", true))
		}}
		last, err := dial(t, h, client.Options{}).WaitRollout(t.Context(), &v1.WatchRolloutRequest{Module: "shop"}, nil)
		if err != nil || last.GetStatus().GetState() != "Succeeded" {
			t.Errorf("got %v, %v", last, err)
		}
	})
}

func TestWatchRolloutEndsOnLastingErrors(t *testing.T) {
	h := &hub{watch: func(int, *v1.WatchRolloutRequest, grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
		return fleet.Errorf(fleet.ErrNotFound, "module shop: there is none")
	}}
	_, err := dial(t, h, client.Options{}).WaitRollout(t.Context(), &v1.WatchRolloutRequest{Module: "shop"}, nil)
	if !errors.Is(err, fleet.ErrNotFound) || err.Error() != "module shop: there is none" || h.tries != 1 {
		t.Errorf("got %v after %d tries", err, h.tries)
	}
}

// TestWatchEndsByItsDeadline: the hub may see the deadline first. That is no break, and no word of the hub.
func TestWatchEndsByItsDeadline(t *testing.T) {
	for name, end := range map[string]error{"an end without a word": nil, "the deadline": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hub{watch: func(_ int, _ *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
					if err := s.Send(rollout("Progressing", "t", false)); err != nil {
						return err
					}
					<-time.After(time.Second - 20*time.Millisecond)
					return end
				}}
				c := dial(t, h, client.Options{OnBreak: func(err error) { t.Errorf("a break: %v", err) }})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := c.WaitRollout(ctx, &v1.WatchRolloutRequest{Module: "shop"}, nil); err != context.DeadlineExceeded || h.tries != 1 {
					t.Errorf("got %v after %d tries, want the end of its own deadline after one", err, h.tries)
				}
			})
		})
	}
}

// TestWatchTellsAWrongAddress: a hub that never answered is not waited for.
func TestWatchTellsAWrongAddress(t *testing.T) {
	h := &hub{watch: func(int, *v1.WatchRolloutRequest, grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
		return fleet.Errorf(fleet.ErrUnavailable, "hub is stopping")
	}}
	_, err := dial(t, h, client.Options{}).WaitRollout(t.Context(), &v1.WatchRolloutRequest{Module: "shop"}, nil)
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestWatchErrorsOfTheCaller(t *testing.T) {
	h := &hub{watch: func(_ int, _ *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
		return errors.Join(s.Send(rollout("Pending", "t", false)), context.Cause(s.Context()))
	}}
	c, mine := dial(t, h, client.Options{}), errors.New("mine")
	for returned, want := range map[error]error{mine: mine, client.ErrStop: nil} {
		err := c.WatchRollout(t.Context(), &v1.WatchRolloutRequest{}, func(*v1.WatchRolloutResponse) error { return returned })
		if !errors.Is(err, want) {
			t.Errorf("fn returned %v, the watch %v", returned, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, mine)
	defer cancel()
	<-ctx.Done()
	if err := c.WatchRollout(ctx, &v1.WatchRolloutRequest{}, func(*v1.WatchRolloutResponse) error { return nil }); !errors.Is(err, mine) {
		t.Errorf("a context that is done: %v, want its cause", err)
	}
}

func module(name, changedBy string) *v1.Module {
	return &v1.Module{Metadata: &v1.Metadata{Name: name, ChangedBy: changedBy}}
}

// TestWatchModulesTellsDifferencesOnly: after a break the list comes again, and with it what went meanwhile.
func TestWatchModulesTellsDifferencesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(s grpc.ServerStreamingServer[v1.WatchModulesResponse], changes ...any) error {
			var errs []error
			for i := 0; i < len(changes); i += 2 {
				m, _ := changes[i+1].(*v1.Module)
				errs = append(errs, s.Send(&v1.WatchModulesResponse{Type: changes[i].(string), Module: m}))
			}
			return errors.Join(errs...)
		}
		h := &hub{modules: func(try int, s grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
			if try == 1 {
				err := send(s, client.Added, module("a", "x"), client.Added, module("b", "x"), client.Added, module("gone", "x"), client.Synced, nil,
					client.Modified, module("a", "y"))
				return errors.Join(err, fleet.ErrUnavailable)
			}
			return errors.Join(send(s, client.Added, module("a", "y"), client.Added, module("b", "z"), client.Added, module("c", "x"), client.Synced, nil,
				client.Deleted, module("c", "x")))
		}}
		var told []string
		err := dial(t, h, client.Options{}).WatchModules(t.Context(), &v1.WatchModulesRequest{}, func(ch client.Change[*v1.Module]) error {
			told = append(told, strings.TrimSpace(ch.Type+" "+ch.Item.GetMetadata().GetName()+" "+ch.Item.GetMetadata().GetChangedBy()))
			if ch.Type == client.Deleted && ch.Item.GetMetadata().GetName() == "c" {
				return client.ErrStop
			}
			return nil
		})
		want := []string{"ADDED a x", "ADDED b x", "ADDED gone x", "SYNCED", "MODIFIED a y", "MODIFIED b z", "ADDED c x", "DELETED gone x", "DELETED c x"}
		if diff := cmp.Diff(want, told); diff != "" || err != nil {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	})
}

// TestWatchModulesGoesOnBehindItsToken: a hub that keeps the changes sends those alone, one that does not refuses the token.
func TestWatchModulesGoesOnBehindItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(s grpc.ServerStreamingServer[v1.WatchModulesResponse], kind string, m *v1.Module, token string) error {
			return s.Send(&v1.WatchModulesResponse{Type: kind, Module: m, ResumeToken: token})
		}
		h := &hub{}
		var tokens []string
		h.modules = func(try int, s grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
			tokens = append(tokens, h.requests[try-1].(*v1.WatchModulesRequest).GetResumeToken())
			switch try {
			case 1: // breaks before all is sent
				return errors.Join(send(s, client.Added, module("a", "x"), ""), fleet.ErrUnavailable)
			case 2:
				return errors.Join(send(s, client.Added, module("a", "x"), ""), send(s, client.Added, module("b", "x"), ""), send(s, client.Synced, nil, "t1"),
					send(s, client.Modified, module("a", "y"), "t2"), fleet.ErrUnavailable)
			case 3: // b did not change
				return errors.Join(send(s, client.Modified, module("a", "z"), ""), send(s, client.Synced, nil, "t3"), fleet.ErrUnavailable)
			case 4:
				return fleet.Errorf(fleet.ErrStale, "not kept any more")
			}
			return errors.Join(send(s, client.Added, module("a", "z"), ""), send(s, client.Synced, nil, "t9"), send(s, client.Added, module("end", ""), "t10"))
		}
		var told []string
		err := dial(t, h, client.Options{}).WatchModules(t.Context(), &v1.WatchModulesRequest{ResumeToken: "mine"}, func(ch client.Change[*v1.Module]) error {
			told = append(told, strings.TrimSpace(ch.Type+" "+ch.Item.GetMetadata().GetName()+" "+ch.Item.GetMetadata().GetChangedBy()))
			if ch.Item.GetMetadata().GetName() == "end" {
				return client.ErrStop
			}
			return nil
		})
		want := []string{"ADDED a x", "ADDED b x", "SYNCED", "MODIFIED a y", "MODIFIED a z", "DELETED b x", "ADDED end"}
		if diff := cmp.Diff(want, told); diff != "" || err != nil {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
		if diff := cmp.Diff([]string{"", "", "t2", "t3", ""}, tokens); diff != "" {
			t.Errorf("tokens (-want +got)\n%s", diff)
		}
	})
}

// TestRevisionOfAStoreThatIsNotThereAnyMore: a hub that was restored from a copy has never seen what this client wrote.
func TestRevisionOfAStoreThatIsNotThereAnyMore(t *testing.T) {
	h := &hub{stale: 41, watch: func(_ int, r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
		if r.GetMinRevision() != 0 {
			return fleet.Errorf(fleet.ErrStale, "the store has no such revision")
		}
		return s.Send(rollout("Succeeded", "t", true))
	}}
	c := dial(t, h, client.Options{})
	for _, read := range []func() error{
		func() error {
			_, err := c.Modules.GetModule(t.Context(), &v1.GetModuleRequest{})
			return err
		},
		func() error {
			_, err := c.WaitRollout(t.Context(), &v1.WatchRolloutRequest{Module: "shop"}, nil)
			return err
		},
	} {
		if _, err := c.Modules.PutModule(t.Context(), &v1.PutModuleRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := read(); err != nil || c.WrittenRevision() != 0 {
			t.Errorf("%v, and it goes on to ask for revision %d", err, c.WrittenRevision())
		}
	}
	if _, err := c.Modules.GetModule(t.Context(), &v1.GetModuleRequest{MinRevision: 40}); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("a revision that the caller asks for: %v", err)
	}
}

// TestReadsSeeWhatWasWritten: a read after a write names the write's revision, a request that names its own keeps it.
func TestReadsSeeWhatWasWritten(t *testing.T) {
	h := &hub{watch: func(int, *v1.WatchRolloutRequest, grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
		return fleet.ErrNotFound
	}}
	c := dial(t, h, client.Options{})
	ask := func(req *v1.GetModuleRequest) int64 {
		t.Helper()
		before := proto.Clone(req)
		if _, err := c.Modules.GetModule(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(before, req) {
			t.Error("the caller's request was changed")
		}
		return h.requests[len(h.requests)-1].(*v1.GetModuleRequest).GetMinRevision()
	}
	if got := ask(&v1.GetModuleRequest{}); got != 0 {
		t.Errorf("before any write: min_revision %d", got)
	}
	if _, err := c.Modules.PutModule(t.Context(), &v1.PutModuleRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := ask(&v1.GetModuleRequest{}); got != 41 || c.WrittenRevision() != 41 {
		t.Errorf("after the write: min_revision %d, want 41", got)
	}
	if got := ask(&v1.GetModuleRequest{MinRevision: 7}); got != 7 {
		t.Errorf("a request with a revision of its own went with %d", got)
	}
	if err := c.WatchRollout(t.Context(), &v1.WatchRolloutRequest{}, nil); !errors.Is(err, fleet.ErrNotFound) {
		t.Fatal(err)
	}
	if got := h.requests[len(h.requests)-1].(*v1.WatchRolloutRequest).GetMinRevision(); got != 41 {
		t.Errorf("a watch after the write: min_revision %d, want 41", got)
	}
}

// TestReadsAreTriedAgainWritesAreNot: a write may have been done before the answer was lost.
func TestReadsAreTriedAgainWritesAreNot(t *testing.T) {
	h := &hub{
		getModule: func(try int) error {
			if try < 3 {
				return fleet.Errorf(fleet.ErrUnavailable, "no leader")
			}
			return nil
		},
		put: func() error { return fleet.Errorf(fleet.ErrUnavailable, "no leader") },
	}
	c := dial(t, h, client.Options{})
	if _, err := c.Modules.GetModule(t.Context(), &v1.GetModuleRequest{}); err != nil || h.tries != 3 {
		t.Errorf("read: %v after %d tries, want none after 3", err, h.tries)
	}
	h.tries = 0
	_, err := c.Modules.PutModule(t.Context(), &v1.PutModuleRequest{})
	if !errors.Is(err, fleet.ErrUnavailable) || err.Error() != "no leader" || h.tries != 1 {
		t.Errorf("write: %v after %d tries, want the hub's sentence after 1", err, h.tries)
	}
	h.tries, h.getModule = 0, func(int) error { return fleet.Errorf(fleet.ErrUnavailable, "no leader") }
	if _, err = c.Modules.GetModule(t.Context(), &v1.GetModuleRequest{}); err == nil || err.Error() != "no leader" {
		t.Errorf("a read that never succeeds: %v, want the hub's sentence", err)
	}
}

// TestReadsOfEveryServiceAreTriedAgain: a hub that is away for a moment costs no read an error, of whichever service.
func TestReadsOfEveryServiceAreTriedAgain(t *testing.T) {
	tried := map[string]bool{}
	once := func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		if !tried[method] {
			tried[method] = true
			return rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "no leader"))
		}
		return errors.Join(s.RecvMsg(&v1.GetModuleRequest{}), s.SendMsg(&v1.GetModuleResponse{}))
	}
	c := serve(t, grpc.NewServer(grpc.UnknownServiceHandler(once)), client.Options{})
	protoregistry.GlobalFiles.RangeFilesByPackage("towline.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				if m.IsStreamingServer() || !strings.HasPrefix(string(m.Name()), "Get") && !strings.HasPrefix(string(m.Name()), "List") {
					continue
				}
				method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
				if err := c.Conn().Invoke(t.Context(), method, &v1.GetModuleRequest{}, &v1.GetModuleResponse{}); err != nil {
					t.Errorf("%s: %v", method, err)
				}
			}
		}
		return true
	})
	if len(tried) < 20 {
		t.Errorf("there are %d reads", len(tried))
	}
}

func TestFieldErrorsCrossTheWire(t *testing.T) {
	h := &hub{put: func() error { return fleet.Invalid("spec.placement", "is empty") }}
	_, err := dial(t, h, client.Options{}).Modules.PutModule(t.Context(), &v1.PutModuleRequest{})
	var field *fleet.FieldError
	if !errors.As(err, &field) || field.Path != "spec.placement" || !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("got %#v", err)
	}
}

func TestDialNeedsAConfiguration(t *testing.T) {
	_, err := client.Dial(t.Context(), client.Options{Config: t.TempDir() + "/none"})
	if !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if _, err = client.Dial(t.Context(), client.Options{Server: "hub:7444", CA: []byte("no PEM")}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a CA that is none: %v", err)
	}
}

func TestAllPages(t *testing.T) {
	h := &paged{}
	c := dialPaged(t, h)
	var names []string
	for m, err := range c.AllModules(t.Context(), &v1.ListModulesRequest{Project: "p", LabelSelector: "a=b"}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, m.GetMetadata().GetName())
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("got %v", names)
	}
}

// paged gives one module a page.
type paged struct {
	v1.UnimplementedModuleServiceServer
}

func (*paged) ListModules(_ context.Context, r *v1.ListModulesRequest) (*v1.ListModulesResponse, error) {
	if r.GetProject() != "p" || r.GetLabelSelector() != "a=b" {
		return nil, rpc.ToStatus(fleet.Invalid("project", "the filter is lost on later pages"))
	}
	next := map[string]string{"": "b", "b": "c", "c": ""}[r.GetPageToken()]
	name := map[string]string{"": "a"}[r.GetPageToken()] + r.GetPageToken()
	return &v1.ListModulesResponse{Modules: []*v1.Module{module(name, "")}, NextPageToken: next}, nil
}

func dialPaged(t *testing.T, h *paged) *client.Client {
	t.Helper()
	server := grpc.NewServer()
	v1.RegisterModuleServiceServer(server, h)
	return serve(t, server, client.Options{})
}
