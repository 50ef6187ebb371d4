package worker

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/tracker"
)

// annotated puts an annotation into an object whose metadata is in one line.
func annotated(object, key, value string) string {
	return strings.Replace(object, "metadata: {", "metadata: {annotations: {"+key+": \""+value+"\"}, ", 1)
}

func inWave(wave, object string) string { return annotated(object, fleet.WaveAnnotation, wave) }

// inWaves is a sync whose waves wait for each other, as a hub makes it.
func (r *rig) inWaves(module string, revision int64, objects ...string) fleet.Sync {
	r.t.Helper()
	s := r.bundle(module, nil, objects...)
	read, err := manifest.ParseSet(map[string][]byte{"a.yaml": []byte(strings.ReplaceAll(strings.Join(objects, "\n---\n"), "$NS", r.ns))}, manifest.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	s.Revision, s.Policies = revision, fleet.DigestOf(append(s.Policies.Bytes(), s.Bundle.Bytes()...))
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.rules[s.Policies] = gateRules
	r.store.order[s.Policies] = fleet.PolicySet{Waves: fleet.WavesWaitHealthy, Uncounted: render.Uncounted(read)}
	return s
}

// gateRules are by which a gate is healthy.
var gateRules = []fleet.HealthRule{{Kind: "Service", Healthy: "has(object.metadata.labels.state) && object.metadata.labels.state == object.metadata.labels.want"}}

// gated is a sync whose gates are healthy when somebody says so.
func (r *rig) gated(s fleet.Sync) fleet.Sync {
	r.t.Helper()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	policies := r.store.policies[s.Policies]
	s.Policies = fleet.DigestOf(append(s.Policies.Bytes(), "gated"...))
	r.store.policies[s.Policies], r.store.rules[s.Policies] = policies, gateRules
	return s
}

// gate is an object that is healthy when somebody says so, and not before: the pods of a workload are ready in the lab at once.
func gate(name, want string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: $NS, labels: {want: \"" + want + "\"}}\nspec: {clusterIP: None, ports: [{port: 80}]}\n"
}

func (r *rig) sets(name, state string) {
	r.t.Helper()
	r.patch("v1", "services", name, "controller", `{"metadata":{"labels":{"state":"`+state+`"}}}`)
}

// TestWaveWaitsForTheOneBefore: a wave is begun when all before it are healthy. Until then the module is not applied and says which wave
// waits for what, what is there already is kept, and nothing is pruned; a restart changes nothing, and a revision that comes meanwhile
// begins with the first wave.
func TestWaveWaitsForTheOneBefore(t *testing.T) {
	r := newRig(t)
	s := r.inWaves("shop", 1, inWave("-1", configMap("first", "k: one")), gate("db", "1"), inWave("1", configMap("a", "k: one")), inWave("1", configMap("b", "k: one")),
		inWave("2", configMap("c", "k: one")))
	r.set([]fleet.Sync{s})
	waits := "wave 1 waits until wave 0 is healthy: Service " + r.ns + "/db: "
	x := r.awaits("shop", plan.ReasonAwaitingWave, waits)
	if x.Phase != fleet.PhaseApplying || x.Ready || r.keyOf("first") != "one" || r.keyOf("a") != "" {
		t.Fatalf("%+v; %q, %q", x, r.keyOf("first"), r.keyOf("a"))
	}
	if tr := tracker.Fold(tracker.Input{Desired: &s, Observed: &x, Connected: true}); tr.Ready || tr.Sync == fleet.SyncSynced || tr.Health != fleet.HealthProgressing {
		t.Errorf("%+v", tr)
	}
	r.patch("v1", "configmaps", "first", "ana", `{"data":{"k":"changed"}}`)
	r.eventually("an earlier wave is corrected", func() bool { return r.keyOf("first") == "one" })
	r.stop()
	r.start()
	r.m.Set(r.current, nil)
	r.awaits("shop", plan.ReasonAwaitingWave, waits)
	r.sets("db", "1")
	r.ready(s)

	next := r.inWaves("shop", 2, inWave("-1", configMap("first", "k: two")), gate("db", "2"), inWave("1", configMap("a", "k: two")), inWave("2", configMap("c", "k: one")), inWave("2", configMap("d", "k: two")))
	r.set([]fleet.Sync{next})
	r.awaits("shop", plan.ReasonAwaitingWave, waits)
	r.patch("v1", "configmaps", "c", "ana", `{"data":{"k":"changed"}}`)
	r.eventually("what both revisions say is kept", func() bool { return r.keyOf("c") == "one" })
	if r.keyOf("first") != "two" || r.keyOf("a") != "one" || r.keyOf("b") != "one" || r.keyOf("d") != "" {
		t.Fatalf("%q %q %q %q", r.keyOf("first"), r.keyOf("a"), r.keyOf("b"), r.keyOf("d"))
	}
	last := r.inWaves("shop", 3, inWave("-1", configMap("first", "k: three")), gate("db", "3"), inWave("1", configMap("a", "k: three")), inWave("2", configMap("c", "k: one")))
	r.set([]fleet.Sync{last})
	r.wait("shop", "at the newest revision", func(x fleet.SyncStatus) bool {
		return x.Generation == last.Generation && x.Reason == plan.ReasonAwaitingWave && strings.Contains(x.Message, waits)
	})
	if r.keyOf("first") != "three" || r.keyOf("a") != "one" || r.keyOf("b") != "one" {
		t.Fatalf("%q %q %q", r.keyOf("first"), r.keyOf("a"), r.keyOf("b"))
	}
	r.sets("db", "3")
	r.ready(last)
	r.eventually("what no revision lists is gone", func() bool { return r.keyOf("b") == "" })
	if r.keyOf("a") != "three" || r.keyOf("d") != "" {
		t.Errorf("%q %q", r.keyOf("a"), r.keyOf("d"))
	}
}

// TestWaveThatIsBegunGoesOn: a wave that was begun goes on after the agent was killed in the middle of it, although an earlier one is not
// healthy any more; the next one waits for that.
func TestWaveThatIsBegunGoesOn(t *testing.T) {
	r := newRig(t)
	s := r.inWaves("shop", 1, gate("db", "1"), inWave("1", configMap("a", "k: one")), inWave("1", configMap("b", "k: one")), inWave("2", configMap("c", "k: one")))
	r.set([]fleet.Sync{s})
	r.awaits("shop", plan.ReasonAwaitingWave, "wave 1 waits until wave 0")
	r.count.upset(func(req *http.Request) error {
		if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/configmaps/b") {
			return errors.New("the network is away")
		}
		return nil
	})
	r.sets("db", "1")
	r.eventually("the wave is begun", func() bool { return r.keyOf("a") == "one" })
	r.sets("db", "down")
	r.wait("shop", "not healthy", func(x fleet.SyncStatus) bool {
		return x.States[1].Health != fleet.HealthHealthy || x.States[0].Health != fleet.HealthHealthy
	})
	r.stop()
	r.count.upset(nil)
	r.start()
	r.m.Set(r.current, nil)
	r.eventually("the wave goes on", func() bool { return r.keyOf("b") == "one" })
	r.awaits("shop", plan.ReasonAwaitingWave, "wave 2 waits until wave 0 is healthy: Service "+r.ns+"/db")
	if r.keyOf("c") != "" {
		t.Error("the next wave did not wait")
	}
	r.sets("db", "1")
	r.ready(s)
}

// TestJobOfAWave: a Job that a wave waits for has to be completed. One that failed stops what comes behind it, and is named with its reason.
func TestJobOfAWave(t *testing.T) {
	r := newRig(t)
	s := r.inWaves("shop", 1, inWave("-5", jobText("migrate", "")), configMap("web", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	if u := r.get("batch/v1", "jobs", "migrate"); u == nil || r.get("v1", "configmaps", "web").GetCreationTimestamp().Time.Before(u.GetCreationTimestamp().Time) {
		t.Error("the Job was not first")
	}
	next := r.inWaves("shop", 2, inWave("-5", strings.Replace(jobText("migrate2", "activeDeadlineSeconds: 1, "), "restartPolicy", "nodeSelector: {none: such}, restartPolicy", 1)), configMap("web", "k: two"))
	r.set([]fleet.Sync{next})
	x := r.awaits("shop", plan.ReasonAwaitingWave, "wave 0 waits until wave -5 is healthy: Job.batch "+r.ns+"/migrate2: ")
	var tr tracker.Tracker
	x = r.wait("shop", "stopped by the Job", func(x fleet.SyncStatus) bool { // its controller says first that it will fail
		tr = tracker.Fold(tracker.Input{Desired: &next, Observed: &x, Connected: true})
		return strings.Contains(x.Message, "deadline") && tr.Health == fleet.HealthDegraded
	})
	if x.Ready || tr.Ready || r.keyOf("web") != "one" || r.jobUID("migrate") == "" {
		t.Errorf("%+v; %+v; %q", x, tr, r.keyOf("web"))
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// TestWavesGoInReverse: a module that is removed goes wave by wave, the last one first.
func TestWavesGoInReverse(t *testing.T) {
	r := newRig(t)
	s := r.inWaves("shop", 1, configMap("a", "k: one"), inWave("1", configMap("b", "k: one")))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"finalizers":["example.com/slow"]}}`)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("the last wave goes", func() bool { return r.get("v1", "configmaps", "b").GetDeletionTimestamp() != nil })
	if u := r.get("v1", "configmaps", "a"); u == nil || u.GetDeletionTimestamp() != nil {
		t.Error("the first wave did not wait")
	}
	r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"finalizers":null}}`)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// TestReadyWithoutAnObject: an object with towline.dev/ready: ignore is shown as it is, and neither the module nor a wave waits for it.
func TestReadyWithoutAnObject(t *testing.T) {
	r := newRig(t)
	db := annotated(gate("db", "1"), fleet.ReadyAnnotation, fleet.ReadyIgnore)
	s := r.inWaves("shop", 1, db, inWave("1", configMap("a", "k: one")))
	r.set([]fleet.Sync{s})
	x := r.ready(s)
	x = r.wait("shop", "said", func(x fleet.SyncStatus) bool {
		return x.Reason == plan.ReasonUncounted && strings.Contains(x.Message, "db: ")
	})
	tr := tracker.Fold(tracker.Input{Desired: &s, Observed: &x, Connected: true})
	if !tr.Ready || tr.Health != fleet.HealthHealthy || tr.Counts.Healthy != 1 || r.keyOf("a") != "one" {
		t.Errorf("%+v", tr)
	}
	if i := 1; x.States[i].Health != fleet.HealthProgressing || !x.States[i].Uncounted {
		t.Errorf("%+v", x.States)
	}
	counted := r.inWaves("shop", 2, gate("db", "1"), inWave("1", configMap("a", "k: one")))
	r.set([]fleet.Sync{counted})
	r.wait("shop", "not ready", func(x fleet.SyncStatus) bool {
		return x.Generation == counted.Generation && !x.Ready && x.Phase == fleet.PhaseApplied
	})
}
