package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// What is listed again while it is on its way out comes back, whatever the drift policy: we deleted it.
func TestListedAgainOnTheWayOut(t *testing.T) {
	for _, drift := range []string{fleet.DriftCorrect, fleet.DriftReport, fleet.DriftIgnore} {
		t.Run(drift, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: drift}}
			held := strings.Replace(configMap("b", "k: v"), "namespace: $NS}", "namespace: $NS, finalizers: [example.com/wait]}", 1)
			s := r.bundle("shop", policies, configMap("a", "k: v"), held)
			r.set([]fleet.Sync{s})
			r.ready(s)
			s = r.bundle("shop", policies, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.wait("shop", "leaving", func(x fleet.SyncStatus) bool {
				return len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonTerminating
			})
			s = r.bundle("shop", policies, configMap("a", "k: v"), held)
			r.set([]fleet.Sync{s})
			r.wait("shop", "listed again", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation })
			r.patch("v1", "configmaps", "b", "operator", `{"metadata":{"finalizers":null}}`)
			r.ready(s)
			if r.data("b", "k") != "v" {
				t.Error("not there")
			}
		})
	}
}
