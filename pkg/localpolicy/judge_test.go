package localpolicy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// full is a policy with every field.
const full = `
metadata: {name: prod}
projects: {allow: [web, "team-*"]}
modules: {deny: ["team-b/*"]}
namespaces: {allow: ["team-*", web], deny: [team-secret]}
clusterScoped:
  allow: [{groups: [rbac.authorization.k8s.io], kinds: [ClusterRole], names: ["team-*"]}]
kinds:
- {groups: [""], kinds: [ConfigMap, Pod, Namespace, PersistentVolumeClaim]}
- {groups: [apps, "*.example.com"], verbs: [create, update]}
- {groups: [rbac.authorization.k8s.io]}
denyFields:
- {preset: Privileged}
- {name: no-load-balancer, match: {kinds: [Service]}, expression: object.spec.type == "LoadBalancer"}
protected: [{kinds: [PersistentVolumeClaim], namespaces: ["team-*"]}]
deleteBudget: {perHour: 100}
maxObjects: 10
maxObjectBytes: 1000
allow: {recreate: true}
`

var (
	pod  = fleet.ObjectID{Kind: "Pod", Namespace: "team-a", Name: "p"}
	shop = fleet.ModuleRef{Project: "team-a", Name: "shop"}
)

func id(text string) fleet.ObjectID {
	parts := strings.Split(text, "/") // GROUP/KIND/NAMESPACE/NAME
	return fleet.ObjectID{Group: parts[0], Kind: parts[1], Namespace: parts[2], Name: parts[3]}
}

func TestJudge(t *testing.T) {
	p := parse(t, full)
	for _, tc := range []struct {
		verb Verb
		of   string
		id   string
		rule string // that denies; empty: accepted
	}{
		{Create, "team-a/shop", "/ConfigMap/team-a/cm", ""},
		{Create, "web/shop", "/ConfigMap/web/cm", ""},
		{Create, "other/shop", "/ConfigMap/team-a/cm", "projects.allow"},
		{Create, "team-b/shop", "/ConfigMap/team-a/cm", "modules.deny[0]"},
		{Delete, "other/shop", "/ConfigMap/team-a/cm", "projects.allow"},
		{Create, "team-a/shop", "/ConfigMap/kube-system/cm", "namespaces.allow"},
		{Create, "team-a/shop", "/ConfigMap/webs/cm", "namespaces.allow"},
		{Update, "team-a/shop", "/ConfigMap/team-secret/cm", "namespaces.deny[0]"},
		{Delete, "team-a/shop", "/ConfigMap/team-secret/cm", "namespaces.deny[0]"},
		{Force, "team-a/shop", "/ConfigMap/team-secret/cm", "namespaces.deny[0]"},
		{Keep, "team-a/shop", "/ConfigMap/team-secret/cm", "namespaces.deny[0]"},
		{Release, "team-a/shop", "/ConfigMap/team-secret/cm", ""},
		{Create, "team-a/shop", "/Namespace//team-c", ""},
		{Create, "team-a/shop", "/Namespace//kube-system", "namespaces.allow"},
		{Update, "team-a/shop", "/Namespace//team-secret", "namespaces.deny[0]"},
		{Create, "team-a/shop", "rbac.authorization.k8s.io/ClusterRole//team-a", ""},
		{Create, "team-a/shop", "rbac.authorization.k8s.io/ClusterRole//admin", "clusterScoped.allow"},
		{Create, "team-a/shop", "rbac.authorization.k8s.io/ClusterRoleBinding//team-a", "clusterScoped.allow"},
		{Create, "team-a/shop", "/Secret/team-a/s", "kinds"},
		{Keep, "team-a/shop", "/Secret/team-a/s", "kinds"},
		{Update, "team-a/shop", "apps/Deployment/team-a/web", ""},
		{Delete, "team-a/shop", "apps/Deployment/team-a/web", "kinds"},
		{Recreate, "team-a/shop", "apps/Deployment/team-a/web", "kinds"},
		{Keep, "team-a/shop", "apps/Deployment/team-a/web", ""},
		{Create, "team-a/shop", "db.example.com/Database/team-a/x", ""},
		{Create, "team-a/shop", "example.com/Database/team-a/x", "kinds"},
		{Force, "team-a/shop", "/ConfigMap/team-a/cm", "allow.forceConflicts"},
		{Recreate, "team-a/shop", "/ConfigMap/team-a/cm", ""},
		{Delete, "team-a/shop", "/ConfigMap/team-a/cm", ""},
		{Delete, "team-a/shop", "/PersistentVolumeClaim/team-a/data", "protected[0]"},
		{Recreate, "team-a/shop", "/PersistentVolumeClaim/team-a/data", "protected[0]"},
		{Delete, "web/shop", "/PersistentVolumeClaim/web/data", ""},
		{Delete, "team-a/shop", "/Namespace//team-c", "allow.deleteNamespaces"},
		{Create, "team-a/shop", "project.openshift.io/Project//team-secret", "namespaces.deny[0]"},
		{Create, "team-a/shop", "project.openshift.io/Project//team-c", "clusterScoped.allow"},
	} {
		t.Run(fmt.Sprint(tc.verb, " ", tc.id, " of ", tc.of), func(t *testing.T) {
			project, name, _ := strings.Cut(tc.of, "/")
			d := p.Judge(Request{Verb: tc.verb, Module: fleet.ModuleRef{Project: project, Name: name}, ID: id(tc.id)})
			if got := ruleOf(d); got != tc.rule {
				t.Errorf("denied by %q, want %q", got, tc.rule)
			}
		})
	}
}

func ruleOf(d *Denial) string {
	if d == nil {
		return ""
	}
	return d.Rule
}

// TestNothingSaidIsAccepted, but for what has to be allowed in so many words.
func TestNothingSaidIsAccepted(t *testing.T) {
	p := parse(t, "")
	for _, v := range []Verb{Create, Update, Delete, Release, Keep} {
		for _, of := range []string{"/ConfigMap/a/b", "rbac.authorization.k8s.io/ClusterRole//a"} {
			if d := p.Judge(Request{Verb: v, Module: shop, ID: id(of)}); d != nil {
				t.Errorf("%s %s: %s", v, of, d)
			}
		}
	}
	if got := ruleOf(p.Judge(Request{Verb: Delete, Module: shop, ID: id("project.openshift.io/Project//x")})); got != "allow.deleteNamespaces" {
		t.Errorf("the Project by which a Namespace goes: denied by %q", got)
	}
	crd := id("apiextensions.k8s.io/CustomResourceDefinition//x.example.com")
	for verb, rule := range map[Verb]string{Force: "allow.forceConflicts", Recreate: "allow.recreate", Delete: "allow.deleteCRDs"} {
		if got := ruleOf(p.Judge(Request{Verb: verb, Module: shop, ID: crd})); got != rule {
			t.Errorf("%s: denied by %q, want %q", verb, got, rule)
		}
	}
	if d := (*Policy)(nil).Judge(Request{Verb: Delete, ID: crd}); d != nil {
		t.Errorf("no policy denies: %s", d)
	}
	all := parse(t, "allow: {forceConflicts: true, recreate: true, deleteCRDs: true, deleteNamespaces: true}\n")
	for _, v := range []Verb{Force, Recreate, Delete} {
		if d := all.Judge(Request{Verb: v, Module: shop, ID: crd}); d != nil {
			t.Errorf("%s, allowed: %s", v, d)
		}
	}
}

// TestNamespacesAloneLeaveOutWhatHasNone: who lists the namespaces that a hub may write to does not mean the whole cluster.
func TestNamespacesAloneLeaveOutWhatHasNone(t *testing.T) {
	role := Request{Verb: Create, Module: shop, ID: id("rbac.authorization.k8s.io/ClusterRole//a")}
	for text, rule := range map[string]string{
		"namespaces: {allow: [web]}\n":                                  "namespaces.allow",
		"namespaces: {deny: [web]}\n":                                   "",
		"namespaces: {allow: [web]}\nclusterScoped: {allow: []}\n":      "clusterScoped.allow",
		"clusterScoped: {allow: []}\n":                                  "clusterScoped.allow",
		"namespaces: {allow: [web]}\nclusterScoped: {allow: [{}]}\n":    "",
		"clusterScoped: {allow: [{kinds: [ClusterRole]}]}\nkinds: []\n": "kinds",
	} {
		if got := ruleOf(parse(t, text).Judge(role)); got != rule {
			t.Errorf("%q: denied by %q, want %q", text, got, rule)
		}
	}
}

func TestLimits(t *testing.T) {
	p := parse(t, "maxObjects: 2\nmaxObjectBytes: 10\n")
	for _, tc := range []struct {
		verb         Verb
		owned, bytes int
		rule         string
	}{
		{Create, 1, 10, ""}, {Create, 2, 10, "maxObjects"}, {Update, 2, 10, ""}, {Update, 2, 11, "maxObjectBytes"}, {Keep, 9, 11, "maxObjectBytes"},
	} {
		r := Request{Verb: tc.verb, Module: shop, ID: pod, Owned: tc.owned, Bytes: tc.bytes, Object: map[string]any{}}
		if got := ruleOf(p.Judge(r)); got != tc.rule {
			t.Errorf("%s with %d objects, %d bytes: denied by %q, want %q", tc.verb, tc.owned, tc.bytes, got, tc.rule)
		}
	}
	if n, limited := p.Budget(); n != 0 || limited {
		t.Errorf("budget %d, %v", n, limited)
	}
	if n, limited := parse(t, "deleteBudget: {perHour: 0}\n").Budget(); n != 0 || !limited {
		t.Errorf("budget %d, %v", n, limited)
	}
}

// object reads YAML as the agent has it: numbers of JSON.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDenyFields(t *testing.T) {
	const every = `denyFields: [{preset: HostPath}, {preset: Privileged}, {preset: HostNetwork}, {preset: HostPID}, {preset: HostIPC}, {preset: HostPorts},
  {preset: ServiceAccount, names: [default, "admin-*"]}]`
	for _, tc := range []struct{ name, policy, object, want string }{
		{"a pod in order", every, `{kind: Pod, spec: {serviceAccountName: web, hostNetwork: false, volumes: [{emptyDir: {}}], containers: [{securityContext: {privileged: false}, ports: [{containerPort: 80}]}]}}`, ""},
		{"no pod", every, `{kind: ConfigMap, data: {a: b}}`, ""},
		{"hostPath in a template", every, `{kind: Deployment, spec: {template: {spec: {serviceAccountName: web, volumes: [{emptyDir: {}}, {hostPath: {path: /}}]}}}}`, "denyFields[0] (HostPath): spec.template.spec.volumes[1].hostPath is set"},
		{"hostPath of a volume", every, `{kind: PersistentVolume, spec: {hostPath: {path: /}}}`, "denyFields[0] (HostPath): spec.hostPath is set"},
		{"hostPath in a custom kind", every, `{kind: Rollout, spec: {template: {spec: {volumes: [{hostPath: {path: /}}]}}}}`, "denyFields[0] (HostPath)"},
		{"hostPath in a PodTemplate", every, `{kind: PodTemplate, template: {spec: {volumes: [{hostPath: {path: /}}]}}}`, "denyFields[0] (HostPath)"},
		{"privileged in a CronJob", every, `{kind: CronJob, spec: {jobTemplate: {spec: {template: {spec: {initContainers: [{securityContext: {privileged: true}}]}}}}}}`, "spec.jobTemplate.spec.template.spec.initContainers[0].securityContext.privileged is true"},
		{"hostProcess", every, `{kind: Pod, spec: {serviceAccountName: web, securityContext: {windowsOptions: {hostProcess: true}}}}`, "denyFields[1] (Privileged)"},
		{"hostNetwork", every, `{kind: Pod, spec: {serviceAccountName: web, hostNetwork: true}}`, "denyFields[2] (HostNetwork)"},
		{"hostPID", every, `{kind: Pod, spec: {serviceAccountName: web, hostPID: true}}`, "denyFields[3] (HostPID)"},
		{"hostIPC", every, `{kind: Pod, spec: {serviceAccountName: web, hostIPC: true}}`, "denyFields[4] (HostIPC)"},
		{"hostPort", every, `{kind: Pod, spec: {serviceAccountName: web, containers: [{ports: [{containerPort: 1}, {hostPort: 80}]}]}}`, "containers[0].ports[1].hostPort is set"},
		{"account", every, `{kind: Pod, spec: {serviceAccountName: admin-1}}`, "serviceAccountName is admin-1"},
		{"account, old name", every, `{kind: Pod, spec: {serviceAccountName: web, serviceAccount: admin-1}}`, "serviceAccount is admin-1"},
		{"no account", every, `{kind: Pod, spec: {containers: []}}`, "which is default"},
		{"expression", `denyFields: [{name: replicas, expression: object.spec.replicas > 3}]`, `{kind: Deployment, spec: {replicas: 4}}`, "denyFields[0] (replicas): the expression holds: object.spec.replicas > 3"},
		{"expression with words", `denyFields: [{expression: object.spec.replicas > 3, message: at most three replicas}]`, `{kind: Deployment, spec: {replicas: 4}}`, "denyFields[0]: at most three replicas"},
		{"expression that does not hold", `denyFields: [{expression: object.spec.replicas > 3}]`, `{kind: Deployment, spec: {replicas: 3}}`, ""},
		{"expression that fails", `denyFields: [{expression: object.spec.replicas > 3}]`, `{kind: Deployment, spec: {}}`, "cannot be evaluated: no such key: replicas"},
		{"expression that is no condition", `denyFields: [{expression: object.spec.x}]`, `{kind: Deployment, spec: {x: text}}`, "neither true nor false"},
		{"expression of others", `denyFields: [{match: {kinds: [Service]}, expression: "true"}]`, `{kind: Deployment}`, ""},
		{"module", `denyFields: [{expression: project == "team-a" && module == "shop"}]`, `{kind: Deployment}`, "the expression holds"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := object(t, tc.object)
			r := Request{Verb: Update, Module: shop, ID: fleet.ObjectID{Kind: o["kind"].(string), Namespace: "n", Name: "x"}, Object: o}
			switch d := parse(t, tc.policy).Judge(r); {
			case d == nil && tc.want != "":
				t.Errorf("accepted, want %q", tc.want)
			case d != nil && (tc.want == "" || !strings.Contains(d.String(), tc.want)):
				t.Errorf("%s, want %q", d, tc.want)
			}
		})
	}
}

func TestReadsContent(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "maxObjectBytes: 1\n": true, "denyFields: [{preset: HostPath}]\n": true, "denyFields: [{match: {kinds: [Service]}, preset: HostPath}]\n": false,
	} {
		if got := parse(t, text).ReadsContent(pod); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestClosed(t *testing.T) {
	at := func(s string) time.Time {
		out, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const office = "windows: {allow: [{cron: '0 9 * * 1-5', duration: 8h, timeZone: Europe/Berlin}]}\n"
	for _, tc := range []struct{ name, policy, now, rule, until string }{
		{"nothing said", "", "2026-11-24T03:00:00Z", "", ""},
		{"frozen", "freeze: true\n", "2026-11-24T03:00:00Z", "freeze", ""},
		{"frozen inside of a window", "freeze: true\n" + office, "2026-11-24T09:00:00Z", "freeze", ""},
		{"before the window", office, "2026-11-24T07:59:59Z", "windows", "2026-11-24T08:00:00Z"},
		{"in the window", office, "2026-11-24T08:00:00Z", "", "2026-11-24T16:00:00Z"},
		{"after it", office, "2026-11-24T16:00:00Z", "windows", "2026-11-25T08:00:00Z"},
		{"at the weekend", office, "2026-11-27T16:00:00Z", "windows", "2026-11-30T08:00:00Z"},
		{"denied", "windows: {deny: [{cron: '0 0 24 12 *', duration: 72h}]}\n", "2026-12-25T00:00:00Z", "windows", "2026-12-27T00:00:00Z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, until := parse(t, tc.policy).Closed(at(tc.now))
			if ruleOf(d) != tc.rule {
				t.Errorf("closed by %q, want %q", ruleOf(d), tc.rule)
			}
			if tc.until == "" && !until.IsZero() || tc.until != "" && !until.Equal(at(tc.until)) {
				t.Errorf("until %s, want %s", until, tc.until)
			}
		})
	}
}

// TestProtectedNamespaceProtectsItsProject, with which it would go.
func TestProtectedNamespaceProtectsItsProject(t *testing.T) {
	p := parse(t, "protected: [{kinds: [Namespace], names: [data]}]\nallow: {deleteNamespaces: true}\n")
	for of, rule := range map[string]string{"project.openshift.io/Project//data": "protected[0]", "project.openshift.io/Project//web": ""} {
		if got := ruleOf(p.Judge(Request{Verb: Delete, Module: shop, ID: id(of)})); got != rule {
			t.Errorf("%s: denied by %q, want %q", of, got, rule)
		}
	}
}
