package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// TestCorrectionThatIsNotAnsweredIsNoRevision: somebody changes an object of which a policy leaves some, the correction gets no answer, and the next
// attempt comes to what the first one would have.
func TestCorrectionThatIsNotAnsweredIsNoRevision(t *testing.T) {
	config := labConfig(t)
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		before   string // what is changed of it before, and stays
		own      string
	}{
		"a field on updates":        {once(fleet.OnceOnUpdate, "/data/own"), "", "v"},
		"the whole on updates":      {once(fleet.OnceOnUpdate, fleet.OnceAll), "", "v"},
		"a field on drift":          {once(fleet.OnceOnDrift, "/data/own"), `{"data":{"own":"ana"}}`, "ana"},
		"a field by whom it is had": {leftTo("ana"), `{"data":{"own":"ana"}}`, "ana"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			r.becomes(tc.policies, configMap("a", "k: v, l: v, own: v"))
			if tc.before != "" {
				r.patch("v1", "configmaps", "a", "ana", tc.before)
			}
			var applies atomic.Int32
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/configmaps/a") && applies.Add(1) == 1 {
					return errors.New("connection reset by a test")
				}
				return nil
			})
			change := `{"data":{"k":"bob"}}`
			if tc.before == "" {
				change = `{"data":{"own":"bob"}}`
			}
			r.patch("v1", "configmaps", "a", "bob", change)
			r.eventually("it is written after all", func() bool {
				return applies.Load() > 1 && !r.m.inventory.Get(r.configMapID("a")).Want.IsZero()
			})
			r.patch("v1", "configmaps", "a", "bob", `{"data":{"l":"bob"}}`)
			r.eventually("what came after that is corrected", func() bool { return r.data("a", "l") == "v" })
			if k, own := r.data("a", "k"), r.data("a", "own"); k != "v" || own != tc.own {
				t.Errorf("it holds k: %s, own: %s; want v and %s", k, own, tc.own)
			}
		})
	}
}

// rejoinsAnew has the cluster join another hub, of which nothing was reported yet.
func (r *rig) rejoinsAnew() {
	r.t.Helper()
	r.rejoin(r.hub + "-two")
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.statuses)
}

// TestAnotherHubIsNoRevision: the cluster joins another hub, which lists the same. Its objects carry that one's label, and stay as a policy left them
// when others changed them; a revision that changes them has its way.
func TestAnotherHubIsNoRevision(t *testing.T) {
	config := labConfig(t)
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		drift    fleet.Drift
		then     fleet.Drift
		revised  string
	}{
		"drift: Report":      {[]fleet.Policy{{Drift: fleet.DriftReport}}, fleet.DriftDrifted, fleet.DriftDrifted, "w"},
		"drift: Ignore":      {[]fleet.Policy{{Drift: fleet.DriftIgnore}}, fleet.DriftIgnored, fleet.DriftIgnored, "w"},
		"a field on drift":   {once(fleet.OnceOnDrift, "/data/k"), fleet.DriftInSync, fleet.DriftInSync, "w"},
		"the whole on drift": {once(fleet.OnceOnDrift, fleet.OnceAll), fleet.DriftIgnored, fleet.DriftIgnored, "w"},
		"the whole, always":  {once(fleet.OnceAlways, fleet.OnceAll), fleet.DriftIgnored, fleet.DriftInSync, "edited"},
		"the whole on updates, drift: Report": {append(once(fleet.OnceOnUpdate, fleet.OnceAll), fleet.Policy{Drift: fleet.DriftReport}),
			fleet.DriftDrifted, fleet.DriftInSync, "edited"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			objects := func(k string) []string {
				return []string{configMap("rest", "k: v"), configMap("tuning", "k: "+k+", own: v")}
			}
			r.becomes(tc.policies, objects("v")...)
			r.edit("tuning")
			r.wait("shop", "seen as edited", func(x fleet.SyncStatus) bool { return x.States[1].Drift == tc.drift })
			r.rejoinsAnew()
			s := r.bundle("shop", tc.policies, objects("v")...)
			r.set([]fleet.Sync{s})
			r.carriesItsLabel("tuning")
			r.carriesItsLabel("rest")
			x := r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
			if len(x.States) != 2 || x.States[1].Drift != tc.then {
				t.Errorf("it is said to be %+v", x.States)
			}
			r.is("tuning", "edited")
			if got := r.data("tuning", "own"); got != "v" {
				t.Errorf("own holds %s", got)
			}
			r.becomes(tc.policies, objects("w")...)
			r.is("tuning", tc.revised)
		})
	}
}

// TestWhatIsMadeOnceGoesAlong: an object that no revision writes, and of which a policy leaves what others change, is edited, and goes to another module that
// lists it as the first one did.
func TestWhatIsMadeOnceGoesAlong(t *testing.T) {
	config := labConfig(t)
	for name, policies := range map[string][]fleet.Policy{
		"always":                    once(fleet.OnceAlways, fleet.OnceAll),
		"on updates, drift: Report": append(once(fleet.OnceOnUpdate, fleet.OnceAll), fleet.Policy{Drift: fleet.DriftReport}),
		"on updates, drift: Ignore": append(once(fleet.OnceOnUpdate, fleet.OnceAll), fleet.Policy{Drift: fleet.DriftIgnore}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			r.becomes(policies, configMap("rest", "k: v"), configMap("tuning", "k: v"))
			r.edit("tuning")
			next := r.bundle("other", policies, configMap("tuning", "k: v"))
			r.set([]fleet.Sync{r.bundle("shop", policies, configMap("rest", "k: v")), next})
			r.wait("other", "it has it", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied })
			of, _, _ := fleet.ParseOwnerMark(r.get("v1", "configmaps", "tuning").GetAnnotations()[fleet.OwnerAnnotation])
			if of.Name != "other" {
				t.Errorf("it is marked for %s", of)
			}
			r.is("tuning", "edited")
		})
	}
}

// loses has the answers to all applies of a ConfigMap be lost for as long as that is so.
func (r *rig) loses(name string) *atomic.Bool {
	r.t.Helper()
	var lost atomic.Bool
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(q *http.Request) (*http.Response, error) {
			a, err := next.RoundTrip(q)
			if err != nil || !lost.Load() || q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/"+name) {
				return a, err
			}
			_ = a.Body.Close()
			return nil, errors.New("connection reset by a test")
		})
	})
	r.restart()
	return &lost
}

// TestWhatAnUnansweredRevisionTookAwayIsPutBack: a revision that drops a field is applied, and nobody hears the answer, or the agent does not live to note it.
// The revision before comes again, and has the field: nobody else took it away.
func TestWhatAnUnansweredRevisionTookAwayIsPutBack(t *testing.T) {
	config := labConfig(t)
	for name, policies := range map[string][]fleet.Policy{
		"drift: Report": {{Drift: fleet.DriftReport}}, "drift: Ignore": {{Drift: fleet.DriftIgnore}}, "a field on drift": once(fleet.OnceOnDrift, "/data/l"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			lost := r.loses("a")
			r.becomes(policies, configMap("a", "k: v, l: v"))
			lost.Store(true)
			r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: v"))})
			r.eventually("it is taken away", func() bool { return r.data("a", "l") != "v" })
			r.wait("shop", "failing", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
			back := r.bundle("shop", policies, configMap("a", "k: v, l: v"))
			r.set([]fleet.Sync{back})
			lost.Store(false)
			x := r.ready(back)
			if got := r.data("a", "l"); got != "v" || x.States[0].Drift != fleet.DriftInSync {
				t.Errorf("it holds l: %s, and is said to be %+v", got, x.States[0])
			}
		})
		if name == "a field on drift" {
			continue // by what is live alone nobody tells it from what somebody took away
		}
		t.Run(name+", killed", func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			r.becomes(policies, configMap("a", "k: v, l: v"))
			if err := r.m.inventory.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			files := r.store.copy()
			r.becomes(policies, configMap("a", "k: v, m: v"))
			r.killed(files)
			r.start()
			x := r.ready(r.becomes(policies, configMap("a", "k: v, l: v")))
			if got := r.data("a", "l"); got != "v" || x.States[0].Drift != fleet.DriftInSync {
				t.Errorf("it holds l: %s, and is said to be %+v", got, x.States[0])
			}
		})
	}
}

// TestWhatIsLeftDeletedStaysSo: somebody deletes an object where a policy leaves that until a revision makes it. Another value that it does not use is none,
// nor is another hub that lists the same; one that it uses is, and so is the next revision, also where that finds it missing with other values yet.
func TestWhatIsLeftDeletedStaysSo(t *testing.T) {
	config := labConfig(t)
	for policy, policies := range map[string][]fleet.Policy{
		"drift: Report": {{Drift: fleet.DriftReport}}, "drift: Ignore": {{Drift: fleet.DriftIgnore}},
		"once, always": once(fleet.OnceAlways, fleet.OnceAll), "once, on drift": once(fleet.OnceOnDrift, fleet.OnceAll),
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			sync := func(revision int64, value string) fleet.Sync {
				s := r.bundle("shop", policies, configMap("a", "k: '${V}'"), configMap("tuning", "k: v"), configMap("uses", "k: 'u${U}'"))
				s.Revision, s.Values = revision, map[string]string{"V": value, "U": "1"}
				return s
			}
			becomes := func(s fleet.Sync) {
				t.Helper()
				r.set([]fleet.Sync{s})
				r.wait("shop", "applied", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied && x.Ready
				})
			}
			deleted := func() {
				t.Helper()
				r.delete("v1", "configmaps", "tuning")
				r.delete("v1", "configmaps", "uses")
				r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[1].LeftMissing() && x.States[2].LeftMissing() })
			}
			left := func(uses string) {
				t.Helper()
				r.is("tuning", "")
				r.is("uses", uses)
			}
			becomes(sync(1, "1"))
			deleted()
			becomes(sync(1, "2"))
			left("")
			r.restart()
			becomes(sync(1, "3"))
			left("")
			r.rejoinsAnew()
			becomes(sync(1, "3"))
			left("")
			next := sync(1, "3")
			next.Values["U"] = "2"
			becomes(next)
			left("u2")
			becomes(sync(2, "4"))
			r.is("tuning", "v")
		})
	}
}

// TestRevisionMakesWhatWasDeletedThoughItFails: a revision is to make what a policy had left deleted, and cannot for a while. Other values that come
// meanwhile are of the same revision, and so it is for an agent that starts meanwhile, or that the revision finds stopped.
func TestRevisionMakesWhatWasDeletedThoughItFails(t *testing.T) {
	config := labConfig(t)
	for name, comes := range map[string]func(r *rig, revision func(values string)){
		"other values": func(r *rig, revision func(string)) {
			revision("1")
			r.wait("shop", "failing", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
			revision("2")
		},
		"the agent starts again": func(r *rig, revision func(string)) {
			revision("2")
			r.wait("shop", "failing", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
			r.restart()
			revision("2")
		},
		"it is stopped when that comes": func(r *rig, revision func(string)) {
			r.restart()
			revision("2")
		},
		"and it has the same values": func(r *rig, revision func(string)) {
			r.restart()
			revision("1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := []fleet.Policy{{Drift: fleet.DriftReport}}
			sync := func(revision int64, value string) fleet.Sync {
				s := r.bundle("shop", policies, configMap("a", fmt.Sprintf("k: '${V}', r: '%d'", revision)), configMap("tuning", "k: v"))
				s.Revision, s.Values = revision, map[string]string{"V": value}
				return s
			}
			first := sync(1, "1")
			r.set([]fleet.Sync{first})
			r.ready(first)
			r.delete("v1", "configmaps", "tuning")
			r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[1].LeftMissing() })
			var refused atomic.Bool
			refused.Store(true)
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/configmaps/tuning") && refused.Load() {
					return errors.New("connection reset by a test")
				}
				return nil
			})
			var last fleet.Sync
			comes(r, func(value string) {
				last = sync(2, value)
				r.set([]fleet.Sync{last})
			})
			r.eventually("the revision is there", func() bool { return r.data("a", "r") == "2" && r.dataOf("a") == last.Values["V"] })
			refused.Store(false)
			r.eventually("it is made", func() bool { return r.dataOf("tuning") == "v" })
			r.ready(last)
			r.delete("v1", "configmaps", "tuning")
			r.wait("shop", "missing again", func(x fleet.SyncStatus) bool { return x.Generation == last.Generation && x.States[1].LeftMissing() })
			r.restart()
			last = sync(2, "3")
			r.set([]fleet.Sync{last})
			r.ready(last)
			r.is("tuning", "")
		})
	}
}

// TestWhatIsLeftDeletedStaysSoBesideWhatNobodyWatches: the agent may not list one kind of a module's, and a revision has come since it started. What somebody
// deletes then is left so, also by an agent that starts anew: the revision was there before.
func TestWhatIsLeftDeletedStaysSoBesideWhatNobodyWatches(t *testing.T) {
	r := newRig(t)
	blind := func() {
		r.restart(func(o *Options) { o.blindAfter = 100 * time.Millisecond })
		r.count.upset(func(q *http.Request) error {
			if q.Method == http.MethodGet && q.URL.Path == "/api/v1/secrets" {
				return errors.New("forbidden by a test")
			}
			return nil
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		clear(r.statuses)
	}
	sync := func(revision int64) fleet.Sync {
		s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("tuning", "k: v"), secret("s", fmt.Sprintf("stringData: {k: 'v%d'}", revision)))
		s.Revision = revision
		return s
	}
	becomes := func(s fleet.Sync) {
		t.Helper()
		r.set([]fleet.Sync{s})
		r.eventually("the revision is there", func() bool { return r.secretData("s")["k"] == fmt.Sprintf("v%d", s.Revision) })
		r.wait("shop", "what it is blind to is told", func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.States[0].Health == fleet.HealthHealthy && slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool { return e.Reason == "NotWatched" })
		})
	}
	blind()
	becomes(sync(1))
	becomes(sync(2))
	r.delete("v1", "configmaps", "tuning")
	r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[0].LeftMissing() })
	for range 2 {
		blind()
		r.m.Set(r.current, nil)
		x := r.wait("shop", "judged", func(x fleet.SyncStatus) bool {
			return x.States[0].LeftMissing() || x.States[0].Health == fleet.HealthHealthy
		})
		if r.is("tuning", ""); !x.States[0].LeftMissing() {
			t.Errorf("it is %+v", x.States[0])
		}
	}
	r.count.upset(nil)
	last := sync(3)
	r.set([]fleet.Sync{last})
	r.ready(last)
	r.is("tuning", "v")
}
