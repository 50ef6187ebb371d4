package hub_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// policiesOf is what the agent of a cluster has of the policies of a module.
func (w *world) policiesOf(cluster, module string) (set fleet.PolicySet) {
	w.t.Helper()
	d := w.held(cluster, module).Policies
	if d.IsZero() {
		return set
	}
	raw, err := w.agents[cluster].Content(d)
	must(w.t, err)
	set, err = wire.PolicySetFromContent(raw)
	must(w.t, err)
	return set
}

// TestWavesOfHooksWait: the waves of a chart with hooks wait for each other, and those of others do not, unless the module says otherwise. A
// diff says so, and an agent that does not know it is not given such a module unnoticed.
func TestWavesOfHooksWait(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Keep: true, Answer: unchanged})
	w.enroll("old", nil)
	w.connectWith("old", simagent.Options{Keep: true, Features: slices.DeleteFunc(wire.Features(), func(f string) bool { return f == wire.FeatureWaves })})
	w.awaitCluster("c", "Ready")
	mode := func(m *towlinev1.Module, waves string) string {
		t.Helper()
		m.Spec.Waves = waves
		m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"c"}}
		w.await("shop", w.put(m).GetRevision())
		return w.policiesOf("c", "shop").Waves
	}
	hookless := chart()
	delete(hookless.Spec.Source.Inline.Files, "web/templates/hook.yaml")
	plain := listing("shop", "a")
	plain.Spec.Source.Inline.Files["a.yaml"] = strings.Replace(plain.Spec.Source.Inline.Files["a.yaml"], "metadata: {", "metadata: {annotations: {helm.sh/hook: pre-install}, ", 1)
	for _, tc := range []struct {
		what, says, comes string
		of                *towlinev1.Module
	}{
		{"a chart with a hook", "", "WaitHealthy", chart()}, {"which says otherwise", "WaitApplied", "", chart()}, {"a chart without", "", "", hookless},
		{"what is no chart has no hooks", "", "", plain}, {"and may wait, too", "WaitHealthy", "WaitHealthy", plain},
	} {
		if got := mode(tc.of, tc.says); got != tc.comes {
			t.Errorf("%s: %q", tc.what, got)
		}
	}
	hooked := chart()
	hooked.Spec.Placement = &towlinev1.Placement{Clusters: []string{"c"}}
	if p, _ := w.diff(hooked); !slices.Equal(p.GetWaves(), []int32{-1_000_000, 0}) {
		t.Errorf("diff: %v", p)
	}
	bad := listing("bad", "b")
	bad.Spec.Waves = "Wait"
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: bad}); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), `spec.waves: "Wait" is unknown; use WaitHealthy, WaitApplied`) {
		t.Error(err)
	}
	hooked.Metadata.Name, hooked.Spec.Namespace, hooked.Spec.Placement.Clusters = "other", "other", []string{"old"}
	w.put(hooked)
	tr := w.awaitTracker("other", "old", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureWaves) {
		t.Errorf("%v", tr)
	}
}

// TestWaveThatNeverBegins: to a rollout a cluster in which a wave waits progresses, until its deadline, and it says then for what; nobody calls
// what is there healthy.
func TestWaveThatNeverBegins(t *testing.T) {
	w := newWorld(t, true)
	says := "wave 1 waits until wave 0 is healthy: Job.batch default/migrate: BackoffLimitExceeded"
	w.join("c", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		st.Phase, st.Ready, st.Reason, st.Message = fleet.PhaseApplying, false, "AwaitingWave", says
		st.States[0].Health = fleet.HealthDegraded
		st.States[1] = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}
		return st
	}, nil)
	m := listing("shop", "a", "b")
	m.Spec.Waves, m.Spec.Rollout = fleet.WavesWaitHealthy, &towlinev1.RolloutStrategy{ProgressDeadline: "2s", OnFailure: "Abort"}
	ro := w.await("shop", w.put(m).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Aborted" {
		t.Errorf("%v", s)
	}
	tr := w.tracker("shop", "c")
	if tr.GetReady() || tr.GetSync() != "OutOfSync" || tr.GetHealth() != "Degraded" || tr.GetReason() != "AwaitingWave" || tr.GetMessage() != says {
		t.Errorf("%v", tr)
	}
	got, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"})
	must(t, err)
	if list := got.GetRollout().GetStatus().GetClusters(); len(list) != 1 || list[0].GetState() != "TimedOut" || !strings.Contains(list[0].GetFacts().GetDetail(), says) {
		t.Errorf("%v", list)
	}
}

// TestModuleIsReadyWithoutAnObject: what an object says by towline.dev/ready: ignore reaches the agent under the name that the bundle has,
// and what the agent says of it counts for the object alone.
func TestModuleIsReadyWithoutAnObject(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	m := listing("shop", "a", "${CLUSTER}-b")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterField: "metadata.name"}}
	for name, text := range m.Spec.Source.Inline.Files {
		if strings.Contains(text, "CLUSTER") {
			m.Spec.Source.Inline.Files[name] = strings.Replace(text, "metadata: {", "metadata: {annotations: {towline.dev/ready: ignore}, ", 1)
		}
	}
	w.connectWith("c", simagent.Options{Keep: true, Report: func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		st.States[0].Health, st.States[0].Uncounted = fleet.HealthDegraded, true
		st.Reason, st.Message = "ReadinessIgnored", "towline.dev/ready has it count for nothing: ConfigMap default/c-b: broken"
		return st
	}})
	ro := w.await("shop", w.put(m).GetRevision())
	set := w.policiesOf("c", "shop")
	if ro.GetStatus().GetState() != "Succeeded" || !set.Uncounts(fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "${CLUSTER}-b"}) ||
		set.Uncounts(fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "a"}) {
		t.Errorf("%v; %+v", ro, set)
	}
	tr := w.awaitTracker("shop", "c", "ready", ready)
	if tr.GetHealth() != "Healthy" || tr.GetReason() != "ReadinessIgnored" || tr.GetHealthy() != 1 {
		t.Errorf("%v", tr)
	}
	other := listing("other", "z")
	other.Spec.Source.Inline.Files["z.yaml"] = strings.Replace(other.Spec.Source.Inline.Files["z.yaml"], "metadata: {", "metadata: {annotations: {towline.dev/ready: 'no'}, ", 1)
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: other}); err == nil || !strings.Contains(err.Error(), `annotation towline.dev/ready: "no" is unknown; use ignore, or remove it`) {
		t.Error(err)
	}
}
