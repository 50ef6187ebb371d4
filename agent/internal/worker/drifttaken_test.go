package worker

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// holdsNow is what the object tuning says, without the agent's own marks.
func (r *rig) holdsNow(resource string) map[string]string {
	r.t.Helper()
	u := r.get("v1", resource, "tuning")
	if u == nil {
		r.t.Fatal("it is gone")
	}
	out, _, _ := unstructured.NestedStringMap(u.Object, "data")
	for k, v := range u.GetAnnotations() {
		if !strings.HasPrefix(k, "towline.dev/") {
			out["annotation "+k] = v
		}
	}
	return out
}

// TestNothingElseOfWhatIsLeftIsTaken: a policy leaves an object as others changed it, in several fields, beside which others have fields of their own
// and a policy leaves one to nobody. Another module takes it over, or the agent that lost its records. It carries the marks of who has it, says that it
// drifts, and is as it was otherwise. What is in it of a secret is shown to nobody, also when that has another value by now.
func TestNothingElseOfWhatIsLeftIsTaken(t *testing.T) {
	config := labConfig(t)
	const before, after = "canary-before-1a2b", "other-value-9z8y"
	report := []fleet.Policy{{Drift: fleet.DriftReport}}
	for what, tc := range map[string]struct {
		resource, object, change string
		policies                 []fleet.Policy
		bound                    bool
	}{
		"several fields": {"configmaps", strings.Replace(configMap("tuning", "k: v, l: v, m: v"), "metadata: {", "metadata: {annotations: {a: b}, ", 1),
			`{"metadata":{"annotations":{"a":"edited","own":"x"}},"data":{"k":"edited","l":null,"theirs":"x"}}`, report, false},
		"a Secret": {"secrets", secret("tuning", `stringData: {password: mine, other: mine}`+"\ndata: {raw: bWluZQ==}"),
			`{"data":{"password":"dGhlaXJz","raw":"dGhlaXJz","theirs":"dGhlaXJz"}}`, report, false},
		"the value of a secret": {"configmaps", configMap("tuning", `url: "db://u:${PW}@db", k: v`),
			`{"data":{"k":"edited","theirs":"x"}}`, report, true},
		"an ignored field": {"configmaps", configMap("tuning", "k: v, own: v, m: v"),
			`{"data":{"k":"edited","own":"theirs","theirs":"x"}}`, append(ignoring("/data/own"), report...), false},
	} {
		for how, found := range map[string]bool{"handed over": false, "found by its marks": true} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				r := newRigOn(t, rest.CopyConfig(config))
				sync := func(module string, objects ...string) fleet.Sync {
					s := r.bundle(module, tc.policies, objects...)
					if tc.bound {
						s = r.binding(s, fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
					}
					return s
				}
				sends := func(value string) { r.sends(map[string]map[string]string{"db": {"password": value}}) }
				drifts := func(x fleet.SyncStatus) bool {
					n := len(x.States)
					return x.Phase == fleet.PhaseApplied && n > 0 && x.States[n-1].Drift == fleet.DriftDrifted
				}
				r.set([]fleet.Sync{sync("shop", configMap("rest", "k: v"), tc.object)})
				sends(before)
				r.wait("shop", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
				change := tc.change
				if found {
					change = strings.Replace(change, `,"l":null`, "", 1) // nothing tells what was taken away from what a revision adds
				}
				r.patch("v1", tc.resource, "tuning", "somebody", change)
				r.wait("shop", "drifted", drifts)
				was, owner := r.holdsNow(tc.resource), "shop"
				if found {
					r.lose()
					r.forget()
					r.start()
					r.set(r.current.Syncs)
					sends(before)
				} else {
					owner = "other"
					r.set([]fleet.Sync{sync("shop", configMap("rest", "k: v")), sync("other", tc.object)})
				}
				r.wait(owner, "drifted", drifts)
				if now := r.holdsNow(tc.resource); !maps.Equal(now, was) {
					t.Errorf("it holds %v, and held %v", now, was)
				}
				if of, _, _ := fleet.ParseOwnerMark(r.get("v1", tc.resource, "tuning").GetAnnotations()[fleet.OwnerAnnotation]); of.Name != owner {
					t.Errorf("it is marked for %s", of)
				}
				if !tc.bound {
					next := sync(owner, strings.Replace(tc.object, "k: v", "k: w", 1))
					r.set([]fleet.Sync{next})
					r.wait(owner, "another revision", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied })
					now := r.holdsNow(tc.resource)
					if tc.resource == "configmaps" && (now["k"] != "w" || now["own"] != was["own"] || now["theirs"] != "x") {
						t.Errorf("another revision leaves %v", now)
					}
					return
				}
				r.holdCluster(true)
				r.wait(owner, "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
				sends(after)
				r.eventually("the new value is known", func() bool {
					v, ok := r.m.lasts.get(fleet.ModuleRef{Project: "default", Name: owner}, keyOfSecret(fleet.SecretKey{Name: "db", Key: "password"}))
					return ok && v.Value == after
				})
				if got := r.shown("tuning"); strings.Contains(got, before) {
					t.Errorf("shown: %s", got)
				}
			})
		}
	}
}

// TestFieldThatIsLeftOnDriftGoesAlong: a policy leaves a field as others changed it until a revision writes it, and the object goes to another
// module that lists it alike. That is no revision: the field stays until there is one.
func TestFieldThatIsLeftOnDriftGoesAlong(t *testing.T) {
	r := newRig(t)
	policies := once(fleet.OnceOnDrift, "/data/k")
	object := configMap("tuning", "k: v, m: v")
	first := r.bundle("shop", policies, configMap("rest", "k: v"), object)
	r.set([]fleet.Sync{first})
	r.ready(first)
	r.patch("v1", "configmaps", "tuning", "somebody", `{"data":{"k":"edited"}}`)
	taken := r.bundle("other", policies, object)
	r.set([]fleet.Sync{r.bundle("shop", policies, configMap("rest", "k: v")), taken})
	r.ready(taken)
	if now := r.holdsNow("configmaps"); now["k"] != "edited" || now["m"] != "v" {
		t.Errorf("handed over it holds %v", now)
	}
	next := r.bundle("other", policies, configMap("tuning", "k: v, m: w"))
	r.set([]fleet.Sync{r.current.Syncs[0], next})
	r.ready(next)
	if now := r.holdsNow("configmaps"); now["k"] != "v" || now["m"] != "w" {
		t.Errorf("after a revision it holds %v", now)
	}
}
