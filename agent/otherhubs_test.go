package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
	"towline.dev/towline/pkg/wire"
)

// answers is an API server that answers each list of Leases with its code, and has the Lease of another hub's agent.
type answers struct {
	code int
	page bool // something else answers in its place
}

func (x *answers) RoundTrip(q *http.Request) (*http.Response, error) {
	mark := desired.HighWater{Number: 1, Lineage: desired.Lineage{HubID: "hub-alive"}, Generation: 1}
	body, err := json.Marshal(metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		Items: []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "towline-agent",
			Annotations: map[string]string{highWaterAnnotation: mark.String()}, ManagedFields: []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: time.Now()}}}}}}})
	if x.code != http.StatusOK && err == nil {
		body, err = json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(x.code)})
	}
	if x.page {
		body = nil
	}
	return &http.Response{StatusCode: x.code, Request: q, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
}

// TestRefusalThatDoesNotLast: an API server that has just started refuses everybody, for it has not read its roles. That is no lack of the right to
// list Leases: that it is, is known when nothing but refusals has come for a while, at looks that follow each other, and is said once.
func TestRefusalThatDoesNotLast(t *testing.T) {
	const ok, forbidden = http.StatusOK, http.StatusForbidden
	type look struct {
		after time.Duration
		code  int
		want  string
	}
	page := map[string]bool{"a page, for as long as it likes": true}
	for name, looks := range map[string][]look{
		"a start":                   {{0, ok, "seen"}, {time.Minute, forbidden, "unknown"}, {time.Second, ok, "seen"}},
		"a second start after that": {{0, forbidden, "unknown"}, {time.Second, ok, "seen"}, {apply.RefusedFor, forbidden, "unknown"}, {time.Second, ok, "seen"}},
		"a start again and again": {{0, forbidden, "unknown"}, {apply.RefusedFor, http.StatusServiceUnavailable, "unknown"}, {time.Second, forbidden, "unknown"},
			{apply.RefusedFor, http.StatusTooManyRequests, "unknown"}, {apply.RefusedFor, forbidden, "unknown"}, {apply.RefusedFor, http.StatusGatewayTimeout, "unknown"}},
		"two starts, and nothing was asked in between": {{0, forbidden, "unknown"}, {apply.RefusedLapse + time.Second, forbidden, "unknown"}},
		"for good": {{0, forbidden, "unknown"}, {time.Second, forbidden, "unknown"}, {apply.RefusedFor - 2*time.Second, forbidden, "unknown"}, {time.Second, forbidden, "none, said"},
			{time.Minute, forbidden, "none"}, {apply.RefusedLapse, forbidden, "none"}, {time.Minute, ok, "seen, said"}, {time.Minute, forbidden, "unknown"}},
		"a page, for as long as it likes":        {{0, forbidden, "unknown"}, {apply.RefusedFor, forbidden, "unknown"}, {time.Minute, forbidden, "unknown"}},
		"for good, of an agent that asks rarely": {{0, forbidden, "unknown"}, {apply.RefusedFor, forbidden, "none, said"}, {time.Hour, forbidden, "unknown"}, {apply.RefusedFor, forbidden, "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, said := &answers{page: page[name]}, &strings.Builder{}
				a, err := New(Options{Hubs: []string{"hub.example.com:7443"}, Config: &rest.Config{Host: "http://api.example.com", Transport: server},
					Log: slog.New(slog.NewTextHandler(said, nil))})
				if err != nil {
					t.Fatal(err)
				}
				for i, x := range looks {
					<-time.After(x.after)
					server.code = x.code
					said.Reset()
					served, err := a.servedHubs(t.Context())
					got := map[bool]string{true: "none", false: "seen"}[len(served) == 0]
					if err != nil {
						got = "unknown"
					}
					if said.Len() > 0 {
						got += ", said"
					}
					if got != x.want {
						t.Errorf("look %d: %s, want %s (%v, %v) %s", i, got, x.want, served, err, said)
					}
				}
			})
		})
	}
}

// TestOtherAgentsAreSeenWhileTheAPIServerStarts: one who has the right to list Leases asks all the time while an API server starts again. In its first
// moments it refuses everybody; whatever it answers, no answer is that another hub's agent does not work here.
func TestOtherAgentsAreSeenWhileTheAPIServerStarts(t *testing.T) {
	config, refused := labtest.Config(t), 0
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("start-%d", time.Now().UnixNano())
	mark := desired.HighWater{Number: 1, Lineage: desired.Lineage{HubID: "hub-alive"}, Generation: 1}
	const rbac = "rbac.authorization.k8s.io"
	for _, x := range []struct {
		gvr  schema.GroupVersionResource
		kind string
		more map[string]any
	}{
		{leases.GroupVersionResource, "Lease", map[string]any{}},
		{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "clusterroles"}, "ClusterRole", map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{leases.Group}, "resources": []any{leases.GroupVersionResource.Resource}, "verbs": []any{"list"}}}}},
		{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "clusterrolebindings"}, "ClusterRoleBinding", map[string]any{
			"roleRef":  map[string]any{"apiGroup": rbac, "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{"apiGroup": rbac, "kind": "User", "name": name}}}},
	} {
		u := &unstructured.Unstructured{Object: x.more}
		u.SetAPIVersion(x.gvr.GroupVersion().String())
		u.SetKind(x.kind)
		u.SetName(name)
		u.SetAnnotations(map[string]string{highWaterAnnotation: mark.String()})
		var at dynamic.ResourceInterface = admin.Resource(x.gvr)
		if x.kind == "Lease" {
			at = admin.Resource(x.gvr).Namespace(metav1.NamespaceDefault)
		}
		if _, err := at.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = at.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	config.Impersonate.UserName = name
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, &refused} })
	a, err := New(Options{Hubs: []string{"hub.example.com:7443"}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	back := labtest.Restart(t)
	often := time.NewTicker(5 * time.Millisecond)
	defer often.Stop()
	wrong := 0
	for ended, last := false, error(nil); !ended || last != nil; <-often.C {
		select {
		case err := <-back:
			if ended = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
		var served map[string]bool
		if served, last = a.servedHubs(t.Context()); last == nil && !served["hub-alive"] {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%d answers say that no agent works for the other hub", wrong)
	}
	t.Logf("refused %d times", refused)
}

// counted counts the answers that refuse.
type counted struct {
	next    http.RoundTripper
	refused *int
}

func (c counted) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(q)
	if err == nil && answer.StatusCode == http.StatusForbidden {
		*c.refused++
	}
	return answer, err
}

// Objects of a hub that the agent never had are said, but those that another agent of the cluster keeps.
func TestObjectsOfOtherHubsAreSaid(t *testing.T) {
	now := time.Now()
	lease := func(namespace, hub string, at time.Time) metav1.PartialObjectMetadata {
		written := metav1.NewTime(at)
		mark := desired.HighWater{Number: 1, Lineage: desired.Lineage{HubID: hub}, Generation: 1}
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "towline-agent",
			Annotations: map[string]string{highWaterAnnotation: mark.String()}, ManagedFields: []metav1.ManagedFieldsEntry{{Time: &written}}}}
	}
	list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		Items: []metav1.PartialObjectMetadata{lease("edge", "hub-alive", now), lease("old", "hub-dead", now.Add(-24*time.Hour)),
			{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "node-1"}}}}
	mayList, busy := true, false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !mayList {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if busy {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer srv.Close()
	a, err := New(Options{Hubs: []string{"hub.example.com:7443"}, Config: &rest.Config{Host: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	if served, err := a.servedHubs(t.Context()); err != nil || !served["hub-alive"] || served["hub-dead"] || served["hub-unheard"] {
		t.Errorf("other agents work for %v", served)
	}
	busy = true
	if served, err := a.servedHubs(t.Context()); err == nil {
		t.Errorf("after an error other agents work for %v", served)
	}
	busy = false
	of := func(hub string) worker.OtherHub {
		return worker.OtherHub{ID: hub, Objects: 3, Such: fleet.ObjectID{Kind: "ConfigMap", Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", 63)},
			Module: fleet.ModuleRef{Project: "default", Name: "shop"}}
	}
	for _, step := range []struct {
		found   []worker.OtherHub
		unseen  int
		mayList bool
		says    string // empty: nothing
	}{
		{[]worker.OtherHub{of("hub-alive"), of("hub-dead"), of("hub-unheard")}, 0, true, "6 objects are of hub hub-dead and 1 more"},
		{[]worker.OtherHub{of("hub-unheard")}, 0, true, "3 objects are of hub hub-unheard, which this agent never had; they stay"},
		{[]worker.OtherHub{of("hub-alive")}, 0, true, ""},
		{[]worker.OtherHub{of("hub-alive")}, 2, true, ""},
		{[]worker.OtherHub{of("hub-dead")}, 2, true, "3 objects or more (2 kinds were not seen) are of hub hub-dead, which this agent never had; they stay"},
		{[]worker.OtherHub{of("hub-dead")}, 1, true, "3 objects or more (1 kind was not seen) are of hub hub-dead"},
		{[]worker.OtherHub{of("hub-alive")}, 0, false, "3 objects are of hub hub-alive, which this agent never had; an agent may keep them: Leases were not seen"},
		{[]worker.OtherHub{of("hub-" + strings.Repeat("a", 32))}, 300, false, "3 objects or more (300 kinds were not seen) are of hub hub-aaaa"},
		{nil, 0, false, ""},
		{nil, 3, false, ""},
	} {
		mayList = step.mayList
		a.tellOtherHubs(t.Context(), step.found, step.unseen)
		all := a.conditions.All()
		if len(all) == 0 && step.says == "" {
			continue
		}
		if len(all) != 1 || step.says == "" || !strings.HasPrefix(all[0].Message, step.says) || !strings.Contains(wire.CutText(all[0].Message), fleet.HubLabel+"=hub-") {
			t.Errorf("found %+v: %+v, want %q", step.found, all, step.says)
		}
	}
}
