package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/render"
)

// jobText is a Job that the lab completes a moment after it began, unless it is suspended.
func jobText(name, spec string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {" + spec +
		"template: {spec: {restartPolicy: Never, containers: [{name: m, image: \"m:1\"}]}}}\n"
}

const fleeting = "ttlSecondsAfterFinished: 0, "

func (r *rig) jobUID(name string) types.UID {
	if u := r.get("batch/v1", "jobs", name); u != nil {
		return u.GetUID()
	}
	return ""
}

// deleteJob deletes a Job and its pods; without the pods the server would wait for the garbage collector.
func (r *rig) deleteJob(name string) {
	r.t.Helper()
	background := metav1.DeletePropagationBackground
	if err := r.res("batch/v1", "jobs", r.ns).Delete(context.Background(), name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		r.t.Fatal(err)
	}
}

// reasons are why the module's objects are what they are, by ordinal.
func reasons(s fleet.SyncStatus) map[int]string {
	out := map[int]string{}
	for _, e := range s.Exceptions {
		out[e.Ordinal] = e.Reason
	}
	return out
}

// A Job that ran is done: neither the TTL nor a person who takes it away has it run again, nor a restart, nor a value
// that it does not use. Another content does.
func TestJobRunsOnce(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, jobText("migrate", fleeting), jobText("seed", ""), configMap("a", "k: '${V}'"))
	s.Values = map[string]string{"V": "1"}
	r.count.take()
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("the TTL took it away", func() bool { return r.jobUID("migrate") == "" })
	r.deleteJob("seed")
	done := func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == s.Generation && reasons(x)[1] == "Completed" && reasons(x)[2] == "Completed" && x.States[1].Fine() && x.States[2].Fine()
	}
	r.wait("shop", "done", done)

	r.stop()
	r.start()
	r.gen++
	s.Generation, s.Values = r.gen, map[string]string{"V": "2"}
	r.set([]fleet.Sync{s})
	r.wait("shop", "done after a restart", done)
	_, paths := r.count.take()
	if n := strings.Count(strings.Join(paths, "\n"), "PATCH /apis/batch/v1"); n != 2 || r.jobUID("migrate") != "" || r.jobUID("seed") != "" {
		t.Errorf("%d writes of two Jobs", n)
	}

	s = r.bundle("shop", nil, strings.Replace(jobText("migrate", fleeting), "m:1", "m:2", 1), jobText("seed", ""), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "another content", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && r.jobUID("migrate") != "" })
	r.wait("shop", "done again", done)
	if r.jobUID("seed") != "" {
		t.Error("a Job ran again whose content is the same")
	}
}

// What a chart has as a hook of installing only is made once: neither an edit nor a revision that changes it is a reason to write it, and a Job that
// ran does not run again, be it there still or gone.
func TestHooksOfInstallingAreMadeOnce(t *testing.T) {
	r := newRig(t)
	const hook = "metadata: {annotations: {helm.sh/hook: post-install}, "
	sync := func(image string) fleet.Sync {
		texts := []string{configMap("token", "k: "+image), jobText("init", fleeting), jobText("seed", ""), configMap("rest", "k: "+image)}
		for i := range texts[:3] {
			texts[i] = strings.Replace(strings.Replace(texts[i], "m:1", image, 1), "metadata: {", hook, 1)
		}
		objects, err := manifest.ParseSet(map[string][]byte{"a.yaml": []byte(strings.ReplaceAll(strings.Join(texts, "\n---\n"), "$NS", r.ns))}, manifest.Options{Chart: true})
		if err != nil {
			t.Fatal(err)
		}
		policies, err := render.ChartPolicies([]fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Job"}}, Recreate: fleet.RecreateIfImmutable}}, objects)
		if err != nil {
			t.Fatal(err)
		}
		return r.bundle("shop", policies, texts...)
	}
	s := sync("m:1")
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("the TTL took it away", func() bool { return r.jobUID("init") == "" })
	seed := r.jobUID("seed")
	r.edit("token")
	s = sync("m:2")
	r.set([]fleet.Sync{s})
	r.ready(s)
	if r.jobUID("init") != "" || r.jobUID("seed") != seed || r.dataOf("token") != "edited" || r.dataOf("rest") != "m:2" {
		t.Errorf("init %q; seed %q, was %q; token %q, rest %q", r.jobUID("init"), r.jobUID("seed"), seed, r.dataOf("token"), r.dataOf("rest"))
	}
}

// A Job that ran, where a policy leaves what somebody deletes: the next revision that lists it as it is has nothing to do about it, nor has another hub.
func TestJobThatRanIsDoneWhereDriftIsLeft(t *testing.T) {
	config := labConfig(t)
	for name, policies := range map[string][]fleet.Policy{"drift: Report": {{Drift: fleet.DriftReport}}, "once": once(fleet.OnceAlways, fleet.OnceAll)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			sync := func(revision int64) fleet.Sync {
				s := r.bundle("shop", policies, jobText("migrate", fleeting), configMap("a", "k: '${V}'"))
				s.Revision, s.Values = revision, map[string]string{"V": fmt.Sprint(revision)}
				return s
			}
			s := sync(1)
			r.count.take()
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.eventually("the TTL took it away", func() bool { return r.jobUID("migrate") == "" })
			done := func(x fleet.SyncStatus) bool {
				return x.Ready && x.Generation == s.Generation && reasons(x)[1] == "Completed" && x.States[1].Fine()
			}
			r.wait("shop", "done", done)
			s = sync(2)
			r.set([]fleet.Sync{s})
			r.wait("shop", "done with the next revision", done)
			_, paths := r.count.take()
			if n := strings.Count(strings.Join(paths, "\n"), "PATCH /apis/batch/v1"); n != 1 {
				t.Errorf("%d writes of the Job", n)
			}
			r.rejoinsAnew()
			s = sync(2)
			r.set([]fleet.Sync{s})
			r.wait("shop", "done for another hub", done)
		})
	}
}

// A Job whose script has what looks like a placeholder, and is text, is the same with the first binding of its module, and without the
// last: it does not run again.
func TestJobRunsOnceWhateverIsBound(t *testing.T) {
	r := newRig(t)
	script := strings.Replace(jobText("migrate", fleeting), `image: "m:1"`, `image: "m:1", args: ["cd ${HOME} && ./migrate > /dev/null"]`, 1)
	s := r.bundle("shop", nil, script, configMap("a", "k: '${V}'"))
	for i, values := range []map[string]string{nil, {"V": "1"}, nil} {
		r.gen++
		s.Generation, s.Values = r.gen, values
		r.count.take()
		r.set([]fleet.Sync{s})
		r.wait("shop", "done", func(x fleet.SyncStatus) bool {
			return x.Ready && x.Generation == s.Generation && reasons(x)[1] == "Completed"
		})
		_, paths := r.count.take()
		if n := strings.Count(strings.Join(paths, "\n"), "PATCH /apis/batch/v1"); i > 0 && n != 0 {
			t.Errorf("%d writes of a Job that ran, with values %v", n, values)
		}
	}
}

// A Job that somebody deletes before it ended is made again, also if its TTL could have taken it.
func TestDeletedJobIsRestored(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, jobText("migrate", fleeting+"suspend: true, "))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("it is watched", func() bool { return r.watched("batch/v1", "jobs") })
	uid := r.jobUID("migrate")
	r.deleteJob("migrate")
	r.eventually("it is back", func() bool { now := r.jobUID("migrate"); return now != "" && now != uid })
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 })
}

// What happened to a Job while the agent was away tell the cluster's Events, if there are any.
func TestJobThatWentUnseen(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, jobText("forgotten", fleeting+"suspend: true, "), jobText("ran", fleeting), jobText("removed", fleeting+"suspend: true, "),
		jobText("tidied", ""), jobText("undone", "suspend: true, "))
	r.set([]fleet.Sync{s})
	uids := map[string]types.UID{}
	for _, name := range []string{"forgotten", "ran", "removed", "tidied", "undone"} {
		r.eventually(name+" began", func() bool { uids[name] = r.jobUID(name); return uids[name] != "" && r.events(uids[name]) > 0 })
	}
	r.stop()
	r.eventually("one ran and is gone", func() bool { return r.jobUID("ran") == "" })
	r.eventually("one ran and is there", func() bool { return r.completed("tidied") })
	for _, name := range []string{"forgotten", "removed", "tidied", "undone"} {
		r.deleteJob(name)
		r.eventually(name+" is gone", func() bool { return r.jobUID(name) == "" })
	}
	err := r.res("v1", "events", r.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uids["forgotten"])})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	r.m.eventsLag = 0
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "judged", func(x fleet.SyncStatus) bool {
		return reasons(x)[0] == "OutcomeUnknown" && reasons(x)[1] == "Completed" && reasons(x)[3] == "Completed" && x.States[2].Fine() && x.States[4].Fine()
	})
	if status.Ready || status.States[0].Health != fleet.HealthUnknown || status.States[1].Health != fleet.HealthHealthy {
		t.Errorf("status %+v", status)
	}
	if r.jobUID("forgotten") != "" || r.jobUID("ran") != "" || r.jobUID("removed") == "" || r.jobUID("removed") == uids["removed"] {
		t.Errorf("forgotten %s, ran %s, removed %s", r.jobUID("forgotten"), r.jobUID("ran"), r.jobUID("removed"))
	}
}

func (r *rig) completed(name string) bool {
	u := r.get("batch/v1", "jobs", name)
	return u != nil && plan.OutcomeOf(u.Object) == plan.Completed
}

// events counts what the cluster tells of an object.
func (r *rig) events(uid types.UID) int {
	list, err := r.res("v1", "events", r.ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)})
	if err != nil {
		r.t.Fatal(err)
	}
	return len(list.Items)
}

// The module that takes a Job over which ran meanwhile does not run it again either, and says how it is, whether the kind
// is watched already or not: no event tells of an object that is gone.
func TestJobThatRanMovesToAnotherModule(t *testing.T) {
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprintf("watched %t", watched), func(t *testing.T) { jobMoves(t, watched) })
	}
}

func jobMoves(t *testing.T, watched bool) {
	r := newRig(t)
	id := fleet.ObjectID{Group: "batch", Kind: "Job", Namespace: r.ns, Name: "ran"}
	other := r.bundle("other", nil, jobText("other", "suspend: true, "))
	a := r.bundle("first", nil, jobText("ran", fleeting), configMap("a", "k: v"))
	r.set([]fleet.Sync{a, other})
	var uid string
	// An agent that stops before the answer to its write does not know what it made.
	r.eventually("it is known to be ours", func() bool {
		rec := r.m.inventory.Get(id)
		if rec != nil {
			uid = rec.UID
		}
		return uid != ""
	})
	r.stop()
	r.eventually("it ran and is gone", func() bool { return r.jobUID("ran") == "" })
	r.start()
	a = r.bundle("first", nil, configMap("a", "k: v"))
	b := r.bundle("second", nil, jobText("ran", fleeting))
	if watched { // a module that is not listed is left as it is
		r.set([]fleet.Sync{other})
		r.eventually("the kind is watched", func() bool { return r.watched("batch/v1", "jobs") })
	}
	r.set([]fleet.Sync{a, b, other})
	status := r.ready(b)
	rec := r.m.inventory.Get(id)
	if reasons(status)[0] != "Completed" || rec.UID != uid || rec.Module != b.Module {
		t.Errorf("status %+v; Job %s ran, and %s is recorded", status, uid, rec.UID)
	}
}
