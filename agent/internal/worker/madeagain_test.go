package worker

import (
	"context"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestCrashUnderReport: a revision brings back what a policy had left deleted, and the agent dies before it notes that. It knows the
// object as the module's by its marks, and leaves what somebody changes of it meanwhile.
func TestCrashUnderReport(t *testing.T) {
	for _, policy := range []string{fleet.DriftReport, fleet.DriftIgnore} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"a"}}, Drift: policy}}
			s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.delete("v1", "configmaps", "a")
			r.wait("shop", "without a", func(x fleet.SyncStatus) bool { return len(x.States) == 2 && x.States[0].Health == fleet.HealthMissing })
			if err := r.m.inventory.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			files := r.store.copy()
			next := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: w"))
			next.Revision = 2
			r.set([]fleet.Sync{next})
			r.ready(next)
			uid := r.uidOf("v1", "configmaps", "a")
			r.killed(files)
			r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
			r.start()
			r.set([]fleet.Sync{next})
			r.wait("shop", "with a, as somebody changed it", func(x fleet.SyncStatus) bool {
				want := fleet.DriftDrifted
				if policy == fleet.DriftIgnore {
					want = fleet.DriftIgnored
				}
				return x.Ready && x.States[0].Health == fleet.HealthHealthy && x.States[0].Drift == want
			})
			if r.uidOf("v1", "configmaps", "a") != uid || r.data("a", "k") != "other" {
				t.Error("made again, or set back")
			}
		})
	}
}

// TestReplacedUnderReport: somebody deletes an object and makes another one in its place (kubectl replace --force). It is left so, and
// that it is there is said.
func TestReplacedUnderReport(t *testing.T) {
	r := newRig(t)
	r.recheck = 100 * time.Millisecond
	r.restart()
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"a"}}, Drift: fleet.DriftReport}}
	s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	said := func(text string) {
		r.wait("shop", text, func(x fleet.SyncStatus) bool {
			return x.Ready && len(x.Exceptions) == 1 && x.States[0].Health == fleet.HealthMissing && strings.HasSuffix(x.Exceptions[0].Message, text)
		})
	}
	r.delete("v1", "configmaps", "a")
	said("was deleted by somebody else")
	r.createAs("kubectl-replace", "v1", "configmaps", r.ns, r.configMapObject("a", nil, map[string]any{"k": "other"}))
	said("was deleted by somebody else, and another object is in its place")
	if r.data("a", "k") != "other" {
		t.Error("set back")
	}
	r.delete("v1", "configmaps", "a")
	said("was deleted by somebody else")
}
