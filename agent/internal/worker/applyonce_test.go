package worker

import (
	"testing"

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
		edited, revised string
		corrects        bool // what is deleted
	}{
		"always":    {fleet.OnceAlways, "edited", "edited", false},
		"on drift":  {fleet.OnceOnDrift, "edited", "v2", false},
		"on update": {fleet.OnceOnUpdate, "v1", "v1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := append(once(tc.when, fleet.OnceAll), fleet.Policy{})
			policies[0].Match.Names = []string{"tuning"}
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
				r.wait("shop", "missing", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && x.States[1].Health == fleet.HealthMissing && x.States[1].Drift == fleet.DriftIgnored
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
