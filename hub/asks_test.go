package hub_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// received is all that a stream has, and how it ended.
func received[M any](st interface{ Recv() (*M, error) }, err error) (out []*M, end error) {
	for err == nil {
		var m *M
		if m, err = st.Recv(); err == nil {
			out = append(out, m)
		}
	}
	if errors.Is(err, io.EOF) {
		return out, nil
	}
	return out, err
}

// TestEventsAreAskedOfTheAgents: each cluster that has the objects is asked for them, and one that is away, too old, or says no is named.
func TestEventsAreAskedOfTheAgents(t *testing.T) {
	w := newWorld(t, true)
	answers := func(r *agentv1.QueryResult) func(*agentv1.Query) *agentv1.QueryResult {
		return func(q *agentv1.Query) *agentv1.QueryResult {
			if q.GetType() != wire.QueryEvents || q.GetModule() != "default/shop" {
				t.Errorf("asked %v", q)
			}
			if n := len(q.GetObjects()); n > 1 || n == 1 && q.GetObjects()[0].GetName() != "web" {
				t.Errorf("asked about %v", q.GetObjects())
			}
			return proto.CloneOf(r)
		}
	}
	told := &agentv1.Events{Omitted: 3}
	for i, reason := range []string{"First", "Second"} {
		told.Events = append(told.Events, &agentv1.Event{Object: &agentv1.BundleEntry{Group: "apps", Version: "v1", Kind: "ReplicaSet", Namespace: "default", Name: "web-1"}, Type: "Warning",
			Reason: reason, Message: strings.Repeat("x", 5000), LastMillis: int64(1000 * (i + 1)), Count: 7})
	}
	for name, o := range map[string]simagent.Options{
		"says": {Answer: answers(&agentv1.QueryResult{Events: told})}, "denies": {Answer: answers(&agentv1.QueryResult{Error: "the cluster's policy does not let events be read"})},
		"odd": {Answer: answers(&agentv1.QueryResult{})}, "away": {},
		"old": {Features: slices.DeleteFunc(wire.Features(), func(f string) bool { return f == wire.QueryEvents || f == wire.QueryLogs })},
	} {
		w.enroll(name, nil)
		w.connectWith(name, o)
	}
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.stops["away"]()
	w.awaitCluster("away", "Disconnected")
	for _, f := range []*towlinev1.ObjectFilter{{Module: "shop"}, {Kind: "configmap", Namespace: "default", Name: "web"}} {
		st, err := w.Trackers.ListEvents(w.ctx, &towlinev1.ListEventsRequest{Filter: f, Limit: 1})
		all, err := received(st, err)
		must(t, err)
		got := map[string]*towlinev1.ListEventsResponse{}
		for _, r := range all {
			got[r.GetCluster()] = r
		}
		for name, want := range map[string]string{"says": "", "denies": "Unanswered", "odd": "Unanswered", "away": "Disconnected", "old": "Unsupported"} {
			if r := got[name]; r == nil || r.GetReason() != want || want != "" && (r.GetMessage() == "" || len(r.GetEvents()) > 0) {
				t.Errorf("cluster %s: %v, want %s", name, r, want)
			}
		}
		said := got["says"]
		if len(said.GetEvents()) != 1 || said.GetOmitted() != 4 {
			t.Fatalf("%v", said)
		}
		if e := said.GetEvents()[0]; e.GetReason() != "Second" || e.GetObject().GetApiVersion() != "apps/v1" || e.GetModule() != "shop" || e.GetCount() != 7 || len(e.GetMessage()) > 1100 {
			t.Errorf("%v", e)
		}
	}
	for name, f := range map[string]*towlinev1.ObjectFilter{"nothing": nil, "a kind alone": {Kind: "Pod"}, "a state": {Module: "shop", Health: "Degraded"}} {
		st, err := w.Trackers.ListEvents(w.ctx, &towlinev1.ListEventsRequest{Filter: f})
		if _, err := received(st, err); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLogsAreFollowed: what is told once is not told again, a pod without a log is said once, and the end is the caller's.
func TestLogsAreFollowed(t *testing.T) {
	w := newWorld(t, true)
	var asked atomic.Int32
	w.enroll("a", nil)
	w.connectWith("a", simagent.Options{Answer: func(q *agentv1.Query) *agentv1.QueryResult {
		n := asked.Add(1)
		o, after := q.GetLogs(), q.GetLogs().GetAfter()
		if e := q.GetObject(); e.GetGroup() != "apps" || e.GetVersion() != "v1" || e.GetKind() != "Deployment" || o.GetContainer() != "main" {
			t.Errorf("asked %v", q)
		}
		if n == 1 && (o.GetTail() != 5 || o.GetSinceMillis() != 60_000 || len(after) != 0) || n > 1 && (o.GetTail() != 0 || len(after) != 1 || after[0].GetNanos() != int64(n)-1) {
			t.Errorf("question %d: %v", n, o)
		}
		if since := o.GetSinceMillis(); n > 1 && since < 60_000+(uint64(n)-1)*1000 || since > 90_000 {
			t.Errorf("question %d: a pod that has written nothing for a minute is read from %d ms before", n, since)
		}
		return &agentv1.QueryResult{Logs: &agentv1.Logs{Omitted: 2, Pods: []*agentv1.PodLog{
			{At: &agentv1.LogCursor{Pod: "web-x", Uid: "u", Nanos: int64(n)}, Container: "main", Data: []byte{'0' + byte(n), '\n'}},
			{At: &agentv1.LogCursor{Pod: "web-y", Uid: "v"}, Container: "main", Error: "ContainerCreating"}}}}
	}})
	req := &towlinev1.GetLogsRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "deploy", Namespace: "default", Name: "web"}, Container: "main", Tail: 5, Since: "1m", Follow: true}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	st, err := w.Trackers.GetLogs(ctx, req)
	must(t, err)
	var text string
	omitted, failed := 0, 0
	for !strings.HasPrefix(text, "1\n2\n3\n") {
		m, err := st.Recv()
		must(t, err)
		if m.GetError() != "" {
			failed++
		}
		omitted += int(m.GetOmittedPods())
		text += string(m.GetData())
	}
	if omitted != 2 || failed != 1 {
		t.Errorf("said %d pods omitted, and %d times that a pod has no log", omitted, failed)
	}
	cancel()
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	st, err = w.Trackers.GetLogs(w.ctx, req)
	if _, err := received(st, err); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("away: %v", err)
	}
	for name, change := range map[string]func(*towlinev1.GetLogsRequest){
		"a kind without logs": func(r *towlinev1.GetLogsRequest) { r.Object.Kind = "ConfigMap" },
		"no namespace":        func(r *towlinev1.GetLogsRequest) { r.Object.Namespace = "" },
		"no duration":         func(r *towlinev1.GetLogsRequest) { r.Since = "soon" },
		"previous, followed":  func(r *towlinev1.GetLogsRequest) { r.Previous = true },
	} {
		bad := &towlinev1.GetLogsRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}, Follow: true}
		change(bad)
		st, err := w.Trackers.GetLogs(w.ctx, bad)
		if _, err := received(st, err); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	viewer, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "vera", Role: "viewer"})
	must(t, err)
	st, err = w.as(viewer.GetToken()).Trackers.GetLogs(w.ctx, req)
	if _, err := received(st, err); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer: %v", err)
	}
}
