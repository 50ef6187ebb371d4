package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
)

func TestEvents(t *testing.T) {
	hub := fullHub()
	event := func(name, reason string, at int) *v1.ObjectEvent {
		return &v1.ObjectEvent{Object: &v1.ObjectReference{ApiVersion: "v1", Kind: "Pod", Namespace: "shop", Name: name}, Type: "Warning", Reason: reason, Message: "two\nlines", By: "kubelet",
			Last: timestamppb.New(time.Unix(int64(at), 0)), Count: 4}
	}
	hub.events = []*v1.ListEventsResponse{{Cluster: "c1", Events: []*v1.ObjectEvent{event("a", "First", 1), event("b", "Third", 3)}, Omitted: 2}, {Cluster: "c2", Events: []*v1.ObjectEvent{event("c", "Second", 2)}}}
	got := hub.run(t, run{}, "events", "module/shop", "--limit", "7")
	order := []int{strings.Index(got.out, "First"), strings.Index(got.out, "Second"), strings.Index(got.out, "Third")}
	if got.code != exitOK || order[0] < 0 || order[1] < order[0] || order[2] < order[1] || !strings.Contains(got.out, "two lines") {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
	if r := asked[*v1.ListEventsRequest](hub); r.GetFilter().GetModule() != "shop" || r.GetFilter().GetProject() != "default" || r.GetLimit() != 7 {
		t.Errorf("asked %v", r)
	}
	hub.events[1] = &v1.ListEventsResponse{Cluster: "c2", Reason: "Unanswered", Message: "cluster c2: events in namespace shop: refused"}
	if got = hub.run(t, run{}, "events", "module/shop"); strings.Count(got.err, "cluster c2: ") != 1 {
		t.Errorf("%s", got.err)
	}
	hub.events[1] = &v1.ListEventsResponse{Cluster: "c2", Reason: "Disconnected", Message: "its agent is not connected"}
	got = hub.run(t, run{}, "events", "Deployment/shop/web", "--cluster", "c1", "--cluster", "c2", "-o", "json")
	if got.code != exitFailed || !strings.Contains(got.err, "cluster c2: its agent is not connected") || strings.Count(got.out, `"cluster"`) != 2 {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
	if r := asked[*v1.ListEventsRequest](hub); r.GetFilter().GetKind() != "Deployment" || r.GetFilter().GetNamespace() != "shop" || r.GetFilter().GetName() != "web" {
		t.Errorf("asked %v", r)
	}
	hub.events = nil
	for args, want := range map[string]string{
		"events module/shpo":                             "module shpo: there is none",
		"events module/shop --cluster prod-eu-7":         "cluster prod-eu-7: there is none",
		"events Deployment/shop/none":                    "no module has it",
		"events cluster/c1":                              "name module/X or KIND/NAMESPACE/NAME",
		"events module/shop --limit 0":                   "--limit 0: at least 1",
		"events module/shop -o name":                     "events have no names",
		"logs Deployment/shop/web":                       "in which cluster? --cluster C",
		"logs web --cluster c1":                          "write KIND/NAMESPACE/NAME",
		"logs Deployment/shop/web --cluster c1 --tail 0": "--tail 0: at least 1 line",
	} {
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code == exitOK || !strings.Contains(got.err, want) {
			t.Errorf("towline %s: exit %d, %s; want %s", args, got.code, got.err, want)
		}
	}
}

func TestLogs(t *testing.T) {
	hub := fullHub()
	hub.logs = []*v1.GetLogsResponse{{Pod: "web-1", Data: []byte("one\ntwo\n"), Cut: true}, {Pod: "web-2", Error: "pod web-2: ContainerCreating"}, {OmittedPods: 5}}
	got := hub.run(t, run{}, "logs", "Deployment/shop/web", "--cluster", "c1", "--since", "10m", "--tail", "-1", "-c", "main")
	if got.code != exitOK || got.out != "[web-1] one\n[web-1] two\n" {
		t.Errorf("exit %d, %q", got.code, got.out)
	}
	for _, want := range []string{"pod web-2: ContainerCreating", "5 pods more are not read", "there is more than fits"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("%q is not said: %s", want, got.err)
		}
	}
	if r := asked[*v1.GetLogsRequest](hub); r.GetTail() != 0 || r.GetSince() != "10m0s" || r.GetContainer() != "main" || r.GetFollow() || r.GetObject().GetKind() != "Deployment" {
		t.Errorf("asked %v", r)
	}
	hub.logs = hub.logs[:1]
	if got := hub.run(t, run{}, "logs", "Pod/shop/web-1", "--cluster", "c1", "-f"); got.out != "one\ntwo\n" || strings.Contains(got.err, "more than fits") {
		t.Errorf("exit %d, %q %s", got.code, got.out, got.err)
	}
	hub.logs = []*v1.GetLogsResponse{{Pod: "web-1", Error: "pod web-1: no"}}
	if got := hub.run(t, run{}, "logs", "Pod/shop/web-1", "--cluster", "c1"); got.code != exitFailed {
		t.Errorf("nothing was read: exit %d", got.code)
	}
}
