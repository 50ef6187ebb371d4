package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// watching has a sync watch objects that are somebody else's, and judge them by these rules.
func (r *rig) watching(s fleet.Sync, rules []fleet.HealthRule, list ...fleet.WatchedObject) fleet.Sync {
	r.t.Helper()
	set := fleet.PolicySet{HealthRules: rules, Watch: list}
	encoded, err := json.Marshal(set)
	if err != nil {
		r.t.Fatal(err)
	}
	s.Policies, s.Watched = fleet.DigestOf(encoded), len(list)
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.rules[s.Policies], r.store.watch[s.Policies] = rules, list
	return s
}

func (r *rig) database() fleet.WatchedObject {
	return fleet.WatchedObject{Group: r.group(), Version: "v1", Kind: "Database", Namespace: r.ns, Name: "db"}
}

// soon is within what a change may take to be shown.
func (r *rig) soon(module, what string, ok func(fleet.SyncStatus) bool) fleet.SyncStatus {
	r.t.Helper()
	began := time.Now()
	s := r.wait(module, what, ok)
	if took := time.Since(began); took > 5*time.Second {
		r.t.Errorf("%s: shown after %s", what, took)
	}
	return s
}

func lacks(reason string) func(fleet.SyncStatus) bool {
	return func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && !x.Ready && x.Reason == reason && len(x.Watched) == 1 && x.Watched[0].Health == fleet.HealthMissing &&
			len(x.Exceptions) == 1 && x.Exceptions[0].Ordinal == len(x.States) && x.Exceptions[0].Reason == reason
	}
}

// TestScenario07WatchedKindThatIsUnknown: the cluster does not have the kind of what a module watches. The module says so, is applied
// and not ready, and no wait grows: the kind comes later, and what is of it is seen soon.
func TestScenario07WatchedKindThatIsUnknown(t *testing.T) {
	r := aloneRig(t)
	s := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), nil, r.database())
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "told", lacks("NoSuchKind"))
	if !strings.Contains(status.Message, "Database") || status.States[0].Health != fleet.HealthHealthy {
		t.Errorf("%+v", status)
	}
	searches := func() (n int) {
		_, paths := r.count.take()
		for _, p := range paths {
			if strings.Contains(p, r.group()) {
				n++
			}
		}
		return n
	}
	searches()
	for range 2 {
		r.eventually("the kind is looked for again", func() bool { return searches() > 0 })
	}
	r.define("databases", "Database", "v1")
	r.soon("shop", "its kind is there, it is not", lacks("Missing"))
	r.create(r.group()+"/v1", "databases", r.ns, r.custom("v1", "Database", r.ns, "db"))
	if took := r.soon("shop", "ready", isReady(s)); len(took.Exceptions) != 0 || took.Watched[0].Sync != fleet.SyncSynced {
		t.Errorf("%+v", took)
	}
}

// TestScenario08WatchedObjectIsShownByWatch: the object is absent, then there and not ready, then ready, then not again, each shown
// within 5 s by the watch. So with two kinds, one judged by a rule of the module, in a namespace that a binding names.
func TestScenario08WatchedObjectIsShownByWatch(t *testing.T) {
	for name, tt := range map[string]struct {
		object  func(*rig) fleet.WatchedObject
		group   func(*rig) string
		plural  string
		bad, ok string
	}{
		"a kind of Kubernetes": {func(*rig) fleet.WatchedObject {
			return fleet.WatchedObject{Group: "apps", Version: "v1", Kind: "Deployment", Namespace: "${WHERE}", Name: "db"}
		}, func(*rig) string { return "apps" }, "deployments", `{"spec":{"paused":true}}`, `{"spec":{"paused":false,"replicas":0}}`},
		"a kind with a rule": {(*rig).database, (*rig).group, "databases", `{"spec":{"up":false}}`, `{"spec":{"up":true,"version":"1.0.1"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			if tt.plural == "databases" {
				r.define("databases", "Database", "v1")
			}
			o := tt.object(r)
			s := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), []fleet.HealthRule{{Group: r.group(), Kind: "Database", Healthy: "object.spec.up"}}, o)
			s.Values = map[string]string{"WHERE": r.ns}
			r.set([]fleet.Sync{s})
			r.wait("shop", "absent", lacks("Missing"))
			obj := map[string]any{"apiVersion": tt.group(r) + "/v1", "kind": o.Kind, "metadata": map[string]any{"name": "db", "namespace": r.ns}, "spec": map[string]any{"up": false}}
			if o.Kind == "Deployment" {
				obj["spec"] = map[string]any{"paused": true, "replicas": int64(0), "selector": map[string]any{"matchLabels": map[string]any{"app": "db"}},
					"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "db"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "x"}}}}}
			}
			r.create(tt.group(r)+"/v1", tt.plural, r.ns, obj)
			notReady := func(x fleet.SyncStatus) bool {
				return len(x.Watched) == 1 && x.Watched[0].Sync == fleet.SyncSynced && x.Ready == (x.Watched[0].Health == fleet.HealthHealthy || x.Watched[0].Health == fleet.HealthSuspended)
			}
			r.soon("shop", "there", notReady)
			r.patch(tt.group(r)+"/v1", tt.plural, "db", "somebody", tt.ok)
			r.soon("shop", "ready", isReady(s))
			r.patch(tt.group(r)+"/v1", tt.plural, "db", "somebody", tt.bad)
			if o.Kind == "Database" {
				r.soon("shop", "not ready any more", func(x fleet.SyncStatus) bool { return !x.Ready && x.Watched[0].Health == fleet.HealthProgressing })
			}
			if err := r.res(tt.group(r)+"/v1", tt.plural, r.ns).Delete(context.Background(), "db", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			r.soon("shop", "absent again", lacks("Missing"))
		})
	}
}

// TestScenario09WatchOfAForeignObject: the watch begins though there is no object, is one for all modules that watch it, stays while
// one of them does, and ends within 5 s of the last one, the object being there or not. The object is never written, and stays.
func TestScenario09WatchOfAForeignObject(t *testing.T) {
	for name, there := range map[string]bool{"there": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			r := aloneRig(t)
			r.stop()
			open := &watches{open: map[string]int{}, most: map[string]int{}}
			r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				open.next = next
				return open
			})
			r.define("databases", "Database", "v1")
			r.start()
			shop := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), nil, r.database())
			desk := r.watching(r.bundle("desk", nil, configMap("b", "k: v")), nil, r.database())
			r.set([]fleet.Sync{shop, desk})
			r.wait("shop", "absent", lacks("Missing"))
			r.wait("desk", "absent", lacks("Missing"))
			what := "/apis/" + r.group() + "/v1/namespaces/" + r.ns + "/databases?&metadata.name=db"
			r.eventually("the object is watched", func() bool { return open.of(what) == 1 })
			version := ""
			if there {
				r.create(r.group()+"/v1", "databases", r.ns, r.custom("v1", "Database", r.ns, "db"))
				r.ready(shop)
				r.ready(desk)
				version = r.get(r.group()+"/v1", "databases", "db").GetResourceVersion()
			}
			r.count.take()
			plain := r.bundle("desk", nil, configMap("b", "k: v"))
			r.set([]fleet.Sync{shop, plain})
			r.ready(plain)
			if got := open.of(what); got != 1 {
				t.Errorf("%d watches of the object while one module watches it", got)
			}
			r.set([]fleet.Sync{plain}, r.tombstone("shop", fleet.DeleteDelete))
			began := time.Now()
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			r.eventually("the watch has ended", func() bool { return open.of(what) == 0 })
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("watched for %s after the last module", took)
			}
			if two := open.twice(); len(two) > 0 {
				t.Errorf("watched twice at a time: %v", two)
			}
			_, paths := r.count.take()
			for _, p := range paths {
				if strings.Contains(p, "/databases") && !strings.HasPrefix(p, "GET ") {
					t.Errorf("what is only watched was written: %s", p)
				}
			}
			if live := r.get(r.group()+"/v1", "databases", "db"); there && (live == nil || live.GetResourceVersion() != version) {
				t.Errorf("the object is not as it was: %v", live)
			}
		})
	}
}

// TestWatchedObjectInAnotherVersion: the kind is not served any more in the version that the module names, and is in another one, or is defined anew
// under another plural: the object is there as before.
func TestWatchedObjectInAnotherVersion(t *testing.T) {
	for name, tc := range map[string]struct{ restart, anew bool }{"while it is watched": {}, "before the agent starts": {restart: true}, "another plural": {anew: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.define("databases", "Database", "v1", "v2")
			r.create(r.group()+"/v2", "databases", r.ns, r.custom("v2", "Database", r.ns, "db"))
			s := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), nil, r.database())
			r.set([]fleet.Sync{s})
			r.ready(s)
			version, plural := "v2", "databases"
			switch {
			case tc.restart:
				r.stop()
				r.unserve("databases", "v1")
				r.start()
				r.set([]fleet.Sync{s})
			case tc.anew:
				r.undefine("databases")
				r.wait("shop", "gone with its kind", func(x fleet.SyncStatus) bool { return !x.Ready })
				version, plural = "v1", "dbs"
				r.define(plural, "Database", "v1")
				r.create(r.group()+"/v1", plural, r.ns, r.custom("v1", "Database", r.ns, "db"))
			default:
				r.unserve("databases", "v1")
			}
			r.patch(r.group()+"/"+version, plural, "db", "operator", `{"status":{"phase":"Failed","message":"no power"}}`)
			r.wait("shop", "told", func(x fleet.SyncStatus) bool { return !x.Ready && strings.Contains(x.Message, "no power") })
			r.patch(r.group()+"/"+version, plural, "db", "operator", `{"status":{"phase":"Ready"}}`)
			r.ready(s)
		})
	}
}
