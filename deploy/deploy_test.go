package deploy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"towline.dev/towline/pkg/localpolicy"
)

// strict decodes every document into its Go type; a field that the type lacks is an error.
func strict(t *testing.T, data []byte) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var out []runtime.Object
	for doc := range bytes.SplitSeq(data, []byte("---\n")) {
		object, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		out = append(out, object)
	}
	return out
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	for _, object := range objects {
		if found, ok := object.(T); ok {
			return found
		}
	}
	var none T
	t.Fatalf("there is no %T", none)
	return none
}

func TestAgentManifests(t *testing.T) {
	data, err := AgentManifests(AgentOptions{Hubs: []string{"hub-a:7443", "hub-b:7443"}, Token: "secret-token", Version: "v1.4.2"})
	if err != nil {
		t.Fatal(err)
	}
	objects := strict(t, data)
	if _, ok := objects[0].(*corev1.Namespace); !ok {
		t.Errorf("the first object is a %T: the namespace must be there before what is in it", objects[0])
	}
	deployment := find[*appsv1.Deployment](t, objects)
	if *deployment.Spec.Replicas != 2 {
		t.Errorf("%d replicas, want 2", *deployment.Spec.Replicas)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	want := []string{"run", "--hub=hub-a:7443", "--hub=hub-b:7443", "--join-token-file=/var/run/towline/join/token",
		"--policy=/etc/towline/policy/policy.yaml", "--policy-optional", "--metrics=:9464", "--health=:9464"}
	if !slices.Equal(container.Args, want) {
		t.Errorf("args %q, want %q", container.Args, want)
	}
	if container.Image != "towline/towline-agent:v1.4.2" {
		t.Errorf("image %s", container.Image)
	}
	if got := find[*corev1.Secret](t, objects).StringData["token"]; got != "secret-token" {
		t.Errorf("the Secret holds %q", got)
	}
	if strings.Contains(deployment.String(), "secret-token") {
		t.Error("the token is in the Deployment, where everybody can read it")
	}
	for _, rule := range find[*rbacv1.ClusterRole](t, objects).Rules {
		if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Verbs, "impersonate") || len(rule.NonResourceURLs) > 0 {
			t.Errorf("the agent's rights are those of cluster-admin: %v", rule)
		}
	}
}

// The pods of an agent that is applied again with another join token are made anew, and those of one that is applied again as it was are not.
func TestAnotherTokenMakesThePodsAnew(t *testing.T) {
	for _, daemons := range []bool{false, true} {
		template := func(token string) string {
			objects, err := AgentObjects(AgentOptions{Hubs: []string{"hub:7443"}, Token: token, DaemonSet: daemons})
			if err != nil {
				t.Fatal(err)
			}
			pods, _, _ := unstructured.NestedMap(objects[len(objects)-1].Object, "spec", "template")
			return fmt.Sprint(pods)
		}
		one, again, two := template("one"), template("one"), template("two")
		if one != again || one == two {
			t.Errorf("DaemonSet %v: the pods are %s, again %s, and with another token %s", daemons, one, again, two)
		}
	}
}

// Whoever has the restricted agent's account can neither change the policy nor give himself what he does not have.
func TestRestrictedAgent(t *testing.T) {
	data, err := AgentManifests(AgentOptions{Hubs: []string{"hub:7443"}, Token: "t", Restricted: true})
	if err != nil {
		t.Fatal(err)
	}
	bound := map[string]bool{}
	objects := strict(t, data)
	for _, o := range objects {
		switch b := o.(type) {
		case *rbacv1.RoleBinding:
			bound["Role "+b.RoleRef.Name] = true
		case *rbacv1.ClusterRoleBinding:
			bound["ClusterRole "+b.RoleRef.Name] = true
		}
	}
	check := func(role string, rules []rbacv1.PolicyRule) {
		reads := []string{"get", "list", "watch"}
		for _, r := range rules {
			for _, v := range r.Verbs {
				if v == "*" || slices.Contains(r.Resources, "*") || slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, "rbac.authorization.k8s.io") {
					t.Errorf("%s: %v", role, r)
				}
				own := len(r.Resources) == 1 && (r.Resources[0] == "leases" || r.Resources[0] == "secrets") && role == "Role towline-agent"
				if bound[role] && !own && !slices.Contains(reads, v) {
					t.Errorf("%s is bound, and may %s %v", role, v, r.Resources)
				}
			}
		}
	}
	for _, o := range objects {
		switch x := o.(type) {
		case *rbacv1.Role:
			check("Role "+x.Name, x.Rules)
		case *rbacv1.ClusterRole:
			check("ClusterRole "+x.Name, x.Rules)
		}
	}
	if len(bound) != 2 {
		t.Errorf("bound are %v", bound)
	}
}

// The example of a policy is one, and is not installed: installing the agent anew must not put it back.
func TestPolicyExample(t *testing.T) {
	raw, err := files.ReadFile("agent/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	example := find[*corev1.ConfigMap](t, strict(t, raw))
	if _, err := localpolicy.Parse([]byte(example.Data["policy.yaml"])); err != nil {
		t.Error(err)
	}
	data, err := AgentManifests(AgentOptions{Hubs: []string{"hub:7443"}, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	volumes := find[*appsv1.Deployment](t, strict(t, data)).Spec.Template.Spec.Volumes
	if !slices.ContainsFunc(volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil && v.ConfigMap.Name == example.Name && *v.ConfigMap.Optional
	}) || strings.Contains(string(data), "kind: ConfigMap") {
		t.Errorf("volumes %v", volumes)
	}
}

func TestAgentDaemonSet(t *testing.T) {
	data, err := AgentManifests(AgentOptions{Hubs: []string{"hub:7443"}, Token: "t", DaemonSet: true, Image: "mirror/agent:1"})
	if err != nil {
		t.Fatal(err)
	}
	set := find[*appsv1.DaemonSet](t, strict(t, data))
	if got := set.Spec.Template.Spec.Containers[0].Image; got != "mirror/agent:1" {
		t.Errorf("image %s", got)
	}
}

func TestAgentNeedsHubAndToken(t *testing.T) {
	for _, o := range []AgentOptions{{Token: "t"}, {Hubs: []string{"hub:7443"}}} {
		if _, err := AgentManifests(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestHubManifests(t *testing.T) {
	data, err := HubManifests(HubOptions{Advertise: []string{"hub.example.com:7443"}, Version: "v1.4.2"})
	if err != nil {
		t.Fatal(err)
	}
	objects := strict(t, data)
	set := find[*appsv1.StatefulSet](t, objects)
	want := []string{"serve", "--advertise=hub.example.com:7443", "--data-dir=/var/lib/towline", "--listen=:7443", "--api=:7444", "--metrics=:9464", "--health=:9464"}
	if got := set.Spec.Template.Spec.Containers[0].Args; !slices.Equal(got, want) {
		t.Errorf("args %q, want %q", got, want)
	}
	ports := map[int32]bool{}
	for _, object := range objects {
		if service, ok := object.(*corev1.Service); ok {
			for k, v := range set.Spec.Selector.MatchLabels {
				if service.Spec.Selector[k] != v {
					t.Errorf("service %s selects other pods than the hub's", service.Name)
				}
			}
			for _, p := range service.Spec.Ports {
				ports[p.Port] = true
			}
		}
	}
	if !ports[7443] || !ports[7444] {
		t.Errorf("services for the ports %v, want 7443 and 7444", ports)
	}
	if data, err = HubManifests(HubOptions{}); err != nil || !bytes.Contains(data, []byte("--advertise=towline-agents.towline-system.svc:7443")) {
		t.Errorf("without options the hub does not advertise its own Service: %v\n%s", err, data)
	}
}
