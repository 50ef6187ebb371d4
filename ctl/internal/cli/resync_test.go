package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// What a resync came to is said in a line, and --wait exits with the result of the rollout.
func TestResync(t *testing.T) {
	hub := &fakeHub{modules: surfaceModules(), resynced: &v1.ResyncModuleResponse{Result: "Unchanged", ResolvedRef: "main@sha1:1f2e"}}
	if got := hub.run(t, run{}, "resync", "module", "shop", "-m", "pushed"); got.out != "module/shop unchanged; at main@sha1:1f2e\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
	if req := asked[*v1.ResyncModuleRequest](hub); req.GetName() != "shop" || req.GetReason() != "pushed" {
		t.Errorf("asked %v", req)
	}
	hub.resynced = &v1.ResyncModuleResponse{Result: "Started", Rollout: "shop/58", ResolvedRef: "main@sha1:2e3d"}
	if got := hub.run(t, run{}, "resync", "module/shop"); got.out != "module/shop rollout shop/58 started; at main@sha1:2e3d\n" {
		t.Errorf("%+v", got)
	}
	hub.resynced = &v1.ResyncModuleResponse{Result: "Waiting", Rollout: "shop/58"}
	if got := hub.run(t, run{}, "resync", "module/shop"); !strings.Contains(got.out, "waits for its source, which is asked for now") {
		t.Errorf("%+v", got)
	}
	hub.resynced = &v1.ResyncModuleResponse{Result: "Started", Rollout: "shop/58", Others: []string{"base/9"}}
	hub.modules = append(hub.modules, &v1.Module{Metadata: &v1.Metadata{Name: "base", Project: "default"}})
	if got := hub.run(t, run{}, "resync", "module", "shop", "base"); got.out != "module/shop rollout shop/58 started\nmodule/base rollout shop/58 started\n" {
		t.Errorf("two: %+v", got)
	}
	if req := asked[*v1.ResyncModuleRequest](hub); len(req.GetWith()) != 1 {
		t.Errorf("with: %v", req)
	}
	hub.resynced = &v1.ResyncModuleResponse{Result: "Waiting", Rollout: "base/9", Others: []string{"base/9"}}
	if got := hub.run(t, run{}, "resync", "module", "shop", "base"); !strings.Contains(got.out, "module/base rollout base/9 started") {
		t.Errorf("one that began with another: %+v", got)
	}
	for args, says := range map[string]string{"resync cluster/a": "only modules and catalogs have sources", "resync module/shop --take": "--take is for catalogs", "resync module": "name the module", "resync shop": "shop"} {
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, says) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	hub.resynced, hub.err = nil, errors.New("away")
	if got := hub.run(t, run{}, "resync", "module/shop"); got.code != 1 {
		t.Errorf("%+v", got)
	}
}

// A request that is answered when a source was fetched waits for as long as a source may take; any other one for a minute.
func TestRequestsWaitForTheirSources(t *testing.T) {
	for method, want := range map[string]time.Duration{
		v1.ModuleService_ResyncModule_FullMethodName: callTimeout + wire.MaxFetchTimeout, v1.CatalogService_ResyncCatalog_FullMethodName: callTimeout + wire.MaxFetchTimeout,
		v1.ModuleService_DiffModule_FullMethodName: callTimeout + wire.MaxFetchTimeout, v1.ModuleService_GetModule_FullMethodName: callTimeout,
	} {
		err := limitCall(t.Context(), method, nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			if ends, limited := ctx.Deadline(); !limited || time.Until(ends).Round(time.Minute) != want {
				t.Errorf("%s: %s", method, time.Until(ends))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A hub that goes away before it has told what a look came to is asked again, or the one that leads next is. What began before counts as begun
// by the command. A source that cannot be reached is no hub that went away: that is said at once.
func TestResyncOutlivesTheHub(t *testing.T) {
	shop := func(rollout string) []*v1.Module {
		return []*v1.Module{{Metadata: &v1.Metadata{Name: "shop", Project: "default"}, Status: &v1.ModuleStatus{Rollout: rollout}}}
	}
	unreachable := status.Error(codes.Unavailable, "connection error: EOF")
	leaderGone := rpc.ToStatus(fleet.With(fleet.Errorf(fleet.ErrUnavailable, "hub h1 went away before it answered"), fleet.Hint{RetryAfter: time.Second}))
	sourceGone := rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "module shop: source https://git.example.com: cannot be reached"))
	for name, tt := range map[string]struct {
		first  error
		begins string // the rollout that is there after the first look
		then   *v1.ResyncModuleResponse
		out    string
		asked  int
	}{
		"the hub went away, and nothing has changed": {unreachable, "shop/57", &v1.ResyncModuleResponse{Result: "Unchanged"}, "module/shop unchanged\n", 2},
		"it went away, and had begun a rollout":      {unreachable, "shop/58", &v1.ResyncModuleResponse{Result: "Unchanged", ResolvedRef: "main@sha1:2e3d"}, "module/shop rollout shop/58 started; at main@sha1:2e3d\n", 2},
		"it went away before it began one":           {unreachable, "shop/57", &v1.ResyncModuleResponse{Result: "Started", Rollout: "shop/58"}, "module/shop rollout shop/58 started\n", 2},
		"another one led, and went away":             {leaderGone, "shop/57", &v1.ResyncModuleResponse{Result: "Started", Rollout: "shop/58"}, "module/shop rollout shop/58 started\n", 2},
		"the source cannot be reached":               {sourceGone, "shop/57", &v1.ResyncModuleResponse{Result: "Started", Rollout: "shop/58"}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &fakeHub{modules: shop("shop/57"), resynced: tt.then}
			hub.looks = []func() (*v1.ResyncModuleResponse, error){func() (*v1.ResyncModuleResponse, error) {
				hub.modules = shop(tt.begins)
				return nil, tt.first
			}}
			got := hub.run(t, run{}, "resync", "module", "shop")
			if got.out != tt.out || (got.code == exitOK) != (tt.out != "") {
				t.Errorf("exit %d, %q, %s", got.code, got.out, got.err)
			}
			if n := timesAsked[*v1.ResyncModuleRequest](hub); n != tt.asked {
				t.Errorf("asked %d times, want %d", n, tt.asked)
			}
		})
	}
}

// Lists and descriptions say how a source is followed.
func TestFollowIsShown(t *testing.T) {
	git := &v1.Source{Git: &v1.GitSource{Url: "https://git.example.com/shop.git", Ref: &v1.GitRef{Branch: "main"}}, Follow: &v1.Follow{}}
	module := func(name string, f *v1.FollowStatus, rolledBack bool) *v1.Module {
		s := &v1.ModuleStatus{RolloutState: "Succeeded", Rollout: name + "/1", Revision: 2, SucceededRevision: 2, Follow: f, RolledBack: rolledBack}
		c := &v1.Condition{Type: "Following", Status: "True", Reason: "Follows"}
		if f.GetReason() != "" {
			c.Status, c.Reason, c.LastTransitionTime = "False", f.GetReason(), f.GetSince()
		}
		s.Conditions = []*v1.Condition{c}
		return &v1.Module{Metadata: &v1.Metadata{Name: name, Project: "default"}, Spec: &v1.ModuleSpec{Source: git}, Status: s}
	}
	hub := &fakeHub{rollouts: []*v1.Rollout{{Id: "away/1", Status: &v1.RolloutStatus{State: "Succeeded"}}}, modules: []*v1.Module{
		module("away", &v1.FollowStatus{Looked: ago(time.Minute), ResolvedRef: "main@sha1:1111111111111111", Next: in(time.Minute), Reason: "Unavailable", Since: ago(20 * time.Minute),
			Message: "source https://git.example.com/shop.git: cannot be reached"}, false),
		module("back", &v1.FollowStatus{Looked: ago(time.Minute), ResolvedRef: "main@sha1:2222222222222222", Next: in(time.Minute), SuspendedRevision: 2}, true),
		module("shop", &v1.FollowStatus{Looked: ago(3 * time.Minute), ResolvedRef: "main@sha1:3333333333333333", Next: in(2 * time.Minute)}, false),
	}}
	got := hub.run(t, run{}, "get", "modules", "-o", "wide")
	out := got.out + got.err
	for _, says := range []string{"Unavailable for 20m", "suspended: r2 was rolled back", "main@sha1:333333333333 3m ago", "Succeeded; its source is not followed: Unavailable for 20m"} {
		if !strings.Contains(out, says) {
			t.Errorf("%q is not in\n%s", says, out)
		}
	}
	if out := hub.run(t, run{}, "describe", "module", "away").out; !strings.Contains(out, "Follows:      every 5m; looked 1m ago; next at") ||
		!strings.Contains(out, "Problem:      Unavailable for 20m: source https://git.example.com/shop.git: cannot be reached") || !strings.Contains(out, "what runs stays") {
		t.Errorf("describe\n%s", out)
	}
	if out := hub.run(t, run{}, "explain", "module", "away").out; !strings.Contains(out, "its source cannot be had; what runs stays: source https://git.example.com/shop.git: cannot be reached") {
		t.Errorf("explain\n%s", out)
	}
}
