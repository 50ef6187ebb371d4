package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	jsonpatch "github.com/evanphx/json-patch/v5"
)

// aggregate is an API server of a group of its own, which the cluster's asks as it is told by an APIService. It keeps what is put to it, and a test
// may have it answer as no API server should.
type aggregate struct {
	r     *rig
	group string
	kinds map[string]string // by resource
	web   *httptest.Server

	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by resource/namespace/name
	news    chan struct{}             // closed with each change
	log     []event
	open    int // watches
	// shows changes each object before it is answered; nil: it is as it is.
	shows func(map[string]any)
	// lists changes what a list holds.
	lists func(resource string, items []any) []any
	// instead answers a request in place of the server; it reports whether it did.
	instead func(w http.ResponseWriter, q *http.Request) bool
}

type event struct {
	kind     string
	resource string
	version  int
	object   map[string]any
}

// aggregated starts such a server, with a namespaced kind for each of the names.
func (r *rig) aggregated(kinds ...string) *aggregate {
	r.t.Helper()
	a := &aggregate{r: r, group: "agg." + r.ns + ".example.com", kinds: map[string]string{}, objects: map[string]map[string]any{}, news: make(chan struct{}), version: 100}
	for _, k := range kinds {
		a.kinds[strings.ToLower(k)+"s"] = k
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	server.EnableHTTP2 = true
	server.StartTLS()
	a.web = server
	r.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	r.create("v1", "services", r.ns, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "agg"},
		"spec": map[string]any{"type": "ExternalName", "externalName": "localhost"}})
	r.clusterScoped("apiservices", `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.`+a.group+`}
spec: {group: `+a.group+`, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, insecureSkipTLSVerify: true, service: {name: agg, namespace: $NS, port: `+port+`}}
`)
	r.eventually("the API is available", func() bool {
		_, err := r.res(a.gv(), strings.ToLower(kinds[0])+"s", r.ns).List(context.Background(), metav1.ListOptions{})
		return err == nil
	})
	return a
}

func (a *aggregate) gv() string { return a.group + "/v1" }

func (a *aggregate) manifest(kind, name, spec string) string {
	return "apiVersion: " + a.gv() + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {" + spec + "}\n"
}

// with changes how the server answers.
func (a *aggregate) with(f func(*aggregate)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// away has the server answer nothing but that it is not there.
func (a *aggregate) away() {
	a.with(func(a *aggregate) {
		a.instead = func(w http.ResponseWriter, _ *http.Request) bool {
			fails(w, http.StatusServiceUnavailable, "ServiceUnavailable", "is away")
			return true
		}
	})
	a.web.CloseClientConnections()
}

// back has it begin anew with what it keeps, whose versions it counts from the start.
func (a *aggregate) back() {
	a.with(func(a *aggregate) {
		a.log, a.version, a.instead = nil, 10, nil
		for at, obj := range a.objects {
			a.version++
			u := (&unstructured.Unstructured{Object: obj}).DeepCopy()
			u.SetResourceVersion(fmt.Sprint(a.version))
			a.objects[at] = u.Object
		}
	})
	a.web.CloseClientConnections()
}

// watched waits until somebody watches what it keeps.
func (a *aggregate) watched() {
	a.r.t.Helper()
	a.r.eventually("a watch is open", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.open > 0
	})
}

// names are those of the objects that are kept.
func (a *aggregate) names() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := range a.objects {
		out = append(out, at)
	}
	slices.Sort(out)
	return out
}

func (a *aggregate) serve(w http.ResponseWriter, q *http.Request) {
	a.mu.Lock()
	instead := a.instead
	a.mu.Unlock()
	if instead != nil && instead(w, q) {
		return
	}
	path := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	switch {
	case len(path) < 2 || path[0] != "apis" || path[1] != a.group:
		http.NotFound(w, q)
	case len(path) == 2:
		say(w, 200, map[string]any{"kind": "APIGroup", "apiVersion": "v1", "name": a.group, "versions": []any{map[string]any{"groupVersion": a.gv(), "version": "v1"}}})
	case len(path) == 3:
		var list []any
		for res, kind := range a.kinds {
			list = append(list, map[string]any{"name": res, "singularName": strings.ToLower(kind), "namespaced": true, "kind": kind,
				"verbs": []any{"get", "list", "watch", "create", "update", "patch", "delete"}})
		}
		say(w, 200, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": a.gv(), "resources": list})
	default:
		namespace := ""
		path = path[3:]
		if path[0] == "namespaces" && len(path) > 2 {
			namespace, path = path[1], path[2:]
		}
		name := ""
		if len(path) > 1 {
			name = path[1]
		}
		a.object(w, q, path[0], namespace, name)
	}
}

func (a *aggregate) object(w http.ResponseWriter, q *http.Request, resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind, at := a.kinds[resource], resource+"/"+namespace+"/"+name
	old := a.objects[at]
	switch {
	case kind == "":
		fails(w, 404, "NotFound", "no such resource")
	case name == "" && q.URL.Query().Get("watch") != "":
		a.watch(w, q, resource, namespace)
	case name == "" && q.Method == http.MethodPost:
		var obj map[string]any
		_ = json.NewDecoder(q.Body).Decode(&obj)
		name, _, _ = unstructured.NestedString(obj, "metadata", "name")
		a.put(w, q, resource, kind, namespace, name, obj)
	case name == "":
		a.list(w, q, resource, kind, namespace)
	case q.Method == http.MethodPatch && strings.Contains(q.Header.Get("Content-Type"), "apply"):
		a.apply(w, q, resource, kind, namespace, name)
	case old == nil:
		say(w, 404, status(404, "NotFound", resource+" "+name+" not found", map[string]any{"name": name, "group": a.group, "kind": resource}))
	case q.Method == http.MethodGet:
		a.answer(w, q, old)
	case q.Method == http.MethodPatch:
		a.patch(w, q, resource, kind, namespace, name, old)
	case q.Method == http.MethodDelete:
		var o metav1.DeleteOptions
		_ = json.NewDecoder(q.Body).Decode(&o)
		u := unstructured.Unstructured{Object: old}
		if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != u.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != u.GetResourceVersion()) {
			fails(w, 409, "Conflict", "precondition")
			return
		}
		delete(a.objects, at)
		a.version++
		a.told("DELETED", resource, old)
		say(w, 200, status(200, "", "", nil))
	default:
		fails(w, 405, "MethodNotAllowed", q.Method)
	}
}

func (a *aggregate) told(kind, resource string, obj map[string]any) {
	gone := (&unstructured.Unstructured{Object: obj}).DeepCopy()
	if kind == "DELETED" {
		gone.SetResourceVersion(fmt.Sprint(a.version))
	}
	a.log = append(a.log, event{kind, resource, a.version, gone.Object})
	close(a.news)
	a.news = make(chan struct{})
}

func (a *aggregate) put(w http.ResponseWriter, q *http.Request, resource, kind, namespace, name string, obj map[string]any) {
	at := resource + "/" + namespace + "/" + name
	if q.URL.Query().Get("dryRun") != "" {
		a.answer(w, q, obj)
		return
	}
	u := &unstructured.Unstructured{Object: obj}
	a.version++
	verb := "MODIFIED"
	if old := a.objects[at]; old == nil {
		verb = "ADDED"
		_ = unstructured.SetNestedField(obj, fmt.Sprintf("uid-%s-%d", a.r.ns, a.version), "metadata", "uid")
		_ = unstructured.SetNestedField(obj, time.Now().UTC().Format(time.RFC3339), "metadata", "creationTimestamp")
		_ = unstructured.SetNestedField(obj, int64(1), "metadata", "generation")
	} else {
		o := unstructured.Unstructured{Object: old}
		u.SetUID(o.GetUID())
		u.SetCreationTimestamp(o.GetCreationTimestamp())
		u.SetGeneration(o.GetGeneration() + 1)
	}
	u.SetResourceVersion(fmt.Sprint(a.version))
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetKind(kind)
	u.SetAPIVersion(a.gv())
	a.objects[at] = obj
	a.told(verb, resource, obj)
	a.answer(w, q, obj)
}

// apply is as much of a server-side apply as the agent needs: what its own manager listed before and does not list any more goes from the top
// levels, and nobody conflicts.
func (a *aggregate) apply(w http.ResponseWriter, q *http.Request, resource, kind, namespace, name string) {
	var obj map[string]any
	raw := make([]byte, 0)
	buf := make([]byte, 4096)
	for {
		n, err := q.Body.Read(buf)
		raw = append(raw, buf[:n]...)
		if err != nil {
			break
		}
	}
	if err := yaml.Unmarshal(raw, &obj); err != nil {
		fails(w, 400, "BadRequest", err.Error())
		return
	}
	u := unstructured.Unstructured{Object: obj}
	old := a.objects[resource+"/"+namespace+"/"+name]
	if old != nil {
		o := unstructured.Unstructured{Object: old}
		if v := u.GetResourceVersion(); v != "" && v != o.GetResourceVersion() || u.GetUID() != "" && u.GetUID() != o.GetUID() {
			fails(w, 409, "Conflict", "the object has been modified")
			return
		}
	} else if u.GetUID() != "" {
		fails(w, 409, "Conflict", "uid mismatch: the provided object specified uid, and no existing object was found")
		return
	}
	fields := fieldSetOf(map[string]any{"metadata": map[string]any{"labels": obj["metadata"].(map[string]any)["labels"], "annotations": obj["metadata"].(map[string]any)["annotations"]}, "spec": obj["spec"]})
	next := map[string]any{}
	if old != nil {
		next = (&unstructured.Unstructured{Object: old}).DeepCopy().Object
	}
	mergeInto(next, obj)
	manager := q.URL.Query().Get("fieldManager")
	list, _, _ := unstructured.NestedSlice(next, "metadata", "managedFields")
	list = slices.DeleteFunc(list, func(x any) bool { return x.(map[string]any)["manager"] == manager })
	list = append(list, map[string]any{"manager": manager, "operation": "Apply", "apiVersion": a.gv(), "time": time.Now().UTC().Format(time.RFC3339),
		"fieldsType": "FieldsV1", "fieldsV1": fields})
	_ = unstructured.SetNestedSlice(next, list, "metadata", "managedFields")
	a.put(w, q, resource, kind, namespace, name, next)
}

func mergeInto(dst, src map[string]any) {
	for k, v := range src {
		if m, ok := v.(map[string]any); ok {
			into, _ := dst[k].(map[string]any)
			if into == nil {
				into = map[string]any{}
			}
			mergeInto(into, m)
			dst[k] = into
			continue
		}
		dst[k] = v
	}
}

func fieldSetOf(v map[string]any) map[string]any {
	out := map[string]any{}
	for k, x := range v {
		switch x := x.(type) {
		case map[string]any:
			out["f:"+k] = fieldSetOf(x)
		case nil:
		default:
			out["f:"+k] = map[string]any{}
		}
	}
	return out
}

func (a *aggregate) patch(w http.ResponseWriter, q *http.Request, resource, kind, namespace, name string, old map[string]any) {
	before, _ := json.Marshal(old)
	body := make([]byte, 1<<20)
	n := 0
	for {
		m, err := q.Body.Read(body[n:])
		n += m
		if err != nil {
			break
		}
	}
	var after []byte
	var err error
	if strings.Contains(q.Header.Get("Content-Type"), "json-patch") {
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(body[:n]); err == nil {
			after, err = p.Apply(before)
		}
	} else {
		after, err = jsonpatch.MergePatch(before, body[:n])
	}
	var next map[string]any
	if err == nil {
		err = json.Unmarshal(after, &next)
	}
	if err != nil {
		fails(w, 422, "Invalid", err.Error())
		return
	}
	u, o := unstructured.Unstructured{Object: next}, unstructured.Unstructured{Object: old}
	if u.GetUID() != o.GetUID() || u.GetResourceVersion() != o.GetResourceVersion() {
		fails(w, 409, "Conflict", "the object has been modified")
		return
	}
	a.put(w, q, resource, kind, namespace, name, next)
}

func (a *aggregate) shown(obj map[string]any, meta bool) map[string]any {
	out := (&unstructured.Unstructured{Object: obj}).DeepCopy().Object
	if a.shows != nil {
		a.shows(out)
	}
	if meta {
		return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": out["metadata"]}
	}
	return out
}

func (a *aggregate) answer(w http.ResponseWriter, q *http.Request, obj map[string]any) {
	say(w, 200, a.shown(obj, strings.Contains(q.Header.Get("Accept"), "PartialObjectMetadata")))
}

func (a *aggregate) matches(q *http.Request, resource, namespace, at string, obj map[string]any) bool {
	if !strings.HasPrefix(at, resource+"/") || namespace != "" && !strings.HasPrefix(at, resource+"/"+namespace+"/") {
		return false
	}
	u := unstructured.Unstructured{Object: obj}
	if s := q.URL.Query().Get("labelSelector"); s != "" {
		k, v, exact := strings.Cut(s, "=")
		is, ok := u.GetLabels()[k]
		if !ok || exact && is != v {
			return false
		}
	}
	if s := q.URL.Query().Get("fieldSelector"); s != "" {
		return s == "metadata.name="+u.GetName()
	}
	return true
}

func (a *aggregate) list(w http.ResponseWriter, q *http.Request, resource, kind, namespace string) {
	meta := strings.Contains(q.Header.Get("Accept"), "PartialObjectMetadataList")
	items := []any{}
	keys := make([]string, 0, len(a.objects))
	for at := range a.objects {
		keys = append(keys, at)
	}
	slices.Sort(keys)
	for _, at := range keys {
		if a.matches(q, resource, namespace, at, a.objects[at]) {
			items = append(items, a.shown(a.objects[at], meta))
		}
	}
	if a.lists != nil {
		items = a.lists(resource, items)
	}
	out := map[string]any{"kind": kind + "List", "apiVersion": a.gv(), "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": items}
	if meta {
		out["kind"], out["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	say(w, 200, out)
}

// watch streams what happens; it holds no lock while it waits.
func (a *aggregate) watch(w http.ResponseWriter, q *http.Request, resource, namespace string) {
	from := 0
	_, _ = fmt.Sscan(q.URL.Query().Get("resourceVersion"), &from)
	if q.URL.Query().Get("sendInitialEvents") == "true" {
		fails(w, 422, "Invalid", "sendInitialEvents: Forbidden: is not served")
		return
	}
	flusher := w.(http.Flusher)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	flusher.Flush()
	a.open++
	defer func() { a.open-- }()
	done := 0
	for {
		news := a.news
		for ; done < len(a.log); done++ {
			e := a.log[done]
			at := resource + "/" + (&unstructured.Unstructured{Object: e.object}).GetNamespace() + "/"
			if e.version <= from || e.resource != resource || !a.matches(q, resource, namespace, at, e.object) {
				continue
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": a.shown(e.object, false)})
			flusher.Flush()
		}
		a.mu.Unlock()
		select {
		case <-news:
		case <-q.Context().Done():
			a.mu.Lock()
			return
		}
		a.mu.Lock()
	}
}

func say(w http.ResponseWriter, code int, x any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(x)
}

func status(code int, reason, message string, details map[string]any) map[string]any {
	out := map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success", "code": code}
	if code >= 400 {
		out["status"], out["reason"], out["message"] = "Failure", reason, message
	}
	if details != nil {
		out["details"] = details
	}
	return out
}

func fails(w http.ResponseWriter, code int, reason, message string) {
	say(w, code, status(code, reason, message, nil))
}
