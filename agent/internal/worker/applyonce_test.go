package worker

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// once are policies that apply paths once.
func once(when string, paths ...string) []fleet.Policy {
	return []fleet.Policy{{ApplyOnce: &fleet.ApplyOnce{Paths: paths, When: when}}}
}

// What is applied once is kept against what others change, against revisions, or against both; what is deleted comes back as the
// module has it, or as it was where drift is corrected.
func TestApplyOnce(t *testing.T) {
	config := labConfig(t)
	for name, tc := range map[string]struct {
		when                               string
		drifted, revised, again, madeAgain string // the CPU after each step
	}{
		"always":    {fleet.OnceAlways, "300m", "300m", "400m", "200m"},
		"by itself": {"", "300m", "300m", "400m", "200m"},
		"on drift":  {fleet.OnceOnDrift, "300m", "200m", "400m", "200m"},
		"on update": {fleet.OnceOnUpdate, "100m", "100m", "100m", "100m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := once(tc.when, cpuPointer)
			set := writers["a plain writer"]
			is := func(image, cpu string) {
				t.Helper()
				want := web{image, cpu, 1, false}
				r.eventually("it is as wanted", func() bool { return r.web() == want })
				r.dressed(image)
				r.isWeb(want)
			}
			r.becomes(policies, sized("nginx:1", "100m", "1"))
			set(r, "300m")
			is("nginx:1", tc.drifted)
			r.becomes(policies, sized("nginx:2", "200m", "1"))
			is("nginx:2", tc.revised)
			r.stop()
			r.start()
			s := r.becomes(policies, sized("nginx:2", "200m", "1"))
			set(r, "400m")
			is("nginx:2", tc.again)
			if x := r.ready(s); x.States[0].Drift != fleet.DriftInSync {
				t.Errorf("drift is told of: %+v", x)
			}
			r.delete("apps/v1", "deployments", "web")
			is("nginx:2", tc.madeAgain)
			r.becomes(nil, sized("nginx:2", "200m", "1"))
			is("nginx:2", "200m")
		})
	}
}

// A revision that changes a field which is applied once on drift has its way, also after a drift of another field was corrected.
func TestRevisionAfterDriftThatStays(t *testing.T) {
	r := newRig(t)
	policies := once(fleet.OnceOnDrift, "/spec/replicas", cpuPointer)
	r.becomes(policies, sized("nginx:1", "100m", "1"))
	writers["a plain writer"](r, "300m")
	r.scale("web", 3, "somebody's-scaler")
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "300m", 3, false})
	r.becomes(policies, sized("nginx:1", "200m", "1"))
	if got := r.web(); got.cpu != "200m" {
		t.Errorf("it is %+v", got)
	}
}

// The whole object is made once: what others change stays, a revision does not write it, and what is deleted is made by the next
// revision; each of it as far as the policy says so.
func TestApplyOnceOfAWholeObject(t *testing.T) {
	config := labConfig(t)
	for name, tc := range map[string]struct {
		when            string
		drift           string
		edited, revised string
		corrects        bool // what is deleted
	}{
		"always":                   {fleet.OnceAlways, "", "edited", "edited", false},
		"on drift":                 {fleet.OnceOnDrift, "", "edited", "v2", false},
		"on update":                {fleet.OnceOnUpdate, "", "v1", "v1", true},
		"on update, drift: Report": {fleet.OnceOnUpdate, fleet.DriftReport, "edited", "edited", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := append(once(tc.when, fleet.OnceAll), fleet.Policy{})
			policies[0].Match.Names, policies[0].Drift = []string{"tuning"}, tc.drift
			step := func(value, other string) fleet.Sync {
				t.Helper()
				return r.becomes(policies, configMap("tuning", "k: "+value), configMap("other", "k: "+other))
			}
			seen := func() { // what came before has been seen when what comes after it is put right
				t.Helper()
				r.edit("other")
				r.eventually("another object is corrected", func() bool { return r.dataOf("other") != "edited" })
			}
			step("v1", "v1")
			r.edit("tuning")
			seen()
			r.eventually("it is as the policy says", func() bool { return r.dataOf("tuning") == tc.edited })
			step("v2", "v2")
			seen()
			r.is("tuning", tc.revised)
			r.stop()
			r.start()
			s := step("v2", "v3")
			r.is("tuning", tc.revised)
			uid := r.uidOf("v1", "configmaps", "tuning")
			r.delete("v1", "configmaps", "tuning")
			if tc.corrects {
				r.eventually("it is made again as it was", func() bool { return r.dataOf("tuning") == tc.revised })
			} else {
				told := fleet.DriftIgnored
				if tc.drift == fleet.DriftReport {
					told = fleet.DriftDrifted
				}
				r.wait("shop", "missing", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && x.States[1].Health == fleet.HealthMissing && x.States[1].Drift == told
				})
				seen()
				r.is("tuning", "")
				step("v4", "v4")
				r.is("tuning", "v4")
			}
			if r.uidOf("v1", "configmaps", "tuning") == uid {
				t.Error("it was not deleted")
			}
			r.becomes(nil, configMap("tuning", "k: v5"), configMap("other", "k: v5"))
			r.is("tuning", "v5")
			r.goes()
			r.is("tuning", "")
		})
	}
}

// The marks of an object that is applied once are the module's, whatever others wrote into it.
func TestApplyOnceIsMarkedAnew(t *testing.T) {
	config := labConfig(t)
	policies := once(fleet.OnceAlways, fleet.OnceAll)
	for name, again := range map[string]func(r *rig) fleet.Sync{
		"for another module": func(r *rig) fleet.Sync {
			next := r.bundle("other", policies, configMap("tuning", "k: v2"))
			r.set([]fleet.Sync{r.bundle("shop", policies, configMap("rest", "k: v")), next})
			return next
		},
		"for another hub": func(r *rig) fleet.Sync {
			r.rejoin(r.hub + "-two")
			next := r.bundle("shop", policies, configMap("rest", "k: v"), configMap("tuning", "k: v2"))
			r.set([]fleet.Sync{next})
			return next
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			r.becomes(policies, configMap("rest", "k: v"), configMap("tuning", "k: v"))
			r.edit("tuning")
			next := again(r)
			r.eventually("it carries the new marks", func() bool {
				u := r.get("v1", "configmaps", "tuning")
				of, _, _ := fleet.ParseOwnerMark(u.GetAnnotations()[fleet.OwnerAnnotation])
				return of == next.Module && u.GetLabels()[fleet.HubLabel] == r.hub
			})
			r.ready(next)
			r.is("tuning", "edited")
		})
	}
}

// Wherever an agent is killed: what is applied once on updates stays as it was made, through revisions and corrections; an object that
// is applied once stays as somebody left it.
func TestKilledAnywhereWithWhatIsAppliedOnce(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		policies := append(once(fleet.OnceOnUpdate, "/data/own"), once("", fleet.OnceAll)...)
		policies[0].Match.Names, policies[1].Match.Names = []string{"a"}, []string{"tuning"}
		look := func() map[string]string {
			out := r.ours()
			if u := r.get("v1", "configmaps", "a"); u != nil && out["a"] != "" {
				data, _, _ := unstructured.NestedStringMap(u.Object, "data")
				out["a"] += " " + data["own"]
			}
			return out
		}
		first := r.bundle("shop", policies, configMap("a", "k: v1, own: made"), configMap("tuning", "k: v1"))
		second := r.bundle("shop", policies, configMap("a", "k: v2, own: made"), configMap("tuning", "k: v1"))
		third := r.bundle("shop", policies, configMap("a", "k: v3, own: other"), configMap("tuning", "k: v3"))
		gone := r.tombstone("shop", fleet.DeleteDelete)
		live([]life{
			{"a first revision", func() { r.set([]fleet.Sync{first}) }, map[string]string{"a": "v1 made", "tuning": "v1"}, "shop", isReady(first)},
			{"a second one", func() { r.set([]fleet.Sync{second}) }, map[string]string{"a": "v2 made", "tuning": "v1"}, "shop", isReady(second)},
			{"an edit by hand", func() {
				r.set([]fleet.Sync{second})
				r.patch("v1", "configmaps", "tuning", "somebody", `{"data":{"k":"theirs"}}`)
			}, map[string]string{"a": "v2 made", "tuning": "theirs"}, "shop", isReady(second)},
			{"other values", func() { r.set([]fleet.Sync{third}) }, map[string]string{"a": "v3 made", "tuning": "theirs"}, "shop", isReady(third)},
			{"an edit of the other by hand", func() {
				r.set([]fleet.Sync{third})
				r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"wrong"}}`) // not own: a revision that comes later keeps what is live
			}, map[string]string{"a": "v3 made", "tuning": "theirs"}, "shop", isReady(third)},
			{"the end of the module", func() { r.set(nil, gone) }, map[string]string{}, "shop", isRemoved},
		}, look, func(life) {})
	})
}

// A revision of an object that is applied once on drift was written, and the agent did not live to note it. The revision before, which comes
// back, has its way, as any has: what is there is no drift of somebody's.
func TestApplyOnceOnDriftAfterALostWrite(t *testing.T) {
	r := newRig(t)
	policies := once(fleet.OnceOnDrift, fleet.OnceAll)
	r.becomes(policies, configMap("tuning", "k: v1"))
	if err := r.m.inventory.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := r.store.copy()
	r.becomes(policies, configMap("tuning", "k: v2"))
	r.killed(files)
	r.start()
	r.becomes(policies, configMap("tuning", "k: v1"))
	r.is("tuning", "v1")
	r.edit("tuning")
	r.becomes(policies, configMap("tuning", "k: v1"), configMap("other", "k: v1"))
	r.is("tuning", "edited")
}
