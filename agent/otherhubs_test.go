package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

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
	mayList = false
	if served, err := a.servedHubs(t.Context()); err != nil || len(served) != 0 {
		t.Errorf("without the right to list Leases: %v, %v", served, err)
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
