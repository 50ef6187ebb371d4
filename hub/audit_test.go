package hub_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
)

// recorded are audit entries as lines, the newest first.
func (w *world) recorded(req *towlinev1.ListAuditEntriesRequest) (out []string) {
	w.t.Helper()
	resp, err := w.Audit.ListAuditEntries(w.ctx, req)
	must(w.t, err)
	for _, e := range resp.GetEntries() {
		out = append(out, strings.Join([]string{e.GetCaller(), e.GetMethod(), e.GetSubject(), e.GetResult(), e.GetReason()}, "|"))
	}
	return out
}

// TestAuditIsKept: who did what is known after a restart, too: what people did and why, which cluster enrolled, and what was refused.
// Viewers do not read it.
func TestAuditIsKept(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	maria := w.outsider("maria", "admin")
	_, err := w.as(maria.token).Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("1")), Reason: "ticket 7"})
	must(t, err)
	vera := w.as(w.outsider("vera", "viewer").token)
	if _, err := vera.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a viewer deletes: %v", err)
	}
	if _, err := vera.Audit.ListAuditEntries(w.ctx, &towlinev1.ListAuditEntriesRequest{}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a viewer reads the audit: %v", err)
	}
	_, err = w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("dry", configMap("1")), DryRun: true})
	must(t, err)
	again, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("1")), Reason: "once more"})
	must(t, err)
	if again.GetResult() != "unchanged" {
		t.Errorf("the same put again: %s", again.GetResult())
	}
	w.restart()
	got := w.recorded(&towlinev1.ListAuditEntriesRequest{})
	for _, want := range []string{"maria|PutModule|shop|OK|ticket 7", "cluster a|Enroll|a|OK|", "vera|DeleteModule|shop|PermissionDenied|", "admin|CreateUser|vera|OK|"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in %q", want, got)
		}
	}
	if slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "dry") || strings.Contains(s, "once more") }) {
		t.Errorf("what changes nothing is recorded: %q", got)
	}
	if got := w.recorded(&towlinev1.ListAuditEntriesRequest{Subject: "shop", Refused: true}); len(got) != 1 || !strings.HasPrefix(got[0], "vera|") {
		t.Errorf("refused: %q", got)
	}
	out, err := w.cli()("", "get", "audit", "shop", "--by", "maria")
	if err != nil || strings.Count(out, "\n") != 2 || !strings.Contains(out, "ticket 7") || !strings.Contains(out, "PutModule") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestAuditSaysUnhold: the record of writes says what people did: a hold that was ended is Unhold, and only that,
// and stands with what it held.
func TestAuditSaysUnhold(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Log = true, slog.New(slog.NewTextHandler(&log, nil)) })
	w.join("a", nil, nil)
	hold, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Reason: "a look"})
	must(t, err)
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId(), Reason: "seen"})
	must(t, err)
	if _, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: "confirm-1", Digest: "x"}); err == nil {
		t.Error("what is not there was confirmed")
	}
	var ended, confirmed string
	for line := range strings.Lines(log.String()) {
		switch {
		case strings.Contains(line, "msg=audit") && strings.Contains(line, hold.GetHold().GetId()) && strings.Contains(line, "reason=seen"):
			ended = line
		case strings.Contains(line, "msg=audit") && strings.Contains(line, "confirm-1"):
			confirmed = line
		}
	}
	if !strings.Contains(ended, "method=Unhold ") {
		t.Errorf("the hold was ended: %q", ended)
	}
	if !strings.Contains(confirmed, "method=ConfirmHold ") {
		t.Errorf("something was confirmed: %q", confirmed)
	}
	if got := w.recorded(&towlinev1.ListAuditEntriesRequest{Subject: "a", Method: "Unhold"}); len(got) != 1 {
		t.Errorf("of the cluster: %v", got)
	}
}

// TestHistory: what was done to a module is told apart from what was done to a cluster of its name, also of a hold that was confirmed by its id
// and of what a hub recorded that did not write kinds; a module of the default project is found whether who put it named the project or not.
func TestHistory(t *testing.T) {
	w := newWorld(t, false)
	w.join("shop", nil, nil)
	put, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("1")), Reason: "ticket 7"})
	must(t, err)
	w.await("shop", put.GetRevision())
	for _, req := range []*towlinev1.PutHoldRequest{{Cluster: "shop", Reason: "a look"}, {Module: "shop", Reason: "freeze"}} {
		hold, err := w.Modules.PutHold(w.ctx, req)
		must(t, err)
		_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId(), Reason: "end of " + req.GetReason()})
		must(t, err)
	}
	_, err = w.Rollouts.PauseRollout(w.ctx, &towlinev1.PauseRolloutRequest{Module: "shop", Reason: "wait"})
	if err != nil && !strings.Contains(err.Error(), "has ended") { // what is refused is recorded, too
		t.Fatal(err)
	}
	_, err = w.as(w.outsider("vera", "viewer").token).Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "shop"})
	if !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a viewer holds: %v", err)
	}
	methods := func(args ...string) []string {
		out, err := w.cli()("", append(args, "-o", "jsonpath={range .items[*]}{.method}{\"\\n\"}{end}")...)
		must(t, err)
		return strings.Fields(out)
	}
	if got, want := methods("history", "module/shop"), []string{"PutModule", "PutHold", "Unhold", "PauseRollout"}; !slices.Equal(got, want) {
		t.Errorf("module: %q, want %q", got, want)
	}
	if got, want := methods("history", "cluster/shop"), []string{"JoinCluster", "Enroll", "PutHold", "Unhold", "PutHold"}; !slices.Equal(got, want) {
		t.Errorf("cluster: %q, want %q", got, want)
	}
	if got := methods("history", "module/shop", "-p", "team"); len(got) != 0 {
		t.Errorf("of another project: %q", got)
	}
	if got, want := methods("history", "user/vera"), []string{"CreateUser"}; !slices.Equal(got, want) {
		t.Errorf("user: %q, want %q", got, want)
	}
	if _, err := w.cli()("", "history", "module/shpo"); err == nil {
		t.Error("a module that never was has a history")
	}
}

// TestHistoryOfAClusterHasWhatWasDoneInIt: pins and holds of a module in a cluster, and of an object that a module has there, are in the history
// of both, which says where that was.
func TestHistoryOfAClusterHasWhatWasDoneInIt(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	put, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("1"))})
	must(t, err)
	w.await("shop", put.GetRevision())
	w.eventually(func() bool { return len(w.trackers(nil)) == 2 })
	for _, req := range []*towlinev1.PutHoldRequest{{Module: "shop", Cluster: "a"}, {Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "web"}}} {
		hold, err := w.Modules.PutHold(w.ctx, req)
		must(t, err)
		_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId()})
		must(t, err)
	}
	_, err = w.Rollouts.PinClusters(w.ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"b", "a"}})
	must(t, err)
	_, err = w.Rollouts.UnpinClusters(w.ctx, &towlinev1.UnpinClustersRequest{Module: "shop", Clusters: []string{"b"}})
	must(t, err)
	history := func(of string) (out []string) {
		said, err := w.cli()("", "history", of, "-o", "jsonpath={range .items[*]}{.method}|{.detail}{\"\\n\"}{end}")
		must(t, err)
		for _, line := range strings.Split(strings.TrimSpace(said), "\n") {
			if method, where, _ := strings.Cut(line, "|"); !slices.Contains([]string{"PutModule", "JoinCluster", "Enroll"}, method) {
				where, _, _ = strings.Cut(where, ";")
				out = append(out, method+" "+where)
			}
		}
		return out
	}
	both := []string{"PutHold in a", "Unhold in a", "PutHold in a", "Unhold in a", "PinClusters in b, a"}
	for of, want := range map[string][]string{"module/shop": append(slices.Clone(both), "UnpinClusters in b"), "cluster/a": both,
		"cluster/b": {"PinClusters in b, a", "UnpinClusters in b"}} {
		if got := history(of); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", of, got, want)
		}
	}
	said, err := w.cli()("", "get", "audit", "a", "-o", "jsonpath={range .items[*]}{.method}|{.detail}{\"\\n\"}{end}")
	must(t, err)
	if n := strings.Count(said, "PutHold|in a"); n != 2 {
		t.Errorf("get audit a has %d of the 2 holds that were put there:\n%s", n, said)
	}
}

// TestHistoryOfAClusterSaysWhatAPutMade: who looks at the history of a cluster sees when it was cordoned, and when that was ended, and which labels
// it was given.
func TestHistoryOfAClusterSaysWhatAPutMade(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, map[string]string{"env": "dev", "old": "1"})
	for _, args := range [][]string{{"cordon", "a"}, {"uncordon", "a"}, {"label", "a", "env=prod", "zone=x", "old-", "--yes"}} {
		_, err := w.cli()("", append([]string{"cluster"}, args...)...)
		must(t, err)
	}
	c := w.cluster("a")
	c.Spec.Taints, c.Metadata.Annotations = []*towlinev1.Taint{{Key: "gpu"}}, map[string]string{"owner": "maria"}
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: c})
	must(t, err)
	said, err := w.cli()("", "history", "cluster/a", "-o", "jsonpath={range .items[?(@.method==\"PutCluster\")]}{.detail}{\"\\n\"}{end}")
	must(t, err)
	want := "cordoned\nuncordoned\nlabel env=prod, was dev, label old removed, was 1, label zone=x\nother taints, other annotations"
	if said = strings.TrimSpace(said); said != want {
		t.Errorf("%q, want %q", said, want)
	}
}
