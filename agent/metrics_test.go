package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/meter"
	"towline.dev/towline/agent/internal/reach"
	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/telemetry/telemetrytest"
)

// Every metric that an agent registers is in docs/operations.md, and the reverse.
func TestMetricsAreListed(t *testing.T) {
	a := &Agent{meter: meter.New(), reach: reach.New(reach.Options{Conditions: report.NewConditions()})}
	var registered []string
	for _, c := range a.collectors() {
		registered = append(registered, telemetrytest.Names(c)...)
	}
	listed := slices.DeleteFunc(telemetrytest.Listed(t, "../docs/operations.md"), func(n string) bool { return !strings.HasPrefix(n, "towline_agent_") })
	telemetrytest.Same(t, registered, listed)
}

// An agent that waits for the Lease can take over, so that it is ready; one that has not found its cluster is not.
func TestReady(t *testing.T) {
	a := &Agent{reach: reach.New(reach.Options{Conditions: report.NewConditions()})}
	if err := a.ready(context.Background()); err == nil || !strings.Contains(err.Error(), "API server") {
		t.Errorf("before it has found its cluster: %v", err)
	}
	a.started.Store(true)
	if err := a.ready(context.Background()); err != nil {
		t.Errorf("while it waits for the Lease: %v", err)
	}
	end := a.leads()
	if !a.leading.Load() || a.ready(context.Background()) != nil {
		t.Error("while it leads")
	}
	if end(); a.leading.Load() {
		t.Error("it leads after the end")
	}
}

// The newest status of a module counts, until it is gone or the agent leads no more.
func TestModulesAreCounted(t *testing.T) {
	m := meter.New()
	ref := fleet.ModuleRef{Project: "p", Name: "shop"}
	status := fleet.SyncStatus{Module: ref, Phase: fleet.PhaseApplied, States: []fleet.ObjectState{
		{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}, {Sync: fleet.SyncSynced, Health: fleet.HealthDegraded, Drift: fleet.DriftDrifted}}}
	seen := func(want ...string) {
		t.Helper()
		text := telemetrytest.Text(t, telemetry.NewRegistry(m))
		for _, w := range want {
			if !strings.Contains(text, "\n"+w+"\n") {
				t.Errorf("no %s in\n%s", w, text)
			}
		}
	}
	m.Reported(status)
	status.Phase = fleet.PhaseFailed
	m.Reported(status)
	seen(`towline_agent_modules{phase="Failed"} 1`, `towline_agent_objects{health="Degraded"} 1`, `towline_agent_objects_drift{drift="Drifted"} 1`)
	if strings.Contains(telemetrytest.Text(t, telemetry.NewRegistry(m)), "Applied") {
		t.Error("what the module was before still counts")
	}
	m.Forget()
	if strings.Contains(telemetrytest.Text(t, telemetry.NewRegistry(m)), "Failed") {
		t.Error("the module counts after the agent has lost its Lease")
	}
}
