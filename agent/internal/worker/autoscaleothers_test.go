package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// An autoscaler that targets an object has its replicas, whoever set them last, or whatever the API server still notes of who did.
func TestReplicasUnderAnAutoscalerThatDidNotSetThemLast(t *testing.T) {
	for name, then := range map[string]func(r *rig){
		"a person scaled":    func(r *rig) { r.scale("web", 6, "kubectl") },
		"a person edited it": func(r *rig) { r.patch("apps/v1", "deployments", "web", "kubectl-edit", `{"spec":{"replicas":6}}`) },
		"eleven managers wrote to it": func(r *rig) {
			for n := range 11 {
				r.patch("apps/v1", "deployments", "web", fmt.Sprintf("controller-%d", n), fmt.Sprintf(`{"metadata":{"annotations":{"seen-by-%d":"yes"}}}`, n))
			}
			if managers := fmt.Sprint(r.get("apps/v1", "deployments", "web").GetManagedFields()); !strings.Contains(managers, "ancient-changes") {
				r.t.Fatal("the test shows nothing:", managers)
			}
		},
		"managedFields were taken away": func(r *rig) { r.strip("apps/v1", "deployments", "web", true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := impatient(t)
			r.autoscaler("web")
			s := r.bundle("shop", recreate, deployment("web", 1))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.scale("web", 5, "kube-controller-manager")
			r.asked(2)
			then(r)
			want := r.replicas("web")
			left := func(when string) {
				t.Helper()
				r.asked(2)
				status := r.ready(s)
				if got := r.replicas("web"); got != want || status.States[0].Drift != fleet.DriftInSync {
					t.Errorf("%s: %d replicas, want %d; status %+v", when, got, want, status)
				}
			}
			left("at once")
			revise := func(image string) {
				s = r.bundle("shop", recreate, strings.ReplaceAll(deployment("web", 2), "nginx:1", image))
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			revise("nginx:2")
			left("after a revision")
			r.patch("apps/v1", "deployments", "web", "ana", `{"metadata":{"labels":{"app":"other"}}}`)
			r.eventually("other drift is corrected", func() bool { return r.get("apps/v1", "deployments", "web").GetLabels()["app"] == "web" })
			left("after a correction")
			r.loseState()
			r.forget()
			r.set([]fleet.Sync{s})
			left("without a record")
			r.delete(autoscaling, "horizontalpodautoscalers", "web")
			r.eventually("replicas are the module's again", func() bool { return r.replicas("web") == 2 })
		})
	}
}

// One list of autoscalers answers for all objects of a namespace that somebody scaled.
func TestAutoscalersAreListedOnceForMany(t *testing.T) {
	r := newRig(t)
	var objects []string
	for n := range 20 {
		objects = append(objects, deployment(fmt.Sprintf("web-%d", n), 1))
	}
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	for n := range 20 {
		r.scale(fmt.Sprintf("web-%d", n), 3, "kubectl")
	}
	r.count.take()
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "all drifted", func(x fleet.SyncStatus) bool {
		for _, state := range x.States {
			if state.Drift != fleet.DriftDrifted {
				return false
			}
		}
		return len(x.States) == 20
	})
	_, paths := r.count.take()
	lists := 0
	for _, p := range paths {
		if strings.HasSuffix(p, "/horizontalpodautoscalers") && strings.HasPrefix(p, "GET ") {
			lists++
		}
	}
	if lists == 0 || lists > 2 {
		t.Errorf("%d lists for 20 objects", lists)
	}
}

// TestProgramThatScalesAfterAPerson: that no autoscaler had what a person set says nothing of what a program sets afterwards: it is asked again.
func TestProgramThatScalesAfterAPerson(t *testing.T) {
	w, it := &worker{signal: make(chan struct{}, 1)}, &item{}
	rec, f := &apply.Record{Record: plan.Record{UID: "u"}}, &watch.Fingerprint{UID: "u", Scaled: true}
	rec.Base.Replicas, f.Values.Replicas = 3, 12
	s := it.makeScaling()
	it.scaled, s.ours, s.person, s.asked = true, true, true, time.Now()
	w.noteScaled(it, f, rec)
	if it.takesReplicas() || !s.asked.IsZero() || !it.scaled {
		t.Errorf("replicas of a program are taken by what was found out of a person's: %+v", s)
	}
	s.ours, s.person = true, false
	w.noteScaled(it, f, rec)
	if !it.takesReplicas() {
		t.Error("what was judged of a program's replicas is forgotten")
	}
}

// TestAutoscalerThatCameUnderAHold: somebody scales under a hold, and makes an autoscaler that what is there suits, so that it writes nothing. What was found out before
// that, of a person or of a program, takes no replicas from it when the hold ends.
func TestAutoscalerThatCameUnderAHold(t *testing.T) {
	for by, recheck := range map[string]time.Duration{"kubectl": 0, "node-fetch": 5 * time.Second} { // which is how long a program is waited for
		t.Run(by, func(t *testing.T) {
			r := newRig(t)
			r.stop()
			r.recheck = recheck
			r.start()
			s := r.bundle("shop", nil, deployment("web", 1))
			r.set([]fleet.Sync{s})
			r.ready(s)
			held := r.again(s)
			held.Hold = true
			r.set([]fleet.Sync{held})
			r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == held.Generation })
			r.scale("web", 6, by)
			r.wait("shop", "no autoscaler was found", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
			r.autoscaler("web")
			free := r.again(s)
			r.set([]fleet.Sync{free})
			status := r.wait("shop", "left", func(x fleet.SyncStatus) bool {
				return x.Ready && x.Generation == free.Generation && x.States[0].Drift == fleet.DriftInSync
			})
			if n := r.replicas("web"); n != 6 || status.Corrections != 0 {
				t.Errorf("%d replicas under an autoscaler that 6 suit, after %d corrections", n, status.Corrections)
			}
		})
	}
}
