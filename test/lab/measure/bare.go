package measure

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// inFlight is how many requests the reference has on the way.
const inFlight = 16

// Bare applies bodies with one PATCH each, and does nothing else: no plan, no record, no watch, no look at the answer.
type Bare struct{ client rest.Interface }

// NewBare makes the reference for a cluster. userAgent names it in audit logs.
func NewBare(config *rest.Config, userAgent string) (*Bare, error) {
	c := rest.CopyConfig(config)
	c.UserAgent, c.QPS, c.GroupVersion = userAgent, -1, &schema.GroupVersion{}
	c.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.AcceptContentTypes, c.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Bare{client: client}, nil
}

// Body is what to apply where.
type Body struct {
	Path string
	JSON []byte
}

// PathOf is where an object of Deployment or ConfigMap is.
func PathOf(object map[string]any) string {
	m := object["metadata"].(map[string]any)
	if object["kind"] == "Deployment" {
		return fmt.Sprintf("/apis/apps/v1/namespaces/%s/deployments/%s", m["namespace"], m["name"])
	}
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%s", m["namespace"], m["name"])
}

// Bodies of a whole set.
func Bodies(make Object, namespace string, n, revision int, hubID, owner string) ([]Body, error) {
	out := []Body{}
	for i := range n {
		object := make(namespace, i, revision)
		text, err := Marked(object, hubID, owner)
		if err != nil {
			return nil, err
		}
		out = append(out, Body{PathOf(object), text})
	}
	return out, nil
}

// Apply sends all bodies and returns when all are answered.
func (b *Bare) Apply(ctx context.Context, bodies []Body) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for _, body := range bodies {
		g.Go(func() error {
			_, err := b.client.Patch(types.ApplyYAMLPatchType).AbsPath(body.Path).Param("fieldManager", "bench").Body(body.JSON).Do(ctx).Raw()
			return err
		})
	}
	return g.Wait()
}
