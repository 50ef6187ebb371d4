package worker

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// Drift that a policy leaves stays also where the agent has lost its state and takes the object up again. A revision that comes
// later has its way, as ever.
func TestDriftThatIsLeftOutlivesTheState(t *testing.T) {
	for policy, drift := range map[string]fleet.Drift{fleet.DriftReport: fleet.DriftDrifted, fleet.DriftIgnore: fleet.DriftIgnored} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: policy}}
			s := r.bundle("shop", policies, configMap("a", "k: v, other: v"), configMap("b", "k: v"), deployment("web", 2))
			r.set([]fleet.Sync{s})
			r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
			r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"}}`)
			r.patch("apps/v1", "deployments", "web", "kubectl", `{"spec":{"replicas":5}}`, "scale")
			drifted := func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseApplied && x.States[0].Drift == drift && x.States[1].Drift == fleet.DriftInSync && x.States[2].Drift == drift
			}
			r.wait("shop", "drifted", drifted)
			r.loseState()
			r.forget()
			r.set([]fleet.Sync{s})
			status := r.wait("shop", "drifted as before", drifted)
			if r.data("a", "k") != "hers" || r.replicas("web") != 5 || status.Corrections != 0 {
				t.Errorf("data %q, %d replicas, status %+v", r.data("a", "k"), r.replicas("web"), status)
			}
			if policy == fleet.DriftReport {
				status.Exceptions = status.Exceptions[:1]
				wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"v"`, Live: `"hers"`, ChangedBy: "ana", Seen: 1})
			}
			next := r.bundle("shop", policies, configMap("a", "k: w, other: v"), configMap("b", "k: v"), deployment("web", 3))
			r.set([]fleet.Sync{next})
			r.wait("shop", "in sync", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && x.States[0].Drift == fleet.DriftInSync && x.States[2].Drift == fleet.DriftInSync
			})
			if r.data("a", "k") != "w" || r.replicas("web") != 3 {
				t.Errorf("after a revision: data %q, %d replicas", r.data("a", "k"), r.replicas("web"))
			}
		})
	}
}

// A revision that came while the agent had lost its state has its way, too: what the module's own fields are on the object
// tells that it is another than the one before.
func TestRevisionThatCameWithTheLossOfState(t *testing.T) {
	for name, data := range map[string]string{"a value of ours": "k: v, other: w", "a field more": "k: v, other: v, more: v", "a field less": "k: v"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: fleet.DriftReport}}
			s := r.bundle("shop", policies, configMap("a", "k: v, other: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"}}`)
			r.loseState()
			next := r.bundle("shop", policies, configMap("a", data))
			r.set([]fleet.Sync{next})
			r.ready(next)
			want := strings.Contains(data, "more")
			if r.data("a", "k") != "v" || (r.data("a", "more") == "v") != want {
				t.Errorf("data %v", r.get("v1", "configmaps", "a").Object["data"])
			}
		})
	}
}

// What another manager has had since before the last write of the module was never the module's: a revision that lists it is in
// conflict, also where the agent has lost its state.
func TestFieldOfAnotherIsNotForcedAfterTheLossOfState(t *testing.T) {
	for _, drift := range []string{fleet.DriftCorrect, fleet.DriftReport} {
		t.Run(drift, func(t *testing.T) { fieldOfAnother(t, fleet.Policy{Drift: drift}) })
	}
}

func fieldOfAnother(t *testing.T, policy fleet.Policy) {
	r := newRig(t)
	policies := []fleet.Policy{policy}
	r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: v0"))})
	r.eventually("a is there", func() bool { return r.data("a", "k") == "v0" })
	r.patch("v1", "configmaps", "a", "bob", `{"data":{"theirs":"bobs"}}`)
	n := 0
	r.eventually("the module has written later", func() bool { // times have the precision of a second
		n++
		s := r.bundle("shop", policies, configMap("a", fmt.Sprintf("k: v%d", n)))
		r.set([]fleet.Sync{s})
		r.ready(s)
		times := map[string]string{}
		for _, m := range apply.Managers(r.get("v1", "configmaps", "a").Object) {
			times[m.Manager] = m.Time
		}
		return times[fleet.FieldManager] > times["bob"]
	})
	r.stop()
	r.store.mu.Lock()
	r.store.files = map[string][]byte{}
	r.store.mu.Unlock()
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"drifted"}}`)
	r.start()
	r.forget()
	next := r.bundle("shop", policies, configMap("a", "k: w, theirs: ours"))
	r.set([]fleet.Sync{next})
	x := r.wait("shop", "judged", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (x.Ready || x.Phase == fleet.PhaseFailed)
	})
	if got := r.data("a", "theirs"); got != "bobs" || x.Reason != apply.ReasonConflict || !strings.Contains(x.Message, `.data.theirs is managed by "bob"`) {
		t.Errorf("bob's field is %q, status %+v", got, x)
	}
	next = r.bundle("shop", policies, configMap("a", "k: w2, theirs: ours"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "in conflict still", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Reason == apply.ReasonConflict
	})
	if got := r.data("a", "theirs"); got != "bobs" {
		t.Errorf("a revision later bob's field is %q", got)
	}
	next = r.bundle("shop", policies, configMap("a", "k: w"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.data("a", "k"); got != "w" && policy.Drift == fleet.DriftCorrect {
		t.Errorf("what was the module's is %q", got)
	}
	next = r.bundle("shop", []fleet.Policy{{Drift: policy.Drift, Conflict: fleet.ConflictForce}}, configMap("a", "k: w, theirs: ours"))
	r.set([]fleet.Sync{next})
	r.ready(next)
}
