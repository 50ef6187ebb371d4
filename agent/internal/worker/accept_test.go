package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// accept puts a policy in force, also for a manager that is started later.
func (r *rig) accept(body string) {
	r.t.Helper()
	r.acceptAs(r.accepts(body))
}

// accepts is what a policy says; empty: there is none.
func (r *rig) accepts(body string) (is Accepts) {
	r.t.Helper()
	if body != "" {
		p, err := localpolicy.Parse([]byte("apiVersion: towline.dev/v1\nkind: AgentPolicy\n" + strings.ReplaceAll(body, "$NS", r.ns)))
		if err != nil {
			r.t.Fatal(err)
		}
		is.Policy = p
	}
	return is
}

func (r *rig) acceptAs(is Accepts) {
	r.options = append(r.options, func(o *Options) { o.Accepts = is })
	r.m.Accept(is)
}

// denied waits until a status says of an object that the policy denies it by this rule, and returns the status.
func (r *rig) denied(module, name, rule string) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(module, name+" is denied by "+rule, func(x fleet.SyncStatus) bool {
		for _, e := range x.Exceptions {
			if e.Reason == plan.ReasonDenied && strings.Contains(e.Message, name+": Denied by the cluster's policy: "+rule) {
				return x.Phase == fleet.PhaseFailed
			}
		}
		return false
	})
}

// kept waits until an object that the module does not list is said to stay for a reason.
func (r *rig) keptFor(module, name, reason string) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(module, name+" is kept for "+reason, func(x fleet.SyncStatus) bool {
		for _, e := range x.Extras {
			if e.ID.Name == name && e.Reason == reason {
				return true
			}
		}
		return false
	})
}

func plainSecret(name string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: $NS}\nstringData: {a: b}\n"
}

// TestPolicyDeniesObjects: what the cluster does not accept is not written and says by which rule; the rest of the module is, and
// what is accepted later is written without a word of the hub.
func TestPolicyDeniesObjects(t *testing.T) {
	r := newRig(t)
	r.accept(`
namespaces: {allow: ["$NS"]}
kinds: [{groups: [""], kinds: [ConfigMap, Pod]}]
denyFields: [{preset: HostNetwork}, {name: no-x, match: {kinds: [ConfigMap]}, expression: '"x" in object.data'}]
`)
	hostPod := "apiVersion: v1\nkind: Pod\nmetadata: {name: host, namespace: $NS}\nspec: {hostNetwork: true, containers: [{name: c, image: i}]}\n"
	s := r.bundle("shop", nil, configMap("fine", "k: v"), configMap("bad", "x: text"), plainSecret("s"), hostPod,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: elsewhere, namespace: default}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: role-$NS}\n")
	r.set([]fleet.Sync{s})
	for name, rule := range map[string]string{"bad": "denyFields[1] (no-x)", "s": "kinds", "host": "denyFields[0] (HostNetwork)",
		"elsewhere": "namespaces.allow", "role-" + r.ns: "namespaces.allow"} {
		r.denied("shop", name, rule)
	}
	r.eventually("what is accepted is written", func() bool { return r.get("v1", "configmaps", "fine") != nil })
	_, paths := r.count.take()
	for _, p := range paths {
		if strings.HasPrefix(p, http.MethodPatch) && !strings.HasSuffix(p, "/fine") || strings.HasPrefix(p, http.MethodDelete) {
			t.Errorf("request %s", p)
		}
	}
	r.accept(`kinds: [{groups: [""], kinds: [ConfigMap, Secret]}]`)
	r.eventually("a denied object is written once it is accepted", func() bool {
		return r.get("v1", "configmaps", "bad") != nil && r.get("v1", "secrets", "s") != nil
	})
	r.denied("shop", "host", "kinds")
	r.set([]fleet.Sync{}, r.tombstone("shop", fleet.DeleteDelete))
	r.accept("")
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// TestPolicyShrinksUnderAModule: what is there and would not be accepted any more stays, says so, is not corrected and not
// deleted, whoever asks for that; a restart changes nothing. When the policy is widened again, the agent goes on.
func TestPolicyShrinksUnderAModule(t *testing.T) {
	r := newRig(t)
	r.accept(`kinds: [{kinds: [ConfigMap, Secret]}]`)
	s := r.bundle("shop", nil, configMap("cm", "k: v"), plainSecret("s"), plainSecret("dropped"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.get("v1", "secrets", "s").GetUID()

	r.accept(`kinds: [{kinds: [ConfigMap]}]`)
	r.denied("shop", "s", "kinds")
	r.patch("v1", "secrets", "s", "kubectl-edit", `{"stringData":{"a":"changed"}}`)
	r.patch("v1", "configmaps", "cm", "kubectl-edit", `{"data":{"k":"changed"}}`)
	r.eventually("drift of what is accepted is corrected", func() bool {
		return r.data("cm", "k") == "v"
	})
	next := r.bundle("shop", nil, configMap("cm", "k: v"), plainSecret("s"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "of the next revision", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && len(x.Extras) == 1 })
	r.stop()
	r.start()
	r.count.take()
	r.set([]fleet.Sync{next})
	r.denied("shop", "s", "kinds")
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.keptFor("shop", "s", plan.ReasonDenied)
	r.keptFor("shop", "dropped", plan.ReasonDenied)
	r.wait("shop", "the removal says why", func(x fleet.SyncStatus) bool {
		return x.Reason == plan.ReasonDenied && strings.Contains(x.Message, "kept: ")
	})
	r.eventually("what is accepted is deleted", func() bool { return r.get("v1", "configmaps", "cm") == nil })
	_, paths := r.count.take()
	for _, p := range paths {
		if strings.Contains(p, "/secrets/") && !strings.HasPrefix(p, http.MethodGet) && !strings.HasPrefix(p, "WATCH") {
			t.Errorf("request %s", p)
		}
	}
	if now := r.get("v1", "secrets", "s"); now == nil || now.GetUID() != uid {
		t.Fatal("the Secret is not there any more")
	}
	r.accept(`kinds: [{kinds: [ConfigMap, Secret]}]`)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "secrets", "s") != nil {
		t.Error("the Secret is still there")
	}
}

// TestPolicyShrunkIsLetGo: whoever gives up the objects has only the marks taken off, which the policy does not keep.
func TestPolicyShrunkIsLetGo(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, plainSecret("s"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.accept(`kinds: [{kinds: [ConfigMap]}]`)
	r.denied("shop", "s", "kinds")
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if now := r.get("v1", "secrets", "s"); now == nil || now.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("the Secret is %v", now)
	}
}

// TestPolicyProtects: what is protected is never deleted, neither to be made again.
func TestPolicyProtects(t *testing.T) {
	r := newRig(t)
	r.accept(`
protected: [{kinds: [ConfigMap], names: ["keep*"]}]
allow: {recreate: true}
`)
	job := func(name, image string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: " + image + "}]}}}\n"
	}
	recreate := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}
	s := r.bundle("shop", recreate, configMap("keep-me", "k: v"), configMap("goes", "k: v"), configMap("stays", "k: v"), job("run", "a"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	uid := r.get("batch/v1", "jobs", "run").GetUID()
	next := r.bundle("shop", append([]fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}, recreate...), configMap("stays", "k: v"), job("run", "a"))
	r.set([]fleet.Sync{next})
	r.keptFor("shop", "keep-me", plan.ReasonDenied)
	r.eventually("what is not protected goes", func() bool { return r.get("v1", "configmaps", "goes") == nil })

	r.accept(`protected: [{kinds: [Job]}]` + "\nallow: {recreate: true}\n")
	last := r.bundle("shop", recreate, configMap("stays", "k: v"), job("run", "b"))
	r.set([]fleet.Sync{last})
	r.denied("shop", "run", "protected[0]")
	r.accept(`allow: {recreate: false}`)
	r.denied("shop", "run", "allow.recreate")
	if now := r.get("batch/v1", "jobs", "run"); now == nil || now.GetUID() != uid {
		t.Fatal("the Job was made again")
	}
	r.accept(`allow: {recreate: true}`)
	r.eventually("what was protected goes", func() bool { return r.get("v1", "configmaps", "keep-me") == nil })
	r.eventually("the Job is made again", func() bool {
		now := r.get("batch/v1", "jobs", "run")
		return now != nil && now.GetUID() != uid
	})
}

// TestPolicyKeepsWhatOthersHave: neither conflict: Force nor adopt: Always takes anything, before the cluster allows it.
func TestPolicyKeepsWhatOthersHave(t *testing.T) {
	r := newRig(t)
	r.accept("allow: {forceConflicts: false}")
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "theirs"}, "data": map[string]any{"k": "theirs"}})
	s := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, configMap("theirs", "k: ours"))
	r.set([]fleet.Sync{s})
	r.denied("shop", "theirs", "allow.forceConflicts")

	t1 := r.bundle("base", []fleet.Policy{{Conflict: fleet.ConflictForce}}, configMap("ours", "k: v"))
	r.set([]fleet.Sync{s, t1})
	r.ready(t1)
	r.appliedBy("flux", configMap("ours", "other: theirs"))
	t2 := r.bundle("base", []fleet.Policy{{Conflict: fleet.ConflictForce}}, configMap("ours", "k: v, other: ours"))
	r.set([]fleet.Sync{s, t2})
	r.denied("base", "ours", "allow.forceConflicts")

	r.accept("allow: {forceConflicts: true}")
	r.ready(s)
	r.ready(t2)
}

// TestPolicyDeleteBudget: no more objects are deleted in an hour than the cluster lets, over restarts; the rest is told as kept,
// with the time at which it goes on.
func TestPolicyDeleteBudget(t *testing.T) {
	r := newRig(t)
	r.accept("deleteBudget: {perHour: 3}")
	objects := []string{configMap("stays", "k: v")}
	for i := range 8 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%d", i), "k: v"))
	}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, objects[0])
	next.PruneConfirmed = true
	left := func(n int) func(fleet.SyncStatus) bool {
		return func(x fleet.SyncStatus) bool {
			kept := 0
			for _, e := range x.Extras {
				if e.Reason == plan.ReasonDeleteBudget && strings.Contains(e.Message, "deleteBudget") && strings.Contains(e.Message, "; goes on at ") {
					kept++
				}
			}
			return kept == n && len(x.Extras) == n
		}
	}
	r.set([]fleet.Sync{next})
	r.wait("shop", "three are gone", left(5))
	r.stop()
	r.start()
	r.count.take()
	r.set([]fleet.Sync{next})
	r.wait("shop", "the same after a restart", left(5))
	if counts, _ := r.count.take(); counts[http.MethodDelete] > 0 {
		t.Errorf("%d deletes after the restart", counts[http.MethodDelete])
	}
	r.accept("deleteBudget: {perHour: 5}")
	r.wait("shop", "two more are gone", left(3))
	r.accept("")
	r.wait("shop", "all are gone", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 })
}

// TestPolicyMaxObjects: of more objects than the cluster accepts, as many are made as it does.
func TestPolicyMaxObjects(t *testing.T) {
	r := newRig(t)
	r.accept("maxObjects: 3")
	var objects []string
	for i := range 6 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%d", i), "k: v"))
	}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.wait("shop", "three are denied", func(x fleet.SyncStatus) bool {
		denied := 0
		for _, e := range x.Exceptions {
			if e.Reason == plan.ReasonDenied && strings.Contains(e.Message, "maxObjects") {
				denied++
			}
		}
		return denied == 3
	})
	made := func() (n int) {
		for i := range 6 {
			if r.get("v1", "configmaps", fmt.Sprintf("cm-%d", i)) != nil {
				n++
			}
		}
		return n
	}
	r.eventually("the three that are accepted are made", func() bool { return made() >= 3 })
	if n := made(); n != 3 {
		t.Errorf("%d were made", n)
	}
	r.accept("maxObjects: 6")
	r.ready(s)
	r.delete("v1", "configmaps", "cm-0")
	r.eventually("one of as many as are accepted is made again", func() bool { return r.get("v1", "configmaps", "cm-0") != nil })
}

// TestPolicyFreezes: while the cluster is frozen, outside of its windows, or its policy cannot be read, nothing is written at all,
// and everything is held; the end of that needs no word of the hub.
func TestPolicyFreezes(t *testing.T) {
	closed := map[string]func(*rig){
		"freeze":  func(r *rig) { r.accept("freeze: true") },
		"windows": func(r *rig) { r.accept("windows: {deny: [{cron: '* * * * *', duration: 1h}]}") },
		"broken":  func(r *rig) { r.acceptAs(Accepts{Broken: `line 3: unknown field "freze"`}) },
	}
	for name, shut := range closed {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("cm", "k: v"), configMap("dropped", "k: v"), configMap("third", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			shut(r)
			held := func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseHeld && strings.Contains(x.Message, "Denied by the cluster's policy: ")
			}
			r.wait("shop", "held", held)
			r.count.take()
			r.patch("v1", "configmaps", "cm", "kubectl-edit", `{"data":{"k":"changed"}}`)
			r.wait("shop", "drift is seen", func(x fleet.SyncStatus) bool {
				return len(x.States) == 3 && x.States[0].Drift == fleet.DriftHeld
			})
			next := r.bundle("shop", nil, configMap("cm", "k: v"), configMap("third", "k: v"), configMap("new", "k: v"))
			r.set([]fleet.Sync{next}, r.tombstone("gone", fleet.DeleteDelete))
			r.wait("shop", "the next is held", func(x fleet.SyncStatus) bool { return held(x) && x.Generation == next.Generation })
			r.stop()
			r.start()
			r.set([]fleet.Sync{next})
			r.wait("shop", "held after a restart", held)
			counts, paths := r.count.take()
			if counts[http.MethodPatch]+counts[http.MethodPost]+counts[http.MethodPut]+counts[http.MethodDelete] > 0 {
				t.Errorf("written: %v %v", counts, paths)
			}
			r.accept("")
			r.ready(next)
			r.eventually("what was dropped goes", func() bool { return r.get("v1", "configmaps", "dropped") == nil })
		})
	}
}

// TestDeletesThatWereNotSentDoNotCount against a budget; those of which nobody knows do.
func TestDeletesThatWereNotSentDoNotCount(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{}, "x")
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, true}, {errors.New("connection reset"), true}, {apierrors.NewInternalError(errors.New("etcd")), true}, {gone, false},
		{apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")), false}, {errFreed, false}, {errSuperseded, false}, {later{errors.New("busy")}, false},
		{forbidden("frozen"), false},
	} {
		if got := mayBeDone(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

// edge has all be accepted, and nobody know of it before this time, as it is right before a window opens.
func (r *rig) edge(at time.Time) {
	r.m.accepts.mu.Lock()
	defer r.m.accepts.mu.Unlock()
	r.m.accepts.is, r.m.accepts.edge = Accepts{}, at
}

// TestPolicyWindowOpens: the agent goes on by itself when a window opens.
func TestPolicyWindowOpens(t *testing.T) {
	r := newRig(t)
	r.accept("freeze: true")
	s := r.bundle("shop", nil, configMap("cm", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.edge(time.Now().Add(50 * time.Millisecond))
	r.m.accepts.wake <- struct{}{}
	r.ready(s)
}

// A clock that is put forward into a window tells no timer of it, which has hours to go still: whatever is done next is written.
func TestPolicyWindowIntoWhichTheClockJumps(t *testing.T) {
	r := newRig(t)
	r.accept("freeze: true")
	s := r.bundle("shop", nil, configMap("cm", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.edge(time.Now().Add(-time.Millisecond))
	r.m.each((*worker).touchAll)
	r.ready(s)
}

// What the cluster's policy protects does not go with its owner, be it that it was to go before.
func TestProtectedDoesNotGoWithItsOwner(t *testing.T) {
	r := newRig(t)
	r.accept("")
	wave := func(o, n string) string {
		return strings.Replace(o, "namespace: $NS}", "namespace: $NS, annotations: {"+fleet.WaveAnnotation+": '"+n+"'}}", 1)
	}
	r.becomes(nil, wave(configMap("first", "k: v"), "2"), wave(configMap("owner", "k: v"), "1"), configMap("owned", "k: v"))
	r.ownedBy("configmaps", "owned", "owner")
	r.patch("v1", "configmaps", "first", "somebody", `{"metadata":{"finalizers":["example.com/slow"]}}`)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("it is on its way out", func() bool { return r.get("v1", "configmaps", "first").GetDeletionTimestamp() != nil })
	r.accept("protected: [{kinds: [ConfigMap], names: [owned]}]\n")
	r.patch("v1", "configmaps", "first", "somebody", `{"metadata":{"finalizers":null}}`)
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if u := r.get("v1", "configmaps", "owned"); u == nil {
		t.Error("went with its owner")
	}
}

// A freeze, or a window that ends, leaves nothing away that was deleted to be made again.
func TestFreezeWithinARecreation(t *testing.T) {
	r := newRig(t)
	r.accept("allow: {recreate: true}\n")
	r.becomes(recreate, jobOf("x:1"))
	var once sync.Once
	var deleted atomic.Bool
	uid := r.uidOf("batch/v1", "jobs", "once")
	r.count.upset(func(q *http.Request) error {
		switch {
		case !strings.HasSuffix(q.URL.Path, "/jobs/once"):
		case q.Method == http.MethodDelete:
			deleted.Store(true)
		case deleted.Load():
			if u := r.get("batch/v1", "jobs", "once"); u == nil || u.GetDeletionTimestamp() != nil { // the delete was begun, and is done
				once.Do(func() { r.accept("freeze: true\n") })
			}
		}
		return nil
	})
	next := r.bundle("shop", recreate, jobOf("x:2"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseHeld })
	r.eventually("it is made again", func() bool { u := r.get("batch/v1", "jobs", "once"); return u != nil && u.GetUID() != uid })
}
