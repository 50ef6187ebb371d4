package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/test/lab"
)

// clusterKinds have no namespace.
var clusterKinds = []string{
	"Namespace", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "IngressClass", "StorageClass", "CSIDriver", "PriorityClass",
	"RuntimeClass", "CustomResourceDefinition", "Gadget", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "FlowSchema", "PriorityLevelConfiguration",
}

// moduleOf is a module for every cluster with manifests inline.
func moduleOf(name, namespace string, manifests map[string]string, extra ...string) string {
	spec := map[string]any{
		"source":    map[string]any{"inline": map[string]any{"files": manifests}},
		"placement": map[string]any{"selector": map[string]any{}},
	}
	if namespace != "" {
		spec["namespace"] = namespace
	}
	for _, text := range extra {
		var more map[string]any
		if err := yaml.Unmarshal([]byte(text), &more); err != nil {
			panic(err)
		}
		maps.Copy(spec, more)
	}
	data, err := yaml.Marshal(map[string]any{"apiVersion": "towline.dev/v1", "kind": "Module", "metadata": map[string]any{"name": name}, "spec": spec})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// part is objects of one kind: the text is formatted with the number of each, from 1 on.
type part struct {
	count int
	text  string
}

func expand(parts []part) string {
	var out strings.Builder
	for _, p := range parts {
		for i := range p.count {
			fmt.Fprintf(&out, "---\n"+p.text, i+1)
		}
	}
	return out.String()
}

// fleetFiles are the manifests of the module that has a bit of everything.
func fleetFiles() map[string]string {
	return map[string]string{"core.yaml": expand(coreParts), "workloads.yaml": expand(workloadParts), "cluster.yaml": expand(clusterParts)}
}

const fleetNamespace = "fleet-1"

// fleetRules are for clusters that have neither an ingress controller nor metrics.
const fleetRules = `healthRules:
- {group: networking.k8s.io, kind: Ingress, healthy: "true"}
- {group: autoscaling, kind: HorizontalPodAutoscaler, healthy: "true"}
`

func fleetModule() string { return moduleOf("fleet", fleetNamespace, fleetFiles(), fleetRules) }

// objects reads manifests, with the namespace filled in as the module says.
func objects(t *testing.T, namespace string, files map[string]string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(files)) {
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(files[name])), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := decoder.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(object.Object) == 0 {
				continue
			}
			if object.GetNamespace() == "" && !slices.Contains(clusterKinds, object.GetKind()) {
				object.SetNamespace(namespace)
			}
			out = append(out, object)
		}
	}
	return out
}

// live gets an object of a cluster.
func live(t *testing.T, c *lab.Cluster, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	return c.Get(t.Context(), o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
}
