package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

const autoscaling = "autoscaling/v2"

// autoscaler makes a HorizontalPodAutoscaler that has no metrics to act on.
func (r *rig) autoscaler(target string) {
	r.t.Helper()
	r.create(autoscaling, "horizontalpodautoscalers", r.ns, map[string]any{"apiVersion": autoscaling, "kind": "HorizontalPodAutoscaler",
		"metadata": map[string]any{"name": target, "namespace": r.ns},
		"spec": map[string]any{"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
			"minReplicas": int64(1), "maxReplicas": int64(9)}})
}

func (r *rig) scale(name string, replicas int, by string) {
	r.t.Helper()
	r.patch("apps/v1", "deployments", name, by, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas), "scale")
}

// asked waits until the agent has looked for autoscalers some times more.
func (r *rig) asked(times int) {
	r.t.Helper()
	for range times {
		r.eventually("autoscalers are looked for", func() bool {
			_, paths := r.count.take()
			for _, p := range paths {
				if strings.HasPrefix(p, "GET ") && strings.HasSuffix(p, "/horizontalpodautoscalers") {
					return true
				}
			}
			return false
		})
	}
}

// impatient has the agent look again soon.
func impatient(t *testing.T) *rig {
	r := newRig(t)
	r.stop()
	r.recheck = 50 * time.Millisecond
	r.start()
	return r
}

// An autoscaler holds replicas as long as it exists, also through revisions; then they are the module's again.
func TestReplicasOutliveNoAutoscaler(t *testing.T) {
	for name, revisions := range map[string][]string{"scaled after our write": nil, "left out of our write": {"nginx:2"}} {
		t.Run(name, func(t *testing.T) {
			r := impatient(t)
			r.autoscaler("web")
			s := r.bundle("shop", nil, deployment("web", 1))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.scale("web", 3, "kube-controller-manager")
			r.asked(2)
			for _, image := range revisions {
				s = r.bundle("shop", nil, strings.ReplaceAll(deployment("web", 1), "nginx:1", image))
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			r.asked(2)
			if status := r.ready(s); r.replicas("web") != 3 || status.States[0].Drift != fleet.DriftInSync {
				t.Fatalf("%d replicas under an autoscaler, status %+v", r.replicas("web"), status)
			}
			r.delete(autoscaling, "horizontalpodautoscalers", "web")
			r.eventually("replicas are the module's again", func() bool { return r.replicas("web") == 1 })
			r.wait("shop", "ready after 1 correction", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 })
		})
	}
}

func TestReplicasWithoutAutoscalerAreReported(t *testing.T) {
	r := impatient(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.scale("web", 3, "kube-controller-manager")
	status := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	wantDrift(t, status, fleet.ObjectException{Field: "/spec/replicas", Want: "1", Live: "3", ChangedBy: "kube-controller-manager", Seen: 1})
	r.autoscaler("web")
	r.wait("shop", "held by the new autoscaler", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftInSync })
	if r.replicas("web") != 3 {
		t.Errorf("%d replicas", r.replicas("web"))
	}
}

// Whoever scales again at once is an autoscaler of another sort, and keeps the field.
func TestUnknownAutoscalerIsLeftAlone(t *testing.T) {
	r := impatient(t)
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.scale("web", 3, "cluster-proportional-autoscaler")
	r.eventually("what nobody holds is back", func() bool { return r.replicas("web") == 1 })
	r.scale("web", 3, "cluster-proportional-autoscaler")
	status := r.wait("shop", "left alone", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Autoscaled"
	})
	r.asked(3)
	if message := status.Exceptions[0].Message; r.replicas("web") != 3 || !strings.Contains(message, `"cluster-proportional-autoscaler"`) {
		t.Errorf("%d replicas, message %q", r.replicas("web"), message)
	}
	if status.Corrections != 1 || status.States[0].Drift != fleet.DriftIgnored {
		t.Errorf("status %+v", status)
	}
	left := func(when string) {
		t.Helper()
		r.ready(s)
		r.asked(4)
		if r.replicas("web") != 3 {
			t.Errorf("%d replicas after %s", r.replicas("web"), when)
		}
		r.scale("web", 3, "cluster-proportional-autoscaler")
	}
	s = r.bundle("shop", nil, deployment("web", 1), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	left("a revision")
	r.stop()
	r.start()
	r.set([]fleet.Sync{s})
	left("a restart")
	r.scale("web", 4, "kubectl")
	r.eventually("kubectl scale gives them back", func() bool { return r.replicas("web") == 1 })
	r.scale("web", 3, "cluster-proportional-autoscaler")
	left("a program that is known")
	r.autoscaler("web")
	r.wait("shop", "held by the new autoscaler", func(x fleet.SyncStatus) bool { return x.Ready && x.States[1].Drift == fleet.DriftInSync })
	r.delete(autoscaling, "horizontalpodautoscalers", "web")
	r.eventually("replicas are the module's again", func() bool { return r.replicas("web") == 1 })
}

// A person who scales twice is no autoscaler, whatever he scales with: what he sets is drift, as with any other field.
func TestPersonWhoScalesIsNoAutoscaler(t *testing.T) {
	r := impatient(t)
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for n, by := range []string{"kubectl", "oc", "k9s", "Mozilla"} {
		for again := range 2 {
			r.scale("web", 3, by)
			r.eventually("the replicas are the module's again", func() bool { return r.replicas("web") == 1 })
			r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == uint64(2*n+again+1) })
		}
	}
}

// If it cannot be found out whether there is an autoscaler, the replicas stay, and the status says so.
func TestUnseenAutoscalersKeepReplicas(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.recheck = 50 * time.Millisecond
	var blind atomic.Bool
	blind.Store(true)
	r.answers(func(q *http.Request) *http.Response {
		if !blind.Load() || !strings.HasSuffix(q.URL.Path, "/horizontalpodautoscalers") {
			return nil
		}
		return answer(q, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no list for you","reason":"Forbidden","code":403}`)
	})
	r.start()
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.scale("web", 3, "kube-controller-manager")
	r.wait("shop", "unknown", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Autoscaled" && strings.Contains(x.Exceptions[0].Message, "no list for you")
	})
	if r.replicas("web") != 3 {
		t.Errorf("%d replicas", r.replicas("web"))
	}
	blind.Store(false)
	r.eventually("replicas are the module's again", func() bool { return r.replicas("web") == 1 })
}

// Replicas stay an autoscaler's also where the agent has no record of the object: after its state was lost, when it died right
// after the first write, and when it takes an object over.
func TestReplicasWithoutARecord(t *testing.T) {
	t.Run("inventory lost", func(t *testing.T) {
		r := impatient(t)
		r.autoscaler("web")
		s := r.bundle("shop", nil, deployment("web", 1))
		r.set([]fleet.Sync{s})
		r.ready(s)
		r.scale("web", 5, "kube-controller-manager")
		r.asked(2)
		gen := r.get("apps/v1", "deployments", "web").GetGeneration()
		r.loseState()
		r.forget()
		r.set([]fleet.Sync{s})
		r.ready(s)
		r.asked(2)
		if u := r.get("apps/v1", "deployments", "web"); r.replicas("web") != 5 || u.GetGeneration() != gen {
			t.Errorf("%d replicas under an autoscaler; generation %d was %d", r.replicas("web"), u.GetGeneration(), gen)
		}
		r.delete(autoscaling, "horizontalpodautoscalers", "web")
		r.eventually("replicas are the module's again", func() bool { return r.replicas("web") == 1 })
	})
	t.Run("adopted", func(t *testing.T) {
		r := impatient(t)
		r.autoscaler("web")
		r.createAs("terraform", "apps/v1", "deployments", r.ns, r.object(deployment("web", 2)))
		r.scale("web", 5, "kube-controller-manager")
		s := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, deployment("web", 1))
		r.set([]fleet.Sync{s})
		r.ready(s)
		if r.replicas("web") != 5 {
			t.Errorf("%d replicas under an autoscaler", r.replicas("web"))
		}
	})
}

// TestObjectThatIsMadeAgainKeepsItsReplicas: what an autoscaler has is made again, for its selector cannot be changed in place. It has as many replicas
// as before, whoever set them last, and they are the autoscaler's, through the next revision as well.
func TestObjectThatIsMadeAgainKeepsItsReplicas(t *testing.T) {
	for name, person := range map[string]bool{"an autoscaler scaled": false, "a person scaled": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			web := deployment("web", 2)
			s := r.bundle("shop", recreate, web)
			r.set([]fleet.Sync{s})
			r.applied(s)
			r.autoscaler("web")
			if person {
				r.scale("web", 5, "kube-controller-manager")
				r.scale("web", 7, "kubectl")
			} else {
				r.scale("web", 7, "kube-controller-manager")
			}
			uid := r.uidOf("apps/v1", "deployments", "web")
			web = strings.ReplaceAll(web, "{app: web}", "{app: web, tier: front}")
			for _, object := range []string{web, strings.ReplaceAll(web, "nginx:1", "nginx:2")} {
				s = r.bundle("shop", recreate, object)
				r.set([]fleet.Sync{s})
				r.applied(s)
				if n := r.replicas("web"); n != 7 {
					t.Errorf("%d replicas", n)
				}
			}
			if r.uidOf("apps/v1", "deployments", "web") == uid {
				t.Error("the test shows nothing: it was not made again")
			}
		})
	}
}

// TestUnknownAutoscalerKeepsWhatIsMadeAgain: a program that is no HorizontalPodAutoscaler, and keeps the replicas of an object, keeps them when
// that is made again.
func TestUnknownAutoscalerKeepsWhatIsMadeAgain(t *testing.T) {
	r := impatient(t)
	s := r.bundle("shop", recreate, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.scale("web", 3, "cluster-proportional-autoscaler")
	r.eventually("what nobody holds is back", func() bool { return r.replicas("web") == 1 })
	r.scale("web", 3, "cluster-proportional-autoscaler")
	r.eventually("it is on record", func() bool {
		rec := r.m.inventory.Get(fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: r.ns, Name: "web"})
		return rec != nil && rec.Scaler != ""
	})
	uid := r.uidOf("apps/v1", "deployments", "web")
	s = r.bundle("shop", recreate, strings.ReplaceAll(deployment("web", 1), "{app: web}", "{app: web, tier: front}"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.asked(4)
	if r.replicas("web") != 3 || r.uidOf("apps/v1", "deployments", "web") == uid {
		t.Errorf("%d replicas after it was made again", r.replicas("web"))
	}
}

// TestReplicasOfWhatIsMadeAgainUnderAHold: a hold that comes between the DELETE and the create leaves a workload no smaller than an autoscaler had made it.
func TestReplicasOfWhatIsMadeAgainUnderAHold(t *testing.T) {
	r := newRig(t)
	web := deployment("web", 2)
	s := r.bundle("shop", recreate, web)
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.autoscaler("web")
	r.scale("web", 7, "kube-controller-manager")
	uid := r.uidOf("apps/v1", "deployments", "web")
	web = strings.ReplaceAll(web, "{app: web}", "{app: web, tier: front}")
	s = r.bundle("shop", recreate, web)
	held := r.again(s)
	held.Hold = true
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodPatch && q.URL.Query().Get("dryRun") == "" && strings.HasSuffix(q.URL.Path, "/deployments/web") && r.get("apps/v1", "deployments", "web") == nil {
			once.Do(func() { r.setHeld(held, "web") })
		}
		return nil
	})
	r.set([]fleet.Sync{s})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == held.Generation && x.Phase == fleet.PhaseHeld })
	r.eventually("made again", func() bool { now := r.uidOf("apps/v1", "deployments", "web"); return now != "" && now != uid })
	if n := r.replicas("web"); n != 7 {
		t.Errorf("%d replicas under the hold", n)
	}
	free := r.again(s)
	r.set([]fleet.Sync{free})
	r.applied(free)
	if n := r.replicas("web"); n != 7 {
		t.Errorf("%d replicas", n)
	}
}
