package worker

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// Ports of one number and two protocols are two items, in a Service and in a container.
func TestPortsOfTwoProtocols(t *testing.T) {
	r := newRig(t)
	svc := func(ports string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: $NS}\nspec: {selector: {app: d}, ports: [" + ports + "]}\n"
	}
	const both = "{name: t, port: 53}, {name: u, port: 53, protocol: UDP}"
	pod := func(ports string) string {
		return strings.Replace(deployment("web", 1), `image: "nginx:1"`, `image: "nginx:1", ports: [`+ports+`]`, 1)
	}
	const bothPod = "{containerPort: 53}, {containerPort: 53, protocol: UDP}"
	s := r.bundle("shop", nil, svc(both), pod(bothPod))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "services", "dns", "ana", `{"spec":{"ports":[{"name":"t","port":53,"protocol":"TCP","targetPort":53}]}}`)
	r.patch("apps/v1", "deployments", "web", "ana", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"nginx:1","ports":[{"containerPort":53,"protocol":"TCP"}]}]}}}}`)
	count := func() (int, int) {
		ports, _, _ := unstructured.NestedSlice(r.get("v1", "services", "dns").Object, "spec", "ports")
		c, _, _ := unstructured.NestedSlice(r.get("apps/v1", "deployments", "web").Object, "spec", "template", "spec", "containers")
		pp, _ := c[0].(map[string]any)["ports"].([]any)
		return len(ports), len(pp)
	}
	r.eventually("both are back", func() bool { a, b := count(); return a == 2 && b == 2 })
	s = r.bundle("shop", nil, svc("{name: t, port: 53}"), pod("{containerPort: 53, protocol: UDP}"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	if a, b := count(); a != 1 || b != 1 {
		t.Errorf("%d %d ports", a, b)
	}
}
