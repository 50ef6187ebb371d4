package worker

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// waitsOrBegins is what becomes of a sync: it says that it waits for what comes first, or it is applied.
func (r *rig) waitsOrBegins(s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(s.Module.Name, "waiting or begun", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (x.Phase == fleet.PhaseApplied || x.Reason == plan.ReasonAwaitingDependency && strings.Contains(x.Message, "not ready"))
	})
}

// TestModuleThatComesAgainWaitsAgain: what was begun ends with the module. One that is removed with what it depends on, and put again as it
// was, waits again: at once after the removal, as for a module that is deleted and put again, and where the agent was started anew between.
func TestModuleThatComesAgainWaitsAgain(t *testing.T) {
	for _, how := range []string{"at once", "after a restart"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			base, shop := r.gated(r.bundle("base", nil, gate("db", "1"))), r.bundle("shop", nil, configMap("a", "k: one"))
			base.Revision, shop.Revision, shop.DependsOn = 1, 1, moduleOf("base")
			r.set([]fleet.Sync{base, shop})
			r.wait("base", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
			r.sets("db", "1")
			r.ready(shop)
			dead, deadBase := r.tombstone("shop", fleet.DeleteDelete), r.tombstone("base", fleet.DeleteDelete)
			dead.DependsOn = shop.DependsOn
			r.set(nil, deadBase, dead)
			for _, m := range []string{"shop", "base"} {
				r.wait(m, "removed", isRemoved)
			}
			if how == "after a restart" {
				r.set(nil)
				r.stop()
				r.start()
			}
			r.gen++
			base.Generation = r.gen
			r.gen++
			shop.Generation = r.gen
			r.set([]fleet.Sync{base, shop})
			if s := r.waitsOrBegins(shop); s.Reason != plan.ReasonAwaitingDependency || r.keyOf("a") != "" {
				t.Fatalf("begun before what it depends on is ready: %q, %s %s: %s", r.keyOf("a"), s.Phase, s.Reason, s.Message)
			}
			r.wait("base", "applied", func(x fleet.SyncStatus) bool { return x.Generation == base.Generation && x.Phase == fleet.PhaseApplied })
			r.sets("db", "1")
			r.ready(shop)
		})
	}
}

// TestDependencyThatIsAddedIsNotAskedAfterARestart: a module that is there is told to depend on another one, with the same objects, so that
// nothing is to be begun. After a restart of the agent it is as ready as before, also where it uses a Namespace of a third one.
func TestDependencyThatIsAddedIsNotAskedAfterARestart(t *testing.T) {
	r := newRig(t)
	ns := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-n}\n"
	infra, base, shop := r.bundle("infra", nil, ns), r.gated(r.bundle("base", nil, gate("db", "1"))), r.bundle("shop", nil, ns, configMap("a", "k: one"))
	infra.Revision, base.Revision, shop.Revision = 1, 1, 1
	r.set([]fleet.Sync{infra})
	r.ready(infra)
	r.set([]fleet.Sync{infra, base, shop})
	r.ready(shop)
	r.gen++
	shop.Generation, shop.Revision, shop.DependsOn = r.gen, 2, moduleOf("base")
	r.set([]fleet.Sync{infra, base, shop})
	r.ready(shop)
	r.stop()
	r.mu.Lock()
	delete(r.statuses, shop.Module)
	r.mu.Unlock()
	r.start()
	r.m.Set(r.current, nil)
	r.wait("base", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	if s := r.waitsOrBegins(shop); s.Phase != fleet.PhaseApplied {
		t.Fatalf("asked again: %s %s: %s", s.Phase, s.Reason, s.Message)
	}
	r.set(nil, r.tombstone("infra", fleet.DeleteDelete), r.tombstone("shop", fleet.DeleteDelete), r.tombstone("base", fleet.DeleteDelete))
	r.wait("infra", "removed", isRemoved)
}

// TestDependencyThatCannotBeTakenIsNotReady: the newest revision of what a module depends on could not be taken, so that the agent goes on
// with the one before: that being ready says nothing.
func TestDependencyThatCannotBeTakenIsNotReady(t *testing.T) {
	r := newRig(t)
	base, shop := r.bundle("base", nil, configMap("b", "k: one")), r.bundle("shop", nil, configMap("a", "k: one"))
	base.Revision, shop.Revision, shop.DependsOn = 1, 1, moduleOf("base")
	r.set([]fleet.Sync{base, shop})
	r.ready(shop)
	next := r.bundle("shop", nil, configMap("a", "k: two"))
	next.Revision, next.DependsOn = 2, shop.DependsOn
	r.refused = moduleOf("base")
	r.set([]fleet.Sync{base, next})
	if s := r.waitsOrBegins(next); s.Reason != plan.ReasonAwaitingDependency || r.keyOf("a") != "one" {
		t.Fatalf("begun though the newest revision of what it depends on is not here: %q, %s %s", r.keyOf("a"), s.Phase, s.Reason)
	}
	r.refused = nil
	r.gen++
	base.Generation = r.gen
	r.set([]fleet.Sync{base, next})
	r.ready(next)
}

// TestWhatAModuleThatWaitsIsToMakeKeepsItsPlace: a Namespace stays when its module lets it go while another one lists something in it that
// it will make when its turn comes.
func TestWhatAModuleThatWaitsIsToMakeKeepsItsPlace(t *testing.T) {
	for _, how := range []string{"its module is deleted", "a revision drops it"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			infra := r.bundle("infra", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-n}\n", configMap("i", "k: v"))
			r.set([]fleet.Sync{infra})
			r.ready(infra)
			name := r.ns + "-n"
			before := r.namespace(name).GetUID()
			app := r.bundle("app", nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, namespace: $NS-n}\n")
			app.DependsOn = moduleOf("base")
			if how == "its module is deleted" {
				r.set([]fleet.Sync{app}, r.tombstone("infra", fleet.DeleteDelete))
				r.wait("infra", "removed", isRemoved)
			} else {
				next := r.bundle("infra", nil, configMap("i", "k: v"))
				r.set([]fleet.Sync{app, next})
				r.wait("infra", "decided", func(x fleet.SyncStatus) bool {
					return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && (len(x.Extras) == 0 || x.Extras[0].Reason == plan.ReasonNotEmpty)
				})
			}
			u, err := r.res("v1", "namespaces", "").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || u.GetUID() != before || u.GetDeletionTimestamp() != nil {
				t.Fatalf("the namespace was deleted: %v", err)
			}
			base := r.bundle("base", nil, configMap("b", "k: v"))
			r.set(append([]fleet.Sync{base}, r.current.Syncs...), r.current.Tombstones...)
			r.ready(app)
		})
	}
}

// TestRevisionThatOnlyDropsIsNotReadyBeforeItsTurn: a revision that drops an object and changes no other one is not there before its turn:
// nobody who depends on it begins, and no rollout counts it as done.
func TestRevisionThatOnlyDropsIsNotReadyBeforeItsTurn(t *testing.T) {
	r := newRig(t)
	base, shop := r.bundle("base", nil, configMap("b", "k: one")), r.bundle("shop", nil, configMap("a", "k: one"), configMap("gone", "k: one"))
	base.Revision, shop.Revision, shop.DependsOn = 1, 1, moduleOf("base")
	r.set([]fleet.Sync{base, shop})
	r.ready(shop)
	base = r.gated(r.bundle("base", nil, configMap("b", "k: two"), gate("db", "1")))
	next := r.bundle("shop", nil, configMap("a", "k: one"))
	base.Revision, next.Revision, next.DependsOn = 2, 2, shop.DependsOn
	r.set([]fleet.Sync{base, next})
	s := r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Reason == plan.ReasonAwaitingDependency
	})
	if s.Ready || s.Phase != fleet.PhaseApplying || r.keyOf("gone") == "" {
		t.Fatalf("ready before it is begun: %s, ready %v, %s: %s", s.Phase, s.Ready, s.Reason, s.Message)
	}
}

// TestRevisionThatOnlyDropsIsNeverReadyBeforeItsTurn: not for a moment either, while nobody can say yet what goes, nor where something
// else is to be said of the module. Who saw it ready would begin, and that is noted for good.
func TestRevisionThatOnlyDropsIsNeverReadyBeforeItsTurn(t *testing.T) {
	endless := annotated(gate("db", "1"), fleet.ReadyAnnotation, fleet.ReadyIgnore)
	for name, tc := range map[string]struct {
		rest            []string
		owed, dropsHeld bool
	}{
		"an object does not count":        {rest: []string{configMap("a", "k: one"), endless}},
		"it is not known yet what goes":   {rest: []string{configMap("a", "k: one")}, owed: true},
		"what is dropped is held as well": {rest: []string{configMap("a", "k: one")}, dropsHeld: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			base, shop := r.bundle("base", nil, configMap("b", "k: one")), r.inWaves("shop", 1, append(tc.rest, configMap("gone", "k: one"))...)
			base.Revision, shop.DependsOn = 1, moduleOf("base")
			r.set([]fleet.Sync{base, shop})
			r.ready(shop)
			base = r.again(base)
			next := r.inWaves("shop", 2, tc.rest...)
			base.Revision, base.Hold, next.DependsOn = 2, true, shop.DependsOn
			if tc.dropsHeld {
				next.Held = assemble.HeldKeys([]fleet.ObjectID{{Kind: "ConfigMap", Namespace: r.ns, Name: "gone"}})
			}
			if tc.owed {
				nobody := moduleOf("nobody")[0]
				number := r.m.claims.owe(nobody)
				t.Cleanup(func() { r.m.claims.made(nobody, number) })
			}
			r.set([]fleet.Sync{base, next})
			r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
				if x.Generation == next.Generation && x.Ready {
					t.Fatalf("ready before it is begun: %s, %s: %s", x.Phase, x.Reason, x.Message)
				}
				return x.Generation == next.Generation && x.Phase == fleet.PhaseApplying && x.Reason == plan.ReasonAwaitingDependency
			})
			for _, line := range strings.Split(r.heard.String(), "\n") {
				if strings.HasPrefix(line, fmt.Sprintf("{Module:default/shop Generation:%d ", next.Generation)) && strings.Contains(line, " Ready:true ") {
					t.Fatalf("was ready before it is begun: %s", line)
				}
			}
			if r.keyOf("gone") == "" {
				t.Error("it was dropped")
			}
		})
	}
}
