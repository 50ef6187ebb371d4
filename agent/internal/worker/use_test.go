package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// namespace is a Namespace with labels; $NS is the rig's own, which somebody else made.
func namespace(name, labels string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + ", labels: {" + labels + "}, annotations: {note: ours}}\n"
}

func (r *rig) namespace(name string) *unstructured.Unstructured {
	r.t.Helper()
	u, err := r.client.Resource(gvr("v1", "namespaces")).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return u
}

func (r *rig) label(name, manager, body string) {
	r.t.Helper()
	_, err := r.client.Resource(gvr("v1", "namespaces")).Patch(context.Background(), name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":`+body+`}}`), metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		r.t.Fatal(err)
	}
}

const enforce = "pod-security.kubernetes.io/enforce"

// An existing Namespace gets the labels that conflict with nobody, keeps those of others, which are said, and is given
// back as it was.
func TestLabelsOfAUsedNamespace(t *testing.T) {
	r := newRig(t)
	r.label(r.ns, "somebody", `{"team":"theirs"}`)
	objects := func(labels string) []string { return []string{namespace("$NS", labels), configMap("a", "k: v")} }
	s := r.bundle("shop", nil, objects(enforce+": restricted, team: ours")...)
	r.set([]fleet.Sync{s})
	said := func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1 && x.States[1].Sync == fleet.SyncOutOfSync
	}
	status := r.wait("shop", "applied, with what is not", said)
	wantDrift(t, status, fleet.ObjectException{Field: "/metadata/labels/team", Want: `"ours"`, Live: `"theirs"`, ChangedBy: "somebody", Seen: 1})
	live := r.namespace(r.ns)
	if l := live.GetLabels(); l[enforce] != "restricted" || l["team"] != "theirs" || l[fleet.HubLabel] != "" || live.GetAnnotations()["note"] != "ours" ||
		live.GetAnnotations()[fleet.OwnerAnnotation] != "" {
		t.Errorf("labels %v, annotations %v", l, live.GetAnnotations())
	}

	r.label(r.ns, "ana", `{"`+enforce+`":"privileged"}`)
	r.eventually("the label is back", func() bool { return r.namespace(r.ns).GetLabels()[enforce] == "restricted" })
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Corrections == 1 && said(x) })

	r.stop()
	r.count.take()
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "said again after a restart", said)
	if counts, paths := r.count.take(); counts["PATCH"] != 0 {
		t.Errorf("requests after a restart: %v", paths)
	}

	r.label(r.ns, "somebody", `{"team":null}`)
	r.wait("shop", "all applied when the other lets go", func(x fleet.SyncStatus) bool { return x.Ready && x.States[1].Fine() })
	if got := r.namespace(r.ns).GetLabels()["team"]; got != "ours" {
		t.Errorf("team is %s", got)
	}

	s = r.bundle("shop", nil, objects("team: ours")...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	if l := r.namespace(r.ns).GetLabels(); l[enforce] != "" || l["team"] != "ours" {
		t.Errorf("labels %v after a revision dropped one", l)
	}
	s = r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "the namespace given back", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation && len(x.Extras) == 0 })
	if live := r.namespace(r.ns); live == nil || live.GetDeletionTimestamp() != nil || live.GetLabels()["team"] != "" || live.GetAnnotations()["note"] != "" {
		t.Errorf("given back as %v", live)
	}
}

func TestUsedNamespaceOutlivesItsModule(t *testing.T) {
	for _, policy := range []string{fleet.DeleteDelete, fleet.DeleteOrphan} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, namespace("$NS", "team: ours"), configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			if status := r.ready(s); !status.States[1].Used || status.States[0].Used {
				t.Errorf("said to be used: %+v; only the Namespace is", status.States)
			}
			r.set(nil, r.tombstone("shop", policy))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			live := r.namespace(r.ns)
			if live == nil || live.GetDeletionTimestamp() != nil || (live.GetLabels()["team"] == "ours") != (policy == fleet.DeleteOrphan) {
				t.Errorf("%v", live)
			}
		})
	}
}

// TestLabelsKeepWhatWasAppliedToAUsedNamespace: somebody labels a Namespace that a module uses so that a policy keeps what the module applied
// to it, or leaves it there.
func TestLabelsKeepWhatWasAppliedToAUsedNamespace(t *testing.T) {
	for name, policy := range map[string]fleet.Policy{"kept": {Prune: fleet.PruneNever}, "left": {Delete: fleet.DeleteOrphan}} {
		for _, removed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, removed %t", name, removed), func(t *testing.T) {
				r := newRig(t)
				policies := keptBy(policy)
				s := r.bundle("shop", policies, namespace("$NS", enforce+": restricted"), configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.label(r.ns, "ana", `{"keep":"yes"}`)
				if removed {
					r.set(nil, r.tombstoneOf(policies))
					r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
				} else {
					s = r.bundle("shop", policies, configMap("a", "k: v"))
					r.set([]fleet.Sync{s})
					r.wait("shop", "kept, or left", func(x fleet.SyncStatus) bool {
						return x.Ready && x.Generation == s.Generation && len(x.Extras) == map[string]int{"kept": 1}[name]
					})
				}
				if l := r.namespace(r.ns).GetLabels(); l[enforce] != "restricted" {
					t.Errorf("labels %v", l)
				}
			})
		}
	}
}

// leaves is applied but for the label team, which somebody else has.
func leaves(changedBy string) func(fleet.SyncStatus) bool {
	return func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1 && x.Exceptions[0].Field == "/metadata/labels/team" && x.Exceptions[0].ChangedBy == changedBy
	}
}

// A namespace of another hub's is looked at only: our apply would take that hub's fields away.
func TestNamespaceOfAnotherHub(t *testing.T) {
	r := newRig(t)
	theirs := aloneRig(t)
	shared := r.ns + "-shared"
	t.Cleanup(func() {
		_ = r.client.Resource(gvr("v1", "namespaces")).Delete(context.Background(), shared, metav1.DeleteOptions{})
	})
	theirs.set([]fleet.Sync{theirs.bundle("base", nil, namespace(shared, "team: theirs"))})
	theirs.wait("base", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
	s := r.bundle("shop", nil, namespace(shared, "team: ours"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "said", leaves("towline"))
	if l := r.namespace(shared).GetLabels(); l[fleet.HubLabel] != theirs.hub {
		t.Errorf("labels %v", l)
	}
}

// A Namespace may be listed by many modules: the first has it, the others use it, and the next has it when that one goes.
func TestNamespaceOfTwoModules(t *testing.T) {
	r := newRig(t)
	first := r.bundle("first", nil, namespace("$NS-own", "team: a"))
	r.set([]fleet.Sync{first})
	r.ready(first)
	same := r.bundle("same", nil, namespace("$NS-own", "team: a"), configMap("same", "k: v"))
	other := r.bundle("other", nil, namespace("$NS-own", "team: b"), configMap("other", "k: v"))
	r.set([]fleet.Sync{first, same, other})
	if status := r.ready(same); !status.States[1].Used {
		t.Errorf("the Namespace of another module: %+v", status.States)
	}
	status := r.wait("other", "said", leaves("first"))
	if e := status.Exceptions[0]; e.Want != `"b"` || e.Live != `"a"` || !strings.Contains(e.Message, "module first") {
		t.Errorf("exception %+v", e)
	}
	uid := r.namespace(r.ns + "-own").GetUID()

	first = r.bundle("first", nil, namespace("$NS-own", "team: b"))
	r.set([]fleet.Sync{first, same, other})
	r.ready(first)
	r.wait("other", "no difference", func(x fleet.SyncStatus) bool { return x.Ready && x.States[1].Fine() })
	r.wait("same", "a difference", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })

	r.set([]fleet.Sync{same, other}, r.tombstone("first", fleet.DeleteDelete))
	r.wait("first", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.wait("same", "or other has it", func(fleet.SyncStatus) bool {
		rec := r.m.inventory.Get(fleet.ObjectID{Kind: "Namespace", Name: r.ns + "-own"})
		return rec != nil && rec.Module.Name != "first" && !rec.Want.IsZero()
	})
	if live := r.namespace(r.ns + "-own"); live == nil || live.GetUID() != uid {
		t.Fatal("a namespace that two more modules list went with the first")
	}
	r.set(nil, r.tombstone("same", fleet.DeleteDelete), r.tombstone("other", fleet.DeleteDelete))
	r.eventually("gone with the last", func() bool {
		live := r.namespace(r.ns + "-own")
		return live == nil || live.GetDeletionTimestamp() != nil
	})
}

// All Namespaces are watched, marked or not: one of ours that loses its marks is corrected like any object.
func TestDriftOfAnOwnNamespace(t *testing.T) {
	r := newRig(t)
	name := r.ns + "-own"
	s := r.bundle("shop", nil, namespace(name, "team: ours"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	t.Cleanup(func() {
		_ = r.client.Resource(gvr("v1", "namespaces")).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	for _, change := range []string{`{"team":"theirs"}`, `{"team":null}`, `{"towline.dev/hub":null}`, `{"towline.dev/hub":"another"}`} {
		r.label(name, "ana", change)
		r.eventually("corrected: "+change, func() bool {
			l := r.namespace(name).GetLabels()
			return l["team"] == "ours" && l[fleet.HubLabel] == r.hub
		})
	}
	r.wait("shop", "four corrections", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 4 && x.States[0].Fine() })
}

// A Namespace that the module only uses is part of what it wants: when somebody deletes it, that is seen, and it is made
// again as one that was the module's own.
func TestUsedNamespaceIsDeleted(t *testing.T) {
	r := newRig(t)
	name := r.ns + "-used"
	r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	s := r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	namespaces := r.res("v1", "namespaces", "")
	t.Cleanup(func() { _ = namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	old, err := namespaces.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("it is there again", func() bool {
		now, err := namespaces.Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && now.GetUID() != old.GetUID()
	})
}

// Labels that were applied to a used Namespace stay when a policy ignores them from then on.
func TestIgnoredLabelOfAUsedNamespace(t *testing.T) {
	r := newRig(t)
	name := r.ns + "-used"
	r.clusterScoped("namespaces", "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-used, labels: {theirs: x}}\n")
	used := func(labels string) string {
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-used, labels: {" + labels + "}}\n"
	}
	is := func(what, a, b string) {
		t.Helper()
		if l := r.namespace(name).GetLabels(); l["a"] != a || l["b"] != b {
			t.Errorf("%s: labels %v", what, l)
		}
	}
	ignores := ignoring("/metadata/labels/b")
	r.becomes(nil, used("a: v1, b: v1"))
	r.becomes(ignores, used("a: v1, b: v1"))
	is("the policy", "v1", "v1")
	r.becomes(ignores, used("a: v2, b: v2"))
	is("a revision", "v2", "v1")
	r.becomes(ignores, used("a: v2"))
	is("a revision without it", "v2", "v1")
	r.becomes(once(fleet.OnceOnUpdate, "/metadata/labels/a"), used("a: v3"))
	is("what is applied once", "v2", "v1")
}

// TestNamespaceOfAnotherHubThatChanges: what a module wants of a Namespace of another hub's is compared again when that hub changes it. That is
// a look, which no limit of the cluster's forbids.
func TestNamespaceOfAnotherHubThatChanges(t *testing.T) {
	r := newRig(t)
	theirs := aloneRig(t)
	shared := r.ns + "-shared"
	t.Cleanup(func() {
		_ = r.client.Resource(gvr("v1", "namespaces")).Delete(context.Background(), shared, metav1.DeleteOptions{})
	})
	put := func(team string) {
		s := theirs.bundle("base", nil, namespace(shared, "team: "+team))
		theirs.set([]fleet.Sync{s})
		theirs.wait("base", "ready", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation })
	}
	put("ours")
	s := r.bundle("shop", nil, namespace(shared, "team: ours"), configMap("a", "k: v"))
	r.accept("maxObjects: 1") // which the ConfigMap is
	r.set([]fleet.Sync{s})
	r.ready(s)
	if err := r.m.inventory.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.count.take()
	written := r.store.writes.Load()
	put("theirs")
	r.wait("shop", "said", leaves("towline"))
	if counts, paths := r.count.take(); counts["PATCH"] != 0 || r.store.writes.Load() != written {
		t.Errorf("it takes more than a look: %v, %d writes of the inventory", paths, r.store.writes.Load()-written)
	}
	put("ours")
	r.wait("shop", "as wanted", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Exceptions) == 0 })
}

// TestUseHolds: what was compared counts for the version that the watch shows, and for no other one, be it newer, or older as of a store that was
// put back.
func TestUseHolds(t *testing.T) {
	shop, base := moduleOf("shop")[0], moduleOf("base")[0]
	has := &apply.Record{Record: plan.Record{Module: base}}
	others, guest := &use{uid: "1", version: 7, wants: true}, &use{owner: base, uid: "1", version: 7}
	for name, tc := range map[string]struct {
		use            *use
		rec            *apply.Record
		now            *watch.Fingerprint
		held           bool
		holds, changed bool
	}{
		"another hub's":                    {others, nil, &watch.Fingerprint{UID: "1", Version: 7}, false, true, true},
		"another hub's, newer":             {others, nil, &watch.Fingerprint{UID: "1", Version: 8}, false, false, true},
		"another hub's, put back":          {others, nil, &watch.Fingerprint{UID: "1", Version: 5}, false, false, true},
		"another hub's, put back and held": {others, nil, &watch.Fingerprint{UID: "1", Version: 5}, true, true, true},
		"another hub's, made anew":         {others, nil, &watch.Fingerprint{UID: "2", Version: 9}, false, false, false},
		"another hub's, that goes":         {others, nil, &watch.Fingerprint{UID: "1", Version: 9, Terminating: true}, false, false, false},
		"another hub's, gone":              {others, nil, nil, false, false, false},
		"nothing of it is wanted":          {&use{uid: "1", version: 7}, nil, &watch.Fingerprint{UID: "1", Version: 8}, false, true, false},
		"a module's":                       {guest, has, &watch.Fingerprint{UID: "1", Version: 7}, false, true, true},
		"a module's, newer":                {guest, has, &watch.Fingerprint{UID: "1", Version: 8}, false, false, true},
		"a module's, put back":             {guest, has, &watch.Fingerprint{UID: "1", Version: 5}, false, false, true},
		"a module's, which let it go":      {guest, nil, &watch.Fingerprint{UID: "1", Version: 7}, false, false, false},
	} {
		if got := tc.use.holds(shop, tc.rec, tc.now, true, tc.held); got != tc.holds {
			t.Errorf("%s: holds is %t", name, got)
		}
		if got := tc.use.changed(shop, tc.rec, tc.now); got != tc.changed {
			t.Errorf("%s: changed is %t", name, got)
		}
	}
}
