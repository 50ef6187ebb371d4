package localpolicy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// Every example of docs/local-policy.md is a policy, and the page has every preset and every field.
func TestLocalPolicyPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/local-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []*Policy
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		p, err := Parse([]byte(m[1]))
		if err != nil {
			t.Fatalf("%v in:\n%s", err, m[1])
		}
		examples = append(examples, p)
	}
	if len(examples) != 2 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, name := range presetNames() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page lacks the preset %s", name)
		}
	}
	for _, field := range []string{"projects", "modules", "namespaces", "clusterScoped", "kinds", "denyFields", "protected", "deleteBudget", "freeze",
		"windows", "maxObjects", "maxObjectBytes", "denyReads", "allow.forceConflicts", "allow.recreate", "allow.deleteCRDs", "allow.deleteNamespaces"} {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(field) + "`").Match(page) {
			t.Errorf("the page lacks the field %s", field)
		}
	}
	open, example := examples[0], examples[1]
	crd := fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "x.example.com"}
	for _, v := range []Verb{Create, Update, Delete, Recreate, Force} {
		if d := open.Judge(Request{Verb: v, Module: shop, ID: crd}); d != nil {
			t.Errorf("what is to accept everything denies: %s", d)
		}
	}
	service := func(body string) Request {
		return Request{Verb: Create, Module: shop, ID: fleet.ObjectID{Kind: "Service", Namespace: "web", Name: "lb"}, Object: object(t, body)}
	}
	said := example.Judge(service("{kind: Service, spec: {type: LoadBalancer}}"))
	if said == nil || !strings.Contains(strings.Join(strings.Fields(string(page)), " "), "`"+said.String()+"`") {
		t.Errorf("the page does not say %q", said)
	}
	if d := example.Judge(service("{kind: Service, spec: {ports: []}}")); d != nil {
		t.Errorf("a Service without a type: %s", d)
	}
}
