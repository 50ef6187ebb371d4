package worker

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// standsStill has a workload go from module one to module two, where it stands still with pods of before.
func (r *rig) standsStill() (one, two fleet.Sync) {
	r.t.Helper()
	one = r.bundle("one", nil, append(webUsing("web-1", fine), configMap("rest", "k: v"))...)
	r.set([]fleet.Sync{one})
	r.ready(one)
	one = r.bundle("one", nil, configMap("rest", "k: v"))
	objects := append(webUsing("web-2", fine), configMap("base", "k: v"))
	objects[1] = strings.ReplaceAll(objects[1], "paused: false", "paused: true")
	two = r.bundle("two", nil, objects...)
	r.set([]fleet.Sync{one, two})
	r.oneWaits()
	return one, two
}

// oneWaits until module one keeps what the pods use.
func (r *rig) oneWaits() {
	r.t.Helper()
	r.wait("one", "waiting for the pods", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Reason == plan.ReasonAwaitingUpdate && slices.Contains(names(x.Extras, plan.ReasonAwaitingUpdate), "web-1")
	})
	r.usedAndThere("web-1")
}

// TestWorkloadThatWentEnds: a workload went to another module and stands still there. When that one has it no more, whichever way, its first
// module hears of it, and lets go what the pods of before used.
func TestWorkloadThatWentEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, one fleet.Sync){
		"dropped": func(r *rig, one fleet.Sync) {
			r.set([]fleet.Sync{one, r.bundle("two", nil, configMap("base", "k: v"))})
		},
		"removed": func(r *rig, one fleet.Sync) {
			r.set([]fleet.Sync{one}, r.tombstone("two", fleet.DeleteDelete))
		},
		"removed, and left": func(r *rig, one fleet.Sync) {
			r.set([]fleet.Sync{one}, r.tombstone("two", fleet.DeleteOrphan))
		},
		"deleted by hand": func(r *rig, _ fleet.Sync) {
			background := metav1.DeletePropagationBackground
			if err := r.res("apps/v1", "deployments", r.ns).Delete(context.Background(), "web", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
				r.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one, _ := r.standsStill()
			end(r, one)
			r.eventually("what nothing uses goes", func() bool { return r.get("v1", "configmaps", "web-1") == nil })
			r.wait("one", "through", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 && x.Reason == "" })
		})
	}
}

// TestWorkloadThatWentStaysInARemoval: the module that a workload went to is removed, and held: what its pods use stays with it.
func TestWorkloadThatWentStaysInARemoval(t *testing.T) {
	for name, hold := range map[string]func(r *rig, dead *fleet.Tombstone){
		"module": func(_ *rig, dead *fleet.Tombstone) { dead.Hold = true },
		"object": func(r *rig, _ *fleet.Tombstone) {
			r.patch("apps/v1", "deployments", "web", "kubectl-annotate", `{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":"incident"}}}`)
			r.wait("two", "held", func(x fleet.SyncStatus) bool { return len(x.Holds) == 1 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one, _ := r.standsStill()
			dead := r.tombstone("two", fleet.DeleteDelete)
			hold(r, &dead)
			r.set([]fleet.Sync{one}, dead)
			r.wait("two", "in removal", func(x fleet.SyncStatus) bool { return x.Generation == dead.Generation })
			for range 2 {
				r.stop()
				r.start()
				r.set(r.current.Syncs, r.current.Tombstones...)
				r.oneWaits()
			}
		})
	}
}

// TestPodsThatANewWorkloadTakesUp: somebody deletes a workload and leaves its pods (kubectl delete --cascade=orphan). The one that the agent
// makes instead takes them up, and is paused: what they use stays, in its own module and in the one that it came from.
func TestPodsThatANewWorkloadTakesUp(t *testing.T) {
	for name, stand := range map[string]func(r *rig) (module string){
		"of a revision before": func(r *rig) string {
			s := &shopPods{r: r, kind: "Deployment", replicas: 2}
			r.ready(s.revision("web-1"))
			objects := webUsing("web-2", fine)
			sync := r.bundle("shop", nil, objects[0], strings.ReplaceAll(objects[1], "paused: false", "paused: true"))
			r.set([]fleet.Sync{sync})
			r.waits(sync, "web-1")
			return "shop"
		},
		"of another module": func(r *rig) string {
			r.standsStill()
			return "one"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			module := stand(r)
			old := r.get("apps/v1", "deployments", "web").GetUID()
			orphan := metav1.DeletePropagationOrphan
			if err := r.res("apps/v1", "deployments", r.ns).Delete(context.Background(), "web", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
				t.Fatal(err)
			}
			r.eventually("it is made again, and has come to its pods", func() bool {
				live := r.get("apps/v1", "deployments", "web")
				if live == nil || live.GetUID() == old {
					return false
				}
				n, _, _ := unstructured.NestedInt64(live.Object, "status", "replicas")
				return n == 2
			})
			r.wait(module, "waiting for the pods", func(x fleet.SyncStatus) bool {
				return x.Ready && x.Reason == plan.ReasonAwaitingUpdate && slices.Contains(names(x.Extras, plan.ReasonAwaitingUpdate), "web-1")
			})
			r.usedAndThere("web-1")
		})
	}
}

// TestPausedAndDrained: the only pod of a paused Deployment is deleted, as by a drain. Until it is made again, of the template of before, its
// status counts none: what it uses stays.
func TestPausedAndDrained(t *testing.T) {
	r := newRig(t)
	s := &shopPods{r: r, kind: "Deployment", replicas: 1}
	r.ready(s.revision("web-1"))
	r.pause(true)
	r.waits(s.revision("web-2"), "web-1")
	for range 15 {
		old := r.pod()
		r.delete("v1", "pods", old)
		r.eventually("it is made again", func() bool { now := r.pod(); return now != "" && now != old })
		if r.usedAndThere("web-1"); t.Failed() {
			return
		}
	}
}

// pod is the name of one that runs; empty: none does.
func (r *rig) pod() string {
	list, err := r.res("v1", "pods", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(list.Items, func(p unstructured.Unstructured) bool { return p.GetDeletionTimestamp() == nil })
	if i < 0 {
		return ""
	}
	return list.Items[i].GetName()
}

// TestWorkloadThatIsPutBackToItsFirstModule: a workload went to another module and was through there, which is held. The cluster's store is put back to
// before that: what its pods use by then stays with the first module, though it was told before that nothing used it any more.
func TestWorkloadThatIsPutBackToItsFirstModule(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, append(webUsing("web-1", fine), configMap("rest", "k: v"))...)
	r.set([]fleet.Sync{one})
	r.ready(one)
	before := r.get("apps/v1", "deployments", "web")
	one, two := r.bundle("one", nil, configMap("rest", "k: v")), r.bundle("two", nil, webUsing("web-2", fine)...)
	one.Held = assemble.HeldKeys([]fleet.ObjectID{r.configMapID("web-1")})
	r.set([]fleet.Sync{one, two})
	r.ready(two)
	r.eventually("it is through", func() bool {
		rec := r.m.inventory.Get(r.webID())
		return rec.Givers == "" && rec.Module == two.Module
	})
	two = r.again(two)
	two.Held = assemble.HeldKeys([]fleet.ObjectID{r.webID()})
	r.set([]fleet.Sync{one, two})
	r.wait("two", "held", func(x fleet.SyncStatus) bool { return x.Generation == two.Generation })

	before.SetManagedFields(nil)
	before.SetResourceVersion("")
	unstructured.RemoveNestedField(before.Object, "status")
	if _, err := r.res("apps/v1", "deployments", r.ns).Apply(context.Background(), "web", before, metav1.ApplyOptions{FieldManager: fleet.FieldManager, Force: true}); err != nil {
		t.Fatal(err)
	}
	r.wait("two", "not as it says", func(x fleet.SyncStatus) bool {
		return slices.ContainsFunc(x.States, func(s fleet.ObjectState) bool { return s.Drift == fleet.DriftHeld })
	})
	r.eventually("its pods run", func() bool { return r.ofConfig("web-1") == 2 })
	one = r.again(one)
	one.Held = nil
	r.set([]fleet.Sync{one, two})
	r.oneWaits()
	two = r.again(two)
	two.Held = nil
	r.set([]fleet.Sync{one, two})
	r.eventually("it goes when they are through again", func() bool {
		r.noneUsedIsGone()
		return r.get("v1", "configmaps", "web-1") == nil
	})
}
