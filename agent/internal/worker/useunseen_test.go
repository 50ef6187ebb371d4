package worker

import (
	"testing"

	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
)

// Of a used Namespace nothing is known before a watch shows Namespaces, as right after the agent's start: it may be gone.
func TestUsedNamespaceIsUnknownBeforeItIsSeen(t *testing.T) {
	watcher, err := watch.New(watch.Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{m: &Manager{watcher: watcher}}
	state, _ := w.stateOfUse(&item{use: &use{}, resource: apply.Resource{GroupVersionResource: gvr("v1", "namespaces"), Kind: "Namespace"}})
	if state.Sync != fleet.SyncUnknown || state.Health != fleet.HealthUnknown {
		t.Errorf("%+v", state)
	}
}
