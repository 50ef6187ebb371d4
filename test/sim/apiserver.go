package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Write is a change that an API server has made.
type Write struct {
	Verb     string // create, update or delete
	Resource string
	// Old and New are the object before and after; nil: there was or is none.
	Old, New *unstructured.Unstructured
	// Agent is which process of an agent asked; 0: somebody else.
	Agent int
}

// Name is the object's namespace and name.
func (w Write) Name() string {
	o := w.New
	if o == nil {
		o = w.Old
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// resource is a kind that the API server serves.
type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
}

func served(group, version, name, kind string, namespaced bool) resource {
	return resource{schema.GroupVersionResource{Group: group, Version: version, Resource: name}, kind, namespaced}
}

// resources are what an agent needs for itself, and what modules list.
var resources = []resource{
	served("", "v1", "namespaces", "Namespace", false),
	served("", "v1", "configmaps", "ConfigMap", true),
	served("", "v1", "secrets", "Secret", true),
	served("", "v1", "events", "Event", true),
	served("", "v1", "pods", "Pod", true),
	served("coordination.k8s.io", "v1", "leases", "Lease", true),
	served("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false),
	served("apiregistration.k8s.io", "v1", "apiservices", "APIService", false),
	served("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true),
}

func (r resource) gvk() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.kind) }

// Server is the API server of one cluster, with its storage. It applies as a real one does, by the same field manager.
type Server struct {
	name string
	// OnWrite is told of every change, in order, while nothing else happens in the server.
	OnWrite func(Write)

	mu      sync.Mutex
	rev     uint64
	uids    int
	objects map[string]map[string]*unstructured.Unstructured // by resource and NAMESPACE/NAME
	history []event
	changed chan struct{}
	manager map[schema.GroupVersionKind]*managedfields.FieldManager
}

// event is a change, for watches.
type event struct {
	rev      uint64
	resource string
	kind     string
	old, now *unstructured.Unstructured
}

// NewServer makes a cluster with the namespaces that every cluster has.
func NewServer(name string) *Server {
	s := &Server{name: name, objects: map[string]map[string]*unstructured.Unstructured{}, changed: make(chan struct{}), rev: 100,
		manager: map[schema.GroupVersionKind]*managedfields.FieldManager{}}
	for _, ns := range []string{"kube-system", "default"} {
		s.put(resources[0], nil, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": ns}, "status": map[string]any{"phase": "Active"}}}, 0)
	}
	return s
}

// Get is an object as it is stored; nil: there is none.
func (s *Server) Get(resource, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[resource][namespace+"/"+name]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

// All are the objects of a resource, in order.
func (s *Server) All(resource string) []*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all(resource)
}

func (s *Server) all(resource string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, k := range slices.Sorted(maps.Keys(s.objects[resource])) {
		out = append(out, s.objects[resource][k])
	}
	return out
}

// request is one of an agent, or of somebody else.
type request struct {
	*http.Request
	body  []byte
	agent int
	resource
	namespace, name string
	creates         bool
}

// Serve answers a request; it does not block.
func (s *Server) Serve(r *http.Request, body []byte, agent int) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := request{Request: r, body: body, agent: agent}
	answer, err := s.route(&q)
	var status *apierrors.StatusError
	switch {
	case errors.As(err, &status):
		status.ErrStatus.APIVersion, status.ErrStatus.Kind = "v1", "Status"
		return respond(r, int(status.ErrStatus.Code), status.ErrStatus)
	case err != nil:
		return nil, err
	}
	if stream, ok := answer.(io.ReadCloser); ok {
		return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: stream, ContentLength: -1, Request: r}, nil
	}
	code := http.StatusOK
	if q.creates {
		code = http.StatusCreated
	}
	return respond(r, code, answer)
}

func respond(r *http.Request, code int, answer any) (*http.Response, error) {
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: r}, nil
}

func (s *Server) route(q *request) (any, error) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	switch {
	case q.URL.Path == "/version":
		return map[string]string{"gitVersion": "v1.36.3", "major": "1", "minor": "36"}, nil
	case q.URL.Path == "/readyz", q.URL.Path == "/livez":
		return "ok", nil
	case parts[0] == "apis" && len(parts) <= 3, parts[0] == "api" && len(parts) <= 2:
		return s.discover(parts)
	case parts[0] == "api":
		parts = append([]string{""}, parts[1:]...)
	case parts[0] == "apis":
		parts = parts[1:]
	}
	if err := q.resolve(parts); err != nil {
		return nil, err
	}
	return s.perform(q)
}

// resolve finds out which object a path is of, from its group on.
func (q *request) resolve(parts []string) error {
	missing := apierrors.NewGenericServerResponse(http.StatusNotFound, q.Method, schema.GroupResource{}, "", "the server could not find the requested resource", 0, true)
	if len(parts) < 3 {
		return missing
	}
	group, version, parts := parts[0], parts[1], parts[2:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		q.namespace, parts = parts[1], parts[2:]
	}
	for _, r := range resources {
		if r.Group == group && r.Version == version && r.Resource == parts[0] {
			q.resource = r
			if len(parts) > 1 {
				q.name = parts[1]
			}
			return nil
		}
	}
	return missing
}

func (s *Server) discover(parts []string) (any, error) {
	var groups []metav1.APIGroup
	var list []metav1.APIResource
	for _, r := range resources {
		gv := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion().String(), Version: r.Version}
		if r.Group != "" && !slices.ContainsFunc(groups, func(g metav1.APIGroup) bool { return g.Name == r.Group }) {
			groups = append(groups, metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: r.Group,
				Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv})
		}
		if (parts[0] == "api" && r.Group == "") || (len(parts) == 3 && r.Group == parts[1] && r.Version == parts[2]) {
			list = append(list, metav1.APIResource{Name: r.Resource, Kind: r.kind, Namespaced: r.namespaced,
				Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}})
		}
	}
	switch {
	case parts[0] == "apis" && len(parts) == 1:
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: groups}, nil
	case parts[0] == "apis" && len(parts) == 2:
		for _, g := range groups {
			if g.Name == parts[1] {
				return g, nil
			}
		}
	case len(list) > 0:
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: strings.TrimPrefix(strings.Join(parts[1:], "/"), "/"), APIResources: list}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, strings.Join(parts, "/"))
}

func (s *Server) perform(q *request) (any, error) {
	old := s.objects[q.Resource][q.namespace+"/"+q.name]
	dry := q.URL.Query().Get("dryRun") != ""
	switch q.Method {
	case http.MethodGet:
		if q.name == "" {
			return s.list(q)
		}
		if old == nil {
			return nil, apierrors.NewNotFound(q.GroupResource(), q.name)
		}
		return shown(q, old), nil
	case http.MethodDelete:
		return s.remove(q, old, dry)
	}
	next, err := s.next(q, old)
	if err != nil {
		return nil, err
	}
	q.creates = old == nil
	if dry {
		next = s.prepared(q.resource, old, next).DeepCopy()
		if old != nil {
			next.SetResourceVersion(old.GetResourceVersion())
		}
		return shown(q, next), nil
	}
	return shown(q, s.put(q.resource, old, next, q.agent)), nil
}

// next is what the object is to be.
func (s *Server) next(q *request, old *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if q.namespace != "" && s.objects["namespaces"]["/"+q.namespace] == nil && old == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, q.namespace)
	}
	manager, kind := q.URL.Query().Get("fieldManager"), q.Header.Get("Content-Type")
	switch {
	case q.Method == http.MethodPost:
		given, err := parsed(q.body)
		if err != nil {
			return nil, err
		}
		if s.objects[q.Resource][q.namespace+"/"+given.GetName()] != nil {
			return nil, apierrors.NewAlreadyExists(q.GroupResource(), given.GetName())
		}
		if given.GetName() == "" {
			s.uids++
			given.SetName(given.GetGenerateName() + strconv.Itoa(s.uids))
		}
		return s.updated(q, nil, given, manager)
	case q.Method == http.MethodPatch && kind == string(types.ApplyYAMLPatchType):
		return s.applied(q, old, manager)
	case old == nil:
		return nil, apierrors.NewNotFound(q.GroupResource(), q.name)
	case q.Method == http.MethodPut:
		given, err := parsed(q.body)
		if err != nil {
			return nil, err
		}
		return s.updated(q, old, given, manager)
	case q.Method == http.MethodPatch:
		given, err := patched(old, types.PatchType(kind), q.body)
		if err != nil {
			return nil, err
		}
		return s.updated(q, old, given, manager)
	}
	return nil, apierrors.NewMethodNotSupported(q.GroupResource(), q.Method)
}

func patched(old *unstructured.Unstructured, kind types.PatchType, body []byte) (*unstructured.Unstructured, error) {
	text, err := old.MarshalJSON()
	if err != nil {
		return nil, err
	}
	switch kind {
	case types.MergePatchType:
		text, err = jsonpatch.MergePatch(text, body)
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(body); err == nil {
			text, err = p.Apply(text)
		}
	default:
		return nil, apierrors.NewBadRequest("patch of type " + string(kind))
	}
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, old.GetName(), err.Error(), 0, true)
	}
	return parsed(text)
}

// applied is what a server-side apply makes of an object.
func (s *Server) applied(q *request, old *unstructured.Unstructured, manager string) (*unstructured.Unstructured, error) {
	given, err := parsed(q.body)
	if err != nil {
		return nil, err
	}
	if err := matches(q, old, given); err != nil {
		return nil, err
	}
	given.SetNamespace(q.namespace)
	live := old
	if live == nil {
		live = &unstructured.Unstructured{Object: map[string]any{}}
		live.SetGroupVersionKind(q.gvk())
		live.SetNamespace(q.namespace)
		live.SetName(q.name)
	}
	out, err := s.fields(q.gvk()).Apply(live.DeepCopy(), given, manager, q.URL.Query().Get("force") == "true")
	if err != nil {
		return nil, err
	}
	return out.(*unstructured.Unstructured), nil
}

// updated is what a write of another kind makes of it.
func (s *Server) updated(q *request, old, given *unstructured.Unstructured, manager string) (*unstructured.Unstructured, error) {
	if err := matches(q, old, given); err != nil {
		return nil, err
	}
	given.SetNamespace(q.namespace)
	given.SetGroupVersionKind(q.gvk())
	live := &unstructured.Unstructured{Object: map[string]any{}}
	live.SetGroupVersionKind(q.gvk())
	if old != nil {
		live = old.DeepCopy()
		given.SetUID(old.GetUID())
		given.SetResourceVersion(old.GetResourceVersion())
		given.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	if q.Resource == "leases" || q.Resource == "secrets" { // of which nobody asks who wrote what, and which are written most
		return given, nil
	}
	out, err := s.fields(q.gvk()).Update(live, given, manager)
	if err != nil {
		return nil, err
	}
	return out.(*unstructured.Unstructured), nil
}

// matches checks the UID and the version that a write insists on.
func matches(q *request, old, given *unstructured.Unstructured) error {
	conflict := func(text string) error {
		return apierrors.NewConflict(q.GroupResource(), given.GetName(), errors.New(text))
	}
	uid, version := given.GetUID(), given.GetResourceVersion()
	switch {
	case old == nil && uid != "": // a version that it insists on is not looked at
		return conflict(fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	case old != nil && uid != "" && uid != old.GetUID() && q.Method == http.MethodPatch:
		return apierrors.NewInvalid(q.gvk().GroupKind(), given.GetName(), field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), string(uid), "field is immutable")})
	case old != nil && uid != "" && uid != old.GetUID():
		return conflict(fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old.GetUID()))
	case old != nil && version != "" && version != old.GetResourceVersion():
		return conflict("the object has been modified; please apply your changes to the latest version and try again")
	}
	return nil
}

func (s *Server) fields(gvk schema.GroupVersionKind) *managedfields.FieldManager {
	m := s.manager[gvk]
	if m == nil {
		m = managedfieldstest.NewFakeFieldManager(newTypes(), gvk)
		s.manager[gvk] = m
	}
	return m
}

// prepared has what the server itself says of an object. One that is as it was keeps its version.
func (s *Server) prepared(r resource, old, next *unstructured.Unstructured) *unstructured.Unstructured {
	next = next.DeepCopy()
	if old != nil {
		next.SetUID(old.GetUID())
		next.SetCreationTimestamp(old.GetCreationTimestamp())
		next.SetResourceVersion(old.GetResourceVersion())
		if same(old, next) {
			return old
		}
	} else {
		next.SetUID(types.UID(fmt.Sprintf("%s-%d", s.name, s.uids+1)))
		next.SetCreationTimestamp(metav1.NewTime(time.Now()))
		if r.Resource == "namespaces" {
			next.SetLabels(with(next.GetLabels(), "kubernetes.io/metadata.name", next.GetName()))
		}
	}
	next.SetResourceVersion(strconv.FormatUint(s.rev+1, 10))
	return next
}

func with(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	maps.Copy(out, m)
	return out
}

// same reports that two objects differ at most in when their fields were written.
func same(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(untimed(a), untimed(b))
}

func untimed(u *unstructured.Unstructured) map[string]any {
	if len(u.GetManagedFields()) == 0 {
		return u.Object
	}
	u = u.DeepCopy()
	fields := u.GetManagedFields()
	for i := range fields {
		fields[i].Time = nil
	}
	u.SetManagedFields(fields)
	return u.Object
}

// put stores an object, and tells who watches.
func (s *Server) put(r resource, old, next *unstructured.Unstructured, agent int) *unstructured.Unstructured {
	next = s.prepared(r, old, next)
	if next == old {
		return old
	}
	verb, kind := "update", "MODIFIED"
	if old == nil {
		verb, kind = "create", "ADDED"
		s.uids++
	}
	if s.objects[r.Resource] == nil {
		s.objects[r.Resource] = map[string]*unstructured.Unstructured{}
	}
	s.objects[r.Resource][next.GetNamespace()+"/"+next.GetName()] = next
	s.publish(event{resource: r.Resource, kind: kind, old: old, now: next})
	s.tell(Write{Verb: verb, Resource: r.Resource, Old: old, New: next, Agent: agent})
	return next
}

func (s *Server) tell(w Write) {
	if s.OnWrite != nil {
		s.OnWrite(w)
	}
}

func (s *Server) publish(e event) {
	s.rev++
	e.rev = s.rev
	s.history = append(s.history, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) remove(q *request, old *unstructured.Unstructured, dry bool) (any, error) {
	var o metav1.DeleteOptions
	if len(q.body) > 0 {
		if err := json.Unmarshal(q.body, &o); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if old == nil {
		return nil, apierrors.NewNotFound(q.GroupResource(), q.name)
	}
	if p := o.Preconditions; p != nil {
		given := &unstructured.Unstructured{Object: map[string]any{}}
		given.SetName(q.name)
		if p.UID != nil {
			given.SetUID(*p.UID)
		}
		if p.ResourceVersion != nil {
			given.SetResourceVersion(*p.ResourceVersion)
		}
		if err := matches(q, old, given); err != nil {
			return nil, err
		}
	}
	done := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	if dry {
		return done, nil
	}
	delete(s.objects[q.Resource], q.namespace+"/"+q.name)
	last := old.DeepCopy()
	last.SetResourceVersion(strconv.FormatUint(s.rev+1, 10))
	s.publish(event{resource: q.Resource, kind: "DELETED", old: old, now: last})
	s.tell(Write{Verb: "delete", Resource: q.Resource, Old: old, Agent: q.agent})
	return done, nil
}

// shown is an object as the request asks for it.
func shown(q *request, o *unstructured.Unstructured) any {
	if !strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return o.Object
	}
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o.Object["metadata"]}
}

// chosen are the objects that a list or a watch asks for.
type chosen struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (q *request) chosen() (chosen, error) {
	v := q.URL.Query()
	c := chosen{namespace: q.namespace}
	var err error
	if c.labels, err = labels.Parse(v.Get("labelSelector")); err != nil {
		return c, apierrors.NewBadRequest(err.Error())
	}
	if c.fields, err = fields.ParseSelector(v.Get("fieldSelector")); err != nil {
		return c, apierrors.NewBadRequest(err.Error())
	}
	return c, nil
}

func (c chosen) has(o *unstructured.Unstructured) bool {
	if o == nil || (c.namespace != "" && o.GetNamespace() != c.namespace) || !c.labels.Matches(labels.Set(o.GetLabels())) {
		return false
	}
	involved := func(field string) string {
		text, _, _ := unstructured.NestedString(o.Object, "involvedObject", field)
		return text
	}
	return c.fields.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(),
		"involvedObject.uid": involved("uid"), "involvedObject.kind": involved("kind"), "involvedObject.name": involved("name")})
}

func (s *Server) list(q *request) (any, error) {
	c, err := q.chosen()
	if err != nil {
		return nil, err
	}
	if w := q.URL.Query().Get("watch"); w == "1" || w == "true" {
		return s.watch(q, c)
	}
	items := []any{}
	for _, o := range s.all(q.Resource) {
		if c.has(o) {
			items = append(items, shown(q, o))
		}
	}
	kind, version := q.kind+"List", q.GroupVersion().String()
	if strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": strconv.FormatUint(s.rev, 10)}, "items": items}, nil
}
