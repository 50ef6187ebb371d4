package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// preview asks what a sync would do, and fails if that changes anything in the namespace.
func (r *rig) preview(s fleet.Sync) fleet.Preview {
	r.t.Helper()
	before := r.stored()
	p, err := r.m.Preview(r.t.Context(), s, r.store)
	if err != nil {
		r.t.Fatal(err)
	}
	if after := r.stored(); after != before {
		r.t.Errorf("the preview changed something:\n%s\nbefore:\n%s", after, before)
	}
	return p
}

// stored is what tests here make, without what its controllers say of it.
func (r *rig) stored() string {
	r.t.Helper()
	var out []string
	for _, of := range [][2]string{{"v1", "configmaps"}, {"v1", "secrets"}, {"batch/v1", "jobs"}, {"apps/v1", "deployments"}, {"v1", "persistentvolumeclaims"}} {
		list, err := r.client.Resource(gvr(of[0], of[1])).Namespace(r.ns).List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, u := range list.Items {
			u.SetResourceVersion("")
			u.SetManagedFields(slices.DeleteFunc(u.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Subresource == "status" }))
			delete(u.Object, "status")
			notes := u.GetAnnotations()
			delete(notes, "deployment.kubernetes.io/revision")
			u.SetAnnotations(notes)
			text, err := u.MarshalJSON()
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, string(text))
		}
	}
	return strings.Join(out, "")
}

// said is a preview in lines, sorted; the namespace is $NS.
func (r *rig) said(p fleet.Preview) []string {
	out := []string{fmt.Sprintf("%d unchanged", p.Unchanged)}
	for _, o := range p.Objects {
		line := fmt.Sprintf("%s %s %s", o.Action, o.ID.Kind, o.ID.Name)
		if o.Reason != "" {
			line += " " + o.Reason
		}
		for _, f := range o.Fields {
			line += fmt.Sprintf(" %s %s→%s", f.Field, f.Live, f.Want)
		}
		out = append(out, strings.ReplaceAll(line, r.ns, "$NS"))
	}
	slices.Sort(out)
	return out
}

func (r *rig) says(p fleet.Preview, want ...string) {
	r.t.Helper()
	if got := r.said(p); !slices.Equal(got, want) {
		r.t.Errorf("the preview says\n  %s\nwant\n  %s\n%+v", strings.Join(got, "\n  "), strings.Join(want, "\n  "), p.Objects)
	}
}

func configOf(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: $NS}\ndata: {a: " + value + "}\n"
}

func secretOf(value string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: hidden, namespace: $NS}\nstringData: {key: " + value + "}\n"
}

// TestPreview goes through what a revision may do, asks first, and compares what then happens.
func TestPreview(t *testing.T) {
	r := newRig(t)
	before := []string{configOf("same", "one"), configOf("changed", "one"), configOf("dropped", "one"), secretOf("one"), jobOf("a:1"), volume("fast"),
		configOf("edited", "one"), configOf("also", "one"), configOf("more", "one")}
	policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, PruneWhen: fleet.PruneAfterApply}}
	first := r.bundle("shop", policies, before...)
	r.says(r.preview(first), "0 unchanged", "Create ConfigMap also", "Create ConfigMap changed", "Create ConfigMap dropped", "Create ConfigMap edited", "Create ConfigMap more",
		"Create ConfigMap same", "Create Job once", "Create PersistentVolumeClaim data", "Create Secret hidden")
	r.set([]fleet.Sync{first})
	r.applied(first)
	r.says(r.preview(first), "9 unchanged")

	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "theirs"}, "data": map[string]any{"a": "other"}})
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "equal"}, "data": map[string]any{"a": "one"}})
	next := r.bundle("shop", policies, configOf("same", "one"), configOf("changed", "two"), configOf("new", "one"), secretOf("two"), jobOf("a:2"), volume("slow"),
		configOf("edited", "one"), configOf("also", "one"), configOf("more", "one"), configOf("theirs", "one"), configOf("equal", "one"),
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: homeless, namespace: nowhere-"+r.ns+"}\n",
		"apiVersion: towline.test/v1\nkind: Nothing\nmetadata: {name: unknown, namespace: $NS}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: wrong, namespace: $NS}\ndata: {a: 5}\n")
	p := r.preview(next)
	r.says(p, "4 unchanged", "Adopt ConfigMap equal", "Change ConfigMap changed /data/a \"one\"→\"two\"", "Change Secret hidden /data/key ***→***",
		"Create ConfigMap new", "Keep ConfigMap dropped AwaitingApply", `Recreate Job once /spec/template/spec/containers/0/image "a:1"→"a:2"`,
		"Refuse ConfigMap homeless NoSuchNamespace", `Refuse ConfigMap theirs Conflict /data/a "other"→"one"`, "Refuse ConfigMap wrong Invalid",
		"Refuse Nothing unknown NoSuchKind", "Refuse PersistentVolumeClaim data Immutable")

	job := r.uidOf("batch/v1", "jobs", "once")
	next = r.bundle("shop", policies, configOf("same", "one"), configOf("changed", "two"), configOf("new", "one"), secretOf("two"), jobOf("a:2"), volume("fast"),
		configOf("edited", "one"), configOf("also", "one"), configOf("more", "one"), configOf("equal", "one"))
	r.says(r.preview(next), "5 unchanged", "Adopt ConfigMap equal", "Change ConfigMap changed /data/a \"one\"→\"two\"", "Change Secret hidden /data/key ***→***",
		"Create ConfigMap new", "Delete ConfigMap dropped", `Recreate Job once /spec/template/spec/containers/0/image "a:1"→"a:2"`)
	r.set([]fleet.Sync{next})
	r.applied(next)
	r.eventually("what is dropped is gone", func() bool { return r.get("v1", "configmaps", "dropped") == nil })
	if r.uidOf("batch/v1", "jobs", "once") == job {
		t.Error("the Job was not made again, as the preview said")
	}
	r.says(r.preview(next), "10 unchanged")
}

// TestPreviewOfPolicies is of drift, of fields that others hold, and of what is dropped and stays.
func TestPreviewOfPolicies(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"kept"}}, Prune: fleet.PruneNever},
		{Match: fleet.PolicyMatch{Names: []string{"tuned"}}, Drift: fleet.DriftReport}}
	first := r.bundle("shop", policies, configOf("kept", "one"), configOf("tuned", "one"), configOf("held", "one"), configOf("rest", "one"))
	r.set([]fleet.Sync{first})
	r.applied(first)
	patch := func(name, manager, body string) {
		t.Helper()
		if _, err := r.client.Resource(gvr("v1", "configmaps")).Namespace(r.ns).Patch(t.Context(), name, types.ApplyPatchType,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"},"data":`+body+`}`), metav1.PatchOptions{FieldManager: manager, Force: new(true)}); err != nil {
			t.Fatal(err)
		}
	}
	patch("tuned", "person", `{"a":"tuned"}`)
	patch("held", "tool", `{"b":"theirs"}`)
	r.says(r.preview(first), "4 unchanged")

	next := r.bundle("shop", policies, configOf("tuned", "two"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, namespace: $NS}\ndata: {a: one, b: ours}\n", configOf("rest", "one"))
	p := r.preview(next)
	r.says(p, "1 unchanged", `Change ConfigMap tuned /data/a "tuned"→"two"`, "Keep ConfigMap kept Kept", `Refuse ConfigMap held Conflict /data/b "theirs"→"ours"`)
}

// TestPreviewOfWhatComesFirst is of objects that cannot be judged before others of the module are there, of another module's, and of
// the agent's own.
func TestPreviewOfWhatComesFirst(t *testing.T) {
	r := newRig(t)
	other := r.bundle("other", nil, configOf("taken", "one"))
	r.set([]fleet.Sync{other})
	r.applied(other)
	group, home := r.group(), "home-"+r.ns
	next := r.bundle("shop", nil, configOf("taken", "two"),
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: "+home+"}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: inside, namespace: "+home+"}\n",
		"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: parts."+group+"}\nspec: {group: "+group+", scope: Namespaced, names: {kind: Part, plural: parts}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n",
		"apiVersion: "+group+"/v1\nkind: Part\nmetadata: {name: one, namespace: $NS}\n",
		"apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: towline-agent, namespace: "+fleet.AgentNamespace+"}\n")
	r.says(r.preview(next), "0 unchanged", "Create ConfigMap inside Unchecked", "Create CustomResourceDefinition parts."+strings.ReplaceAll(group, r.ns, "$NS"),
		"Create Namespace home-$NS", "Create Part one Unchecked", "Refuse ConfigMap taken Conflict", "Refuse Lease towline-agent Protected")
}

// TestPreviewLeavesReplicas to an autoscaler, as an apply does.
func TestPreviewLeavesReplicas(t *testing.T) {
	r := newRig(t)
	first := r.bundle("shop", nil, deployment("web", 2))
	r.set([]fleet.Sync{first})
	r.applied(first)
	r.autoscaler("web")
	r.scale("web", 7, "kube-controller-manager")
	r.asked(2)
	r.says(r.preview(first), "1 unchanged")
	r.says(r.preview(r.bundle("shop", nil, strings.Replace(deployment("web", 3), "nginx:1", "nginx:2", 1))), "0 unchanged", `Change Deployment web /spec/template/spec/containers/0/image "nginx:1"→"nginx:2"`)
}

// TestPreviewOfIgnoredFields: what a policy leaves to others stays, also where it was the module's until now.
func TestPreviewOfIgnoredFields(t *testing.T) {
	r := newRig(t)
	r.becomes(nil, sized("nginx:1", "100m", "1"))
	policies := ignoring("/spec/replicas", "/spec/template/spec/containers/name=app/resources")
	next := r.bundle("shop", policies, sized("nginx:2", "200m", "2"))
	want := []string{"0 unchanged", `Change Deployment web /spec/template/spec/containers/0/image "nginx:1"→"nginx:2"`}
	r.says(r.preview(next), want...)
	r.becomes(policies, sized("nginx:1", "100m", "1"))
	r.scale("web", 3, "somebody's-scaler")
	r.dressed("nginx:1")
	r.says(r.preview(next), want...)
	r.set([]fleet.Sync{next})
	r.ready(next)
	r.isWeb(web{"nginx:2", "100m", 3, false})
}

// TestPreviewOfWhatIsLeft: what a preview says of an object of which a policy leaves something to others is what comes of it, be it that
// they changed it or not.
func TestPreviewOfWhatIsLeft(t *testing.T) {
	config := labConfig(t)
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		drifted  string // what the CPU is when others have changed it, and the agent has seen that
	}{
		"ignored":          {ignoring(cpuPointer), "300m"},
		"of managers":      {leftTo("vpa"), "300m"},
		"once, on drift":   {once(fleet.OnceOnDrift, cpuPointer), "300m"},
		"once, on update":  {once(fleet.OnceOnUpdate, cpuPointer), "100m"},
		"whole, always":    {once("", fleet.OnceAll), "300m"},
		"whole, on drift":  {once(fleet.OnceOnDrift, fleet.OnceAll), "300m"},
		"whole, on update": {once(fleet.OnceOnUpdate, fleet.OnceAll), "100m"},
		"reported":         {[]fleet.Policy{{Drift: fleet.DriftReport}}, "300m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			for _, drifts := range []bool{false, true} {
				for _, next := range [][2]string{{"nginx:1", "100m"}, {"nginx:2", "100m"}, {"nginx:1", "200m"}} {
					r.becomes(tc.policies, sized("nginx:1", "100m", "1"))
					if drifts {
						writers["a plain writer"](r, "300m")
						r.comesToRest(tc.drifted)
					}
					before, s := r.web(), r.bundle("shop", tc.policies, sized(next[0], next[1], "1"))
					said := r.said(r.preview(s))
					r.set([]fleet.Sync{s})
					r.ready(s)
					if did := r.web().since(before); !slices.Equal(said, did) {
						t.Errorf("others changed it: %t; next is %v; said\n  %s\ndid\n  %s", drifts, next, strings.Join(said, "\n  "), strings.Join(did, "\n  "))
					}
					r.becomes(nil, configMap("none", "k: v"))
					r.eventually("it is gone", func() bool { return r.get("apps/v1", "deployments", "web") == nil })
				}
			}
		})
	}
}

// comesToRest waits until the Deployment has this CPU, and the agent has seen it so.
func (r *rig) comesToRest(cpu string) {
	r.t.Helper()
	kind := apply.Resource{GroupVersionResource: gvr("apps/v1", "deployments"), Kind: "Deployment", Namespaced: true}
	r.eventually("it has come to rest", func() bool {
		f, _ := r.m.watcher.Look(kind, r.ns, "web")
		return r.web().cpu == cpu && f != nil && f.Version == apply.ParseVersion(r.get("apps/v1", "deployments", "web").GetResourceVersion())
	})
}

// since is what has changed, in the words of a preview.
func (w web) since(before web) []string {
	at, line := "/spec/template/spec/containers/0", ""
	if w.image != before.image {
		line += fmt.Sprintf(" %s/image %q→%q", at, before.image, w.image)
	}
	if w.cpu != before.cpu {
		line += fmt.Sprintf(" %s/resources/requests/cpu %q→%q", at, before.cpu, w.cpu)
	}
	if line == "" {
		return []string{"1 unchanged"}
	}
	return []string{"0 unchanged", "Change Deployment web" + line}
}
