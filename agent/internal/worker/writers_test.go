package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

const replicasPointer = "/spec/replicas"

// fleetWriters are the programs and people that change workloads in a fleet, each with a Deployment of its own name: what they write is
// either the replicas, or the CPU that the container asks for.
var fleetWriters = []struct {
	name     string
	replicas bool
	write    func(r *rig, name, value string)
}{
	{"hpa", true, func(r *rig, name, value string) { r.scaleTo(name, value, "kube-controller-manager") }},
	{"kubectl-scale", true, func(r *rig, name, value string) { r.scaleTo(name, value, "kubectl") }},
	{"kubectl-edit-replicas", true, func(r *rig, name, value string) { r.rewrite(name, "kubectl-edit", value, true) }},
	{"kubectl-edit-cpu", false, func(r *rig, name, value string) { r.rewrite(name, "kubectl-edit", value, false) }},
	{"vpa-updates", false, func(r *rig, name, value string) { r.rewrite(name, "vpa", value, false) }},
	{"vpa-applies", false, func(r *rig, name, value string) { // with force, as controllers do
		body := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q},"spec":{"template":{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":%q}}}]}}}}`, name, value)
		force := true
		if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), name, types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "vpa", Force: &force}); err != nil {
			r.t.Fatal(err)
		}
	}},
}

func (r *rig) scaleTo(name, value, by string) {
	r.t.Helper()
	r.patch("apps/v1", "deployments", name, by, `{"spec":{"replicas":`+value+`}}`, "scale")
}

// rewrite reads a Deployment, changes it and writes it as a whole.
func (r *rig) rewrite(name, manager, value string, replicas bool) {
	r.t.Helper()
	for {
		u := r.get("apps/v1", "deployments", name)
		if replicas {
			var n int64
			_, _ = fmt.Sscan(value, &n)
			_ = unstructured.SetNestedField(u.Object, n, "spec", "replicas")
		} else {
			list, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
			_ = unstructured.SetNestedField(list[0].(map[string]any), value, "resources", "requests", "cpu")
			_ = unstructured.SetNestedSlice(u.Object, list, "spec", "template", "spec", "containers")
		}
		_, err := r.res("apps/v1", "deployments", r.ns).Update(context.Background(), u, metav1.UpdateOptions{FieldManager: manager})
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			r.t.Fatal(err)
		}
	}
}

// What a field is after each thing that happens: made by the module, as the writer left it the first or the second time, or as the
// revision says that changes it.
const (
	made    = "made"
	theirs1 = "the writer's"
	theirs2 = "the writer's second"
	revised = "the revision's"
)

// fieldValues are those of a field, by what it is.
func fieldValues(replicas bool) map[string]string {
	if replicas {
		return map[string]string{made: "1", theirs1: "3", theirs2: "4", revised: "2"}
	}
	return map[string]string{made: "100m", theirs1: "300m", theirs2: "400m", revised: "200m"}
}

// after is what a field is after the writer's edit, the next revision, which changes another field of the object, the one after it, which
// changes that field, a restart of the agent, and an edit while the agent is away.
type after [5]string

var (
	// The module has the field: "Without a policy a change by somebody else is undone at once."
	corrected = after{made, made, revised, revised, revised}
	// It is theirs for good: "They are no drift, no reason to apply, not overwritten by a later revision nor by the correction of another
	// field" (ignoreFields.jsonPointers); Always is "the same". It is also what an autoscaler has: "Replicas that an autoscaler sets are left
	// to it in any case."
	left = after{theirs1, theirs1, theirs1, theirs1, theirs2}
	// OnDrift: it stays when "somebody changes it", and "the next revision that changes anything in the object" sets it.
	untilRevised = after{theirs1, made, revised, revised, theirs2}
	// OnUpdate: it "is undone" when "somebody changes it", and a revision "leaves it": what was live when Towline wrote the object last.
	asMade = after{made, made, made, made, made}
)

// Each writer changes a field under each setting of applyOnce and ignoreFields. The values follow from docs/policies.md, whose sentences
// are with the four courses above:
//   - ignoreFields.managers: "whatever one of these field managers holds in the object is its own for as long as it holds it", so that
//     it makes a difference for the writers that it names, and for no other;
//   - applyOnce of fields: the table of `when`;
//   - applyOnce of an object: "not written again: what others change stays, with DRIFT Ignored, and a revision changes nothing in it";
//     "OnDrift lets a revision write it; OnUpdate has drift and deletion undone, to what it was".
func TestWritersOfAFleet(t *testing.T) {
	config := labConfig(t)
	fields := []string{replicasPointer, cpuPointer}
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		all      after
		except   map[string]after // by writer; an autoscaler has its replicas under all of them
		whole    bool             // no revision changes another field either
		drift    fleet.Drift      // of what the writer's edit leaves changed
	}{
		"no policy":                  {policies: nil, all: corrected},
		"ignoreFields.jsonPointers":  {policies: ignoring(fields...), all: left, drift: fleet.DriftInSync},
		"ignoreFields.managers":      {policies: leftTo("vpa"), all: corrected, except: map[string]after{"vpa-updates": left, "vpa-applies": left}, drift: fleet.DriftInSync},
		"applyOnce by default":       {policies: once("", fields...), all: left, drift: fleet.DriftInSync},
		"applyOnce Always":           {policies: once(fleet.OnceAlways, fields...), all: left, drift: fleet.DriftInSync},
		"applyOnce OnDrift":          {policies: once(fleet.OnceOnDrift, fields...), all: untilRevised, drift: fleet.DriftInSync},
		"applyOnce OnUpdate":         {policies: once(fleet.OnceOnUpdate, fields...), all: asMade},
		"applyOnce Always, object":   {policies: once(fleet.OnceAlways, fleet.OnceAll), all: left, whole: true, drift: fleet.DriftIgnored},
		"applyOnce OnDrift, object":  {policies: once(fleet.OnceOnDrift, fleet.OnceAll), all: untilRevised, drift: fleet.DriftIgnored},
		"applyOnce OnUpdate, object": {policies: once(fleet.OnceOnUpdate, fleet.OnceAll), all: asMade, whole: true},
		"both, for one field each":   {policies: both(cpuPointer, fleet.OnceOnUpdate, replicasPointer), all: left, except: map[string]after{"kubectl-scale": asMade, "kubectl-edit-replicas": asMade}, drift: fleet.DriftInSync},
		"both, the other way round":  {policies: both(replicasPointer, fleet.OnceOnDrift, cpuPointer), all: untilRevised, except: map[string]after{"kubectl-scale": left, "kubectl-edit-replicas": left}, drift: fleet.DriftInSync},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			r.stop()
			r.recheck = 50 * time.Millisecond // of whether an autoscaler exists
			r.start()
			f := &fleetOfWriters{rig: r}
			f.want = func(writer string, step int) string {
				if writer == "hpa" {
					return left[step]
				}
				if other, ok := tc.except[writer]; ok {
					return other[step]
				}
				return tc.all[step]
			}
			f.policies = slices.Clone(tc.policies)
			f.policies = append([]fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{beacon}}, IgnoreFields: &fleet.IgnoreFields{}, ApplyOnce: &fleet.ApplyOnce{}}}, f.policies...)
			f.run(tc.whole, tc.drift)
		})
	}
}

// both ignore one field, and apply another one once.
func both(ignored, when, path string) []fleet.Policy {
	out := once(when, path)
	out[0].IgnoreFields = &fleet.IgnoreFields{JSONPointers: []string{ignored}}
	return out
}

// beacon is a Deployment without a policy: its correction shows that what came before it was seen.
const beacon = "zz-beacon"

// fleetOfWriters is a module with a Deployment for each writer.
type fleetOfWriters struct {
	*rig
	policies []fleet.Policy
	want     func(writer string, step int) string
}

func (f *fleetOfWriters) run(whole bool, drift fleet.Drift) {
	f.autoscaler("hpa")
	f.revision("nginx:1", made)
	f.write(theirs1)
	f.are(0, "the writer's edit", "nginx:1")
	if drift != "" {
		f.drifts(drift)
	}
	f.revision("nginx:2", made)
	image := "nginx:2"
	if whole {
		image = "nginx:1"
	}
	f.are(1, "a revision that changes another field", image)
	s := f.revision("nginx:2", revised)
	f.are(2, "a revision that changes the field", image)
	f.stop()
	f.start()
	f.set([]fleet.Sync{s})
	f.ready(s)
	f.are(3, "a restart of the agent", image)
	f.stop()
	f.write(theirs2)
	f.start()
	f.set([]fleet.Sync{s})
	f.are(4, "an edit while the agent was away", image)
}

func (f *fleetOfWriters) revision(image, value string) fleet.Sync {
	f.t.Helper()
	list := []string{strings.ReplaceAll(sized("nginx:1", "100m", "1"), "web", beacon)}
	for _, w := range fleetWriters {
		cpu, replicas := "100m", "1"
		if v := fieldValues(w.replicas)[value]; w.replicas {
			replicas = v
		} else {
			cpu = v
		}
		list = append(list, strings.ReplaceAll(sized(image, cpu, replicas), "web", w.name))
	}
	return f.becomes(f.policies, list...)
}

func (f *fleetOfWriters) write(value string) {
	f.t.Helper()
	for _, w := range fleetWriters {
		w.write(f.rig, w.name, fieldValues(w.replicas)[value])
	}
}

// are waits until the agent has seen and done all that is to be, and holds the fields against what they are to be at a step.
func (f *fleetOfWriters) are(step int, when, image string) {
	f.t.Helper()
	var bad []string
	are := func() bool {
		bad = nil
		for _, w := range fleetWriters {
			want := fieldValues(w.replicas)[f.want(w.name, step)]
			if got, gotImage := f.field(w.name, w.replicas); got != want || gotImage != image {
				bad = append(bad, fmt.Sprintf("%s has %s and image %s, want %s and %s", w.name, got, gotImage, want, image))
			}
		}
		return len(bad) == 0
	}
	defer func() {
		if len(bad) > 0 {
			f.t.Errorf("after %s:\n  %s", when, strings.Join(bad, "\n  "))
		}
	}()
	f.eventually("after "+when+" it is as wanted", are)
	f.patch("apps/v1", "deployments", beacon, "somebody", `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"other"}]}}}}`)
	f.eventually("the beacon is corrected", func() bool { _, image := f.field(beacon, false); return image == "nginx:1" })
	are()
}

// field is the one that is written, and the image, which nobody but the module writes.
func (f *fleetOfWriters) field(name string, replicas bool) (value, image string) {
	u := f.get("apps/v1", "deployments", name)
	if u == nil {
		return "", ""
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	app := list[0].(map[string]any)
	value, _, _ = unstructured.NestedString(app, "resources", "requests", "cpu")
	image, _, _ = unstructured.NestedString(app, "image")
	if replicas {
		n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		value = fmt.Sprint(n)
	}
	return value, image
}

// drifts holds what is said of the objects that are left changed against what is to be.
func (f *fleetOfWriters) drifts(want fleet.Drift) {
	f.t.Helper()
	names := []string{beacon}
	for _, w := range fleetWriters {
		names = append(names, w.name)
	}
	slices.SortFunc(names, cmp.Compare)
	said := func() (bad []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		states := f.statuses[fleet.ModuleRef{Project: "default", Name: "shop"}].States
		for i, name := range names {
			if name != "hpa" && name != beacon && f.want(name, 0) == theirs1 && states[i].Drift != want {
				bad = append(bad, fmt.Sprintf("%s is %s, want %s", name, states[i].Drift, want))
			}
		}
		return bad
	}
	f.eventually("drift is told of as it is to be", func() bool { return len(said()) == 0 })
}
