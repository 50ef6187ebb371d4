package worker

import (
	"encoding/json"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
)

// judge gives a sync health rules.
func (r *rig) judge(s fleet.Sync, rules ...fleet.HealthRule) fleet.Sync {
	r.t.Helper()
	encoded, err := json.Marshal(rules)
	if err != nil {
		r.t.Fatal(err)
	}
	s.Policies = fleet.DigestOf(encoded)
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.rules[s.Policies] = rules
	return s
}

// The rules of a module judge its objects, and changed rules judge them anew without a write.
func TestHealthRulesOfAModule(t *testing.T) {
	r := newRig(t)
	s := r.judge(r.bundle("shop", nil, configMap("a", "k: one")),
		fleet.HealthRule{Kind: "ConfigMap", Degraded: "object.data.k == 'one'", Message: "'k is ' + object.data.k"})
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "degraded", func(x fleet.SyncStatus) bool {
		return len(x.States) == 1 && x.States[0].Health == fleet.HealthDegraded
	})
	if status.Ready || len(status.Exceptions) != 1 || status.Exceptions[0].Message != "k is one" {
		t.Errorf("%+v", status)
	}
	r.count.take()
	s = r.judge(r.bundle("shop", nil, configMap("a", "k: one")), fleet.HealthRule{Kind: "ConfigMap", Healthy: "object.data.k == 'one'"})
	r.set([]fleet.Sync{s})
	r.ready(s)
	if counts, paths := r.count.take(); counts["PATCH"] > 0 {
		t.Errorf("rules alone were changed, and something was written: %v", paths)
	}
}

// An event that was on its way when the rules changed brings a verdict by the rules of before.
func TestEventThatWasJudgedByRulesOfBefore(t *testing.T) {
	r := newRig(t)
	object := configMap("a", "k: one")
	before := fleet.HealthRule{Kind: "ConfigMap", Degraded: "object.data.k == 'one'", Message: "'k is ' + object.data.k"}
	r.set([]fleet.Sync{r.judge(r.bundle("shop", nil, object), before)})
	r.wait("shop", "degraded", func(x fleet.SyncStatus) bool { return len(x.States) == 1 && x.States[0].Health == fleet.HealthDegraded })
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"}
	kind := apply.Resource{GroupVersionResource: gvr("v1", "configmaps"), Kind: "ConfigMap", Namespaced: true}
	record := r.m.inventory.Get(id)
	old := r.m.rules.forRecord(record)
	s := r.judge(r.bundle("shop", nil, object), fleet.HealthRule{Kind: "ConfigMap", Healthy: "object.data.k == 'one'"})
	r.set([]fleet.Sync{s})
	r.ready(s)

	now := r.m.rules.forRecord(record)
	r.m.rules.set(record.Module, old)
	late := r.m.watcher.Observe(kind, r.get("v1", "configmaps", "a").Object, record)
	r.m.rules.set(record.Module, now)
	if late.Health != fleet.HealthDegraded {
		t.Fatalf("judged %+v by the rules of before", late)
	}
	r.m.changed(id, late.Owner)
	r.eventually("the object was judged by the rules of now", func() bool {
		f, _ := r.m.watcher.See(kind, r.ns, "a")
		return f != nil && f.Health == fleet.HealthHealthy
	})
	r.ready(s)
}

func TestWhatCannotBeJudged(t *testing.T) {
	for name, tc := range map[string]struct {
		policy string
		print  watch.Fingerprint
		want   fleet.ObjectState
	}{
		"healthy":            {fleet.HealthStrict, watch.Fingerprint{Health: fleet.HealthHealthy}, fleet.ObjectState{Health: fleet.HealthHealthy}},
		"no rule, lenient":   {fleet.HealthLenient, watch.Fingerprint{Health: fleet.HealthHealthy, Reason: fleet.NoRule}, fleet.ObjectState{Health: fleet.HealthHealthy, Unjudged: fleet.NoRule}},
		"no rule, strict":    {fleet.HealthStrict, watch.Fingerprint{Health: fleet.HealthHealthy, Reason: fleet.NoRule}, fleet.ObjectState{Health: fleet.HealthUnknown}},
		"no status, strict":  {fleet.HealthStrict, watch.Fingerprint{Health: fleet.HealthHealthy, Reason: fleet.NoStatus}, fleet.ObjectState{Health: fleet.HealthUnknown}},
		"waiting for status": {fleet.HealthLenient, watch.Fingerprint{Health: fleet.HealthProgressing, Reason: fleet.NoStatus}, fleet.ObjectState{Health: fleet.HealthProgressing}},
	} {
		t.Run(name, func(t *testing.T) {
			got := fleet.ObjectState{Health: tc.print.Health}
			judged(&fleet.Policy{Health: tc.policy}, tc.print.Reason, &got)
			if got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
