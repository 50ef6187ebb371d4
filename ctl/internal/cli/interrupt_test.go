package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// interrupts has the command interrupted while the hub has its request.
func (r run) interrupts(cancel func()) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	at := func(ctx context.Context, req any) error {
		m, is := req.(proto.Message)
		if is && r.noticed != nil {
			r.noticed(m)
		}
		if !is || r.interruptAt == nil || !r.interruptAt(m) {
			return nil
		}
		cancel()
		<-ctx.Done()
		return rpc.ToStatus(ctx.Err())
	}
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if err := at(ctx, req); err != nil {
			return nil, err
		}
		return handle(ctx, req)
	}
	stream := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return handle(srv, received{s, at})
	}
	return unary, stream
}

// received is a stream whose requests are looked at.
type received struct {
	grpc.ServerStream
	at func(context.Context, any) error
}

func (s received) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.at(s.Context(), m)
}

// nth is the nth request of a type, but for dry runs.
func nth[M proto.Message](n int) func(proto.Message) bool {
	return func(m proto.Message) bool {
		if _, is := m.(M); !is {
			return false
		}
		if dry, has := m.(interface{ GetDryRun() bool }); has && dry.GetDryRun() {
			return false
		}
		n--
		return n == 0
	}
}

// Who interrupts a command is told what goes on without it, and what it did not come to.
func TestInterruptSaysWhatGoesOn(t *testing.T) {
	two := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: base", 1)
	progressing := func() *fakeHub {
		hub := setHub("set/a:shop", "set/a:base", "set/a:old")
		hub.put, hub.watch = putAnswer(), watching(surfaceRollout())
		hub.put.Warnings = nil
		return hub
	}
	through := progressing()
	through.watch = watching(ended("Succeeded", nil))
	fresh := progressing()
	fresh.put.Result = "created"
	needed := progressing()
	needed.needed = 1
	for name, tc := range map[string]struct {
		hub   *fakeHub
		stdin string
		at    func(proto.Message) bool
		args  string
		want  string
	}{
		"a rollout": {progressing(), shopYAML, nth[*v1.WatchRolloutRequest](1), "apply -f - --wait",
			"rollout shop/57 goes on without this command; see: towline rollout status shop/57"},
		"rollouts": {progressing(), two, nth[*v1.WatchRolloutRequest](1), "apply -f - --wait",
			"rollouts shop/57, shop/57 go on without this command; see: towline get modules"},
		"a batch": {progressing(), two + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: cart", 1), nth[*v1.PutModuleRequest](2), "apply -f - --wait",
			"not put, because of that: module cart\nthe modules that were put do not begin without the rest, and what runs stays: apply all of them again"},
		"the last of a batch": {progressing(), two, nth[*v1.PutModuleRequest](2), "apply -f - --wait",
			"whether the modules that were put begin is not known, for the last one may be put, too: apply all of them again"},
		"a batch of new modules": {fresh, two, nth[*v1.PutModuleRequest](2), "apply -f - --wait", "module shop is new, and begins all the same: apply all of them again"},
		"the first of a batch":   {progressing(), two, nth[*v1.PutModuleRequest](1), "apply -f -", "not put, because of that: module base\nnone of the modules is known to be put: apply all of them again"},
		"the check of a batch": {progressing(), two, func(m proto.Message) bool { r, is := m.(*v1.PutModuleRequest); return is && r.GetDryRun() }, "apply -f -",
			"nothing was put: apply all of it when all is right, or what is right by itself"},
		"a deletion that is asked for": {progressing(), two, nth[*v1.DeleteModuleRequest](1), "apply -f - --set a --prune", "whether module old is pruned is not known; see: towline get module old"},
		"a batch that prunes": {progressing(), two, nth[*v1.PutModuleRequest](1), "apply -f - --set a --prune",
			"not put, because of that: module base\nnone of the modules is known to be put: apply all of them again\n" +
				"nothing is pruned, because not all of the files is put: module old would go"},
		"what is pruned after the rollouts": {needed, two, nth[*v1.WatchRolloutRequest](1), "apply -f - --set a --prune --wait",
			"rollouts shop/57, shop/57 go on without this command; see: towline get modules\nnot pruned: module old; the next apply of the files does that"},
		"what is pruned": {through, shopYAML, nth[*v1.WatchModulesRequest](1), "apply -f - --set a --prune --wait --yes",
			"module base: its deletion goes on without this command; see: towline get module base\nmodule old: its deletion goes on without this command; see: towline get module old"},
		"deletions": {progressing(), "", nth[*v1.WatchModulesRequest](1), "delete module old base --yes",
			"module old: its deletion goes on without this command; see: towline get module old\nnot deleted: module base"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.hub.run(t, run{stdin: tc.stdin, interruptAt: tc.at}, strings.Fields(tc.args)...)
			if want := "interrupted\n" + tc.want + "\n"; got.code != exitInterrupt || !strings.HasSuffix(got.err, want) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %q", got.code, got.out, got.err, want)
			}
		})
	}
}

// Of a batch that is not whole the first rollouts of modules begin, and no others.
func TestHalfOfABatch(t *testing.T) {
	for _, tc := range []struct {
		run  applyRun
		want string
	}{
		{applyRun{waits: true}, "the modules that were put do not begin without the rest, and what runs stays: apply all of them again"},
		{applyRun{waits: true, first: []string{"a"}}, "the other modules that were put do not begin without the rest, and what runs stays; module a is new, and begins all the same: apply all of them again"},
		{applyRun{waits: true, open: true, first: []string{"a"}}, "whether the other modules that were put begin is not known, for the last one may be put, too; module a is new, and begins all the same: apply all of them again"},
		{applyRun{open: true}, "none of the modules is known to be put: apply all of them again"},
		{applyRun{first: []string{"a", "b", "c"}}, "modules a, b and c are new, and begin all the same: apply all of them again"},
	} {
		if got := tc.run.half().Error(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// The last put of a batch has all of it begin, and a deletion is not taken back: where no hub has answered either, nobody is told that nothing begins, or that
// a module stays.
func TestWhatWasNotAnsweredMayBeDone(t *testing.T) {
	files := shopYAML + "---\n" + strings.ReplaceAll(shopYAML, "name: shop", "name: base")
	away := fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping")
	for name, tc := range map[string]struct {
		loses, args string
		lost, stays error
		want, not   string
	}{
		"the last put":            {"base", "--if-unchanged", away, nil, "whether the modules that were put begin is not known", "do not begin"},
		"the last put, too late":  {"base", "", context.DeadlineExceeded, nil, "whether the modules that were put begin is not known", "do not begin"},
		"the last put is refused": {"base", "", nil, nil, "the modules that were put do not begin without the rest", "not known"},
		"a put before it":         {"shop", "--if-unchanged", away, nil, "the modules that were put do not begin without the rest", "not known"},
		"a deletion":              {"", "--set a --prune --yes --if-unchanged", nil, away, "whether module old is pruned is not known: ", "is not pruned"},
		"a deletion is refused":   {"", "--set a --prune --yes", nil, fleet.Errorf(fleet.ErrDenied, "no"), "module old is not pruned: ", "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := setHub("set/a:shop", "set/a:base", "set/a:old")
			hub.put, hub.loses, hub.lost = putAnswer(), tc.loses, tc.lost
			hub.stays = tc.stays
			got := hub.run(t, run{stdin: files}, strings.Fields("apply -f - "+tc.args)...)
			if got.code == exitOK || !strings.Contains(got.err, tc.want) || strings.Contains(got.err, tc.not) {
				t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
			}
		})
	}
}

// full is a disk that takes some bytes and no more.
type full struct{ room int }

var errFull = errors.New("write /dev/stdout: no space left on device")

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// What could not be written to the output is no success: a token that is shown once would be lost, and half a list be the whole.
func TestOutputThatCannotBeWrittenIsNoSuccess(t *testing.T) {
	hub := &fakeHub{clusters: []*v1.Cluster{{Metadata: &v1.Metadata{Name: "c1"}}}, join: &v1.JoinClusterResponse{Token: "secret"}, put: putAnswer()}
	for _, args := range []string{"get clusters", "get clusters -o yaml", "get clusters -o name", "cluster join c2", "apply -f - --dry-run=server", "version", "explain module.spec"} {
		got := hub.run(t, run{stdin: shopYAML, out: &full{3}}, strings.Fields(args)...)
		if got.code != exitFailed || strings.Count(got.err, errFull.Error()) != 1 {
			t.Errorf("%s: exit %d, stderr %q", args, got.code, got.err)
		}
	}
}

// A user whose token could not be saved is there, and nobody has the token: that is said, and no user is made where it is known before.
func TestTokenThatCannotBeSaved(t *testing.T) {
	mine := write(t, "apiVersion: towline.dev/v1\nkind: Config\ncurrentContext: local\ncontexts:\n- {name: local, server: hub:7444, token: t}\n")
	for _, tc := range []struct {
		config, want string
		made         bool
	}{
		{mine, "user ana is there, but the token, which is given once, could not be written: ", true},
		{mine + ".none", "", false},
	} {
		hub := fullHub()
		got := hub.run(t, run{}, "user", "create", "ana", "--role", "viewer", "--save", "/proc/none/below", "--config", tc.config)
		made := asked[*v1.CreateUserRequest](hub) != nil
		if got.code != exitFailed || !strings.Contains(got.err, tc.want) || made != tc.made || tc.made != strings.Contains(got.err, "make the user anew: towline delete user ana\n") {
			t.Errorf("exit %d, stderr %q; the hub was asked: %t", got.code, got.err, made)
		}
	}
}
