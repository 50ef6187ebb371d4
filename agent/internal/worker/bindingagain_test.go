package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// TestBindingOfWhatIsAppliedOnce: a module has an object that is applied once, and another one that reads a field of it. A revision changes
// the first one, which stays as it is.
func TestBindingOfWhatIsAppliedOnce(t *testing.T) {
	r := newRig(t)
	late := fleet.LateBinding{Name: "V", Object: r.fieldOf("ConfigMap", "gen", "data.v")}
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"gen"}}, ApplyOnce: &fleet.ApplyOnce{Paths: []string{fleet.OnceAll}}}}
	of := func(v string) fleet.Sync {
		s := r.binding(r.bundle("shop", nil, configMap("gen", `v: "`+v+`"`), configMap("uses", `v: "${V}"`)), late)
		r.store.mu.Lock()
		r.store.policies[s.Policies] = policies
		r.store.mu.Unlock()
		return s
	}
	s := of("1")
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := of("2")
	r.set([]fleet.Sync{next})
	r.ready(next)
	if gen, uses := r.data("gen", "v"), r.data("uses", "v"); gen != "1" || uses != "1" {
		t.Errorf("gen %q, uses %q", gen, uses)
	}
}

// TestBindingOfWhatTheModuleChangesAfterAHold: as TestBindingOfWhatTheModuleChanges, with a revision that comes while the cluster is held.
func TestBindingOfWhatTheModuleChangesAfterAHold(t *testing.T) {
	r := newRig(t)
	late := fleet.LateBinding{Name: "V", Object: r.fieldOf("ConfigMap", "z-source", "data.v")}
	of := func(v, more string) fleet.Sync {
		return r.binding(r.bundle("shop", nil, configMap("uses", `v: "`+more+`${V}"`), configMap("z-source", `v: "`+v+`"`)), late)
	}
	s := of("1", "a")
	r.set([]fleet.Sync{s})
	r.ready(s)
	seen, err := r.res("v1", "configmaps", r.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=uses"})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	next := of("2", "b")
	r.mu.Lock()
	r.current.Syncs, r.current.Hold = []fleet.Sync{next}, true
	r.mu.Unlock()
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseHeld })
	r.holdCluster(false)
	r.ready(next)
	if got := r.data("uses", "v"); got != "b2" {
		t.Errorf("ready with %q", got)
	}
	r.eventually("applied", func() bool { return r.data("uses", "v") == "b2" })
	r.delete("v1", "configmaps", "uses")
	for e := range seen.ResultChan() {
		data, _, _ := unstructured.NestedMap(e.Object.(*unstructured.Unstructured).Object, "data")
		if e.Type == "DELETED" {
			break
		}
		if data["v"] != "a1" && data["v"] != "b2" {
			t.Errorf("was applied as %v", data)
		}
	}
}

// losesSource deletes what a binding reads, and waits until the agent has seen it. A watch that begins later sees nothing older than that: the
// API server may answer its first list from a cache that is behind.
func (r *rig) losesSource(s fleet.Sync, name string) {
	r.t.Helper()
	r.delete("v1", "configmaps", name)
	r.wait(s.Module.Name, "keeps the value of what is gone", func(x fleet.SyncStatus) bool {
		return strings.Contains(x.Message, "keeps the value that was read last")
	})
}

// TestLastValueOfADroppedBindingDoesNotComeBack: two revisions later, what the binding read is long gone; the default counts.
func TestLastValueOfADroppedBindingDoesNotComeBack(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: old.example}`)
	other := "default.example"
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host"), Default: &other}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), host)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.losesSource(s, "net")
	plain := r.bundle("shop", nil, configMap("uses", `host: "fixed"`))
	r.set([]fleet.Sync{plain})
	r.ready(plain)
	anew := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), host)
	r.set([]fleet.Sync{anew})
	x := r.ready(anew)
	if got := r.data("uses", "host"); got != other {
		t.Errorf("host %q %s", got, strings.TrimSpace(x.Message))
	}
}

// TestLastValueOfADroppedSecretDoesNotComeBack: what a secret of the hub had is forgotten with the first revision that has no binding at all.
func TestLastValueOfADroppedSecretDoesNotComeBack(t *testing.T) {
	r := newRig(t)
	other := "none"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &other}
	of := func() fleet.Sync {
		return r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
	}
	is := func(want string) {
		t.Helper()
		if got := r.secretData("uses")["pw"]; got != want {
			t.Errorf("pw %q, want %q", got, want)
		}
	}
	r.sends(map[string]map[string]string{"db": {"password": "leaked"}})
	s := of()
	r.set([]fleet.Sync{s})
	r.ready(s)
	is("leaked")
	plain := r.bundle("shop", nil, secret("uses", `stringData: {pw: fixed}`))
	r.set([]fleet.Sync{plain})
	r.ready(plain)
	r.sends(nil)
	anew := of()
	r.set([]fleet.Sync{anew})
	r.sends(map[string]map[string]string{"db": {}}, "password")
	r.ready(anew)
	is(other)
}

// TestLastValueOutlivesWhatIsNotApplied: a revision reads another field, and goes back before it is applied: what was read last counts still.
// Once such a revision is applied it does not.
func TestLastValueOutlivesWhatIsNotApplied(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: old.example}`)
	r.source("ConfigMap", "more", `data: {host: more.example}`)
	other := "default.example"
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host"), Default: &other}
	more := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "more", "data.host")}
	of := func(b fleet.LateBinding) fleet.Sync {
		return r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), b)
	}
	is := func(want string) {
		t.Helper()
		if got := r.data("uses", "host"); got != want {
			t.Errorf("host %q, want %q", got, want)
		}
	}
	s := of(host)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.losesSource(s, "net")
	next := of(more)
	r.mu.Lock()
	r.current.Syncs, r.current.Hold = []fleet.Sync{next}, true
	r.mu.Unlock()
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseHeld })
	s = of(host)
	r.mu.Lock()
	r.current.Syncs, r.current.Hold = []fleet.Sync{s}, false
	r.mu.Unlock()
	r.holdCluster(false)
	r.ready(s)
	is("old.example")
	for _, b := range []fleet.LateBinding{more, host} {
		s = of(b)
		r.set([]fleet.Sync{s})
		r.ready(s)
	}
	is(other)
}

// TestModuleThatIsPutAgainBeginsAnew: a module is deleted, and put again with the index that drops its tombstone; what its binding reads is gone.
func TestModuleThatIsPutAgainBeginsAnew(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: old.example}`)
	other := "default.example"
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host"), Default: &other}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), host)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.losesSource(s, "net")
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	anew := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), host)
	r.set([]fleet.Sync{anew})
	x := r.ready(anew)
	if got := r.data("uses", "host"); got != other {
		t.Errorf("host %q: %s", got, strings.TrimSpace(x.Message))
	}
}

// TestValuesEndWithTheFleet: the cluster leaves the fleet, and joins another one, whose hub has no such secret yet.
func TestValuesEndWithTheFleet(t *testing.T) {
	r := newRig(t)
	const canary = "canary-left-1a2b"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), pw)
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.stop()
	// desired.Adopt begins empty after a leave; the hub is another one.
	r.hub = "hub-b-" + r.ns
	r.hubs = append(r.hubs, r.hub)
	r.start()
	problem := []Sealed{{Project: "default", Name: "db", Problem: "secret db does not exist: towline secret set db password=-", Absent: true}}
	use, err := r.m.Secrets(context.Background(), problem)
	if err != nil {
		t.Fatal(err)
	}
	use(func() {})
	anew := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), pw)
	anew.Lineage = 2
	r.set([]fleet.Sync{anew})
	r.wait("shop", "waits for the other hub's secret", func(x fleet.SyncStatus) bool {
		return x.Generation == anew.Generation && !x.Ready && strings.Contains(x.Message, "secret db does not exist")
	})
	if got := r.get("v1", "configmaps", "uses"); got != nil {
		t.Errorf("applied with the other fleet's secret: %v", got.Object["data"])
	}
}
