package lab

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// UserAgent is what the lab's clients call themselves in audit logs.
const UserAgent = "towline-lab"

// Cluster is one control plane.
type Cluster struct {
	Name       string
	Kubeconfig string
	Config     *rest.Config
	Dynamic    dynamic.Interface
	Audit      *Audit
	// Link is how its agents reach the hub, if Options asked for links.
	Link *Link
	// Agent is the one that Join started.
	Agent *Agent

	lab    *Lab
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newCluster(l *Lab, name, kubeconfig, audit string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", name, err)
	}
	config.UserAgent, config.QPS = UserAgent, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", name, err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", name, err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	return &Cluster{Name: name, Kubeconfig: kubeconfig, Config: config, Dynamic: client, Audit: &Audit{path: audit}, lab: l, mapper: mapper}, nil
}

// Resource is where objects of a kind are; the namespace is ignored for kinds that have none.
func (c *Cluster) Resource(apiVersion, kind, namespace string) (dynamic.ResourceInterface, error) {
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		c.mapper.Reset()
		if mapping, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", c.Name, err)
		}
	}
	resource := c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == "namespace" {
		return resource.Namespace(namespace), nil
	}
	return resource, nil
}

// Get reads an object.
func (c *Cluster) Get(ctx context.Context, apiVersion, kind, namespace, name string) (*unstructured.Unstructured, error) {
	resource, err := c.Resource(apiVersion, kind, namespace)
	if err != nil {
		return nil, err
	}
	return resource.Get(ctx, name, metav1.GetOptions{})
}

// Create makes an object as somebody else than Towline.
func (c *Cluster) Create(ctx context.Context, object *unstructured.Unstructured) error {
	resource, err := c.Resource(object.GetAPIVersion(), object.GetKind(), object.GetNamespace())
	if err != nil {
		return err
	}
	_, err = resource.Create(ctx, object, metav1.CreateOptions{FieldManager: UserAgent})
	return err
}

// Merge changes an object as kubectl patch --type merge does.
func (c *Cluster) Merge(ctx context.Context, apiVersion, kind, namespace, name, patch string) error {
	resource, err := c.Resource(apiVersion, kind, namespace)
	if err != nil {
		return err
	}
	_, err = resource.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-patch"})
	return err
}
