package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// TestNewestEventsAreTold: the API server tells Events by their names, so that the newest may come behind many others.
func TestNewestEventsAreTold(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, `
apiVersion: v1
kind: ReplicationController
metadata: {name: old, namespace: $NS}
spec:
  replicas: 1
  selector: {app: old}
  template:
    metadata: {labels: {app: old}}
    spec: {containers: [{name: main, image: "nginx:1"}]}
`)
	r.set([]fleet.Sync{s})
	r.ready(s)
	pods, err := r.res("v1", "pods", r.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	r.event(&pods.Items[0], "BackOff", time.Now().Add(time.Hour))
	rc := r.get("v1", "replicationcontrollers", "old")
	r.stop()
	r.answers(func(q *http.Request) *http.Response { // 50 full pages stand before those of the API server
		if !strings.HasSuffix(q.URL.Path, "/events") || q.Method != http.MethodGet {
			return nil
		}
		page, _ := strconv.Atoi(q.URL.Query().Get("continue"))
		if page == 50 {
			q.URL.RawQuery = "limit=500"
			return nil
		}
		list := corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}, ListMeta: metav1.ListMeta{Continue: fmt.Sprint(page + 1)}}
		for range 500 {
			list.Items = append(list.Items, corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "ReplicationController", Name: "old", UID: rc.GetUID()}, Reason: "Older"})
		}
		body, err := json.Marshal(list)
		if err != nil {
			t.Error(err)
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: q}
	})
	r.start()
	r.eventually("the agent knows what it has", func() bool { return r.m.knows() == nil })
	list, omitted, err := r.m.Events(t.Context(), s.Module, nil, 1)
	if err != nil || len(list) != 1 || list[0].Reason != "BackOff" || omitted < 50*500 {
		t.Errorf("%+v, and %d older ones, %v", list, omitted, err)
	}
}

// TestLogsSayWhatCannotBeRead: a ReplicaSet by which pods belong to a Deployment cannot be read. That its pods have no logs would be a lie.
func TestLogsSayWhatCannotBeRead(t *testing.T) {
	r := newRig(t)
	_, pods := r.webWithPods()
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/replicasets/") {
			return errors.New("refused by a test")
		}
		return nil
	})
	for what, id := range map[string]fleet.ObjectID{"of all": {Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"},
		"of one": {Kind: "Pod", Namespace: r.ns, Name: pods[0].GetName()}} {
		list, _, err := r.m.Logs(t.Context(), fleet.BundleEntry{ID: id, Version: "v1"}, fleet.LogQuery{Bytes: 1000})
		if err == nil || !strings.Contains(err.Error(), "refused by a test") {
			t.Errorf("%s: %+v, %v", what, list, err)
		}
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
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(asKubelet(log, q.URL.Query()))), Request: q}
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
	// followed reads until nothing more comes, in answers of so many bytes.
	followed := func(most int) (all string) {
		t.Helper()
		q := fleet.LogQuery{Bytes: most, After: map[string]fleet.LogCursor{}}
		for {
			p := read(q)
			if len(p.Data) == 0 {
				return all
			}
			if all += string(p.Data); len(all) > 2*len(log) {
				t.Fatalf("is told again and again: %.300q", all)
			}
			q.After[p.UID] = p.LogCursor
		}
	}
	log = ""
	text := ""
	for i := range 50 { // more within one second than one answer has room for
		log += fmt.Sprintf("2026-07-03T12:00:01.%09dZ line %d\n", i, i)
		text += fmt.Sprintf("line %d\n", i)
	}
	log += line(2, "the end")
	if got := followed(200); got != text+"the end\n" {
		t.Errorf("of 50 lines of one second, in answers of 200 bytes: %q", got)
	}
	log = line(1, "one") + line(2, strings.Repeat("long ", 2000)) + line(3, "three")
	if got := followed(200); got != "one\n(a line of more than 200 bytes)\nthree\n" {
		t.Errorf("with a line that has no room in an answer: %q", got)
	}
	log = "unable to retrieve container logs for containerd://0123"
	if got := followed(200); got != log {
		t.Errorf("of a container whose log is gone: %q", got)
	}
}

// asKubelet is what a kubelet answers: lines from a whole second on, up to so many bytes.
func asKubelet(log string, q url.Values) string {
	if since, err := time.Parse(time.RFC3339, q.Get("sinceTime")); err == nil {
		log = strings.Join(slices.DeleteFunc(strings.SplitAfter(log, "\n"), func(l string) bool {
			stamp, _, _ := strings.Cut(l, " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			return err == nil && at.Before(since)
		}), "")
	}
	if most, err := strconv.Atoi(q.Get("limitBytes")); err == nil {
		log = log[:min(most, len(log))]
	}
	return log
}

// TestPodsOfALargeWorkload: of the pods of a workload some are read, and all others are counted. Those that are followed are read on,
// whatever others come.
func TestPodsOfALargeWorkload(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, deployment("web", 55))
	r.set([]fleet.Sync{s})
	r.ready(s)
	pods, err := r.res("v1", "pods", r.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 55 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	last := slices.MaxFunc(pods.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	web := fleet.BundleEntry{ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"}, Version: "v1"}
	for what, after := range map[string]map[string]fleet.LogCursor{"at first": nil, "followed": {string(last.GetUID()): {UID: string(last.GetUID()), At: time.Now()}}} {
		list, omitted, err := r.m.Logs(t.Context(), web, fleet.LogQuery{Bytes: 1000, After: after})
		if err != nil || len(list) != maxLogPods || omitted != 55-maxLogPods {
			t.Errorf("%s: %d pods are read, and %d not, of 55; %v", what, len(list), omitted, err)
		}
		if is := slices.ContainsFunc(list, func(p fleet.PodLog) bool { return p.UID == string(last.GetUID()) }); is != (after != nil) {
			t.Errorf("%s: the last by name is read: %t", what, is)
		}
	}
}
