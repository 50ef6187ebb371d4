package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/version"
)

// Resource is where the objects of a kind are.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// Client talks to the API server in raw JSON, without a rate limit of its own.
type Client struct {
	rest rest.Interface
	http *http.Client
}

// NewClient makes a Client. It copies config.
func NewClient(config *rest.Config) (*Client, error) { return newClient(Tuned(config)) }

// newClient makes a Client of a config that is tuned.
func newClient(config *rest.Config) (*Client, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion = &schema.GroupVersion{}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType = runtime.ContentTypeJSON
	c.AcceptContentTypes = runtime.ContentTypeJSON
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return checking{next} })
	httpClient, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	r, err := rest.RESTClientForConfigAndClient(c, httpClient)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	return &Client{rest: r, http: httpClient}, nil
}

// Tuned is a copy of config without client-side rate limits and warnings, with our user agent, over connections of
// HTTP/1.1: each costs the API server and the agent less than a stream of HTTP/2 (docs/adr/0006). Dead ones are found by
// the kernel's keep-alives, for there are no pings. Every request has an end.
func Tuned(config *rest.Config) *rest.Config { return tunedWith(config, defaultLimits) }

func tunedWith(config *rest.Config, l limits) *rest.Config {
	c := rest.CopyConfig(config)
	c.QPS, c.Burst, c.RateLimiter = -1, -1, nil
	c.WarningHandlerWithContext = rest.NoWarnings{}
	c.NextProtos = []string{"http/1.1"}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout, Control: boundDelivery, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}).DialContext
	}
	if c.UserAgent == "" {
		c.UserAgent = "towline-agent/" + version.Version
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next, l} })
	return c
}

const dialTimeout = 10 * time.Second

func (r Resource) segments(namespace, name string) []string {
	var s []string
	if r.Group == "" {
		s = append(s, "/api", r.Version)
	} else {
		s = append(s, "/apis", r.Group, r.Version)
	}
	if r.Namespaced && namespace != "" {
		s = append(s, "namespaces", namespace)
	}
	s = append(s, r.Resource)
	if name != "" {
		s = append(s, name)
	}
	return s
}

// write is a request that is sent once: who may send it again asks first whether it may still write.
func write(r *rest.Request) *rest.Request { return r.MaxRetries(0) }

// ApplyOptions say how an apply behaves.
type ApplyOptions struct {
	// Force takes fields from other managers.
	Force bool
	// Strict refuses fields that the server does not know.
	Strict bool
	// DryRun stores nothing: the answer is what the object would be.
	DryRun bool
	// Manager is the field manager; empty: fleet.FieldManager.
	Manager string
}

// Apply sends a server-side apply and returns the object as it is now.
func (c *Client) Apply(ctx context.Context, r Resource, namespace, name string, body []byte, o ApplyOptions) (map[string]any, error) {
	validation := "Ignore"
	if o.Strict {
		validation = "Strict"
	}
	req := write(c.rest.Patch(types.ApplyYAMLPatchType)).AbsPath(r.segments(namespace, name)...).
		Param("fieldManager", cmp.Or(o.Manager, fleet.FieldManager)).Param("fieldValidation", validation).Body(manifest.AsYAML(body))
	if o.Force {
		req = req.Param("force", "true")
	}
	if o.DryRun {
		req = req.Param("dryRun", metav1.DryRunAll)
	}
	return decode(req.Do(ctx), namespace, name)
}

// Patch sends a JSON patch and returns the object as it is now.
func (c *Client) Patch(ctx context.Context, r Resource, namespace, name string, patch []byte) (map[string]any, error) {
	return decode(write(c.rest.Patch(types.JSONPatchType)).AbsPath(r.segments(namespace, name)...).
		Param("fieldManager", fleet.FieldManager).Body(patch).Do(ctx), namespace, name)
}

// Scale sets replicas of exactly the object with this UID, as a program does that scales objects.
func (c *Client) Scale(ctx context.Context, r Resource, namespace, name string, uid types.UID, replicas int64, by string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "spec": map[string]any{"replicas": replicas}})
	if err != nil {
		return err
	}
	_, err = bytesOf(write(c.rest.Patch(types.MergePatchType)).AbsPath(append(r.segments(namespace, name), "scale")...).
		Param("fieldManager", by).Body(body).Do(ctx))
	return err
}

// Get reads an object.
func (c *Client) Get(ctx context.Context, r Resource, namespace, name string) (map[string]any, error) {
	out, err := decode(c.rest.Get().AbsPath(r.segments(namespace, name)...).Do(ctx), namespace, name)
	return out, c.unlessListed(ctx, r, namespace, name, err)
}

const acceptMeta = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
const acceptMetaList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// GetMeta reads the metadata of an object from the server's storage. What the server answers is returned with ErrNotKept, too.
func (c *Client) GetMeta(ctx context.Context, r Resource, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	raw, err := bytesOf(c.rest.Get().AbsPath(r.segments(namespace, name)...).SetHeader("Accept", acceptMeta).Do(ctx))
	if err != nil {
		return nil, c.unlessListed(ctx, r, namespace, name, err)
	}
	out := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	switch {
	case out.UID == "" && out.Kind == "PartialObjectMetadata" && out.Name == name:
		return out, ErrNotKept
	case out.UID == "":
		return nil, errNoObject
	}
	return out, unlessOf(out.Namespace, out.Name, namespace, name)
}

// unlessListed is what a read of an object comes to that says nothing of it, as with an API server of its own that has no words for what it does not
// have: where a list has no object of the name, there is none. Nor is there any of a kind that cannot be listed either, as a TokenReview: it is not kept.
func (c *Client) unlessListed(ctx context.Context, r Resource, namespace, name string, err error) error {
	if !kube.Is(err, kube.Unserved) {
		return err
	}
	there := false
	unlisted := c.eachMeta(ctx, r, namespace, map[string]string{"fieldSelector": "metadata.name=" + name}, func(o *metav1.PartialObjectMetadata) bool {
		there = there || o.Name == name
		return !there
	})
	if there || unlisted != nil && !kube.Is(unlisted, kube.Unsupported) {
		return err
	}
	return apierrors.NewNotFound(r.GroupResource(), name)
}

// ErrNotKept is of what an API server makes up for each answer and keeps nowhere, as a ComponentStatus or PodMetrics: nobody wrote it, unless it
// carries the marks of who did.
var ErrNotKept = errors.New("answer of the API server: is no object that it keeps, for it has no UID")

// Pods lists some pods of a namespace.
func (c *Client) Pods(ctx context.Context, namespace, selector string, limit int) (*corev1.PodList, error) {
	raw, err := bytesOf(c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "pods").Param("labelSelector", selector).
		Param("limit", fmt.Sprint(limit)).Do(ctx))
	if err != nil {
		return nil, err
	}
	out := &corev1.PodList{}
	if err := readAs(raw, out, &out.Kind, "List"); err != nil {
		return nil, err
	}
	return out, nil
}

// EventReasons lists the reasons of the Events that are left about an object.
func (c *Client) EventReasons(ctx context.Context, namespace, uid string) ([]string, error) {
	list, err := c.events(ctx, namespace, "involvedObject.uid="+uid)
	out := make([]string, 0, len(list))
	for i := range list {
		out = append(out, list[i].Reason)
	}
	return out, err
}

// EventsOf lists the Events that are left about all objects that had a name.
func (c *Client) EventsOf(ctx context.Context, namespace, kind, name string) ([]plan.Event, error) {
	list, err := c.events(ctx, namespace, "involvedObject.kind="+kind+",involvedObject.name="+name)
	out := make([]plan.Event, 0, len(list))
	for i := range list {
		out = append(out, plan.Event{UID: string(list[i].InvolvedObject.UID), Reason: list[i].Reason, At: list[i].CreationTimestamp.Unix()})
	}
	return out, err
}

func (c *Client) events(ctx context.Context, namespace, selector string) ([]corev1.Event, error) {
	raw, err := bytesOf(c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "events").
		Param("fieldSelector", selector).Param("limit", fmt.Sprint(pageSize)).Do(ctx))
	if err != nil {
		return nil, err
	}
	var list corev1.EventList
	if err := readAs(raw, &list, &list.Kind, "List"); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ScaleTarget is what an autoscaler scales.
type ScaleTarget struct{ Group, Kind, Name string }

// ScaleTargets lists what the HorizontalPodAutoscalers of a namespace scale.
func (c *Client) ScaleTargets(ctx context.Context, namespace string) ([]ScaleTarget, error) {
	var out []ScaleTarget
	next := ""
	for {
		raw, err := bytesOf(c.rest.Get().AbsPath("/apis/autoscaling/v2/namespaces", namespace, "horizontalpodautoscalers").
			Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx))
		if err != nil {
			return nil, err
		}
		var page autoscalingv2.HorizontalPodAutoscalerList
		if err := readAs(raw, &page, &page.Kind, "List"); err != nil {
			return nil, err
		}
		for i := range page.Items {
			ref := page.Items[i].Spec.ScaleTargetRef
			group, _, grouped := strings.Cut(ref.APIVersion, "/")
			if !grouped {
				group = ""
			}
			out = append(out, ScaleTarget{group, ref.Kind, ref.Name})
		}
		if next = page.Continue; next == "" {
			return out, nil
		}
	}
}

// pageSize is how many objects a list asks for at once.
const pageSize = 500

// EachMeta calls f with the metadata of every object of a resource that has the labels, in one namespace or in all,
// until f says false.
func (c *Client) EachMeta(ctx context.Context, r Resource, namespace, selector string, f func(*metav1.PartialObjectMetadata) bool) error {
	return c.eachMeta(ctx, r, namespace, map[string]string{"labelSelector": selector}, f)
}

func (c *Client) eachMeta(ctx context.Context, r Resource, namespace string, params map[string]string, f func(*metav1.PartialObjectMetadata) bool) error {
	request := func() *rest.Request {
		q := c.rest.Get().AbsPath(r.segments(namespace, "")...).SetHeader("Accept", acceptMetaList)
		for name, value := range params {
			q = q.Param(name, value)
		}
		return q
	}
	return eachPage(ctx, request, func(raw []byte) (string, bool, error) {
		var page metav1.PartialObjectMetadataList
		if err := readAs(raw, &page, &page.Kind, "List"); err != nil {
			return "", false, err
		}
		return page.Continue, each(page.Items, f), nil
	})
}

// eachPage reads a list page by page. read takes a page, and says what continues it and whether to go on.
func eachPage(ctx context.Context, request func() *rest.Request, read func(raw []byte) (next string, more bool, err error)) error {
	next := ""
	for {
		raw, err := bytesOf(request().Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx))
		if err != nil {
			return err
		}
		var more bool
		if next, more, err = read(raw); err != nil || !more || next == "" {
			return err
		}
	}
}

// each calls f with every item until it says false, which it reports.
func each[T any](items []T, f func(*T) bool) bool {
	for i := range items {
		if !f(&items[i]) {
			return false
		}
	}
	return true
}

// Delete asks for the deletion of exactly this object in this version.
func (c *Client) Delete(ctx context.Context, r Resource, namespace string, live metav1.Object) error {
	uid, resourceVersion, propagation := live.GetUID(), live.GetResourceVersion(), propagationOf(live)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion},
		PropagationPolicy: &propagation,
	})
	if err != nil {
		return err
	}
	return kube.Denied(write(c.rest.Delete()).AbsPath(r.segments(namespace, live.GetName())...).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Body(body).Do(ctx).Error())
}

// propagationOf is what is to become of what an object owns: the garbage collector takes it afterwards, unless a finalizer of the object
// says another thing. To ask for that against such a finalizer would be in vain: while the API server takes it away, it loses the version
// that is asked for, and refuses the deletion as a conflict, each time.
func propagationOf(live metav1.Object) metav1.DeletionPropagation {
	switch finalizers := live.GetFinalizers(); {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

// Release takes our marks from exactly the object with this UID and resource version. What is noted for our field manager stays,
// so that a module can take the object up again. kept is a mark that stands on the object all the same, as admission has it.
func (c *Client) Release(ctx context.Context, r Resource, namespace, name string, uid types.UID, resourceVersion string) (kept string, err error) {
	return c.release(ctx, r, namespace, name, map[string]any{"uid": uid, "resourceVersion": resourceVersion})
}

// Yield is Release for whoever has taken the object over: no field is noted as ours any more, for a field that we hold stays
// when he drops it. An object of which nobody else has anything noted is released.
func (c *Client) Yield(ctx context.Context, r Resource, namespace string, live *metav1.PartialObjectMetadata) (kept string, err error) {
	meta := map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion}
	others := slices.DeleteFunc(slices.Clone(live.ManagedFields), ours)
	if len(others) > 0 {
		meta["managedFields"] = others
	}
	return c.release(ctx, r, namespace, live.Name, meta)
}

func (c *Client) release(ctx context.Context, r Resource, namespace, name string, meta map[string]any) (kept string, err error) {
	meta["labels"], meta["annotations"] = map[string]any{fleet.HubLabel: nil}, map[string]any{fleet.OwnerAnnotation: nil}
	left, err := c.mergeMeta(ctx, r, namespace, name, meta)
	u := unstructured.Unstructured{Object: left}
	switch {
	case err != nil:
		return "", err
	case u.GetLabels()[fleet.HubLabel] != "":
		return "label " + fleet.HubLabel, nil
	case u.GetAnnotations()[fleet.OwnerAnnotation] != "":
		return "annotation " + fleet.OwnerAnnotation, nil
	}
	return "", nil
}

// mergeMeta merges metadata into an object, and returns the object as it is now.
func (c *Client) mergeMeta(ctx context.Context, r Resource, namespace, name string, meta map[string]any) (map[string]any, error) {
	body, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, err
	}
	return decode(write(c.rest.Patch(types.MergePatchType)).AbsPath(r.segments(namespace, name)...).
		Param("fieldManager", fleet.FieldManager).Body(body).Do(ctx), namespace, name)
}

// Again makes another version of exactly the object with this UID and resource version, and leaves it as it was: what was sent for the version
// of before finds that no more.
func (c *Client) Again(ctx context.Context, r Resource, namespace, name string, uid types.UID, resourceVersion string) error {
	for _, meta := range []map[string]any{
		{"uid": uid, "resourceVersion": resourceVersion, "annotations": map[string]any{fleet.AgainAnnotation: resourceVersion}},
		{"uid": uid, "annotations": map[string]any{fleet.AgainAnnotation: nil}},
	} {
		if _, err := c.mergeMeta(ctx, r, namespace, name, meta); err != nil {
			return err
		}
	}
	return nil
}

// Create posts an object; Towline uses it for Events only.
func (c *Client) Create(ctx context.Context, r Resource, namespace string, body []byte) error {
	return write(c.rest.Post()).AbsPath(r.segments(namespace, "")...).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Body(body).Do(ctx).Error()
}

// raw reads a path of the server.
func (c *Client) raw(ctx context.Context, path ...string) ([]byte, error) {
	return bytesOf(c.rest.Get().AbsPath(path...).Do(ctx))
}

// bytesOf is the answer; Error is asked first because only it reads the server's own words from the body.
func bytesOf(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, kube.Denied(err)
	}
	return r.Raw()
}

func decode(r rest.Result, namespace, name string) (map[string]any, error) {
	raw, err := bytesOf(r)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := utiljson.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	metadata, _ := out["metadata"].(map[string]any)
	if metadata["uid"] == nil {
		return nil, errNoObject
	}
	ns, _ := metadata["namespace"].(string)
	as, _ := metadata["name"].(string)
	if err := unlessOf(ns, as, namespace, name); err != nil {
		return nil, err
	}
	return out, nil
}

// unlessOf says that an answer is of another object than the one that was asked for. An API server that does not tell large letters from small
// ones may give an object under another name than it was written by: nothing that is known of either would be of the other.
func unlessOf(namespace, name, askedNamespace, asked string) error {
	if name == asked && (namespace == askedNamespace || namespace == "") {
		return nil
	}
	if !strings.EqualFold(name, asked) {
		return fmt.Errorf("answer of the API server: is of %q: a mutating webhook of the cluster, or what stands before its API server, renames it; %s", namespace+"/"+name, findWebhook)
	}
	return fmt.Errorf("answer of the API server: is of %q, and %q was asked for; its names have to be as they were written", namespace+"/"+name, askedNamespace+"/"+asked)
}

// errNoObject is of an answer that says nothing about any object. What stands between the agent and the API server may
// answer in its own words, as with a page to log in or an error of its own under the status 200: that must pass for no
// object, for no empty list and for no change of one.
var errNoObject = errors.New("answer of the API server: is no object; something else answers in its place")

// readAs decodes an answer whose kind must end as given.
func readAs(raw []byte, out any, kind *string, ends string) error {
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("answer of the API server: %w", err)
	}
	if !strings.HasSuffix(*kind, ends) {
		return fmt.Errorf("answer of the API server: is no %s but %.40q; something else answers in its place", ends, *kind)
	}
	return nil
}

// Host is the server that the client talks to, for messages.
func Host(config *rest.Config) string {
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		return u.Host
	}
	return strings.TrimSuffix(config.Host, "/")
}
