package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// randomField is one of a Deployment that its manifest, and others, give values from 0 on.
type randomField struct {
	pointer string
	holder  int  // the fields of one map or list that has one holder as a whole; 0: it stands alone
	absent  bool // the manifest may leave it out, as -1
	set     func(o map[string]any, v int)
	get     func(o map[string]any) string
}

// none is what a field is that is not there.
const none = "-"

// Where fields of a Deployment are.
func ofObject(o map[string]any) map[string]any { return o }
func ofTemplate(o map[string]any) map[string]any {
	return o["spec"].(map[string]any)["template"].(map[string]any)
}
func ofPod(o map[string]any) map[string]any { return ofTemplate(o)["spec"].(map[string]any) }
func ofContainer(o map[string]any) map[string]any {
	return ofPod(o)["containers"].([]any)[0].(map[string]any)
}

// valueAt is the field under keys, or none.
func valueAt(m map[string]any, keys ...string) string {
	for _, key := range keys[:len(keys)-1] {
		m, _ = m[key].(map[string]any)
	}
	if v, ok := m[keys[len(keys)-1]]; ok {
		return fmt.Sprint(v)
	}
	return none
}

// keyed is a field under keys of a part of the object.
func keyed(pointer string, part func(map[string]any) map[string]any, value func(int) any, keys ...string) randomField {
	last := keys[len(keys)-1]
	return randomField{pointer: pointer, absent: true, set: func(o map[string]any, v int) {
		m := part(o)
		for _, key := range keys[:len(keys)-1] {
			if _, ok := m[key].(map[string]any); !ok {
				m[key] = map[string]any{}
			}
			m = m[key].(map[string]any)
		}
		if v < 0 {
			delete(m, last)
			return
		}
		m[last] = value(v)
	}, get: func(o map[string]any) string { return valueAt(part(o), keys...) }}
}

// always has the manifest never leave the field out.
func always(f randomField) randomField {
	f.absent = false
	return f
}

// held says which fields have one holder.
func held(by int, f randomField) randomField {
	f.holder = by
	return f
}

// variable is an environment variable, an item of a list with keys.
func variable(name string) randomField {
	item := func(o map[string]any) (found map[string]any) {
		list, _ := ofContainer(o)["env"].([]any)
		for _, x := range list {
			if x := x.(map[string]any); x["name"] == name {
				found = x
			}
		}
		return found
	}
	return randomField{pointer: "/spec/template/spec/containers/name=app/env/name=" + name + "/value", set: func(o map[string]any, v int) {
		if x := item(o); x != nil {
			x["value"] = text(v)
			return
		}
		list, _ := ofContainer(o)["env"].([]any)
		ofContainer(o)["env"] = append(list, map[string]any{"name": name, "value": text(v)})
	}, get: func(o map[string]any) string {
		if x := item(o); x != nil {
			return fmt.Sprint(x["value"])
		}
		return none
	}}
}

func text(v int) any   { return fmt.Sprint("v", v) }
func number(v int) any { return int64(v + 1) }
func milli(v int) any  { return fmt.Sprint(v+1, "00m") }
func mega(v int) any   { return fmt.Sprint(v+1, "Mi") }

// randomFields have all sorts of places: plain, below an index, a key or a wildcard, in maps and lists of one holder, and in those that
// come and go with what is in them.
var randomFields = []randomField{
	always(keyed("/spec/replicas", ofObject, number, "spec", "replicas")),
	always(keyed("/spec/minReadySeconds", ofObject, number, "spec", "minReadySeconds")),
	always(keyed("/spec/template/spec/containers/0/image", ofContainer, text, "image")),
	keyed("/spec/template/spec/containers/*/resources/requests/cpu", ofContainer, milli, "resources", "requests", "cpu"),
	keyed("/spec/template/spec/containers/*/resources/requests/memory", ofContainer, mega, "resources", "requests", "memory"),
	keyed("/spec/template/metadata/annotations/x", ofTemplate, text, "metadata", "annotations", "x"),
	keyed("/spec/template/metadata/annotations/y", ofTemplate, text, "metadata", "annotations", "y"),
	keyed("/metadata/labels/l", ofObject, text, "metadata", "labels", "l"),
	keyed("/metadata/annotations/m", ofObject, text, "metadata", "annotations", "m"),
	held(1, keyed("/spec/template/spec/nodeSelector/a", ofPod, text, "nodeSelector", "a")),
	held(1, keyed("/spec/template/spec/nodeSelector/b", ofPod, text, "nodeSelector", "b")),
	keyed("/spec/template/spec/securityContext/runAsUser", ofPod, number, "securityContext", "runAsUser"),
	keyed("/spec/template/spec/securityContext/fsGroup", ofPod, number, "securityContext", "fsGroup"),
	variable("A"),
	variable("B"),
	always(keyed("/spec/template/spec/containers/name=app/args/1", ofContainer, func(v int) any { return []any{"a", text(v)} }, "args")),
	always(keyed("/spec/template/spec/tolerations/0/value", ofPod, func(v int) any {
		return []any{map[string]any{"key": "k", "operator": "Equal", "value": text(v)}}
	}, "tolerations")),
}

// ignoringRun is one run: a Deployment some of whose fields a policy leaves to others.
type ignoringRun struct {
	*rig
	rnd      *rand.Rand
	policies []fleet.Policy
	ignored  []bool // of each field
	// lax are those that are ignored for another key of their map only. The agent does not always know what a map is whose holder has let it
	// go, so that these may be as the manifest says (docs/reliability.md).
	lax    []bool
	undone bool  // what others change of those is undone, too
	values []int // of the manifest
	sync   fleet.Sync
	steps  []string
}

// Whatever fields a policy leaves to others (ignoreFields, applyOnce Always and OnUpdate), whatever the manifest, people and programs do to
// them and to the others, and whether the agent starts again or loses its state: what is left stays as it is, or as somebody set it last,
// and what is not is as the manifest says.
func TestIgnoredFieldsAtRandom(t *testing.T) {
	atRandom(t, 3, func(r *rig, rnd *rand.Rand) {
		run := &ignoringRun{rig: r, rnd: rnd, ignored: make([]bool, len(randomFields)), lax: make([]bool, len(randomFields)), values: make([]int, len(randomFields))}
		run.begin()
		for range 14 {
			if want := run.step(); !run.is(want) {
				return
			}
		}
	})
}

// begin makes policies and the object.
func (x *ignoringRun) begin() {
	holders, pointers := map[int]bool{}, []string{replicasPointer}
	for i, f := range randomFields {
		if x.ignored[i] = i == 0 || x.rnd.IntN(3) == 0; x.ignored[i] {
			holders[f.holder] = f.holder != 0
			if i > 0 {
				pointers = append(pointers, f.pointer)
			}
		}
	}
	for i, f := range randomFields {
		x.lax[i] = !x.ignored[i] && holders[f.holder]
		x.ignored[i] = x.ignored[i] || x.lax[i]
	}
	rule := ignoring(pointers...)
	if when := []string{fleet.OnceAlways, fleet.OnceOnUpdate, ""}[x.rnd.IntN(3)]; when != "" {
		rule, x.undone = once(when, pointers...), when == fleet.OnceOnUpdate
	}
	exception := fleet.Policy{Match: fleet.PolicyMatch{Names: []string{beacon}}, IgnoreFields: &fleet.IgnoreFields{}, ApplyOnce: &fleet.ApplyOnce{}}
	x.policies = append([]fleet.Policy{exception, {Conflict: fleet.ConflictForce}}, rule...)
	x.steps = append(x.steps, fmt.Sprintf("%v are left, what others change of them is undone: %t", pointers, x.undone))
	for i := range randomFields {
		x.manifestGets(i)
	}
	x.becomesNext()
	x.is(x.manifest())
}

// manifestGets gives a field of the manifest another value, or has it left out.
func (x *ignoringRun) manifestGets(i int) {
	x.values[i] = x.rnd.IntN(3)
	if randomFields[i].absent && x.rnd.IntN(4) == 0 {
		x.values[i] = -1
	}
}

func (x *ignoringRun) object() map[string]any {
	o := x.rig.object(sized("i:0", "100m", "1"))
	for i, f := range randomFields {
		if x.values[i] >= 0 || f.pointer == "/spec/template/spec/containers/*/resources/requests/cpu" {
			f.set(o, x.values[i])
		}
	}
	return o
}

func (x *ignoringRun) manifest() []string { return read(x.object()) }

func (x *ignoringRun) becomesNext() {
	raw, err := json.Marshal(x.object())
	if err != nil {
		x.t.Fatal(err)
	}
	x.sync = x.bundle("shop", x.policies, string(raw), strings.ReplaceAll(sized("nginx:1", "100m", "1"), "web", beacon))
	x.set([]fleet.Sync{x.sync})
	x.applied(x.sync)
}

// read are the fields of an object.
func read(o map[string]any) []string {
	out := make([]string, len(randomFields))
	for i, f := range randomFields {
		out[i] = f.get(o)
	}
	return out
}

func (x *ignoringRun) live() []string { return read(x.get("apps/v1", "deployments", "web").Object) }

// step does something, and says what the fields are to be after it, of those that are left to others as it was before.
func (x *ignoringRun) step() []string {
	before, said := x.live(), ""
	switch op := x.rnd.IntN(10); {
	case op < 4:
		said = "the manifest changes"
		for range 1 + x.rnd.IntN(4) {
			i := x.rnd.IntN(len(randomFields))
			x.manifestGets(i)
			said += fmt.Sprintf(", %s to %d", randomFields[i].pointer, x.values[i])
		}
		x.becomesNext()
	case op < 8:
		i, v, by := x.rnd.IntN(len(randomFields)), x.rnd.IntN(3), []string{"kubectl-edit", "vpa", "argo"}[x.rnd.IntN(3)]
		said = fmt.Sprintf("%s sets %s to %d", by, randomFields[i].pointer, v)
		after := x.edit(i, v, by)
		if !x.undone {
			before = after
		}
	case op == 8:
		said = "the agent starts again"
		x.stop()
		x.start()
		x.set([]fleet.Sync{x.sync})
	default:
		said = "the agent loses its state"
		x.loseState()
		x.set([]fleet.Sync{x.sync})
	}
	x.steps = append(x.steps, said)
	want := x.manifest()
	for i := range want {
		if x.ignored[i] {
			want[i] = before[i]
		}
	}
	return want
}

// edit is somebody's, and returns what it made of the fields.
func (x *ignoringRun) edit(i, v int, by string) []string {
	for {
		u := x.get("apps/v1", "deployments", "web")
		randomFields[i].set(u.Object, v)
		after, err := x.res("apps/v1", "deployments", x.ns).Update(context.Background(), u, metav1.UpdateOptions{FieldManager: by})
		if err == nil {
			return read(after.Object)
		}
		if !apierrors.IsConflict(err) {
			x.t.Fatal(err)
		}
	}
}

// is waits until the fields are as they are to be and the agent has seen all that came before, and looks at them once more. What the
// manifest does not list, and the module had no part of, is anybody's.
func (x *ignoringRun) is(want []string) bool {
	var bad []string
	listed := x.manifest()
	as := func() bool {
		bad = nil
		for i, got := range x.live() {
			if want[i] != none && got != want[i] && !(got == listed[i] && (x.lax[i] || x.undone && got == none)) {
				bad = append(bad, fmt.Sprintf("%s (left to others: %t) is %s, want %s", randomFields[i].pointer, x.ignored[i], got, want[i]))
			}
		}
		return len(bad) == 0
	}
	defer func() {
		if len(bad) > 0 {
			x.t.Errorf("%s\n  %s", strings.Join(x.steps, "\n"), strings.Join(bad, "\n  "))
		}
	}()
	x.eventually("the fields are as they are to be", as)
	x.patch("apps/v1", "deployments", beacon, "somebody", `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"other"}]}}}}`)
	x.eventually("the beacon is corrected", func() bool {
		return valueAt(ofContainer(x.get("apps/v1", "deployments", beacon).Object), "image") == "nginx:1"
	})
	return as()
}
