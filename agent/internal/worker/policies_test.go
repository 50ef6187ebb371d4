package worker

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Every example of docs/policies.md does what the page says of it.
func TestPoliciesPage(t *testing.T) {
	config := labConfig(t)
	t.Parallel()
	page, err := os.ReadFile("../../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]fleet.Policy{}
	for _, m := range regexp.MustCompile("(?ms)^##+ ([^\n]+)\n(?:(?:[^#\n][^\n]*)?\n)*?^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		var set fleet.PolicySet
		if err := yaml.UnmarshalStrict([]byte(m[2]), &set); err != nil {
			t.Fatalf("%s: %v", m[1], err)
		}
		shown[m[1]] = set.Policies
	}
	if had, want := slices.Sorted(maps.Keys(shown)), slices.Sorted(maps.Keys(policyExamples)); !slices.Equal(had, want) {
		t.Fatalf("the page has examples of %q, and what they do is known of %q", had, want)
	}
	for heading, run := range policyExamples {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			run(newRigOn(t, rest.CopyConfig(config)), shown[heading])
		})
	}
}

// policyExamples are what the examples do, by their headings.
var policyExamples = map[string]func(r *rig, policies []fleet.Policy){
	"The first that matches": func(r *rig, policies []fleet.Policy) {
		s := r.begun(policies, configMap("tuning", "k: v"), configMap("other", "k: v"))
		r.edit("tuning")
		r.edit("other")
		r.eventually("the other is corrected", func() bool { return r.dataOf("other") == "v" })
		r.wait("shop", "drifted", func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.States[1].Drift == fleet.DriftDrifted
		})
		r.is("tuning", "edited")
	},
	"prune: OnModuleDelete": func(r *rig, policies []fleet.Policy) {
		r.begun(policies, configMap("a", "k: v"), configMap("b", "k: v"), configMap("data", "k: v"))
		r.drops(policies, configMap("b", "k: v"))
		r.is("a", "")
		r.is("data", "v")
		r.goes()
		r.is("data", "")
	},
	"prune: Never": func(r *rig, policies []fleet.Policy) {
		r.begun(policies, configMap("a", "k: v"), configMap("b", "k: v"), configMap("data", "k: v"))
		r.drops(policies, configMap("b", "k: v"))
		r.is("a", "")
		r.is("data", "v")
		r.goes()
		r.isNobodys("data")
	},
	"keepLegacy": func(r *rig, policies []fleet.Policy) {
		revised := func(revision int64, policies []fleet.Policy, recycles []fleet.Recycle, objects ...string) {
			r.t.Helper()
			s := r.bundle("shop", policies, objects...)
			s.Revision, s.Recycles = revision, recycles
			r.set([]fleet.Sync{s})
			r.ready(s)
		}
		key := func(name string) uint64 {
			return assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: name})
		}
		a, b := configMap("a", "k: v"), configMap("b", "k: v")
		revised(1, policies, nil, a, b, configMap("old", "k: v"), configMap("older", "k: v"))
		revised(2, policies, nil, a, b, configMap("old", "k: v"))
		revised(4, policies, nil, b)
		r.wait("shop", "both kept", func(x fleet.SyncStatus) bool {
			return len(x.Extras) == 2 && x.Extras[0].Reason == plan.ReasonLegacy && x.Extras[0].Revision == 2 && x.Extras[1].Reason == plan.ReasonLegacy && x.Extras[1].Revision == 1
		})
		r.is("a", "")
		revised(4, policies, []fleet.Recycle{{Revision: 1, Keys: []uint64{key("older")}}}, b)
		r.eventually("the tracker of r1 is gone", func() bool { return r.dataOf("older") == "" })
		r.is("old", "v")
		revised(5, nil, nil, b)
		r.wait("shop", "kept still", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && x.Extras[0].Reason == plan.ReasonLegacy })
		no := false
		revised(6, []fleet.Policy{{KeepLegacy: &no}}, nil, b)
		r.eventually("what was kept is gone", func() bool { return r.dataOf("old") == "" })
	},
	"pruneWhen: First": func(r *rig, policies []fleet.Policy) {
		r.begun(nil, nodePort("old", 0), configMap("a", "k: v"))
		ports := r.get("v1", "services", "old").Object["spec"].(map[string]any)["ports"].([]any)
		port := ports[0].(map[string]any)["nodePort"].(int64)
		s := r.bundle("shop", nil, nodePort("new", port), configMap("a", "k: v"))
		r.set([]fleet.Sync{s})
		r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed })
		s = r.bundle("shop", policies, nodePort("new", port), configMap("a", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		if r.get("v1", "services", "old") != nil {
			r.t.Error("the old one is still there")
		}
	},
	"delete: Orphan": func(r *rig, policies []fleet.Policy) {
		r.begun(policies, configMap("a", "k: v"), configMap("shared", "k: v"))
		r.goes()
		r.is("a", "")
		r.isNobodys("shared")
	},
	"drift: Report": func(r *rig, policies []fleet.Policy) { leavesAsItIs(r, policies, fleet.DriftDrifted) },
	"drift: Ignore": func(r *rig, policies []fleet.Policy) { leavesAsItIs(r, policies, fleet.DriftIgnored) },
	"ignoreFields: jsonPointers": func(r *rig, policies []fleet.Policy) {
		r.becomes(policies, sized("nginx:1", "100m", "1"))
		r.scale("web", 3, "somebody's-scaler")
		writers["a writer that applies"](r, "300m")
		r.dressed("nginx:1")
		r.becomes(policies, sized("nginx:2", "200m", "2"))
		r.isWeb(web{"nginx:2", "300m", 3, false})
		r.becomes(nil, sized("nginx:2", "200m", "2"))
		r.isWeb(web{"nginx:2", "200m", 2, false})
	},
	"ignoreFields: managers": func(r *rig, policies []fleet.Policy) {
		r.becomes(policies, sized("nginx:1", "100m", "1"))
		change := `{"op":"replace","path":"/spec/template/spec/containers/0/resources/requests/cpu","value":"300m"}`
		r.json("vpa-updater", change)
		r.dressed("nginx:1")
		r.becomes(policies, sized("nginx:2", "200m", "1"))
		r.isWeb(web{"nginx:2", "300m", 1, false})
		r.json("bob", strings.ReplaceAll(change, "300m", "500m"))
		r.eventually("it is the module's again", func() bool { return r.web() == web{"nginx:2", "200m", 1, false} })
	},
	"applyOnce: of fields": func(r *rig, policies []fleet.Policy) {
		r.becomes(policies, sized("nginx:1", "100m", "2"))
		r.json("kubectl-edit", `{"op":"replace","path":"/spec/replicas","value":3}`)
		r.eventually("drift is corrected", func() bool { return r.web() == web{"nginx:1", "100m", 2, false} })
		r.becomes(policies, sized("nginx:2", "100m", "5"))
		r.isWeb(web{"nginx:2", "100m", 2, false})
		r.json("kubectl-edit", `{"op":"replace","path":"/spec/replicas","value":3}`)
		r.eventually("drift is corrected to what it was", func() bool { return r.web() == web{"nginx:2", "100m", 2, false} })
	},
	"applyOnce: of an object": func(r *rig, policies []fleet.Policy) {
		r.becomes(policies, configMap("tuning", "k: v"), configMap("other", "k: v"))
		r.edit("tuning")
		r.edit("other")
		r.eventually("the other is corrected", func() bool { return r.dataOf("other") == "v" })
		r.becomes(policies, configMap("tuning", "k: v2"), configMap("other", "k: v2"))
		r.is("tuning", "edited")
		r.delete("v1", "configmaps", "tuning")
		r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[1].Health == fleet.HealthMissing })
		r.becomes(policies, configMap("tuning", "k: v3"), configMap("other", "k: v2"))
		r.is("tuning", "v3")
	},
	"adopt: Never": func(r *rig, policies []fleet.Policy) {
		r.theirs("theirs", "v")
		r.conflicts(r.bundle("shop", policies, configMap("theirs", "k: v")))
		s := r.bundle("shop", nil, configMap("theirs", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
	},
	"adopt: Always": func(r *rig, policies []fleet.Policy) {
		uid := r.theirs("theirs", "other")
		r.conflicts(r.bundle("shop", nil, configMap("theirs", "k: v")))
		s := r.bundle("shop", policies, configMap("theirs", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		if r.is("theirs", "v"); r.uidOf("v1", "configmaps", "theirs") != uid {
			r.t.Error("it was made anew")
		}
		r.goes()
		r.is("theirs", "")
	},
	"takeFrom": func(r *rig, policies []fleet.Policy) {
		r.createAs("helm", "v1", "configmaps", r.ns, r.configMapObject("theirs", map[string]any{"annotations": map[string]any{
			"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": r.ns}}, map[string]any{"k": "other"}))
		r.create("v1", "secrets", r.ns, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "sh.helm.release.v1.shop.v1", "namespace": r.ns,
			"labels": map[string]any{"owner": "helm", "name": "shop", "status": "deployed", "version": "1"}}})
		s := r.bundle("shop", policies, configMap("theirs", "k: v"))
		r.conflicts(s)
		r.is("theirs", "other")
		r.delete("v1", "secrets", "sh.helm.release.v1.shop.v1")
		r.ready(s)
		r.is("theirs", "v")
	},
	"shared": func(r *rig, policies []fleet.Policy) {
		one := r.bundle("one", policies, configMap("common", "k: one"))
		two := yieldingTo(r.bundle("two", policies, configMap("common", "k: two")), "one", 2, 0)
		r.set([]fleet.Sync{one, two})
		r.ready(one)
		r.shares("two", "one", two)
		r.is("common", "one")
		uid := r.uidOf("v1", "configmaps", "common")
		two.Yields = nil
		r.set([]fleet.Sync{two}, r.tombstone("one", fleet.DeleteDelete))
		r.wait("one", "removed", isRemoved)
		r.ready(two)
		r.eventually("what the second says is there", func() bool { return r.dataOf("common") == "two" })
		if r.uidOf("v1", "configmaps", "common") != uid {
			r.t.Error("it was made anew")
		}
		r.set(nil, r.tombstone("two", fleet.DeleteDelete))
		r.wait("two", "removed", isRemoved)
		r.is("common", "")
	},
	"readOnly": func(r *rig, policies []fleet.Policy) {
		s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("theirs", "k: v"))
		r.set([]fleet.Sync{s})
		r.wait("shop", "missing it", func(x fleet.SyncStatus) bool {
			return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "ReadOnlyMissing" && !x.Ready
		})
		r.theirs("theirs", "other")
		r.ready(s)
		r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[1].Drift == fleet.DriftDrifted && x.Ready })
		version := r.versionOf("theirs")
		r.goes()
		r.is("a", "")
		r.isAsItWas("theirs", version)
	},
	"conflict: Force": func(r *rig, policies []fleet.Policy) {
		r.begun(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: $NS}\n")
		body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": %q}, "data": {"k": "theirs"}}`, r.ns)
		_, err := r.res("v1", "configmaps", r.ns).Patch(context.Background(), "a", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "somebody"})
		if err != nil {
			r.t.Fatal(err)
		}
		r.conflicts(r.bundle("shop", nil, configMap("a", "k: v")))
		s := r.bundle("shop", policies, configMap("a", "k: v"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		r.is("a", "v")
	},
	"recreate: IfImmutable": func(r *rig, policies []fleet.Policy) {
		r.begun(nil, jobOf("x:1"))
		uid := r.uidOf("batch/v1", "jobs", "once")
		s := r.bundle("shop", nil, jobOf("x:2"))
		r.set([]fleet.Sync{s})
		r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Reason == "Immutable" })
		s = r.bundle("shop", policies, jobOf("x:2"))
		r.set([]fleet.Sync{s})
		r.ready(s)
		if r.uidOf("batch/v1", "jobs", "once") == uid {
			r.t.Error("it is the same")
		}
	},
	"health: Strict": func(r *rig, policies []fleet.Policy) {
		r.clusterScoped("customresourcedefinitions", strictCRD("color: {type: string}"))
		gadget := "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\nspec: {color: red}\n"
		s := r.bundle("shop", policies, gadget)
		r.set([]fleet.Sync{s})
		r.wait("shop", "applied and unknown", func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && len(x.States) == 1 && x.States[0].Sync == fleet.SyncSynced && x.States[0].Health == fleet.HealthUnknown && !x.Ready
		})
		s = r.bundle("shop", nil, gadget)
		r.set([]fleet.Sync{s})
		r.ready(s)
	},
}

// leavesAsItIs: what somebody changes stays, and is called so, until a revision changes the object.
func leavesAsItIs(r *rig, policies []fleet.Policy, drift fleet.Drift) {
	s := r.begun(policies, configMap("tuning", "k: v"))
	r.edit("tuning")
	r.wait("shop", "as it is called", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.States[0].Drift == drift })
	r.is("tuning", "edited")
	s = r.bundle("shop", policies, configMap("tuning", "k: v2"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.is("tuning", "v2")
}

// begun is a module that is ready.
func (r *rig) begun(policies []fleet.Policy, objects ...string) fleet.Sync {
	r.t.Helper()
	s := r.bundle("shop", policies, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	return s
}

// drops has the module list nothing but these.
func (r *rig) drops(policies []fleet.Policy, objects ...string) {
	r.t.Helper()
	s := r.bundle("shop", policies, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("what was dropped is gone", func() bool { return r.dataOf("a") == "" })
}

// goes deletes the module.
func (r *rig) goes() {
	r.t.Helper()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", isRemoved)
}

func (r *rig) edit(name string) {
	r.t.Helper()
	r.patch("v1", "configmaps", name, "somebody", `{"data":{"k":"edited"}}`)
}

// theirs makes a ConfigMap of somebody.
func (r *rig) theirs(name, value string) types.UID {
	r.t.Helper()
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": r.ns},
		"data": map[string]any{"k": value}})
	return r.uidOf("v1", "configmaps", name)
}

func (r *rig) conflicts(s fleet.Sync) {
	r.t.Helper()
	r.set([]fleet.Sync{s})
	r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Reason == "Conflict" })
}

// dataOf is what a ConfigMap holds; empty: it is gone.
func (r *rig) dataOf(name string) string {
	u := r.get("v1", "configmaps", name)
	if u == nil {
		return ""
	}
	data, _ := u.Object["data"].(map[string]any)
	return fmt.Sprint(data["k"])
}

func (r *rig) is(name, want string) {
	r.t.Helper()
	if got := r.dataOf(name); got != want {
		r.t.Errorf("%s holds %q, want %q", name, got, want)
	}
}

// isNobodys says that a ConfigMap is there without our marks.
func (r *rig) isNobodys(name string) {
	r.t.Helper()
	u := r.get("v1", "configmaps", name)
	if u == nil || u.GetLabels()[fleet.HubLabel] != "" || u.GetAnnotations()[fleet.OwnerAnnotation] != "" {
		r.t.Errorf("%s: %+v", name, u)
	}
}

func nodePort(name string, port int64) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: $NS}\nspec: {type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: %d}]}\n", name, port)
}
