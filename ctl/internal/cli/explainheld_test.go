package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestExplainOfAHeldModuleSaysOneThing: where a module is held, or somebody changed what it has, and it is healthy, it is not said to be not
// ready beside that.
func TestExplainOfAHeldModuleSaysOneThing(t *testing.T) {
	in := func(cluster, sync, health string, drifted int32, ready bool) *v1.Tracker {
		return &v1.Tracker{Project: "default", Module: "shop", Cluster: cluster, Sync: sync, Health: health, Ready: ready, Drifted: drifted, Connected: true,
			Reason: "Held", Message: "held by ana"}
	}
	hub := &fakeHub{modules: []*v1.Module{{Metadata: &v1.Metadata{Project: "default", Name: "shop"}, Status: &v1.ModuleStatus{Clusters: 4, Healthy: 3, Progressing: 1}}},
		trackers: []*v1.Tracker{in("c1", "Synced", "Healthy", 1, false), in("c2", "OutOfSync", "Progressing", 0, false), in("c3", "OutOfSync", "Healthy", 1, true),
			{Cluster: "c4", Sync: "Synced", Health: "Healthy", Ready: true, Connected: true}}}
	got := hub.run(t, run{}, "explain", "module", "shop").out
	for _, want := range []string{"3 of 4 clusters healthy, 1 progressing", "Clusters: 1 of 4 are not ready\n     └ c2 ", "Clusters: 2 of 4 are healthy, and held or changed by somebody\n     ├ c1 "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if countsAsHealthy(&v1.Tracker{Connected: true, Sync: string(fleet.SyncUnknown), Health: string(fleet.HealthUnknown)}) {
		t.Error("what nobody sees counts as healthy")
	}
}
