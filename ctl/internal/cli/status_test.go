package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"

	v1 "towline.dev/towline/gen/towline/v1"
)

func watching(rollouts ...*v1.Rollout) []*v1.WatchRolloutResponse {
	var out []*v1.WatchRolloutResponse
	for _, r := range rollouts {
		out = append(out, &v1.WatchRolloutResponse{Rollout: r, ResumeToken: "t", Ended: r.GetStatus().GetEnded() != nil})
	}
	return out
}

func waitingFor(reason string) *v1.Rollout {
	r := surfaceRollout()
	r.Status.State, r.Status.Reason = "Waiting", reason
	return r
}

// backBefore is a rollout that goes back, and waits for a gate of that.
func backBefore(code, reason string) *v1.Rollout {
	r := waitingFor(rollout.ReasonFailures)
	r.Status.State, r.Status.Facts = string(rollout.RollingBack), &v1.Facts{Code: code, Stage: "canary", Gate: "approval", Position: "rollback"}
	r.Status.WaitingFor = []*v1.Reason{{Subject: &v1.Subject{Kind: rollout.AboutRollback, Name: r.Id}, Reason: rollout.ReasonFailures, Blocks: true},
		{Subject: &v1.Subject{Kind: rollout.AboutGate, Name: "approval"}, Reason: reason, Blocks: true, Actions: []*v1.Action{{Method: rollout.DoApprove}}}}
	return r
}

func pendingFor(reason string) *v1.Rollout {
	r := surfaceRollout()
	r.Status.State, r.Status.Reason = "Pending", reason
	return r
}

func pausedFor(reason string) *v1.Rollout {
	r := waitingFor(reason)
	r.Status.State = "Paused"
	return r
}

// TestSucceededNamesWhoIsLeftOut: a rollout that is over without some clusters says so wherever it is shown, and of all of them.
func TestSucceededNamesWhoIsLeftOut(t *testing.T) {
	facts := &v1.Facts{Deferred: 3, Skipped: 2, Failed: 1}
	over := ended("Succeeded", func(s *v1.RolloutStatus) { s.Deferred, s.Facts = 3, facts })
	hub := &fakeHub{modules: surfaceModules()[:1], rollouts: []*v1.Rollout{over}, watch: watching(over)}
	hub.modules[0].Status.RolloutDeferred, hub.modules[0].Status.RolloutFacts = 3, facts
	for _, args := range []string{"get modules", "describe module base", "rollout status shop --watch=false", "explain rollout shop"} {
		if got := hub.run(t, run{}, strings.Fields(args)...); !strings.Contains(got.out, "Succeeded, 3 deferred, 2 skipped, 1 failed") {
			t.Errorf("%s: %s%s", args, got.out, got.err)
		}
	}
}

// TestStatusListsWhoWaitsToLeave: clusters that are to lose the module after its rollout wait for a person. The page, which has them under TO GO
// of a stage that is done, names them and the command; a rollout beside them offers none.
func TestStatusListsWhoWaitsToLeave(t *testing.T) {
	over := ended("Succeeded", func(s *v1.RolloutStatus) {
		s.Clusters = []*v1.ClusterProgress{{Cluster: "c1", Stage: "canary", State: "ToApply", Revision: 42, Reason: rollout.ReasonWouldLeave},
			{Cluster: "c2", Stage: "canary", State: "Succeeded", Revision: 42}}
		s.WaitingFor = []*v1.Reason{{Subject: &v1.Subject{Kind: rollout.AboutLeavers, Name: "shop/57"}, Reason: rollout.ReasonConfirm, Blocks: true,
			Actions: []*v1.Action{{Method: rollout.DoConfirm, Hold: "leave-1"}}}}
	})
	got := (&fakeHub{rollouts: []*v1.Rollout{over}, watch: watching(over)}).run(t, run{}, "rollout", "status", "shop", "--watch=false")
	for _, want := range []string{"c1       canary  ToApply  r42  -    would lose the module; waits for a confirm", "towline confirm leave-1"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("lacks %q:\n%s%s", want, got.out, got.err)
		}
	}
	if strings.Contains(got.out, "c2 ") {
		t.Errorf("lists a cluster that stays:\n%s", got.out)
	}
	if plain := (&fakeHub{rollouts: []*v1.Rollout{ended("Succeeded", nil)}, watch: watching(ended("Succeeded", nil))}).run(t, run{}, "rollout", "status", "shop", "--watch=false"); strings.Contains(plain.out, "Next") {
		t.Errorf("offers something where nothing waits:\n%s", plain.out)
	}
}

func TestRolloutExitCodes(t *testing.T) {
	deferred := ended("Succeeded", func(s *v1.RolloutStatus) { s.Deferred, s.Succeeded = 3, 297 })
	leftOut := ended("Succeeded", func(s *v1.RolloutStatus) {
		s.Succeeded, s.Failed, s.Deferred, s.Facts = 294, 1, 3, &v1.Facts{Deferred: 3, Skipped: 2, Failed: 1}
	})
	untried := ended("Succeeded", func(s *v1.RolloutStatus) {
		s.Succeeded, s.Deferred = 299, 1
		s.Stages = []*v1.StageStatus{{Name: "canary", State: "Succeeded", Total: 1, Deferred: 1}, {Name: "all", State: "Succeeded", Total: 299, Done: 299, Started: s.Started}}
	})
	tried := ended("Succeeded", func(s *v1.RolloutStatus) {
		s.Succeeded, s.Deferred, s.Failed = 298, 1, 1
		s.Stages = []*v1.StageStatus{{Name: "canary", State: "Succeeded", Total: 2, Failed: 1, Deferred: 1}, {Name: "all", State: "Succeeded", Total: 298, Done: 298, Started: s.Started}}
	})
	superseded := ended("Superseded", func(s *v1.RolloutStatus) { s.SupersededBy = "shop/58" })
	for _, tc := range []struct {
		name  string
		watch []*v1.WatchRolloutResponse
		flags string
		code  int
		out   string
	}{
		{"succeeded", watching(surfaceRollout(), ended("Succeeded", nil)), "", 0, "shop/57 Succeeded in 6m12s: r41 → r42, 300 of 300 clusters\n"},
		{"deferred clusters are told", watching(deferred), "", 0, "shop/57 Succeeded in 6m12s: r41 → r42, 297 of 300 clusters, 3 deferred\n"},
		{"a canary that was away is told", watching(untried), "", 0, "299 of 300 clusters, 1 deferred; none of canary has tried it: all are deferred\n"},
		{"a canary that failed has tried it", watching(tried), "", 0, "298 of 300 clusters, 1 failed, 1 deferred\n"},
		{"who is left out is told", watching(leftOut), "", 0, ": r41 → r42, 294 of 300 clusters, 1 failed, 3 deferred, 2 skipped\n"},
		{"who is not to have it any more is told", watching(ended("Succeeded", func(s *v1.RolloutStatus) {
			s.Total, s.Succeeded, s.PassedOver, s.Facts = 300, 295, 5, &v1.Facts{Skipped: 2}
		})), "", 0, ": r41 → r42, 295 of 300 clusters, 2 skipped, 3 not to have it\n"},
		{"deferred clusters with --strict", watching(deferred), "--strict", 1, "3 deferred"},
		{"failed", watching(ended("Failed", nil)), "", 1, "shop/57 Failed"},
		{"aborted", watching(ended("Aborted", nil)), "", 1, "shop/57 Aborted"},
		{"rolled back", watching(surfaceRollout(), ended("RolledBack", nil)), "", 1, "shop/57 RolledBack"},
		{"paused by failures", watching(pausedFor("TooManyFailures")), "", 1, "shop/57 Paused"},
		{"superseded", watching(superseded), "", 5, "by shop/58"},
		{"waits for an approval", watching(waitingFor("Approval")), "--fail-on-wait", 3, "shop/57 Waiting"},
		{"paused by a person", watching(pausedFor("PausedByUser")), "--fail-on-wait", 3, "shop/57 Paused"},
		{"a misspelt canary label", watching(waitingFor("EmptyStage")), "--fail-on-wait", 3, "shop/57 Waiting"},
		{"a secret that is not there", watching(pendingFor("NeedsSecret")), "--fail-on-wait", 3, "shop/57 Pending"},
		{"behind a rollout that a person paused", watching(pendingFor("BehindPause")), "--fail-on-wait", 3, "shop/57 Pending"},
		{"a source that is fetched", watching(pendingFor("ResolvingSource"), ended("Succeeded", nil)), "--fail-on-wait", 0, "Succeeded"},
		{"a webhook that nobody answers", watching(waitingFor("GateError")), "--fail-on-wait", 3, "shop/57 Waiting"},
		{"a metric that says nothing", watching(waitingFor("GateInconclusive")), "--fail-on-wait", 3, "shop/57 Waiting"},
		{"the whole canary is away", watching(waitingFor("AllDeferred")), "--fail-on-wait", 3, "shop/57 Waiting"},
		{"an approval is waited for without the flag", watching(waitingFor("Approval"), ended("Succeeded", nil)), "", 0, "Succeeded"},
		{"an approval on the way back", watching(backBefore(rollout.GateApproving, rollout.ReasonApproval)), "--fail-on-wait", 3, "shop/57 RollingBack"},
		{"a webhook on the way back", watching(backBefore(rollout.GateAnswered, rollout.ReasonGateError)), "--fail-on-wait", 3, "shop/57 RollingBack"},
		{"a window on the way back is no person", watching(backBefore(rollout.GateClosed, rollout.ReasonWindow), ended("RolledBack", nil)), "--fail-on-wait", 1, "RolledBack"},
		{"a soak is no person", watching(waitingFor("Soak"), ended("Succeeded", nil)), "--fail-on-wait", 0, "Succeeded"},
	} {
		for _, command := range []string{"status", "wait"} {
			t.Run(tc.name+"/"+command, func(t *testing.T) {
				hub := &fakeHub{watch: tc.watch}
				got := hub.run(t, run{}, append([]string{"rollout", command, "shop"}, strings.Fields(tc.flags)...)...)
				if got.code != tc.code || !strings.Contains(got.out, tc.out) {
					t.Errorf("exit %d, want %d; stdout %q lacks %q; stderr %q", got.code, tc.code, got.out, tc.out, got.err)
				}
			})
		}
	}
}

func TestRolloutTimeout(t *testing.T) {
	hub := &fakeHub{watch: watching(surfaceRollout())}
	for _, command := range []string{"status", "wait"} {
		got := hub.run(t, run{}, "rollout", command, "shop", "--timeout", "100ms")
		if want := "Error: rollout shop: not done after 100ms; it is Progressing; see: towline explain rollout shop\n"; got.code != 4 || got.err != want {
			t.Errorf("%s: exit %d, stderr %q, want 4 and %q", command, got.code, got.err, want)
		}
	}
}

// TestStatusForProgramsFollows: what is printed for programs is the rollout as it is in the end, and the exit code is its result.
func TestStatusForProgramsFollows(t *testing.T) {
	deferred := ended("Succeeded", func(s *v1.RolloutStatus) { s.Deferred = 3 })
	for _, tc := range []struct {
		flags, state string
		watch        []*v1.WatchRolloutResponse
		code         int
	}{
		{"-o json", "Succeeded", watching(surfaceRollout(), ended("Succeeded", nil)), 0},
		{"-o yaml -w", "Failed", watching(surfaceRollout(), ended("Failed", nil)), 1},
		{"-o jsonpath={.status.state}", "Superseded", watching(surfaceRollout(), ended("Superseded", nil)), 5},
		{"-o name", "rollout/shop/57", watching(surfaceRollout(), ended("Aborted", nil)), 1},
		{"-o json --strict", "Succeeded", watching(deferred), 1},
		{"-o json --fail-on-wait", "Waiting", watching(waitingFor("Approval")), 3},
		{"-o json --timeout 100ms", "Progressing", watching(surfaceRollout()), 4},
		{"-o json --watch=false", "Progressing", watching(surfaceRollout(), ended("Failed", nil)), 0},
	} {
		hub := &fakeHub{rollouts: []*v1.Rollout{surfaceRollout()}, watch: tc.watch}
		got := hub.run(t, run{}, append([]string{"rollout", "status", "shop"}, strings.Fields(tc.flags)...)...)
		if got.code != tc.code || !strings.Contains(got.out, tc.state) || strings.Count(got.out, "shop/57") > 1 || strings.Contains(got.out, "→") {
			t.Errorf("%s: exit %d, want %d with %s; stdout %q, stderr %q", tc.flags, got.code, tc.code, tc.state, got.out, got.err)
		}
	}
}

// TestSilentWaitSaysWhoIsAwaited: a command that prints nothing before the end says on stderr, once, that somebody has to act first.
func TestSilentWaitSaysWhoIsAwaited(t *testing.T) {
	for _, args := range []string{"rollout status shop -o json", "rollout wait shop"} {
		hub := &fakeHub{rollouts: []*v1.Rollout{surfaceRollout()}, watch: watching(surfaceRollout(), waitingFor("Approval"), waitingFor("Approval"), ended("Succeeded", nil))}
		got := hub.run(t, run{}, strings.Fields(args)...)
		if got.code != 0 || strings.Count(got.err, "Warning: rollout shop/57 waits for somebody: ") != 1 || !strings.Contains(got.err, "towline explain rollout shop/57") {
			t.Errorf("%s: exit %d, stderr %q", args, got.code, got.err)
		}
	}
}

func TestRolloutWaitForStage(t *testing.T) {
	canaryDone := surfaceRollout()
	canaryDone.Status.Stages[0].State = "Succeeded"
	hub := &fakeHub{watch: watching(surfaceRollout(), canaryDone)}
	if got := hub.run(t, run{}, "rollout", "wait", "shop", "--for", "stage=canary"); got.code != 0 || got.err != "" {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
	got := hub.run(t, run{}, "rollout", "wait", "shop", "--for", "stage=canry")
	if want := "Error: rollout shop/57 has no stage canry; it has canary, rest\n"; got.code != 2 || got.err != want {
		t.Errorf("exit %d, stderr %q, want 2 and %q", got.code, got.err, want)
	}
	hub.watch = watching(surfaceRollout(), ended("RolledBack", nil))
	if got := hub.run(t, run{}, "rollout", "wait", "--id", "shop/57", "--for", "stage=canary"); got.code != 1 {
		t.Errorf("a rollout that was rolled back before the stage was done: exit %d", got.code)
	}
	back := surfaceRollout()
	back.Status.State, back.Status.Stages[0].State = "RollingBack", "Succeeded"
	hub.watch = watching(back, ended("RolledBack", nil))
	if got := hub.run(t, run{}, "rollout", "wait", "--id", "shop/57", "--for", "stage=canary"); got.code != 1 {
		t.Errorf("a rollout that is on its way back from a stage that was done: exit %d", got.code)
	}
	whole := ended("Succeeded", func(s *v1.RolloutStatus) { s.Stages = nil })
	hub.watch = watching(whole)
	if got := hub.run(t, run{}, "rollout", "wait", "--id", "shop/57", "--for", "stage=canary"); got.code != 1 || !strings.Contains(got.err, "has no stages") {
		t.Errorf("a rollout that has no stages: exit %d: %s", got.code, got.err)
	}
	if asked[*v1.WatchRolloutRequest](hub).GetNumber() != 57 {
		t.Error("--id did not name the rollout to the hub")
	}
}

func TestStatusPipedIsALinePerChange(t *testing.T) {
	last := ended("Succeeded", nil)
	hub := &fakeHub{watch: []*v1.WatchRolloutResponse{
		{Rollout: surfaceRollout(), Events: []*v1.RolloutEvent{
			{At: ago(time.Minute), Subject: &v1.Subject{Kind: "Rollout", Name: "shop/57"}, From: "Pending", To: "Progressing"},
			{At: ago(time.Minute), Subject: &v1.Subject{Kind: "Cluster", Name: "prod-eu-07"}, From: "Progressing", To: "Failed", Facts: &v1.Facts{Detail: "image not\nfound"}}}},
		{Rollout: last, Ended: true, Events: []*v1.RolloutEvent{{At: ago(0), Subject: &v1.Subject{Kind: "Gate", Name: "approval", Stage: "canary", Position: "after"}, To: "Successful"}}},
	}}
	same(t, hub.run(t, run{}, "rollout", "status", "shop").out, `
2026-07-01T03:13:15Z shop/57: Pending → Progressing
2026-07-01T03:13:15Z shop/57 cluster prod-eu-07: Progressing → Failed: image not found
2026-07-01T03:14:15Z shop/57 gate approval after stage canary: Successful
shop/57 Succeeded in 6m12s: r41 → r42, 300 of 300 clusters
`)
}

func TestStatusOnATerminalRedraws(t *testing.T) {
	hub := &fakeHub{watch: watching(surfaceRollout(), ended("Succeeded", func(s *v1.RolloutStatus) { s.Clusters = nil }))}
	got := hub.run(t, run{terminal: true, columns: 60}, "rollout", "status", "shop")
	if got.code != 0 {
		t.Fatalf("exit %d: %s", got.code, got.err)
	}
	if !strings.HasPrefix(got.out, hideCursor) || !strings.HasSuffix(got.out, showCursor) {
		t.Error("the cursor is not given back")
	}
	frames := strings.Split(strings.TrimSuffix(got.out, showCursor), clearBelow)
	if len(frames) < 3 {
		t.Fatalf("%d frames, want one for each change: %q", len(frames), got.out)
	}
	up := "\x1b[17A\r" // as many lines as the first frame has
	if !strings.Contains(frames[1], up) {
		t.Errorf("the second frame does not overwrite the first: %q", frames[1][:40])
	}
	whole := false
	for line := range strings.Lines(frames[0]) {
		plain := strings.TrimPrefix(strings.TrimSuffix(strings.TrimRight(visibleWidth(line), "\n"), clearLine), hideCursor)
		if n := len([]rune(plain)); n > 60 {
			t.Errorf("%d columns on a terminal of 60: %q", n, plain)
		}
		whole = whole || strings.HasSuffix(plain, "towline rollout rollback shop/57 --clusters failed")
	}
	if !whole {
		t.Error("a command is cut: nobody can paste it")
	}
}

// TestStatusOnATerminalSaysThatTheHubIsAway inside of what it draws: a line in between would tear it.
func TestStatusOnATerminalSaysThatTheHubIsAway(t *testing.T) {
	hub := &fakeHub{watch: watching(surfaceRollout(), ended("Succeeded", nil)), breaks: 1}
	got := hub.run(t, run{terminal: true}, "rollout", "status", "shop")
	if got.code != 0 || strings.Contains(got.err, "stopping") {
		t.Errorf("exit %d, beside the picture: %q", got.code, got.err)
	}
	frames := strings.Split(got.out, clearBelow)
	if !slices.ContainsFunc(frames, func(f string) bool {
		return strings.Contains(f, "the hub is stopping") && strings.Contains(f, "this is how it last stood")
	}) {
		t.Errorf("no picture says that the hub was away: %q", got.out)
	}
	if last := frames[len(frames)-2]; strings.Contains(last, "stopping") {
		t.Errorf("the last picture still says that the hub is away: %q", last)
	}
}

// visibleWidth takes the colours out.
func visibleWidth(s string) string {
	for _, code := range []string{"0", "1", "31", "32", "33", "36", "90"} {
		s = strings.ReplaceAll(s, "\x1b["+code+"m", "")
	}
	return s
}

func TestNoColor(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{terminal: true, env: map[string]string{"NO_COLOR": "1"}}, "get", "modules")
	if strings.Contains(got.out, "\x1b") {
		t.Errorf("colours in spite of NO_COLOR: %q", got.out)
	}
}

func TestErrorsAreSentences(t *testing.T) {
	refused := func(context.Context, client.Options) (*client.Client, error) {
		return client.Dial(t.Context(), client.Options{Server: "127.0.0.1:1"})
	}
	got := execute(t.Context(), run{}, refused, "get", "modules")
	if got.code != 1 || !strings.HasPrefix(got.err, "Error: hub unreachable: ") || strings.Contains(got.err, "rpc error") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	got = execute(t.Context(), run{}, refused, "rollout", "status", "shop")
	if got.code != 1 || !strings.Contains(got.err, "hub unreachable") {
		t.Errorf("following a rollout on a hub that is not there: exit %d, stderr %q", got.code, got.err)
	}
}

func TestInterruptIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dial := func(context.Context, client.Options) (*client.Client, error) {
		cancel()
		return nil, errors.Join(fleet.ErrUnavailable, context.Canceled)
	}
	if got := execute(ctx, run{}, dial, "get", "modules"); got.code != 130 || got.err != "interrupted\n" {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

// Who is asked, or is to type a manifest, can leave with an interrupt; nothing is done then.
func TestInterruptWhileSomebodyIsToType(t *testing.T) {
	for _, args := range []string{"delete module shop", "confirm h-7", "apply -f -"} {
		hub := fullHub()
		done := make(chan result, 1)
		go func() { done <- hub.run(t, run{terminal: true, typed: &typist{}}, strings.Fields(args)...) }()
		select {
		case got := <-done:
			if got.code != 130 || !strings.HasSuffix(got.err, "interrupted\n") || strings.Contains(got.out, "deleted") {
				t.Errorf("%s: exit %d, stdout %q, stderr %q", args, got.code, got.out, got.err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: an interrupt does not end it", args)
		}
	}
}

// TestGatesOfASideStandAsTheOneThatHolds: the row of several gates is not that of the last one, which may be passed.
func TestGatesOfASideStandAsTheOneThatHolds(t *testing.T) {
	gate := func(position, state string) *v1.GateStatus {
		return &v1.GateStatus{Name: state, Type: "webhook", Position: position, State: state}
	}
	for _, c := range []struct{ position, first, last, want string }{
		{"before", "Running", "Successful", "Running"}, {"before", "Failed", "Successful", "Failed"}, {"before", "Error", "Running", "Error"},
		{"before", "Pending", "Successful", "Pending"}, {"before", "Successful", "Successful", "Successful"}, {"rollback", "Failed", "Successful", "Failed"},
		{"after", "Failed", "Running", "Failed"}, {"after", "Running", "Successful", "Running"}, {"after", "Successful", "Pending", "Pending"},
	} {
		r := surfaceRollout()
		r.Strategy.Stages[0].Soak = ""
		r.Status.Stages[0].Gates = []*v1.GateStatus{gate(c.position, c.first), gate(c.position, c.last)}
		if row := (&app{}).gateRow(r, 0, c.position); row[1].Text != c.want {
			t.Errorf("gates %s a stage that are %s and %s stand as %s, want %s", c.position, c.first, c.last, row[1].Text, c.want)
		}
	}
}

// A rollout of a module that is being deleted takes no word any more: none is offered.
func TestNothingIsNextOfADeletedModule(t *testing.T) {
	if next := nextCommands(backBefore(rollout.GateApproving, rollout.ReasonApproval)); len(next) == 0 || !strings.Contains(next[0].line, "approve") {
		t.Errorf("on the way back, before an approval: %v", next)
	}
	if next := nextCommands(ended("Aborted", nil)); len(next) == 0 {
		t.Error("nothing is offered after an abort")
	}
	if next := nextCommands(ended("Aborted", func(s *v1.RolloutStatus) { s.Reason = rollout.ReasonModuleDeleted })); len(next) > 0 {
		t.Errorf("offered is %v", next)
	}
}

// A put that has not begun has no time yet. What the module ran before it is no answer to since when it is Pending.
func TestPendingIsNotSinceTheModuleIsThere(t *testing.T) {
	pending := &v1.Module{Metadata: &v1.Metadata{Name: "shop", CreationTimestamp: ago(time.Hour)}, Status: &v1.ModuleStatus{RolloutState: "Pending", Rollout: "shop/1"}}
	if got := moduleSince(pending); got != pending.Metadata.CreationTimestamp {
		t.Errorf("the first put is Pending since %v", got)
	}
	pending.Status.Rollout, pending.Status.Revision = "shop/2", 1
	if got := moduleSince(pending); got != nil {
		t.Errorf("the second put is Pending since %v", got.AsTime())
	}
}

// What is offered next to take a rollout back names that rollout, and is offered only where the hub takes it and there is something to
// take back.
func TestNextRollbackIsTaken(t *testing.T) {
	because := func(actions ...string) []*v1.Reason {
		r := &v1.Reason{Subject: &v1.Subject{Kind: rollout.AboutRollout, Name: "shop/3"}}
		for _, m := range actions {
			r.Actions = append(r.Actions, &v1.Action{Method: m, Module: "shop"})
		}
		return []*v1.Reason{r}
	}
	back := []*v1.Reason{{Subject: &v1.Subject{Kind: rollout.AboutRollback, Name: "shop/3"}}}
	for _, c := range []struct {
		name     string
		from, to int64
		status   *v1.RolloutStatus
		want     string
	}{
		{"failed at its source", 0, 0, &v1.RolloutStatus{State: "Failed", Reason: "SourceFailed"}, ""},
		{"failed", 1, 2, &v1.RolloutStatus{State: "Failed", WaitingFor: because(rollout.DoRetry)}, ""},
		{"aborted before it had a revision", 0, 0, &v1.RolloutStatus{State: "Aborted"}, ""},
		{"aborted", 1, 2, &v1.RolloutStatus{State: "Aborted", WaitingFor: because(rollout.DoRollBack, rollout.DoRetry)}, "towline rollout rollback shop/3"},
		{"aborted, and an older one by now", 1, 2, &v1.RolloutStatus{State: "Aborted", WaitingFor: because()}, ""},
		{"paused by failures", 1, 2, &v1.RolloutStatus{State: "Paused", Reason: rollout.ReasonFailures, Failed: 1}, "towline rollout rollback shop/3"},
		{"paused by failures, the first", 0, 1, &v1.RolloutStatus{State: "Paused", Reason: rollout.ReasonFailures, Failed: 1}, ""},
		{"the rollback failed", 1, 2, &v1.RolloutStatus{State: "Paused", Reason: rollout.ReasonRollbackFailed, Failed: 1}, ""},
		{"paused on the way back", 1, 2, &v1.RolloutStatus{State: "Paused", Reason: rollout.ReasonPausedByUser, Failed: 1, WaitingFor: back}, ""},
		{"on the way back", 1, 2, &v1.RolloutStatus{State: "RollingBack", Failed: 1, WaitingFor: back}, ""},
		{"one failed", 1, 2, &v1.RolloutStatus{State: "Progressing", Failed: 1}, "towline rollout rollback shop/3 --clusters failed"},
		{"one failed, the first", 0, 1, &v1.RolloutStatus{State: "Progressing", Failed: 1}, ""},
	} {
		got := ""
		for _, x := range nextCommands(&v1.Rollout{Id: "shop/3", Module: "shop", FromRevision: c.from, Revision: c.to, Status: c.status}) {
			if strings.Contains(x.line, "rollback") {
				got = x.line
			}
		}
		if got != c.want {
			t.Errorf("%s: %q is offered, want %q", c.name, got, c.want)
		}
	}
	if got := rollbackLine("web", "shop", "web/shop/3", ""); got != "towline rollout rollback shop/3 -p web" {
		t.Errorf("in another project: %q", got)
	}
	of := because(rollout.DoRollBack)[0]
	if got := commandOf(of.GetActions()[0], of).line; got != "towline rollout rollback shop/3" {
		t.Errorf("in an explanation: %q", got)
	}
}

// TestApprovalIsOfWhatWasSeen: the line that approves, or rejects, names the revision that the page shows: another one may wait at the same gate by then.
func TestApprovalIsOfWhatWasSeen(t *testing.T) {
	for _, r := range []*v1.Rollout{waitingFor("Approval"), backBefore(rollout.GateApproving, rollout.ReasonApproval)} {
		var lines []string
		for _, x := range nextCommands(r) {
			lines = append(lines, x.line)
		}
		for _, want := range []string{"towline rollout approve shop --revision r42 -m WHY", "towline rollout reject shop --revision r42 -m WHY"} {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: %q", r.GetStatus().GetState(), lines)
			}
		}
	}
}
