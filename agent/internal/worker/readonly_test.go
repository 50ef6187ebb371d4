package worker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

func readOnly(names ...string) []fleet.Policy {
	yes := true
	return []fleet.Policy{{Match: fleet.PolicyMatch{Names: names}, ReadOnly: &yes}}
}

// isAsItWas says that nobody wrote an object since a version.
func (r *rig) isAsItWas(name, version string) {
	r.t.Helper()
	u := r.get("v1", "configmaps", name)
	if u == nil || u.GetResourceVersion() != version || u.GetLabels()[fleet.HubLabel] != "" || u.GetAnnotations()[fleet.OwnerAnnotation] != "" {
		r.t.Errorf("%s was written: %+v", name, u)
	}
}

func (r *rig) versionOf(name string) string {
	r.t.Helper()
	return r.get("v1", "configmaps", name).GetResourceVersion()
}

// What is only read has to be there, is waited for, and is never written, whatever becomes of the module (scenario 32, read-only).
func TestReadOnlyObjectIsNeverWritten(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", readOnly("theirs"), configMap("a", "k: v"), configMap("theirs", "k: v"))
	r.set([]fleet.Sync{s})
	missing := r.wait("shop", "missing what it reads", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (x.Ready || len(x.Exceptions) > 0 && x.Exceptions[0].Reason == "ReadOnlyMissing")
	})
	if missing.Ready {
		t.Fatalf("ready without what it reads: %+v", missing)
	}
	if x := missing.Exceptions[0]; !strings.Contains(x.Message, "ConfigMap") || missing.States[x.Ordinal].Health != fleet.HealthMissing {
		t.Errorf("%+v", missing)
	}
	r.theirs("theirs", "v")
	r.ready(s)
	r.edit("theirs")
	drifted := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool {
		return x.Ready && len(x.Exceptions) > 0 && x.States[1].Drift == fleet.DriftDrifted
	})
	if x := drifted.Exceptions[0]; x.Field != "/data/k" || x.Want != `"v"` || x.Live != `"edited"` || x.Reason != fleet.ObjectLeftSo || drifted.Corrections != 0 {
		t.Errorf("%+v", drifted)
	}
	r.patch("v1", "configmaps", "theirs", "somebody", `{"data":{"k":"v"}}`)
	version := r.versionOf("theirs")
	r.wait("shop", "as wanted", func(x fleet.SyncStatus) bool { return x.States[1].Drift == fleet.DriftInSync && x.Ready })
	s = r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.isAsItWas("theirs", version)
	s = r.bundle("shop", readOnly("theirs"), configMap("a", "k: v"), configMap("theirs", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.delete("v1", "configmaps", "theirs")
	r.wait("shop", "missing again", func(x fleet.SyncStatus) bool { return !x.Ready && x.States[1].Health == fleet.HealthMissing })
	r.theirs("theirs", "v")
	r.ready(s)
	version = r.versionOf("theirs")
	r.goes()
	r.is("a", "")
	r.isAsItWas("theirs", version)
}

// The health of what is only read counts, by the rules of the module.
func TestReadOnlyObjectCounts(t *testing.T) {
	r := newRig(t)
	r.create("v1", "services", r.ns, r.object(gate("web", "1")))
	s := r.gated(r.bundle("shop", readOnly("web"), gate("web", "1")))
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "progressing", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied && (x.Ready || x.States[0].Health == fleet.HealthProgressing)
	})
	if x.Ready {
		t.Errorf("%+v", x)
	}
	r.sets("web", "1")
	r.ready(s)
}

// The policy may be given to an object that the module has: the marks go, and nothing else, and the module may have it again.
func TestReadOnlyObjectIsLetGo(t *testing.T) {
	r := newRig(t)
	r.begun(nil, configMap("a", "k: v"), configMap("b", "k: v"))
	uid := r.uidOf("v1", "configmaps", "b")
	s := r.bundle("shop", readOnly("b"), configMap("a", "k: v"), configMap("b", "k: v2"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("it is nobody's", func() bool {
		u := r.get("v1", "configmaps", "b")
		return u != nil && u.GetLabels()[fleet.HubLabel] == "" && u.GetAnnotations()[fleet.OwnerAnnotation] == ""
	})
	r.is("b", "v")
	r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[1].Drift == fleet.DriftDrifted && len(x.Extras) == 0 })
	s = r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v2"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.is("b", "v2")
	s = r.bundle("shop", readOnly("b"), configMap("a", "k: v"), configMap("b", "k: v2"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.goes()
	r.is("a", "")
	if r.uidOf("v1", "configmaps", "b") != uid {
		t.Error("it was deleted")
	}
}

// One module has an object, and another one reads it: they are in no conflict.
func TestReadOnlyObjectOfAnotherModule(t *testing.T) {
	r := newRig(t)
	reader := r.bundle("reader", readOnly("shared"), configMap("shared", "k: v"))
	owner := r.bundle("owner", nil, configMap("shared", "k: v"))
	r.set([]fleet.Sync{reader, owner})
	r.ready(owner)
	r.ready(reader)
	_, paths := r.count.take()
	singles := 0
	for _, p := range paths {
		if p == "WATCH /api/v1/namespaces/"+r.ns+"/configmaps" {
			singles++
		}
	}
	if singles != 1 {
		t.Errorf("%d watches of the object", singles)
	}
	r.set([]fleet.Sync{reader}, r.tombstone("owner", fleet.DeleteDelete))
	r.wait("owner", "removed", isRemoved)
	r.wait("reader", "missing what it reads", func(x fleet.SyncStatus) bool { return !x.Ready && x.States[0].Health == fleet.HealthMissing })
}

// Wherever an agent is killed that lets go of an object to read it only, or takes it back: it ends with what is wanted, and the object
// is never made anew.
func TestKilledAnywhereWhileItReads(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		uid := r.theirs("b", "v1") // else the agent may die before it makes it, and it would be missing
		owned := r.bundle("shop", nil, configMap("a", "k: v1"), configMap("b", "k: v1"))
		read := r.bundle("shop", readOnly("b"), configMap("a", "k: v2"), configMap("b", "k: v1"))
		again := r.bundle("shop", nil, configMap("a", "k: v3"), configMap("b", "k: v1"))
		last := r.bundle("shop", readOnly("b"), configMap("a", "k: v4"), configMap("b", "k: v1"))
		gone := r.tombstoneOf(readOnly("b"))
		live([]life{
			{"a first revision", func() { r.set([]fleet.Sync{owned}) }, map[string]string{"a": "v1", "b": "v1"}, "shop", isReady(owned)},
			{"one that reads", func() { r.set([]fleet.Sync{read}) }, map[string]string{"a": "v2"}, "shop", isReady(read)},
			{"one that writes again", func() { r.set([]fleet.Sync{again}) }, map[string]string{"a": "v3", "b": "v1"}, "shop", isReady(again)},
			{"one that reads again", func() { r.set([]fleet.Sync{last}) }, map[string]string{"a": "v4"}, "shop", isReady(last)},
			{"the end of the module", func() { r.set(nil, gone) }, map[string]string{}, "shop", isRemoved},
		}, r.ours, func(l life) {
			if r.uidOf("v1", "configmaps", "b") != uid {
				r.t.Errorf("%s: what is read was made anew", l.what)
			}
		})
	})
}

// A preview says of what is only read whether it is missing, and of what is to be read from now on that it is let go of.
func TestPreviewOfWhatIsRead(t *testing.T) {
	r := newRig(t)
	r.begun(nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.theirs("theirs", "other")
	r.says(r.preview(r.bundle("shop", readOnly("b", "theirs", "missing"), configMap("a", "k: v"), configMap("b", "k: v"), configMap("theirs", "k: v"), configMap("missing", "k: v"))),
		"2 unchanged", "Refuse ConfigMap missing ReadOnlyMissing", "Release ConfigMap b")
}

// What the cluster does not accept is not read, either: what differs of it would be told to the hub.
func TestReadOnlyObjectOutsideOfWhatIsAccepted(t *testing.T) {
	r := newRig(t)
	r.accept("namespaces: {deny: [$NS]}")
	r.theirs("theirs", "other")
	s := r.bundle("shop", readOnly("theirs"), configMap("theirs", "k: v"))
	r.set([]fleet.Sync{s})
	if x := r.denied("shop", "theirs", "namespaces.deny"); x.Exceptions[0].Live != "" {
		t.Errorf("%+v", x)
	}
}

// A module that is deleted before its agent has heard that it is only to read an object leaves that: the tombstone says so.
func TestReadOnlyObjectOfAModuleThatGoesAtOnce(t *testing.T) {
	r := newRig(t)
	r.begun(nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set(nil, r.tombstoneOf(readOnly("b")))
	r.wait("shop", "removed", isRemoved)
	r.is("a", "")
	r.isNobodys("b")
}

// tombstoneOf is one of the module shop as a hub makes it: with what the policies of the last revision say of who stays.
func (r *rig) tombstoneOf(policies []fleet.Policy) fleet.Tombstone {
	r.t.Helper()
	keeping, err := wire.Keeping(fleet.PolicySet{Policies: policies})
	if err != nil {
		r.t.Fatal(err)
	}
	tomb := r.tombstone("shop", fleet.DeleteDelete)
	tomb.Policies = string(keeping)
	return tomb
}

// TestReadOnlyObjectThatChangesAllTheTime: what is only read, and is not as the module says, is not called as it says while it is about to be read again.
func TestReadOnlyObjectThatChangesAllTheTime(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", readOnly("theirs"), configMap("a", "k: v"), configMap("theirs", "k: v"))
	drifted := func(x fleet.SyncStatus) bool {
		return len(x.States) == 2 && x.States[1].Drift == fleet.DriftDrifted && x.States[1].Sync == fleet.SyncOutOfSync
	}
	var once, lied atomic.Bool
	r.restart(func(o *Options) {
		report := o.Report
		o.Report = func(x fleet.SyncStatus) {
			once.Store(once.Load() || drifted(x))
			lied.Store(lied.Load() || once.Load() && !drifted(x))
			report(x)
		}
	})
	r.theirs("theirs", "w")
	r.set([]fleet.Sync{s})
	r.wait("shop", "drifted", drifted)
	beat := 0
	for range 4 {
		r.count.take()
		r.eventually("it is read again", func() bool { // it changes on: what was read may be of a change after the one that it was read for
			beat++
			r.patch("v1", "configmaps", "theirs", "ben", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, beat))
			_, paths := r.count.take()
			return slices.Contains(paths, "GET /api/v1/namespaces/"+r.ns+"/configmaps/theirs")
		})
	}
	if lied.Load() {
		t.Error("it was said to be as wanted")
	}
}

// TestLookThatFails: what a module only looks at was as it is to be, and is another thing now that cannot be looked at: nothing is said of it then, and
// the module is not ready by what was seen before.
func TestLookThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		object   func(*rig) string
		path     func(*rig) string
		change   func(*rig, fleet.Sync)
		after    func(fleet.SyncStatus) bool
	}{
		"an object that is only read": {readOnly("theirs"), func(*rig) string { return configMap("theirs", "k: v") },
			func(r *rig) string { return "/api/v1/namespaces/" + r.ns + "/configmaps/theirs" },
			func(r *rig, _ fleet.Sync) { r.edit("theirs") },
			func(x fleet.SyncStatus) bool { return x.Ready && x.States[1].Drift == fleet.DriftDrifted }},
		"a Namespace of another module": {nil, func(*rig) string { return namespace("$NS-own", "team: a") },
			func(r *rig) string { return "/api/v1/namespaces/" + r.ns + "-own" },
			func(r *rig, shop fleet.Sync) {
				base := r.bundle("base", nil, namespace("$NS-own", "team: b"))
				r.set([]fleet.Sync{base, shop})
				r.ready(base)
			},
			func(x fleet.SyncStatus) bool { return x.States[1].Drift == fleet.DriftConflict }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			base := r.bundle("base", nil, namespace("$NS-own", "team: a"))
			r.set([]fleet.Sync{base})
			r.ready(base)
			r.theirs("theirs", "v")
			s := r.bundle("shop", tc.policies, configMap("a", "k: v"), tc.object(r))
			r.set([]fleet.Sync{base, s})
			r.ready(s)
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodGet && q.URL.Path == tc.path(r) {
					return inPlace{http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"may not","code":403}`}
				}
				return nil
			})
			tc.change(r, s)
			got := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
				return !x.Ready && len(x.Exceptions) > 0 && x.Exceptions[0].Reason == apply.ReasonForbidden
			})
			if x := got.States[1]; x.Sync != fleet.SyncUnknown {
				t.Errorf("it is said to be %+v", x)
			}
			r.count.upset(nil)
			r.wait("shop", "as it is", tc.after)
		})
	}
}

// TestReadingHolds: what was read counts for the version that the watch shows, and for no other one, be it newer, or older as of a store that was put back.
// Versions that are no numbers tell nothing.
func TestReadingHolds(t *testing.T) {
	read := &watch.Fingerprint{UID: "1", Version: 7}
	opaque := &watch.Fingerprint{UID: "1"}
	for name, tc := range map[string]struct {
		of, now *watch.Fingerprint
		known   bool
		want    bool
	}{
		"the same":                          {read, &watch.Fingerprint{UID: "1", Version: 7}, true, true},
		"newer":                             {read, &watch.Fingerprint{UID: "1", Version: 8}, true, false},
		"of a store that was put back":      {read, &watch.Fingerprint{UID: "1", Version: 5}, true, false},
		"another":                           {read, &watch.Fingerprint{UID: "2", Version: 7}, true, false},
		"gone":                              {read, nil, true, false},
		"not watched":                       {read, nil, false, true},
		"what was read, without a number":   {opaque, opaque, true, true},
		"what came since, without a number": {opaque, &watch.Fingerprint{UID: "1"}, true, false},
	} {
		r := &reading{uid: tc.of.UID, version: tc.of.Version, print: tc.of}
		if got := r.holds(tc.now, tc.known); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
