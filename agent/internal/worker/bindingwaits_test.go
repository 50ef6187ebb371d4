package worker

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestBindingOfWhatIsThereAlready: an object that is in the cluster with the placeholder as text is not Ready by a revision that declares
// the binding and finds no value for it.
func TestBindingOfWhatIsThereAlready(t *testing.T) {
	r := newRig(t)
	text := r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`))
	r.set([]fleet.Sync{text})
	r.ready(text)
	if got := r.data("uses", "host"); got != "${HOST}" {
		t.Fatalf("host %q", got)
	}
	bound := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host")})
	r.set([]fleet.Sync{bound})
	x := r.wait("shop", "told of", func(x fleet.SyncStatus) bool {
		return x.Generation == bound.Generation && (x.Ready || strings.Contains(x.Message, "${HOST}"))
	})
	if x.Ready || x.Phase != fleet.PhaseApplying {
		t.Fatalf("%+v", x)
	}
	r.source("ConfigMap", "net", `data: {host: one.example}`)
	r.ready(bound)
	if got := r.data("uses", "host"); got != "one.example" {
		t.Errorf("host %q", got)
	}
}

// TestBindingThatLosesItsValueIsSaid: an object whose binding came to a value, and then reads what is none, stays as it is, and the module is
// not Ready until there is one again, the same before and after a restart.
func TestBindingThatLosesItsValueIsSaid(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {port: "80"}`)
	s := r.binding(r.bundle("shop", nil, configMap("uses", `port: "${PORT}"`)), fleet.LateBinding{Name: "PORT", Object: r.fieldOf("ConfigMap", "net", "data.port"), Type: fleet.BindingInteger})
	r.store.how = &fleet.Substitution{}
	r.set([]fleet.Sync{s})
	r.ready(s)
	failed := func(x fleet.SyncStatus) bool {
		return !x.Ready && x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonInvalid && strings.Contains(x.Message, "${PORT}")
	}
	before := r.version("uses")
	r.patch("v1", "configmaps", "net", "ana", `{"data":{"port":"eighty"}}`)
	r.wait("shop", "failed", failed)
	r.stop()
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed after a restart", failed)
	r.patch("v1", "configmaps", "net", "ana", `{"data":{"port":"80"}}`)
	r.ready(s)
	if now := r.version("uses"); now != before {
		t.Errorf("written: version %s, was %s", now, before)
	}
}

// TestBindingWaitsItsTurn: what a module waits for that is to come first makes what its bindings read. That there is no value yet is no
// failure of it.
func TestBindingWaitsItsTurn(t *testing.T) {
	r := newRig(t)
	base, shop := r.gated(r.bundle("base", nil, gate("db", "1"))), r.bundle("shop", nil, configMap("uses", "k: one"))
	base.Revision, shop.Revision, shop.DependsOn = 1, 1, moduleOf("base")
	r.set([]fleet.Sync{base, shop})
	r.wait("base", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	r.sets("db", "1")
	r.ready(shop)
	base = r.gated(r.bundle("base", nil, gate("db", "2")))
	next := r.binding(r.bundle("shop", nil, configMap("uses", `k: "${K}"`)),
		fleet.LateBinding{Name: "K", Object: &fleet.ObjectField{Version: "v1", Kind: "ConfigMap", Name: "net", Path: "data.k"}}) // no namespace: fails at once
	base.Revision, next.Revision, next.DependsOn = 2, 2, shop.DependsOn
	r.set([]fleet.Sync{base, next})
	x := r.wait("shop", "told of", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (x.Phase == fleet.PhaseFailed || x.Reason == "AwaitingDependency")
	})
	if x.Phase != fleet.PhaseApplying {
		t.Errorf("%+v", x)
	}
}

// TestBindingOfWhatTheModuleChanges: what refers to a field of an object that the same revision changes is applied after that, once, and with the
// field as the revision has it.
func TestBindingOfWhatTheModuleChanges(t *testing.T) {
	r := newRig(t)
	late := fleet.LateBinding{Name: "V", Object: r.fieldOf("ConfigMap", "z-source", "data.v")}
	of := func(v, more string) fleet.Sync {
		return r.binding(r.bundle("shop", nil, configMap("uses", `v: "`+more+`${V}"`), configMap("z-source", `v: "`+v+`"`)), late)
	}
	s := of("1", "a")
	r.set([]fleet.Sync{s})
	r.ready(s)
	seen, err := r.res("v1", "configmaps", r.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=uses"})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	next := of("2", "b")
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.data("uses", "v"); got != "b2" {
		t.Errorf("ready with %q", got)
	}
	r.eventually("applied", func() bool { return r.data("uses", "v") == "b2" })
	r.delete("v1", "configmaps", "uses")
	for e := range seen.ResultChan() {
		data, _, _ := unstructured.NestedMap(e.Object.(*unstructured.Unstructured).Object, "data")
		if e.Type == "DELETED" {
			break
		}
		if data["v"] != "a1" && data["v"] != "b2" {
			t.Errorf("was applied as %v", data)
		}
	}
}

// TestBindingThatIsMissedFailsInTime: no event tells that a source has been missed for long enough, so that the worker looks at that time.
func TestBindingThatIsMissedFailsInTime(t *testing.T) {
	now := time.Now()
	f := missing("ConfigMap net does not exist")
	it := &item{late: &lateUse{fail: f}}
	it.fails(f, now)
	w := &worker{items: []*item{it}, m: &Manager{o: Options{Reachable: func() bool { return true }}}}
	at := w.due(now.Add(time.Second))
	if !at.Equal(now.Add(awaited)) || !w.passing(it, now.Add(time.Second)) || w.passing(it, at) {
		t.Errorf("at %s, not %s", at, now.Add(awaited))
	}
	if again := w.due(at); !again.IsZero() {
		t.Errorf("looks at %s again", again)
	}
}
