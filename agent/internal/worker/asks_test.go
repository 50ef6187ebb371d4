package worker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

func (r *rig) event(of *unstructured.Unstructured, reason string, at time.Time) {
	r.t.Helper()
	r.create("v1", "events", r.ns, map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"generateName": "e-", "namespace": r.ns},
		"involvedObject": map[string]any{"apiVersion": of.GetAPIVersion(), "kind": of.GetKind(), "name": of.GetName(), "namespace": of.GetNamespace(), "uid": string(of.GetUID())},
		"type":           "Warning", "reason": reason, "message": "it is " + reason, "source": map[string]any{"component": "test"}, "count": int64(3),
		"firstTimestamp": at.Add(-time.Minute).UTC().Format(time.RFC3339), "lastTimestamp": at.UTC().Format(time.RFC3339)})
}

// webWithPods makes a Deployment of a module, whose controllers make its pods, and then a pod of nobody.
func (r *rig) webWithPods() (s fleet.Sync, pods []*unstructured.Unstructured) {
	r.t.Helper()
	s = r.bundle("shop", nil, deployment("web", 2), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	list, err := r.res("v1", "pods", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		r.t.Fatalf("%v, %v", list, err)
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	r.create("v1", "pods", r.ns, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "stray", "namespace": r.ns},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "nginx:1"}}}})
	return s, []*unstructured.Unstructured{&list.Items[0], &list.Items[1], r.get("v1", "pods", "stray")}
}

func TestEventsAboutWhatAModuleHas(t *testing.T) {
	r := newRig(t)
	s, pods := r.webWithPods()
	now := time.Now().Add(time.Hour).Truncate(time.Second)
	r.event(pods[0], "BackOff", now)
	r.event(r.get("apps/v1", "deployments", "web"), "ScalingReplicaSet", now.Add(-time.Minute))
	r.event(pods[2], "Stranger", now)
	r.event(r.get("v1", "configmaps", "a"), "Noted", now.Add(-2*time.Minute))
	reasons := func(only []fleet.ObjectID, limit int) (out []string, omitted int) {
		t.Helper()
		list, omitted, err := r.m.Events(context.Background(), s.Module, only, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.By != "test" {
				continue // of the agent itself, or the server
			}
			out = append(out, e.Reason)
			if e.Message != "it is "+e.Reason || e.Count != 3 || !e.First.Equal(e.Last.Add(-time.Minute)) || e.Type != "Warning" {
				t.Errorf("event %+v", e)
			}
		}
		return out, omitted
	}
	if got, _ := reasons(nil, 100); !slices.Equal(got, []string{"Noted", "ScalingReplicaSet", "BackOff"}) {
		t.Errorf("of the module: %v", got)
	}
	web := fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"}
	if got, _ := reasons([]fleet.ObjectID{web}, 100); !slices.Equal(got, []string{"ScalingReplicaSet", "BackOff"}) {
		t.Errorf("of the Deployment: %v", got)
	}
	r.eventually("the newest is told, and how many there are besides, with those of controllers", func() bool {
		got, omitted := reasons([]fleet.ObjectID{web}, 1)
		return slices.Equal(got, []string{"BackOff"}) && omitted >= 2
	})
	if got, _, err := r.m.Events(context.Background(), fleet.ModuleRef{Project: "default", Name: "other"}, nil, 100); len(got) != 0 || err != nil {
		t.Errorf("of another module: %v, %v", got, err)
	}
}

// TestLogsOfWhatAModuleHas: the nodes are KWOK's, whose kubelet says that it has no logs; what a real one would answer is put in the
// place of that.
func TestLogsOfWhatAModuleHas(t *testing.T) {
	r := newRig(t)
	_, pods := r.webWithPods()
	web := fleet.BundleEntry{ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"}, Version: "v1"}
	pod := func(name string) fleet.BundleEntry {
		return fleet.BundleEntry{ID: fleet.ObjectID{Kind: "Pod", Namespace: r.ns, Name: name}, Version: "v1"}
	}
	list, omitted, err := r.m.Logs(context.Background(), web, fleet.LogQuery{Bytes: 1000})
	if err != nil || len(list) != 2 || omitted != 0 || list[0].Pod != pods[0].GetName() || list[1].Pod != pods[1].GetName() {
		t.Fatalf("%+v, %d, %v", list, omitted, err)
	}
	for _, p := range list {
		if !strings.Contains(p.Error, "no logs found for container") {
			t.Errorf("pod %s: %q", p.Pod, p.Error)
		}
	}
	for name, e := range map[string]fleet.BundleEntry{"a pod of nobody": pod("stray"), "no pod": pod("web-none"),
		"no workload": {ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}, Version: "v1"}} {
		if got, _, err := r.m.Logs(context.Background(), e, fleet.LogQuery{Bytes: 1000}); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}

	var asked atomic.Value // url.Values
	line := func(second int, text string) string {
		return fmt.Sprintf("2026-07-03T12:00:%02d.5Z %s\n", second, text)
	}
	log := line(1, "one") + line(2, "two") + line(3, "three")
	r.stop()
	r.answers(func(q *http.Request) *http.Response {
		if !strings.HasSuffix(q.URL.Path, "/log") {
			return nil
		}
		asked.Store(q.URL.Query())
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(log)), Request: q}
	})
	r.start()
	r.eventually("the agent knows what it has", func() bool { return r.m.knows() == nil })
	r.set(r.current.Syncs)
	read := func(q fleet.LogQuery) fleet.PodLog {
		t.Helper()
		list, _, err := r.m.Logs(context.Background(), pod(pods[0].GetName()), q)
		if err != nil || len(list) != 1 || list[0].Error != "" || list[0].UID != string(pods[0].GetUID()) || list[0].Container != "main" {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	p := read(fleet.LogQuery{Bytes: 1000, Tail: 5, Since: time.Minute})
	q := asked.Load().(url.Values)
	if string(p.Data) != "one\ntwo\nthree\n" || p.Cut || q.Get("tailLines") != "5" || q.Get("sinceSeconds") != "60" || q.Get("container") != "main" || q.Get("limitBytes") != "1000" {
		t.Errorf("%q, cut %t, asked %v", p.Data, p.Cut, q)
	}
	log += line(3, "again") + line(4, "four")
	if next := read(fleet.LogQuery{Bytes: 1000, After: map[string]fleet.LogCursor{p.UID: p.LogCursor}, Timestamps: true}); string(next.Data) != line(4, "four") {
		t.Errorf("what came later is %q", next.Data)
	}
	if cut := read(fleet.LogQuery{Bytes: len(line(1, "one")) + 10}); string(cut.Data) != "one\n" || !cut.Cut {
		t.Errorf("%q, cut %t", cut.Data, cut.Cut)
	}
}
