// Package kube owns typed clients of the few kinds that the agent needs for itself, and the judgement of what an API server answers. It must not
// know what for. The clients of client-go register every kind of every version of the Kubernetes API, whose code and tables would be a quarter of
// the memory of an agent with nothing to do.
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

var (
	scheme     = runtime.NewScheme()
	codecs     = serializer.NewCodecFactory(scheme)
	parameters = runtime.NewParameterCodec(scheme)
)

func init() {
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Namespace{}, &corev1.Secret{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
}

// Client asks one API server.
type Client struct{ core, coordination rest.Interface }

// New makes a Client. It copies config.
func New(config *rest.Config) (*Client, error) {
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	c := &Client{}
	if c.core, err = group(config, shared, "/api", corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	c.coordination, err = group(config, shared, "/apis", coordinationv1.SchemeGroupVersion)
	return c, err
}

func group(config *rest.Config, shared *http.Client, path string, version schema.GroupVersion) (rest.Interface, error) {
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion, c.NegotiatedSerializer = path, &version, codecs.WithoutConversion()
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	r, err := rest.RESTClientForConfigAndClient(c, shared)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	return r, nil
}

// Version is that of the API server, such as v1.34.1.
func (c *Client) Version(ctx context.Context) (string, error) {
	raw, err := c.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("answer of the API server: %w", err)
	}
	return v.GitVersion, nil
}

// Namespaces of the cluster.
func (c *Client) Namespaces() *Namespaces { return &Namespaces{rest: c.core, resource: "namespaces"} }

// Secrets of a namespace.
func (c *Client) Secrets(namespace string) *Secrets {
	return &Secrets{rest: c.core, resource: "secrets", namespace: namespace}
}

// Leases of a namespace.
func (c *Client) Leases(namespace string) *Leases {
	return &Leases{rest: c.coordination, resource: "leases", namespace: namespace}
}

// The kinds that there are clients of.
type (
	Namespaces = Objects[corev1.Namespace, *corev1.Namespace]
	Secrets    = Objects[corev1.Secret, *corev1.Secret]
	Leases     = Objects[coordinationv1.Lease, *coordinationv1.Lease]
)

// Objects are those of one kind, in a namespace if the kind has any.
type Objects[T any, P interface {
	*T
	metav1.Object
	runtime.Object
}] struct {
	rest                rest.Interface
	resource, namespace string
}

func (o *Objects[T, P]) on(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped(o.namespace, o.namespace != "").Resource(o.resource)
}

// answer is the object of that name. What stands between the agent and the API server may answer in its own words under the status 200: that is
// no empty Secret, no write that was taken, and no namespace of another cluster.
func (o *Objects[T, P]) answer(ctx context.Context, r *rest.Request, name string) (P, error) {
	out := P(new(T))
	if err := r.Do(ctx).Into(out); err != nil {
		return nil, Denied(err)
	}
	if out.GetName() != name {
		return nil, fmt.Errorf("%s %s: answer of the API server: is not that object; something else answers in its place", o.resource, name)
	}
	return out, nil
}

// Get reads an object.
func (o *Objects[T, P]) Get(ctx context.Context, name string, opts metav1.GetOptions) (P, error) {
	return o.answer(ctx, o.on(o.rest.Get()).Name(name).VersionedParams(&opts, parameters), name)
}

// Create creates an object, and returns it as it is now.
func (o *Objects[T, P]) Create(ctx context.Context, object P, opts metav1.CreateOptions) (P, error) {
	return o.answer(ctx, o.on(o.rest.Post()).VersionedParams(&opts, parameters).Body(object), object.GetName())
}

// Update replaces an object, and returns it as it is now.
func (o *Objects[T, P]) Update(ctx context.Context, object P, opts metav1.UpdateOptions) (P, error) {
	return o.answer(ctx, o.on(o.rest.Put()).Name(object.GetName()).VersionedParams(&opts, parameters).Body(object), object.GetName())
}

// Delete deletes an object.
func (o *Objects[T, P]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return Denied(o.on(o.rest.Delete()).Name(name).Body(&opts).Do(ctx).Error())
}
