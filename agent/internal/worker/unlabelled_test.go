package worker

import (
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestJobWithoutItsLabelRunsOnce: somebody takes the label off a Job that runs. For a watch that filters by labels it is gone then, and it is not: it runs to
// its end, and not once more.
func TestJobWithoutItsLabelRunsOnce(t *testing.T) {
	for _, how := range []string{"hold", "report", "hold, and its end is seen"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.recheck = 5 * time.Second
			if strings.HasSuffix(how, "seen") {
				how, r.recheck = "hold", 100*time.Millisecond
			}
			r.restart()
			var policies []fleet.Policy
			if how == "report" {
				policies = []fleet.Policy{{Drift: fleet.DriftReport}}
			}
			s := r.bundle("shop", policies, jobText("migrate", fleeting+"suspend: true, "), configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			if how == "hold" {
				s = r.again(s)
				s.Hold = true
				r.set([]fleet.Sync{s})
				r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
			}
			uid := r.jobUID("migrate")
			r.patch("batch/v1", "jobs", "migrate", "ana", `{"metadata":{"labels":{"`+fleet.HubLabel+`":null}}}`)
			r.wait("shop", "seen without it", func(x fleet.SyncStatus) bool {
				return len(x.States) == 2 && (x.States[1].Drift == fleet.DriftHeld || x.States[1].Drift == fleet.DriftDrifted)
			})
			r.patch("batch/v1", "jobs", "migrate", "ana", `{"spec":{"suspend":false}}`)
			r.eventually("it ran, and the TTL took it away", func() bool { return r.jobUID("migrate") == "" && r.events(uid) > 0 })
			if how == "hold" {
				s = r.again(s)
				s.Hold = false
			} else {
				s = r.bundle("shop", policies, jobText("migrate", fleeting+"suspend: true, "), configMap("a", "k: w"))
			}
			r.set([]fleet.Sync{s})
			x := r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
				return x.Generation == s.Generation && (reasons(x)[1] == "Completed" || r.jobUID("migrate") != "")
			})
			if now := r.jobUID("migrate"); now != "" || x.Corrections != 0 {
				t.Errorf("it runs once more, as %s after %s: %+v", now, uid, x)
			}
		})
	}
}

// TestObjectWithoutItsLabelThatGoes: an object has lost its label, and is being deleted when it is looked at. When it is gone, that is seen, though no
// event tells of it.
func TestObjectWithoutItsLabelThatGoes(t *testing.T) {
	r := newRig(t)
	r.recheck = 100 * time.Millisecond
	r.restart()
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"labels":{"`+fleet.HubLabel+`":null},"finalizers":["example.com/wait"]}}`)
	r.delete("v1", "configmaps", "a")
	r.wait("shop", "seen to go", func(x fleet.SyncStatus) bool {
		return len(x.States) == 1 && x.States[0].Health == fleet.HealthTerminating
	})
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"finalizers":null}}`)
	r.wait("shop", "seen to be gone", func(x fleet.SyncStatus) bool { return len(x.States) == 1 && x.States[0].Health == fleet.HealthMissing })
}
